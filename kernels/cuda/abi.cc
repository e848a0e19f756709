#include "kernels/cuda/abi.h"

#include <algorithm>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/interface_digest.h"

namespace starling {

std::string DeviceAbi() {
  return absl::StrCat("interface ", kInterfaceDigest, ", Abseil ", ABSL_LTS_RELEASE_VERSION,
                      ", C++ ABI ", __GXX_ABI_VERSION, ", sizes ", sizeof(OperatorSpec), " ",
                      sizeof(ForwardArgs), " ", sizeof(BackwardArgs), " ", sizeof(OperatorKernel));
}

int ReturnStatus(const absl::Status& status, char* error, size_t error_bytes) {
  if (error_bytes > 0) {
    const absl::string_view text = status.message();
    const size_t length = std::min(text.size(), error_bytes - 1);
    std::copy_n(text.data(), length, error);
    error[length] = '\0';
  }
  return static_cast<int>(status.code());
}

}  // namespace starling
