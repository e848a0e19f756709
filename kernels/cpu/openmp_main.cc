// For openmp_test: prints how it was started, and its arguments.
#include <omp.h>
#include <unistd.h>

#include <cstdio>

#include "kernels/cpu/openmp.h"

int main(int argc, char** argv) {
  starling::SleepWhenIdle(argv);
  char name[64] = {};
  if (FILE* comm = std::fopen("/proc/self/comm", "r"); comm != nullptr) {
    static_cast<void>(std::fscanf(comm, "%63s", name) + std::fclose(comm));
  }
  std::printf("%s, pid %d, threads %d, arguments", name, static_cast<int>(getpid()),
              omp_get_max_threads());
  for (int i = 1; i < argc; ++i) std::printf(" <%s>", argv[i]);
  std::printf("\n");
  return 0;
}
