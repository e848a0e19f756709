#include "tools/bench/local_trainer.h"

int main(int argc, char** argv) { return starling::LocalTrainerMain(argc, argv); }
