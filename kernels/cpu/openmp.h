// How OpenMP's threads wait between a kernel's parallel loops.
#ifndef STARLING_KERNELS_CPU_OPENMP_H_
#define STARLING_KERNELS_CPU_OPENMP_H_

namespace starling {

// Makes OpenMP's idle threads sleep, where they would spin for milliseconds on processors that
// other lanes, and shards on the same machine, could use. First thing in main(): libgomp reads
// OMP_WAIT_POLICY when it is loaded and offers no call, so unless the variable is set, this sets it
// and runs the program anew in the same process (same id, arguments and open files). Where that
// fails, nothing changes but the waiting.
void SleepWhenIdle(char** argv);

}  // namespace starling

#endif  // STARLING_KERNELS_CPU_OPENMP_H_
