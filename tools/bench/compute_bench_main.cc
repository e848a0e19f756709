#include "tools/bench/compute_bench.h"

int main(int argc, char** argv) { return starling::ComputeBenchMain(argc, argv); }
