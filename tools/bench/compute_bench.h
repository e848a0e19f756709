// Starling's side of tools/bench.sh compute as a function; compute_bench.cc says what it answers.
#ifndef STARLING_TOOLS_BENCH_COMPUTE_BENCH_H_
#define STARLING_TOOLS_BENCH_COMPUTE_BENCH_H_

namespace starling {

// The whole program, with its exit status; first thing in main().
int ComputeBenchMain(int argc, char** argv);

}  // namespace starling

#endif  // STARLING_TOOLS_BENCH_COMPUTE_BENCH_H_
