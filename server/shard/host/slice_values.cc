#include "server/shard/host/slice_values.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/xxh3.h"
#include "common/defences.h"

namespace starling {
namespace {

absl::StatusOr<std::shared_ptr<float>> AllocateFrom(ShardMemory& memory, size_t elements) {
  std::shared_ptr<float> floats = memory.Allocate(elements);
  if (floats == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", elements, " elements"));
  }
  return floats;
}

}  // namespace

SliceValues::SliceValues(ShardMemory* memory, const ShardJobPlan& plan, PartitionId partition)
    : memory_(memory), two_versions_(plan.bsp()) {
  for (const SliceId id : plan.layout.partitions[partition.value]) {
    slices_[id].slice = &plan.layout.slices[id.value];
    slices_[id].rule = &plan.rules[id.value];
  }
}

SliceValues::~SliceValues() {
  for (const auto& [id, store] : slices_) {
    for (const Value* value : {&store.versions[0], &store.versions[1], &store.cut})
      LetGo(store, *value);
  }
}

absl::Status SliceValues::Make(const ShardJobPlan& plan) {
  for (auto& [id, store] : slices_) {
    const Slice& slice = *store.slice;
    const size_t elements = slice.elements;
    const bool frozen = slice.kind == FROZEN;
    store.current = frozen ? 0 : IndexOf(plan.first_step());
    Value& value = store.versions[store.current];
    STARLING_ASSIGN_OR_RETURN(value.data, AllocateFrom(*memory_, elements));
    STARLING_RETURN_IF_ERROR(plan.first_values(slice, value.data.get()));
    if (plan.description.restore().has_copy_epoch()) {
      store.cut = value;
      if (!frozen && plan.first_copy != nullptr) {
        STARLING_ASSIGN_OR_RETURN(store.cut.data, AllocateFrom(*memory_, elements));
        STARLING_RETURN_IF_ERROR(plan.first_copy(slice, store.cut.data.get()));
      }
    }
    if (frozen) continue;
    if (two_versions_) {
      std::shared_ptr<float>& other = store.versions[1 - store.current].data;
      STARLING_ASSIGN_OR_RETURN(other, AllocateFrom(*memory_, elements));
      std::memset(other.get(), 0, elements * sizeof(float));
    }
    for (int slot = 0; slot < store.rule->slots(); ++slot) {
      std::shared_ptr<float>& floats = slot == 0 ? store.slot0 : store.slot1;
      STARLING_ASSIGN_OR_RETURN(floats, AllocateFrom(*memory_, elements));
      if (plan.first_slots != nullptr && !DefenceMasked(Defence::kRestoreSlots)) {
        STARLING_RETURN_IF_ERROR(plan.first_slots(slice, slot, floats.get()));
      } else {
        std::fill_n(floats.get(), elements, slot == 0 ? store.rule->first_slot0 : 0.0f);
      }
    }
  }
  return absl::OkStatus();
}

// The slice's value is about to be replaced or dropped. If peers' streams still have to send it, it
// becomes an old value. What only a snapshot or a checkpoint holds does not: no peer is late to
// read it.
void SliceValues::LetGo(const Store& store, const Value& value) {
  if (value.data == nullptr) return;
  int64_t ours = 0;
  for (const Value* own : {&store.versions[0], &store.versions[1], &store.cut}) {
    if (own->data == value.data) ++ours;
  }
  const std::shared_ptr<Pin> pin = PinOf(value.data);
  if (pin != nullptr) ++ours;
  if (value.data.use_count() > ours) memory_->Retire(value.data);
}

// Null: neither a snapshot nor a checkpoint holds it.
std::shared_ptr<SliceValues::Pin> SliceValues::PinOf(const std::shared_ptr<float>& data) const {
  const auto pin = pins_.find(data.get());
  return pin == pins_.end() ? nullptr : pin->second.lock();
}

std::shared_ptr<SliceValues::Pin> SliceValues::MakePin(const std::shared_ptr<float>& data) {
  std::shared_ptr<Pin> pin = PinOf(data);
  if (pin == nullptr) pins_[data.get()] = pin = std::make_shared<Pin>(data);
  return pin;
}

void SliceValues::ForgetPins() {
  std::erase_if(pins_, [](const auto& pin) { return pin.second.expired(); });
}

std::shared_ptr<float> SliceValues::MemoryFor(const ApplyNow& update, ActionMemory& memory) {
  Store& store = slices_.at(update.record.slice);
  const size_t elements = store.slice->elements;
  const std::shared_ptr<float>& into = store.versions[IndexOf(update.version + 1)].data;
  if (DefenceMasked(Defence::kCheckpointPin) && PinOf(into) != nullptr) return into;
  std::shared_ptr<float> result = memory.Allocate(elements, &into);
  if (result == nullptr || !MakeOwn(store.slot0, elements, memory) ||
      !MakeOwn(store.slot1, elements, memory)) {
    return nullptr;
  }
  return result;
}

// Leaves a slot that a snapshot or a checkpoint holds to it, and goes on with a copy. False: there
// is no memory yet, and nothing has changed.
bool SliceValues::MakeOwn(std::shared_ptr<float>& slot, size_t elements, ActionMemory& memory) {
  if (slot == nullptr) return true;
  std::shared_ptr<float> own = memory.Allocate(elements, &slot);
  if (own == nullptr) return false;
  if (own == slot) return true;
  std::memcpy(own.get(), slot.get(), elements * sizeof(float));
  slot = std::move(own);
  return true;
}

int64_t SliceValues::Apply(const ApplyNow& update, Payload gradient,
                           std::shared_ptr<float> result) {
  Store& store = slices_.at(update.record.slice);
  const size_t elements = store.slice->elements;
  const size_t into = IndexOf(update.version + 1);
  const Value& from = store.versions[IndexOf(update.version)];
  int64_t not_finite = -1;
  if (update.record.skipped) {
    if (result != from.data) std::memcpy(result.get(), from.data.get(), elements * sizeof(float));
  } else {
    not_finite =
        ApplyUpdate(*store.rule, update.record.scalars, gradient,
                    {from.data.get(), result.get(), store.slot0.get(), store.slot1.get(), elements},
                    BestInstructionSet(), update.looks);
  }
  if (result != store.versions[into].data) LetGo(store, store.versions[into]);
  store.versions[into] = Value{std::move(result), 0};
  store.current = into;
  return not_finite;
}

uint64_t SliceValues::Digest(SliceId id) const {
  const Store& store = slices_.at(id);
  uint64_t digest = 0;
  for (const std::shared_ptr<float>& data :
       {store.versions[store.current].data, store.slot0, store.slot1}) {
    if (data == nullptr) continue;
    digest = XXH3_64bits_withSeed(data.get(), store.slice->elements * sizeof(float), digest);
  }
  return digest;
}

bool SliceValues::Switch(const SwitchPolicy& action, ActionMemory& memory) {
  if (two_versions_ == action.two_versions) return true;  // the values are already there
  // Everything is allocated before anything is moved. Memory that was allocated is kept for the
  // next attempt.
  for (const auto& [id, store] : slices_) {
    if (!action.two_versions || store.slice->kind == FROZEN) continue;
    std::shared_ptr<float>& second = second_versions_[id];
    if (second == nullptr) second = memory.Allocate(store.slice->elements);
    if (second == nullptr) return false;
  }
  two_versions_ = action.two_versions;
  for (auto& [id, store] : slices_) {
    if (store.slice->kind == FROZEN) continue;
    LetGo(store, store.versions[1 - store.current]);
    Value newest = std::move(store.versions[store.current]);
    store.versions = {};
    store.current = action.two_versions ? action.version % 2 : 0;
    store.versions[store.current] = std::move(newest);
    if (!action.two_versions) continue;
    Value& other = store.versions[1 - store.current];
    other.data = std::move(second_versions_.at(id));
    std::memset(other.data.get(), 0, store.slice->elements * sizeof(float));
  }
  second_versions_.clear();
  return true;
}

void SliceValues::CopyForCut() {
  for (auto& [id, store] : slices_) {
    store.cut = store.versions[store.current];
    if (DefenceMasked(Defence::kSlotsByRecords) && store.slot0 != nullptr)
      store.slot0.get()[0] += 1;
  }
}

void SliceValues::DropCopy() {
  for (auto& [id, store] : slices_) {
    if (store.cut.data != store.versions[0].data && store.cut.data != store.versions[1].data) {
      LetGo(store, store.cut);
    }
    store.cut = Value();
  }
}

std::vector<SliceValues::Tensor> SliceValues::Tensors() {
  ForgetPins();
  std::vector<Tensor> tensors;
  for (const auto& [id, store] : slices_) {
    const auto add = [&](TensorPart part, const std::shared_ptr<float>& data) {
      if (data != nullptr) tensors.push_back({id, part, data.get(), MakePin(data)});
    };
    add(TensorPart::kVersion0, store.versions[0].data);
    add(TensorPart::kVersion1, store.versions[1].data);
    add(TensorPart::kSlot0, store.slot0);
    add(TensorPart::kSlot1, store.slot1);
    add(TensorPart::kCut, store.cut.data);
  }
  return tensors;
}

std::vector<CapturedBlock> SliceValues::Blocks(const Graph& model, bool copy) {
  ForgetPins();
  std::vector<CapturedBlock> blocks;
  for (const auto& [id, store] : slices_) {
    const auto add = [&](BlockPart part, const std::shared_ptr<float>& data) {
      if (data == nullptr) return;
      const std::shared_ptr<Pin> pin = MakePin(data);
      for (const Segment& segment : store.slice->segments) {
        const std::string& name = model.parameters(static_cast<int>(segment.param)).name();
        blocks.push_back({{name, segment.param_begin, part},
                          absl::MakeConstSpan(data.get() + segment.slice_begin, segment.length),
                          pin});
      }
    };
    add(BlockPart::kValue, store.versions[store.current].data);
    add(BlockPart::kSlot0, store.slot0);
    add(BlockPart::kSlot1, store.slot1);
    if (copy && store.slice->kind != FROZEN) add(BlockPart::kEvaluation, store.cut.data);
  }
  return blocks;
}

void SliceValues::Begin(const BeginTensors& action) {
  for (auto& [id, store] : slices_) {
    for (const Value* value : {&store.versions[0], &store.versions[1], &store.cut})
      LetGo(store, *value);
    store.versions = {};
    store.current = 0;
    store.slot0 = store.slot1 = nullptr;
    store.cut = Value();
  }
  two_versions_ = action.two_versions;
}

void SliceValues::Install(const InstallTensor& action, std::shared_ptr<float> data) {
  Store& store = slices_.at(action.slice);
  switch (action.part) {
    case TensorPart::kVersion0:
    case TensorPart::kVersion1: {
      const auto version = static_cast<uint32_t>(action.part);
      store.versions[version] = Value{std::move(data), 0};
      if (action.newest) store.current = version;
      return;
    }
    case TensorPart::kSlot0: store.slot0 = std::move(data); return;
    case TensorPart::kSlot1: store.slot1 = std::move(data); return;
    case TensorPart::kCut: store.cut = Value{std::move(data), 0}; return;
  }
}

SliceValues::Value& SliceValues::ValueToSend(const SendValue& action) {
  Store& store = slices_.at(action.header.key.slice);
  if (action.source == ValueSource::kCutCopy) return store.cut;
  return store.versions[store.slice->kind == FROZEN ? 0 : IndexOf(action.version)];
}

bool SliceValues::whole() const {
  return std::all_of(slices_.begin(), slices_.end(), [this](const auto& entry) {
    const Store& store = entry.second;
    if (store.versions[store.current].data == nullptr) return false;
    if (store.slice->kind == FROZEN) return true;
    const int slots = store.rule->slots();
    return (!two_versions_ || store.versions[1 - store.current].data != nullptr) &&
           (slots < 1 || store.slot0 != nullptr) && (slots < 2 || store.slot1 != nullptr);
  });
}

std::map<SliceId, EndedPartition::Slice> SliceValues::Take(std::optional<uint64_t> version) {
  std::map<SliceId, EndedPartition::Slice> taken;
  for (auto& [id, store] : slices_) {
    const bool chosen =
        version.has_value() && store.slice->kind != FROZEN && !DefenceMasked(Defence::kKeepVersion);
    Value& value = store.versions[chosen ? *version % 2 : store.current];
    if (store.cut.data == value.data) store.cut = {};  // so that it does not count as an old value
    taken[id] = {std::move(value.data), static_cast<uint32_t>(store.slice->elements), value.digest};
    value = {};
  }
  return taken;
}

HostedSlice SliceValues::Hosted(SliceId id, const Store& store) {
  const auto floats = [&](const std::shared_ptr<float>& data) {
    return absl::MakeConstSpan(data.get(), data == nullptr ? 0 : store.slice->elements);
  };
  return {id,
          floats(store.versions[store.current].data),
          floats(store.versions[1 - store.current].data),
          {floats(store.slot0), floats(store.slot1)},
          floats(store.cut.data)};
}

std::vector<HostedSlice> SliceValues::Hosted() const {
  std::vector<HostedSlice> slices;
  for (const auto& [id, store] : slices_) slices.push_back(Hosted(id, store));
  return slices;
}

}  // namespace starling
