// How OpenMP's threads wait between a kernel's parallel loops.
#ifndef STARLING_KERNELS_CPU_OPENMP_H_
#define STARLING_KERNELS_CPU_OPENMP_H_

namespace starling {

// Makes idle OpenMP threads sleep instead of spinning for milliseconds on CPUs that other lanes, or
// shards on the same machine, could use. Call first in main(): libgomp reads OMP_WAIT_POLICY when
// it is loaded and offers no call, so unless the variable is set, this sets it and re-executes the
// program in the same process (same pid, arguments and open files). If that fails, only the waiting
// differs.
void SleepWhenIdle(char** argv);

}  // namespace starling

#endif  // STARLING_KERNELS_CPU_OPENMP_H_
