// The devices of a worker: its CPU, and a GPU if it has one. Each job says which one it wants.
#ifndef STARLING_WORKER_HOST_DEVICES_H_
#define STARLING_WORKER_HOST_DEVICES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "proto/job.pb.h"

namespace starling {

struct DeviceOptions {
  // "auto": uses a GPU if there is one. "gpu": the worker does not start without one. "cpu": does
  // not look for a GPU.
  std::string device = "auto";
  std::string cuda_library;  // see kernels/cuda/library.h
};

// Whether the device reports that it is permanently lost. Thread-safe.
bool IsLost(Device& device);

// Says that other processes use the GPU, and how much of its memory is taken. Empty: none do, it is
// unknown, or the device uses the host's memory. Call it while this process holds no memory for a
// job.
std::string SharedMemoryNotice(Device& device);

// Constant after construction; thread-safe.
class WorkerDevices {
 public:
  // `gpu` may be null; `why_no_gpu` then says why.
  WorkerDevices(std::unique_ptr<Device> cpu, std::unique_ptr<Device> gpu, std::string why_no_gpu);

  // kInvalidArgument: no such device. Other errors are those of CreateCpuDevice and, if a GPU is
  // required, OpenCudaDevice.
  static absl::StatusOr<WorkerDevices> Open(const DeviceOptions& options);

  // The device for a job that wants `kind`. kFailedPrecondition: it wants a GPU and there is none.
  absl::StatusOr<Device*> For(DeviceKind kind) const;

  Device& cpu() const { return *cpu_; }
  bool has_gpu() const { return gpu_ != nullptr; }
  const std::string& why_no_gpu() const { return why_no_gpu_; }

  // For users: "NVIDIA H100 80GB HBM3 (sm_90)", "cpu (avx512_core)".
  std::string Name() const;
  // The same; on a CPU with the reason: "cpu (avx512_core), because ...".
  std::string Description() const;

 private:
  std::unique_ptr<Device> cpu_;
  std::unique_ptr<Device> gpu_;
  std::string why_no_gpu_;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_DEVICES_H_
