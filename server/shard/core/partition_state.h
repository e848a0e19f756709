// Everything that the records of a partition's log change, and nothing else: docs/protocol.md,
// section 11. One place changes it, Repeat, both where the records are decided and where they are
// only repeated, so the same records make the same state, and Write gives the same bytes.
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
#include "absl/strings/string_view.h"
#include "common/data_plan/coverage.h"
#include "common/protocol/record.h"
#include "common/protocol/types.h"
#include "server/shard/core/clock_table.h"
#include "server/shard/core/partition_config.h"

namespace starling {

inline constexpr uint32_t kPartitionStateMagic = 0x504C5453;  // "STLP"
inline constexpr uint16_t kPartitionStateVersion = 2;

inline constexpr size_t kLagsRemembered = 64;

struct StepDecision {
  Clock step = 0;   // of the job
  float scale = 1;  // in [0, 1]; of every gradient of the step
  // The step changes nothing, since a gradient of this one overflowed.
  std::optional<Origin> skipped = std::nullopt;
};

// What is known of a slice that is updated; of a frozen one all is 0.
struct SliceState {
  uint64_t updates = 0;            // BSP: the newest version
  uint64_t updates_in_epoch = 0;   // the open one
  uint64_t skipped = 0;            // of `updates`
  std::array<Lsn, 2> version_lsn;  // BSP: of the update that made version v, at v % 2
  std::vector<Lsn> recent;         // SSP, async: of the last updates, to tell a contribution's lag
  friend bool operator==(const SliceState&, const SliceState&) = default;
};

// A plain value: copies do not affect each other. Not thread-safe.
class PartitionState {
 public:
  // Of a partition whose log is empty. `config` outlives the state and its copies.
  explicit PartitionState(const PartitionConfig* config);

  // Changes the state as the record says, or refuses it and changes nothing:
  // kFailedPrecondition: it is not the next one, or of an older view; kInvalidArgument: it does not
  // fit the partition or its state. Says what was expected, what came, and what to do. `digest` is
  // that of the log with it: LogDigest(digest(), its bytes).
  absl::Status Repeat(const Record& record, uint64_t digest);

  // All of the state; equal states give equal bytes.
  std::string Write() const;
  // What Write gave for a partition of the same configuration. kInvalidArgument changes nothing,
  // and says what was expected, what came, and what to do. Allocates in proportion to `bytes`.
  absl::Status Read(absl::string_view bytes);

  // ---- Position ----
  Lsn lsn() const { return lsn_; }             // of the last record
  uint64_t digest() const { return digest_; }  // of all records, as encoded
  ViewNumber view() const { return view_; }    // of the last record

  // ---- Policy ----
  const PolicyAt& policy() const { return policy_; }  // in force
  bool bsp() const { return policy_.policy.kind == PolicyKind::kBsp; }
  bool was_bsp() const { return was_bsp_; }  // under the policy before
  uint64_t recent_lag() const;               // the most of the last updates under this policy

  // ---- Members ----
  RosterNumber roster() const { return roster_; }
  const ClockTable& clocks() const { return clocks_; }

  // ---- Slices ----
  const SliceState& slice(SliceId id) const { return slices_.at(id).state; }
  bool updates_any() const { return updated_slices_ > 0; }
  uint64_t LeastUpdates() const;  // of the updated slices; BSP: a version that all have
  // Updates of the slice behind position `base`; of those remembered.
  uint64_t LagOf(SliceId id, Lsn base) const;

  // ---- Coverage ----
  bool Covers(SliceId id, uint32_t epoch, uint64_t item) const;
  bool AllCover(uint32_t epoch, uint64_t item) const;
  bool Complete(uint32_t epoch) const;  // all slices cover all items of it
  uint64_t CoveredSteps() const;  // all steps of the job below are covered on every updated slice
  // What all updated slices cover of the epoch; nullptr: nothing of it is kept (any more).
  const Coverage* CoverageOf(uint32_t epoch) const;
  // Ranges above the floor, and items that some slices cover; and whether this one is among them.
  size_t OpenItems(uint32_t epoch) const;
  bool IsOpen(uint32_t epoch, uint64_t item) const;

  // ---- Cuts ----
  uint32_t cut_epochs() const { return cut_epochs_; }     // epochs [0, cut_epochs) are cut
  std::optional<uint32_t> copy() const { return copy_; }  // the epoch of the newest copy
  Lsn copy_lsn() const { return copy_lsn_; }
  // Of the last epoch that was cut: the least and the most updates of a slice.
  uint64_t applied_min() const { return applied_min_; }
  uint64_t applied_max() const { return applied_max_; }

  // ---- The job's, in the partitions that keep them ----
  const LossScale::State& loss_scale() const { return loss_scale_; }
  // BSP: for gradients computed from `version` of kLossScaleSlice, one of its two newest.
  int loss_scale_log2(uint64_t version) const { return loss_scale_log2_[version % 2]; }
  uint64_t skipped_steps() const;
  const std::optional<StepDecision>& decided() const { return decided_; }  // the last one
  Clock next_decision() const { return next_decision_; }                   // its step

 private:
  struct IndexedSlice {
    IndexedSlice(const PartitionConfig::SliceInfo* info, uint32_t index)
        : info(info), index(index) {}

    const PartitionConfig::SliceInfo* info;
    uint32_t index;  // among the updated ones
    SliceState state;
  };
  // Those that cover an item, if not all do: bit i % 64 of word i / 64 for the slice of index i.
  using SliceBits = absl::InlinedVector<uint64_t, 1>;

  // partition_state.cc
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

  // partition_state_bytes.cc; State: this class, const to be written
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
  // By epoch; of the open one: items covered on every updated slice, and those on some. What is
  // open is bounded (config.open_items_max), so memory does not go with the items of an epoch.
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
