// The micro-batches of the current unit: which comes next, and what they add up to. Private to the
// executor.
#ifndef STARLING_WORKER_EXECUTOR_MICRO_BATCHES_H_
#define STARLING_WORKER_EXECUTOR_MICRO_BATCHES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/executor/executor.h"

namespace starling {

// A micro-batch that one lane computes.
struct Taken {
  uint64_t index = 0;  // within the unit
  size_t range = 0;
  uint64_t leaf = 0;  // within the range
  uint64_t id = 0;
  MicroBatch batch;     // filled in by the lane that took it
  bool staged = false;  // by the unit before: the batch's memory may be gone
};

// What a micro-batch adds to its range's result.
struct Outcome {
  double loss_sum = 0;
  uint64_t samples = 0;
  uint64_t correct = 0;
};

// Take is thread-safe; an outcome belongs to one thread; the rest is called while no lane runs.
class MicroBatches {
 public:
  // `ranges` stays valid while the unit runs.
  void Begin(absl::Span<const WorkRange> ranges);
  // In the unit.
  size_t count() const { return outcomes_.size(); }

  // The next one, or nullopt if all are taken.
  std::optional<Taken> Take();
  Outcome& outcome(uint64_t index) { return outcomes_[index]; }

  // By range; micro-batches are summed along the tree of their ids.
  void Sum(absl::InlinedVector<RangeResult, 8>* results) const;

 private:
  absl::Span<const WorkRange> ranges_;
  std::vector<uint64_t> ends_;  // for each range, how many micro-batches come before its end
  std::vector<Outcome> outcomes_;
  std::atomic<uint64_t> next_{0};
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_MICRO_BATCHES_H_
