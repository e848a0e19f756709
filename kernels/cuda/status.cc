#include "kernels/cuda/status.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace starling::cuda {

bool DeviceIsLost(cudaError_t error) {
  switch (error) {
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoDevice:
    case cudaErrorDeviceUninitialized:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorSystemNotReady:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

absl::Status CudaStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  static_cast<void>(cudaGetLastError());  // so that the next call reports only its own error
  const absl::string_view whole = call;
  const absl::string_view name = whole.substr(0, whole.find('('));
  const std::string text =
      absl::StrCat(name, ": ", cudaGetErrorName(error), " (", cudaGetErrorString(error), ")");
  if (DeviceIsLost(error)) {
    return absl::UnavailableError(absl::StrCat("the GPU is lost to this process: ", text,
                                               "; look at the system's log (Xid), and start "
                                               "the process again"));
  }
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}

}  // namespace starling::cuda
