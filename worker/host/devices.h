// What a worker can compute on: its CPU, and a GPU where it has one. Each job says which it wants.
#ifndef STARLING_WORKER_HOST_DEVICES_H_
#define STARLING_WORKER_HOST_DEVICES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "proto/job.pb.h"

namespace starling {

struct DeviceOptions {
  // "auto": a GPU is used where there is one. "gpu": without one the worker does not start.
  // "cpu": none is looked for.
  std::string device = "auto";
  std::string cuda_library;  // see kernels/cuda/library.h
};

// Whether the device is gone for good, as it says itself. Thread-safe.
bool IsLost(Device& device);

// Says that somebody else uses a GPU, and how much of its memory is taken; empty: nobody does, it
// is not known, or the host's memory is meant. To be asked while this process holds none for a job.
std::string SharedMemoryNotice(Device& device);

// Constant once made; thread-safe.
class WorkerDevices {
 public:
  // A worker of these two; `gpu` may be null, and `why_no_gpu` then says why.
  WorkerDevices(std::unique_ptr<Device> cpu, std::unique_ptr<Device> gpu, std::string why_no_gpu);

  // kInvalidArgument: no such device. Else as CreateCpuDevice and, where a GPU must be there,
  // OpenCudaDevice.
  static absl::StatusOr<WorkerDevices> Open(const DeviceOptions& options);

  // For a job that wants `kind`. kFailedPrecondition: it wants a GPU, and there is none.
  absl::StatusOr<Device*> For(DeviceKind kind) const;

  Device& cpu() const { return *cpu_; }
  bool has_gpu() const { return gpu_ != nullptr; }
  const std::string& why_no_gpu() const { return why_no_gpu_; }

  // For people. "NVIDIA H100 80GB HBM3 (sm_90)", "cpu (avx512_core)"
  std::string Name() const;
  // The same, and on the CPU why: "cpu (avx512_core), because ...".
  std::string Description() const;

 private:
  std::unique_ptr<Device> cpu_;
  std::unique_ptr<Device> gpu_;
  std::string why_no_gpu_;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_DEVICES_H_
