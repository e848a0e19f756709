// CPU time of this process, for the limits that benches run in processes of their own.
#ifndef STARLING_TOOLS_BENCH_CPU_SECONDS_H_
#define STARLING_TOOLS_BENCH_CPU_SECONDS_H_

#include <ctime>

namespace starling {

// User and system time of all its threads so far, in seconds. Thread-safe.
inline double CpuSeconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

}  // namespace starling

#endif  // STARLING_TOOLS_BENCH_CPU_SECONDS_H_
