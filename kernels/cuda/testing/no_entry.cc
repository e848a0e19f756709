// A shared object, but not ours.
extern "C" int somebody_elses() { return 0; }
