#include "worker/worker_main.h"

int main(int argc, char** argv) { return starling::WorkerMain(argc, argv); }
