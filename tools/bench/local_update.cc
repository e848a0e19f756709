#include "tools/bench/local_update.h"

#include <algorithm>
#include <new>
#include <utility>

#include "common/base/status_macros.h"

namespace starling {

UpdateScalars LocalStep::ScalarsFor(const Slice& slice, uint32_t samples) const {
  const GroupSettings group = SettingsOf(spec_.optimizer(), slice.group);
  UpdateScalars scalars;
  scalars.rate = static_cast<float>(rate_ * group.rate_scale);
  scalars.decay = group.weight_decay;
  scalars.scale = samples == 0 ? 0 : static_cast<float>(spec_.batch().global()) / samples;
  scalars.t = step_ + 1;
  return scalars;
}

LocalUpdate::Floats LocalUpdate::Filled(uint32_t elements, float value) {
  const size_t bytes = (elements * sizeof(float) / 64 + 1) * 64;
  Floats floats(static_cast<float*>(std::aligned_alloc(64, bytes)));
  if (floats == nullptr) throw std::bad_alloc();
  std::fill_n(floats.get(), elements, value);
  return floats;
}

absl::StatusOr<std::unique_ptr<LocalUpdate>> LocalUpdate::Create(const JobSpec& spec,
                                                                 const Layout& layout,
                                                                 float* parameters) {
  std::unique_ptr<LocalUpdate> update(new LocalUpdate(spec, layout, parameters));
  for (const Slice& slice : layout.slices) {
    SliceState state;
    if (slice.kind != FROZEN) {
      STARLING_ASSIGN_OR_RETURN(state.rule, MakeUpdateRule(spec, slice));
      state.gradient = Filled(slice.elements, 0);
      if (state.rule.slots() > 0) state.slot0 = Filled(slice.elements, state.rule.first_slot0);
      if (state.rule.slots() > 1) state.slot1 = Filled(slice.elements, 0);
    }
    update->slices_.push_back(std::move(state));
  }
  return update;
}

float* LocalUpdate::Acquire(size_t, SliceId slice) { return slices_[slice.value].gradient.get(); }

void LocalUpdate::Ready(size_t, SliceId id, uint32_t samples) {
  const Slice& slice = layout_.slices[id.value];
  SliceState& state = slices_[id.value];
  float* const value = parameters_ + slice.flat_begin;
  const PayloadPiece gradient(reinterpret_cast<const uint8_t*>(state.gradient.get()),
                              slice.elements * sizeof(float));
  ApplyUpdate(state.rule, ScalarsFor(slice, samples), Payload(&gradient, 1),
              {.in = value,
               .out = value,
               .slot0 = state.slot0.get(),
               .slot1 = state.slot1.get(),
               .elements = slice.elements});
}

}  // namespace starling
