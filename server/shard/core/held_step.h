// Sums of one step that a partition has sealed but may not apply before the whole job has decided
// about the step: docs/protocol.md, section 9.
#ifndef STARLING_SERVER_SHARD_CORE_HELD_STEP_H_
#define STARLING_SERVER_SHARD_CORE_HELD_STEP_H_

#include <optional>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "server/shard/core/partition_log.h"
#include "server/shard/core/step_decider.h"

namespace starling {

// Not thread-safe.
class HeldStep {
 public:
  struct Sum {
    // The record to apply, still without the decision. skipped: a part of the sum overflowed.
    Record record;
    BufferId payload;
    PartitionLog::Waiters waiters;
    std::optional<double> norm2;  // set once measured; 0 if the slice is not clipped
  };
  using Sums = absl::btree_map<SliceId, Sum>;

  // Before the first sum of a step: how many it has. None is held.
  void Begin(size_t slices) { slices_ = slices; }

  // All held sums belong to one step, at most one per slice.
  void Add(Sum sum) {
    const SliceId slice = sum.record.slice;
    sums_.insert_or_assign(slice, std::move(sum));
  }

  bool empty() const { return sums_.empty(); }
  Clock step() const { return sums_.begin()->second.record.clock; }  // not empty
  Sums& sums() { return sums_; }

  // Null: none is held.
  Sum* Find(SliceId slice) {
    const auto it = sums_.find(slice);
    return it == sums_.end() ? nullptr : &it->second;
  }
  const Sum* Find(SliceId slice) const { return const_cast<HeldStep*>(this)->Find(slice); }
  Sum* FindPayload(BufferId payload) {
    for (auto& [slice, sum] : sums_) {
      if (sum.payload == payload) return &sum;
    }
    return nullptr;
  }

  // The report over all sums, with norms added in ascending order of slices. nullopt: a sum is not
  // sealed or not measured yet.
  std::optional<StepReport> Whole() const {
    if (sums_.size() < slices_) return std::nullopt;
    StepReport whole;
    for (const auto& [slice, sum] : sums_) {
      if (!sum.norm2.has_value()) return std::nullopt;
      whole.norm2 += *sum.norm2;
      if (sum.record.skipped && !whole.overflowed.has_value()) whole.overflowed = sum.record.origin;
    }
    return whole;
  }

  // The step is decided: returns the sums and holds nothing any more.
  Sums Take() {
    reported_ = false;
    unanswered_ = 0;
    last_error_.clear();
    return std::exchange(sums_, {});
  }

  // ---- The report ----
  bool reported() const { return reported_; }
  absl::Time next_report() const { return next_report_; }
  // Reports sent since the decider last answered. They are counted rather than timed, since a
  // suspended process sends none.
  int64_t unanswered() const { return unanswered_; }
  const std::string& last_error() const { return last_error_; }
  void Reported(absl::Time next) {
    reported_ = true;
    ++unanswered_;
    next_report_ = next;
  }
  void Heard() { unanswered_ = 0; }
  void Refused(std::string error) { last_error_ = std::move(error); }

 private:
  Sums sums_;
  size_t slices_ = 0;
  bool reported_ = false;
  absl::Time next_report_;
  int64_t unanswered_ = 0;
  std::string last_error_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_HELD_STEP_H_
