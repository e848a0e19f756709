// The values of a partition's slices, and the memory of their update rules: their slots.
#ifndef STARLING_SERVER_SHARD_HOST_SLICE_VALUES_H_
#define STARLING_SERVER_SHARD_HOST_SLICE_VALUES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/checkpoint/capture.h"
#include "server/shard/apply/update.h"
#include "server/shard/core/events.h"
#include "server/shard/host/action_memory.h"
#include "server/shard/host/ended_partition.h"
#include "server/shard/host/partition_observer.h"
#include "server/shard/host/shard_job.h"
#include "server/shard/host/shard_memory.h"

namespace starling {

// Used on the owner's thread only.
class SliceValues {
 public:
  // A value. It is never written while others read it: streams, copies, snapshots and checkpoints
  // hold `data`, and an update then goes to new memory.
  struct Value {
    std::shared_ptr<float> data;
    uint64_t digest = 0;  // of the bytes; 0: not known yet
  };

  // A tensor of a slice, as snapshots have them.
  struct Tensor {
    SliceId slice;
    TensorPart part = TensorPart::kVersion0;
    const float* data = nullptr;  // not written while `pin` is held
    std::shared_ptr<const void> pin;
  };

  // Without values. `memory` and `plan` outlive it.
  SliceValues(ShardMemory* memory, const ShardJobPlan& plan, PartitionId partition);
  ~SliceValues();
  SliceValues(const SliceValues&) = delete;
  SliceValues& operator=(const SliceValues&) = delete;

  // Makes the initial values, slots and copy. kResourceExhausted: they have no memory. Otherwise an
  // error of where they come from. Blocks while a file is read.
  absl::Status Make(const ShardJobPlan& plan);

  // Memory for the update's result: in place, or new memory while the old value is still read.
  // Slots that a snapshot or a checkpoint holds are replaced by copies. Null: see ActionMemory.
  std::shared_ptr<float> MemoryFor(const ApplyNow& update, ActionMemory& memory);
  // Applies the update, or skips it if its record says so. `result` is from MemoryFor. Returns what
  // ApplyUpdate does.
  int64_t Apply(const ApplyNow& update, Payload gradient, std::shared_ptr<float> result);

  // Of the newest value and the slots.
  uint64_t Digest(SliceId id) const;

  // Moves the newest value to where the next policy expects it. False: there is no memory yet, and
  // nothing has changed.
  bool Switch(const SwitchPolicy& action, ActionMemory& memory);

  // The copy is a reference, so the slice's next update goes to new memory.
  void CopyForCut();
  void DropCopy();

  // All tensors, to be sent to a learner. Later updates go to new memory while they are held.
  std::vector<Tensor> Tensors();
  // For a checkpoint, as blocks of `model`'s parameters: the newest values, the slots and, if
  // `copy`, the copy for evaluation, which a frozen slice has not. Pinned like Tensors().
  std::vector<CapturedBlock> Blocks(const Graph& model, bool copy);
  // At a learner: drops all tensors, and installs those of a snapshot.
  void Begin(const BeginTensors& action);
  void Install(const InstallTensor& action, std::shared_ptr<float> data);

  Value& ValueToSend(const SendValue& action);
  size_t elements(SliceId id) const { return slices_.at(id).slice->elements; }
  bool two_versions() const { return two_versions_; }
  // Whether all values and slots are there. Not while those of a snapshot are to be installed.
  bool whole() const;

  // Hands the readable values over: those of `version`, if given, otherwise the newest.
  std::map<SliceId, EndedPartition::Slice> Take(std::optional<uint64_t> version);

  // For tests.
  HostedSlice Hosted(SliceId id) const { return Hosted(id, slices_.at(id)); }
  std::vector<HostedSlice> Hosted() const;

 private:
  using Pin = const std::shared_ptr<float>;
  struct Store {
    const Slice* slice = nullptr;
    const UpdateRule* rule = nullptr;
    std::array<Value, 2> versions;  // at IndexOf; if frozen: at 0
    uint32_t current = 0;           // index of the newest
    std::shared_ptr<float> slot0, slot1;
    Value cut;
  };

  static bool MakeOwn(std::shared_ptr<float>& slot, size_t elements, ActionMemory& memory);
  size_t IndexOf(uint64_t version) const { return two_versions_ ? version % 2 : 0; }
  static HostedSlice Hosted(SliceId id, const Store& store);
  void LetGo(const Store& store, const Value& value);
  std::shared_ptr<Pin> PinOf(const std::shared_ptr<float>& data) const;
  std::shared_ptr<Pin> MakePin(const std::shared_ptr<float>& data);
  void ForgetPins();

  ShardMemory* const memory_;
  bool two_versions_;  // of slices that are not frozen
  std::map<SliceId, Store> slices_;
  std::map<SliceId, std::shared_ptr<float>> second_versions_;  // for a switch to two versions
  // What snapshots and checkpoints hold: one reference to each tensor, however many refer to it.
  std::map<const float*, std::weak_ptr<Pin>> pins_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_SLICE_VALUES_H_
