// The state that the records of a partition's log determine: docs/protocol.md, section 11. Only
// Repeat changes it, both where records are decided and where they are repeated, so the same
// records give the same state, and Write gives the same bytes.
//
//   PartitionState state(&config);
//   absl::Status fits = state.Repeat(record, LogDigest(state.digest(), bytes));  // the next one
//   std::string bytes = state.Write();         // and elsewhere: other.Read(bytes)
#ifndef STARLING_SERVER_SHARD_CORE_PARTITION_STATE_H_
#define STARLING_SERVER_SHARD_CORE_PARTITION_STATE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/data_plan/coverage.h"
#include "common/protocol/record.h"
#include "common/protocol/types.h"
#include "server/shard/core/clock_table.h"
#include "server/shard/core/cut_state.h"
#include "server/shard/core/partition_config.h"

namespace starling {

inline constexpr uint32_t kPartitionStateMagic = 0x504C5453;  // "STLP"
inline constexpr uint16_t kPartitionStateVersion = 2;

inline constexpr size_t kLagsRemembered = 64;

struct StepDecision {
  Clock step = 0;   // of the job
  float scale = 1;  // in [0, 1]; multiplies every gradient of the step
  // Set: the step changes nothing because a gradient of this worker overflowed.
  std::optional<Origin> skipped = std::nullopt;
};

// The state of an updated slice; all 0 for a frozen one.
struct SliceState {
  uint64_t updates = 0;            // BSP: the newest version
  uint64_t updates_in_epoch = 0;   // in the open epoch
  uint64_t skipped = 0;            // of `updates`
  std::array<Lsn, 2> version_lsn;  // BSP: position of the update that made version v, at v % 2
  std::vector<Lsn> recent;  // SSP, async: positions of the last updates, for a contribution's lag
  friend bool operator==(const SliceState&, const SliceState&) = default;
};

// A plain value: copies do not affect each other. Not thread-safe.
class PartitionState {
 public:
  // The state of a partition with an empty log, at config->start. `config` outlives the state and
  // its copies.
  explicit PartitionState(const PartitionConfig* config);

  // Applies the record, or refuses it and changes nothing. kFailedPrecondition: it is not the next
  // record, or its view is older. kInvalidArgument: it does not fit the partition or its state. The
  // message says what was expected, what came, and what to do. `digest` is the log's digest
  // including the record: LogDigest(digest(), its bytes).
  absl::Status Repeat(const Record& record, uint64_t digest);

  // The complete state. Equal states give equal bytes, BytesMax at most.
  std::string Write() const;
  static uint64_t BytesMax(const PartitionConfig& config);
  // Reads what Write returned for a partition of the same configuration. kInvalidArgument changes
  // nothing; the message says what was expected, what came, and what to do. Allocates in proportion
  // to `bytes`.
  absl::Status Read(absl::string_view bytes);

  // ---- Position ----
  Lsn lsn() const { return lsn_; }             // of the last record
  uint64_t digest() const { return digest_; }  // of all encoded records
  ViewNumber view() const { return view_; }    // of the last record

  // ---- Policy ----
  const PolicyAt& policy() const { return policy_; }  // in force
  bool bsp() const { return policy_.policy.kind == PolicyKind::kBsp; }
  bool was_bsp() const { return was_bsp_; }  // under the previous policy
  uint64_t recent_lag() const;               // the maximum over the last updates under this policy

  // ---- Members ----
  RosterNumber roster() const { return roster_; }
  const ClockTable& clocks() const { return clocks_; }

  // ---- Slices ----
  const SliceState& slice(SliceId id) const { return slices_.at(id).state; }
  bool updates_any() const { return updated_slices_ > 0; }
  uint64_t LeastUpdates() const;    // over the updated slices; BSP: a version that all of them have
  int64_t NextT(SliceId id) const;  // Adam's t for the slice's next update
  // How many remembered updates of the slice come after position `base`.
  uint64_t LagOf(SliceId id, Lsn base) const;

  // ---- Coverage ----
  bool Covers(SliceId id, uint32_t epoch, uint64_t item) const;
  bool AllCover(uint32_t epoch, uint64_t item) const;
  bool Complete(uint32_t epoch) const;  // all slices cover all its items
  uint64_t CoveredSteps() const;  // every updated slice covers all steps of the job below this one
  // What every updated slice covers of the epoch; null: not kept, or not any more.
  const Coverage* CoverageOf(uint32_t epoch) const;
  // Whether some slice covers this step of the job, or a later one. Never of a partition that
  // updates nothing.
  bool Passed(uint64_t step) const;
  // kFailedPrecondition: not exactly the steps below `step` are applied, to each slice once. The
  // message says which slice has what.
  absl::StatusOr<CutState> AtCut(uint64_t step) const;
  // The number of ranges above the floor plus items that only some slices cover, and whether `item`
  // is such an item.
  size_t OpenItems(uint32_t epoch) const;
  bool IsOpen(uint32_t epoch, uint64_t item) const;

  // ---- Cuts ----
  uint32_t cut_epochs() const { return cut_epochs_; }     // epochs [0, cut_epochs) are cut
  std::optional<uint32_t> copy() const { return copy_; }  // the epoch of the newest copy
  Lsn copy_lsn() const { return copy_lsn_; }
  // The minimum and maximum number of updates per slice in the last epoch that was cut.
  uint64_t applied_min() const { return applied_min_; }
  uint64_t applied_max() const { return applied_max_; }

  // ---- State of the whole job, in the partitions that keep it ----
  const LossScale::State& loss_scale() const { return loss_scale_; }
  // BSP: the scale for gradients computed from `version` of kLossScaleSlice, one of its two newest
  // versions.
  int loss_scale_log2(uint64_t version) const { return loss_scale_log2_[version % 2]; }
  uint64_t skipped_steps() const;
  const std::optional<StepDecision>& decided() const { return decided_; }  // the last decision
  Clock next_decision() const { return next_decision_; }  // the step of the next decision

 private:
  struct Empty {};  // a state that Read fills
  PartitionState(const PartitionConfig* config, Empty);

  struct IndexedSlice {
    IndexedSlice(const PartitionConfig::SliceInfo* info, uint32_t index)
        : info(info), index(index) {}

    const PartitionConfig::SliceInfo* info;
    uint32_t index;  // among the updated slices
    SliceState state;
  };
  // The slices that cover an item, if not all do: bit i % 64 of word i / 64 for the slice with
  // index i.
  using SliceBits = absl::InlinedVector<uint64_t, 1>;

  // partition_state.cc
  void Begin(const PartitionConfig::Start& start);
  void Apply(const Record& record);
  void MarkCovered(const IndexedSlice& slice, uint32_t epoch, uint64_t item);
  void Close(const Record& record);
  void SwitchPolicy(const Record& record);
  void Decide(const Record& record);
  void Cut(const Record& record);
  void OpenCoverage(uint32_t epoch);
  bool CoversItem(const IndexedSlice& slice, uint32_t epoch, uint64_t item) const;

  // partition_state_check.cc
  absl::Status Check(const Record& record) const;
  absl::Status CheckApply(const Record& record) const;
  absl::Status CheckOrder(const Record& record, const SliceState& slice) const;
  absl::Status CheckClose(const Record& record) const;
  absl::Status CheckDecision(const Record& record) const;
  absl::Status CheckPolicy(const Record& record) const;
  absl::Status CheckCut(const Record& record) const;

  // partition_state_cut.cc
  absl::Status CheckCutAt(uint64_t step) const;

  // partition_state_bytes.cc; State: this class; const when written
  template <typename IO, typename State>
  static void Fields(IO& io, State& s);
  absl::Status CheckParts() const;

  size_t SliceWords() const { return (updated_slices_ + 63) / 64; }
  static uint32_t CountOf(const SliceBits& slices);

  const PartitionConfig* config_;
  uint32_t updated_slices_ = 0;

  Lsn lsn_;
  uint64_t digest_ = 0;
  ViewNumber view_;

  PolicyAt policy_;
  bool was_bsp_ = false;
  std::vector<uint64_t> lags_;  // of the last updates under this policy

  RosterNumber roster_;
  ClockTable clocks_;

  absl::btree_map<SliceId, IndexedSlice> slices_;
  // By epoch, the open one included: items that every updated slice covers, and items that only
  // some cover. The number of open items is bounded (config.open_items_max), so memory does not
  // grow with the items of an epoch.
  absl::btree_map<uint32_t, Coverage> all_covered_;
  absl::btree_map<std::pair<uint32_t, uint64_t>, SliceBits> partly_covered_;

  uint32_t cut_epochs_ = 0;
  std::optional<uint32_t> copy_;
  Lsn copy_lsn_;
  uint64_t applied_min_ = 0;
  uint64_t applied_max_ = 0;

  LossScale::State loss_scale_;
  std::array<int, 2> loss_scale_log2_ = {LossScale::kFirstLog2, LossScale::kFirstLog2};
  std::optional<StepDecision> decided_;
  Clock next_decision_ = 0;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_PARTITION_STATE_H_
