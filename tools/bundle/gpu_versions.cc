#include <dlfcn.h>

#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tools/bundle/check_parts.h"

namespace starling::bundle {
namespace {

// The library's function, or nullptr if the loader does not find the library.
template <typename Function>
Function* Find(const char* library, const char* name) {
  void* const handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  return handle == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle, name));
}

// "580.95.05"; empty: the kernel shows no driver.
std::string DriverRelease() {
  std::ifstream file("/proc/driver/nvidia/version");
  // NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build ...
  std::string word;
  std::getline(file, word);
  std::istringstream words(word);
  while (words >> word) {
    if (word.find_first_not_of("0123456789.") == std::string::npos &&
        word.find('.') != std::string::npos) {
      return word;
    }
  }
  return "";
}

}  // namespace

GpuVersions LookAtVersions() {
  GpuVersions versions = {.driver = DriverRelease()};
  int cuda = 0;
  if (auto* const get = Find<int(int*)>("libcuda.so.1", "cuDriverGetVersion");
      get != nullptr && get(&cuda) == 0) {
    absl::StrAppend(&versions.driver, versions.driver.empty() ? "" : ", ", "CUDA ", cuda / 1000,
                    ".", cuda % 1000 / 10);
  }
  if (auto* const get = Find<size_t()>("libcudnn.so.9", "cudnnGetVersion")) {
    const size_t version = get();  // 91900
    versions.cudnn =
        absl::StrCat(version / 10'000, ".", version % 10'000 / 100, ".", version % 100);
  }
  if (auto* const get = Find<size_t()>("libcublasLt.so.13", "cublasLtGetVersion")) {
    const size_t version = get();  // 130100
    versions.cublas =
        absl::StrCat(version / 10'000, ".", version % 10'000 / 100, ".", version % 100);
  }
  return versions;
}

}  // namespace starling::bundle
