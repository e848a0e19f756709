#include "worker/host/devices.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/library.h"

namespace starling {
namespace {

constexpr size_t kMiB = 1 << 20;
// The memory that a process may need just to use a GPU: its context, kernels and library
// workspaces.
constexpr size_t kContextBytes = size_t{1} << 30;

}  // namespace

bool IsLost(Device& device) { return absl::IsUnavailable(device.Memory().status()); }

std::string SharedMemoryNotice(Device& device) {
  if (device.host_reaches_memory()) return "";
  const absl::StatusOr<MemoryBytes> memory = device.Memory();
  if (!memory.ok() || memory->total - memory->available <= kContextBytes) return "";
  return absl::StrCat(
      (memory->total - memory->available) / kMiB, " MiB of the ", memory->total / kMiB, " MiB of ",
      device.name(),
      " are in use, probably by other processes: the job is planned with the free memory");
}

WorkerDevices::WorkerDevices(std::unique_ptr<Device> cpu, std::unique_ptr<Device> gpu,
                             std::string why_no_gpu)
    : cpu_(std::move(cpu)), gpu_(std::move(gpu)), why_no_gpu_(std::move(why_no_gpu)) {}

absl::StatusOr<WorkerDevices> WorkerDevices::Open(const DeviceOptions& options) {
  if (options.device != "auto" && options.device != "cpu" && options.device != "gpu") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device: expected auto, cpu or gpu, got \"", options.device, "\""));
  }
  STARLING_ASSIGN_OR_RETURN(std::unique_ptr<Device> cpu, CreateCpuDevice());
  if (options.device == "cpu") {
    return WorkerDevices(std::move(cpu), nullptr, "it was started with --device cpu");
  }
  absl::StatusOr<std::unique_ptr<Device>> gpu = OpenCudaDevice(options.cuda_library);
  if (gpu.ok()) return WorkerDevices(std::move(cpu), *std::move(gpu), "");
  if (options.device == "auto") {
    return WorkerDevices(std::move(cpu), nullptr, std::string(gpu.status().message()));
  }
  return absl::Status(gpu.status().code(),
                      absl::StrCat("--device gpu: ", gpu.status().message(),
                                   "; or start it with --device auto, to fall back to the CPU"));
}

absl::StatusOr<Device*> WorkerDevices::For(DeviceKind kind) const {
  if (kind == DEVICE_CPU) return cpu_.get();
  if (gpu_ != nullptr) return gpu_.get();
  if (kind != DEVICE_GPU) return cpu_.get();
  return absl::FailedPreconditionError(
      absl::StrCat("the job wants a GPU, but this worker has none: ", why_no_gpu_));
}

std::string WorkerDevices::Name() const {
  const Device& device = gpu_ != nullptr ? *gpu_ : *cpu_;
  return absl::StrCat(device.name(), " (", device.instruction_set(), ")");
}

std::string WorkerDevices::Description() const {
  return has_gpu() ? Name() : absl::StrCat(Name(), ", because ", why_no_gpu_);
}

}  // namespace starling
