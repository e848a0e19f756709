// What a seed's cluster trains, and what must come out.
#ifndef STARLING_TESTS_SIM_WORKLOAD_H_
#define STARLING_TESTS_SIM_WORKLOAD_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/placement/layout.h"
#include "common/protocol/types.h"
#include "proto/coordinator.pb.h"
#include "tests/sim/world.h"

namespace starling::sim {

enum class GradientKind {
  kCounting,   // small integers, a function of (slice, element, micro-batch) alone: sums are exact
               // in any order
  kDependent,  // floats that depend on all values: only the same steps in the same order give the
               // same bits
};

struct Workload {
  JobSpec spec;
  uint64_t train_samples = 0;
  uint64_t test_samples = 0;
  GradientKind gradient = GradientKind::kCounting;
  uint32_t partitions = 0;  // all slices in the first so many, the others empty; 0: as placed
  bool poisoned = false;    // one gradient is not a number: the job must fail
  WorkRange poison;         // the item
  uint32_t switches = 0;    // of the policy, while it runs
  // fp16: from this step of the job on every gradient overflows, whatever the scale.
  uint64_t overflows_from = std::numeric_limits<uint64_t>::max();
  bool queued = false;  // waits for the job before it
};

// A job for this seed. `number`: 0 for the first, 1 for one that is queued behind it.
Workload MakeWorkload(uint64_t seed, int number);

// An item: its epoch and first micro-batch.
using ItemKey = std::pair<uint32_t, uint64_t>;

// The item that the range is a part of.
ItemKey ItemOf(const Workload& workload, const WorkRange& range);

// The job's step of that item.
uint64_t JobStep(const Workload& workload, const WorkRange& range);

// For messages.
std::string RangeToString(const WorkRange& range);

// The number of the first of `range`'s micro-batches' samples, and behind the last's, in its
// epoch's order.
uint64_t SamplesIn(const Workload& workload, const WorkRange& range);

using Values = std::vector<float>;
using ValuesPtr = std::shared_ptr<const Values>;

// The contribution of `range` for one slice, summed along the tree. `values`: of all slices, as
// pulled.
Values Contribution(const Workload& workload, const Layout& layout,
                    const std::vector<ValuesPtr>& values, SliceId slice, const WorkRange& range);

// fp16: whether the gradient of `range` overflows when the loss is scaled by 2^log2: where that of
// one of its micro-batches does. The slices up to *slice are not finite then.
bool Overflows(const Workload& workload, const WorkRange& range, int log2, uint32_t slices,
               SliceId* slice);

// kCounting: takes the step's whole batch into account, which turns what a slice holds before it
// into what it holds after it.
void AddStep(const Workload& workload, const Layout& layout, SliceId slice, uint64_t step,
             Values* values);

// kCounting: what a slice holds, bit by bit, with each item counted as often as `times` says.
Values ExpectedWith(const Workload& workload, const Layout& layout, SliceId slice,
                    const std::vector<std::pair<WorkRange, int>>& times);

Values InitialValues(const Slice& slice);

// How many of the evaluation samples of `range` count as predicted correctly.
uint64_t CorrectIn(const Workload& workload, const WorkRange& range);
uint64_t TestSamplesIn(const Workload& workload, const WorkRange& range);
// With each sample of the test set once.
double ExpectedAccuracy(const Workload& workload, uint32_t epoch);

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_WORKLOAD_H_
