// Starling's side of tools/bench.sh compute as a function; compute_bench.cc describes its answers.
#ifndef STARLING_TOOLS_BENCH_COMPUTE_BENCH_H_
#define STARLING_TOOLS_BENCH_COMPUTE_BENCH_H_

namespace starling {

// The whole program; returns its exit status. Call it first thing in main().
int ComputeBenchMain(int argc, char** argv);

}  // namespace starling

#endif  // STARLING_TOOLS_BENCH_COMPUTE_BENCH_H_
