#include "kernels/cpu/openmp.h"

#include <limits.h>
#include <unistd.h>

#include <cstdlib>

namespace starling {

void SleepWhenIdle(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0) != 0) return;
  // Uses the program's real path: under the link's name, the process would be called "exe".
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length <= 0) return;
  path[length] = 0;
  execv(path, argv);
}

}  // namespace starling
