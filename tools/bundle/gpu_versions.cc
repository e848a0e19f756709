#include <dlfcn.h>

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/daemon/node.h"
#include "tools/bundle/check_parts.h"

namespace starling::bundle {
namespace {

// The library's function, or nullptr if the loader does not find the library.
template <typename Function>
Function* Find(const char* library, const char* name) {
  void* const handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  return handle == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle, name));
}

}  // namespace

GpuVersions LookAtVersions() {
  GpuVersions versions = {.driver = NvidiaDriverOf(ReadFile("/proc/driver/nvidia/version"))};
  int cuda = 0;
  if (auto* const get = Find<int(int*)>("libcuda.so.1", "cuDriverGetVersion");
      get != nullptr && get(&cuda) == 0) {
    absl::StrAppend(&versions.driver, versions.driver.empty() ? "" : ", ", "CUDA ",
                    CudaVersionText(cuda));
  }
  if (auto* const get = Find<size_t()>("libcudnn.so.9", "cudnnGetVersion")) {
    versions.cudnn = CudnnVersionText(get());
  }
  if (auto* const get = Find<size_t()>("libcublasLt.so.13", "cublasLtGetVersion")) {
    versions.cublas = CudnnVersionText(get());  // 130100: encoded alike
  }
  return versions;
}

}  // namespace starling::bundle
