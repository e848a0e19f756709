// Does the shards' work where the gradients were computed: nothing leaves the device.
#ifndef STARLING_TOOLS_BENCH_DEVICE_LOCAL_UPDATE_H_
#define STARLING_TOOLS_BENCH_DEVICE_LOCAL_UPDATE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/placement/layout.h"
#include "kernels/device.h"
#include "kernels/updating_device.h"
#include "proto/job.pb.h"
#include "server/shard/apply/update.h"
#include "tools/bench/local_update.h"
#include "worker/executor/executor.h"

namespace starling {

// The sink of units of one micro-batch: launches the optimizer's step on the stream that computed
// the gradient. Not thread-safe. Must not be destroyed while a stream that it was called with still
// runs.
class DeviceLocalUpdate : public LocalStep, private DeviceUpdate {
 public:
  // `spec`, `layout` and `device` must outlive this. kInvalidArgument: the optimizer's settings are
  // out of range; kUnimplemented: it is none of sgd, momentum, adam, adamw without clipping, or the
  // device does not update; kResourceExhausted: the device lacks memory.
  static absl::StatusOr<std::unique_ptr<DeviceLocalUpdate>> Create(const JobSpec& spec,
                                                                   const Layout& layout,
                                                                   Device* device);
  ~DeviceLocalUpdate() override;

  float* Acquire(size_t, SliceId) override { return nullptr; }
  void Ready(size_t, SliceId, uint32_t) override {}
  DeviceUpdate* device_update() override { return this; }

 private:
  struct SliceState {
    UpdateRule rule;
    float* slots[2] = {};
  };

  DeviceLocalUpdate(const JobSpec& spec, const Layout& layout, Device* device,
                    UpdatingDevice* updating)
      : LocalStep(spec), layout_(layout), device_(device), updating_(updating) {}
  absl::StatusOr<float*> Zeros(uint32_t elements, Stream& stream);
  absl::Status Update(SliceId slice, const float* gradient, float* values, uint32_t samples,
                      Stream& stream) override;

  const Layout& layout_;
  Device* const device_;
  UpdatingDevice* const updating_;  // the same device
  std::vector<SliceState> slices_;
};

// The step that suits the device: DeviceLocalUpdate if the host does not reach its memory,
// otherwise LocalUpdate on `parameters`. Returns their errors.
absl::StatusOr<std::unique_ptr<LocalStep>> MakeLocalStep(const JobSpec& spec, const Layout& layout,
                                                         Device* device, float* parameters);

// A trainer's unit of that step, counted from 0; `range` must outlive it.
Unit LocalUnit(const WorkRange& range, int64_t step, LocalStep& update);

}  // namespace starling

#endif  // STARLING_TOOLS_BENCH_DEVICE_LOCAL_UPDATE_H_
