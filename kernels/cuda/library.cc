#include "kernels/cuda/library.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/sync/mutex.h"
#include "kernels/cuda/abi.h"

namespace starling {
namespace {

constexpr size_t kErrorBytes = 2048;

// "/usr/bin"; empty if the system does not say.
std::string ProgramFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

// What to pass to dlopen.
std::string Place(const std::string& path) {
  if (!path.empty()) return path;
  std::error_code error;
  const std::filesystem::path beside = std::filesystem::path(ProgramFolder()) / kCudaLibraryName;
  return std::filesystem::exists(beside, error) ? beside.string() : kCudaLibraryName;
}

absl::Status NotFound(const std::string& path) {
  return absl::NotFoundError(absl::StrCat(
      "there is no ",
      path.empty() ? absl::StrCat(kCudaLibraryName, " in ", ProgramFolder(),
                                  " nor where the system's loader looks")
                   : path,
      ": a build on a machine with CUDA toolkit 13 and cuDNN 9 makes one beside starling-worker"));
}

absl::StatusOr<void*> Load(const std::string& given) {
  std::error_code error;
  // The loader searches its own directories for a name without a folder.
  const std::string path = given.empty() ? "" : std::filesystem::absolute(given, error).string();
  const std::string place = Place(path);
  if (!path.empty() && !std::filesystem::exists(path, error)) return NotFound(given);
  if (void* const library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const char* const said = dlerror();
  const std::string why = said == nullptr ? "the loader says no more" : said;
  // "NAME: cannot open shared object file": without a folder, the missing file is the one searched
  // for.
  if (place == kCudaLibraryName && absl::StartsWith(why, absl::StrCat(kCudaLibraryName, ":"))) {
    return NotFound(path);
  }
  return absl::FailedPreconditionError(absl::StrCat(
      place, " cannot be loaded: ", why,
      "; it needs the libraries of CUDA 13 and cuDNN 9: install them, or put their folder into "
      "LD_LIBRARY_PATH"));
}

template <typename Function>
absl::StatusOr<Function*> Find(void* library, const std::string& path, const char* symbol) {
  if (void* const address = dlsym(library, symbol)) return reinterpret_cast<Function*>(address);
  return absl::FailedPreconditionError(absl::StrCat(
      Place(path), " has no ", symbol, ": expected the ", kCudaLibraryName, " of this version"));
}

absl::StatusOr<std::unique_ptr<Device>> Open(const std::string& path) {
  const absl::StatusOr<void*> library = Load(path);
  if (!library.ok()) return library.status();
  const auto abi = Find<CudaAbiFunction>(*library, path, kCudaAbiSymbol);
  if (!abi.ok()) return abi.status();
  if (const std::string theirs = (*abi)(); theirs != DeviceAbi()) {
    return absl::FailedPreconditionError(
        absl::StrCat(Place(path), " belongs to another build (", theirs, "; this program's is ",
                     DeviceAbi(), "): install the one that was built with this program"));
  }
  const auto open = Find<CudaOpenFunction>(*library, path, kCudaOpenSymbol);
  if (!open.ok()) return open.status();
  Device* device = nullptr;
  std::array<char, kErrorBytes> error = {};
  const int code = (*open)(&device, error.data(), error.size());
  if (code != 0) {
    return absl::Status(static_cast<absl::StatusCode>(code), error.data());
  }
  if (device == nullptr) {
    return absl::InternalError(absl::StrCat(Place(path), " gives no device and no reason"));
  }
  return absl::WrapUnique(device);
}

// State shared with a thread that may never end.
struct Opening {
  Mutex mutex;
  CondVar ended;
  std::optional<absl::StatusOr<std::unique_ptr<Device>>> device ABSL_GUARDED_BY(mutex);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const std::string& path,
                                                       absl::Duration patience) {
  const absl::Time deadline = MonotonicNow() + patience;
  const auto opening = std::make_shared<Opening>();
  std::thread thread([opening, path] {
    absl::StatusOr<std::unique_ptr<Device>> device = Open(path);
    MutexLock lock(&opening->mutex);
    opening->device = std::move(device);
    opening->ended.SignalAll();
  });
  {
    MutexLock lock(&opening->mutex);
    while (!opening->device.has_value() &&
           !opening->ended.WaitWithDeadline(&opening->mutex, deadline)) {
    }
    if (!opening->device.has_value()) {
      thread.detach();
      return absl::DeadlineExceededError(absl::StrCat(
          Place(path), " has not opened a GPU in ", absl::FormatDuration(patience),
          ": the NVIDIA driver hangs; look at nvidia-smi and the system's log (Xid), and start the "
          "machine again"));
    }
  }
  thread.join();
  MutexLock lock(&opening->mutex);
  return *std::move(opening->device);
}

}  // namespace starling
