#include "tools/bench/device_local_update.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

bool Known(const UpdateRule& rule) {
  switch (rule.kind) {
    case UpdateRule::kSgd:
    case UpdateRule::kMomentum:
    case UpdateRule::kAdam:
    case UpdateRule::kAdamW:
    case UpdateRule::kStatistic: return rule.clip_norm == 0;
    default: return false;
  }
}

// What is constant over the elements, in double and rounded once, as on the shards.
OptimizerStep StepOf(const UpdateRule& rule, const UpdateScalars& scalars) {
  OptimizerStep step;
  step.scale = scalars.scale;
  step.rate = scalars.rate;
  step.momentum = static_cast<float>(rule.momentum);
  if (rule.kind == UpdateRule::kStatistic) {
    step.kind = OptimizerStep::kStatistic;
    return step;
  }
  const bool decoupled = rule.kind == UpdateRule::kAdamW;
  step.decay = decoupled ? 0 : static_cast<float>(scalars.decay);
  if (rule.kind == UpdateRule::kSgd || rule.kind == UpdateRule::kMomentum) return step;
  const double rate = scalars.rate;
  const double t = static_cast<double>(scalars.t);
  step.kind = OptimizerStep::kAdam;
  step.rate = static_cast<float>(rate / (1 - std::pow(rule.beta1, t)));
  step.beta1 = static_cast<float>(rule.beta1);
  step.beta2 = static_cast<float>(rule.beta2);
  step.keep = decoupled ? static_cast<float>(1 - rate * scalars.decay) : 1;
  step.root = static_cast<float>(1 / std::sqrt(1 - std::pow(rule.beta2, t)));
  step.epsilon = static_cast<float>(rule.epsilon);
  return step;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceLocalUpdate>> DeviceLocalUpdate::Create(const JobSpec& spec,
                                                                             const Layout& layout,
                                                                             Device* device) {
  auto* const updating = dynamic_cast<UpdatingDevice*>(device);
  if (updating == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("a local update on ", device->name(), ": it does not update parameters"));
  }
  std::unique_ptr<DeviceLocalUpdate> update(new DeviceLocalUpdate(spec, layout, device, updating));
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream());
  for (const Slice& slice : layout.slices) {
    SliceState& state = update->slices_.emplace_back();
    if (slice.kind == FROZEN) continue;
    STARLING_ASSIGN_OR_RETURN(state.rule, MakeUpdateRule(spec, slice));
    if (!Known(state.rule)) {
      return absl::UnimplementedError(
          "a local update on a device: expected sgd, momentum, adam or adamw without clipping");
    }
    // sgd is momentum with factor 0, whose v is the gradient.
    const int slots = state.rule.kind == UpdateRule::kSgd ? 1 : state.rule.slots();
    for (int i = 0; i < slots; ++i) {
      STARLING_ASSIGN_OR_RETURN(state.slots[i], update->Zeros(slice.elements, *stream));
    }
  }
  STARLING_RETURN_IF_ERROR(stream->Synchronize());
  return update;
}

DeviceLocalUpdate::~DeviceLocalUpdate() {
  for (const SliceState& state : slices_) {
    for (float* const slot : state.slots) {
      if (slot != nullptr) device_->Free(slot);
    }
  }
}

absl::StatusOr<float*> DeviceLocalUpdate::Zeros(uint32_t elements, Stream& stream) {
  const size_t bytes = elements * sizeof(float);
  STARLING_ASSIGN_OR_RETURN(void* const memory, device_->Allocate(bytes));
  const absl::Status status = device_->Zero(memory, bytes, stream);
  if (status.ok()) return static_cast<float*>(memory);
  device_->Free(memory);
  return status;
}

absl::Status DeviceLocalUpdate::Update(SliceId id, const float* gradient, float* values,
                                       uint32_t samples, Stream& stream) {
  const Slice& slice = layout_.slices[id.value];
  const SliceState& state = slices_[id.value];
  return updating_->Update(StepOf(state.rule, ScalarsFor(slice, samples)), gradient, values,
                           state.slots[0], state.slots[1], slice.elements, stream);
}

absl::StatusOr<std::unique_ptr<LocalStep>> MakeLocalStep(const JobSpec& spec, const Layout& layout,
                                                         Device* device, float* parameters) {
  if (device->host_reaches_memory()) return LocalUpdate::Create(spec, layout, parameters);
  return DeviceLocalUpdate::Create(spec, layout, device);
}

Unit LocalUnit(const WorkRange& range, int64_t step, LocalStep& update) {
  Unit unit;
  unit.ranges = absl::MakeConstSpan(&range, 1);
  unit.job_step = step;
  unit.clock = step;
  unit.values_on_device = step > 0 && update.device_update() != nullptr;
  return unit;
}

}  // namespace starling
