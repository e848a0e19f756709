// The jobs that a seed's cluster trains, and the values that must result.
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
  kDependent,  // floats that depend on all values: the bits are equal only if the same steps are
               // done in the same order
};

struct Workload {
  JobSpec spec;
  uint64_t train_samples = 0;
  uint64_t test_samples = 0;
  GradientKind gradient = GradientKind::kCounting;
  uint32_t partitions = 0;   // the first ones, which have all slices; 0: as placed
  bool poisoned = false;     // one gradient is not a number: the job must fail
  WorkRange poison;          // its item
  uint32_t switches = 0;     // of the policy, while it runs
  bool checkpoints = false;  // may be taken, for which the policy changes as well
  // fp16: from this step on every gradient overflows, whatever the scale.
  uint64_t overflows_from = std::numeric_limits<uint64_t>::max();
  bool queued = false;  // behind the job before it
};

// A job for this seed. `number`: 0 for the first, 1 for one that is queued behind it.
Workload MakeWorkload(uint64_t seed, int number);

// An item: its epoch and first micro-batch.
using ItemKey = std::pair<uint32_t, uint64_t>;

// The item that contains the range.
ItemKey ItemOf(const Workload& workload, const WorkRange& range);

// The job's step of that item.
uint64_t JobStep(const Workload& workload, const WorkRange& range);

// For messages.
std::string RangeToString(const WorkRange& range);

// How many training samples the range has.
uint64_t SamplesIn(const Workload& workload, const WorkRange& range);

using Values = std::vector<float>;
using ValuesPtr = std::shared_ptr<const Values>;

// A job's values as a client reads them, by slice.
struct ReadValues {
  std::vector<ValuesPtr> slices;  // null: lost
  std::vector<Lsn> positions;     // each one's base_lsn
};

// The contribution of `range` to one slice, summed along the tree. `values`: all slices, as pulled.
Values Contribution(const Workload& workload, const Layout& layout,
                    const std::vector<ValuesPtr>& values, SliceId slice, const WorkRange& range);

// fp16: whether the gradient of `range` overflows when the loss is scaled by 2^log2, because that
// of one of its micro-batches does. If so, the slices up to *slice are not finite.
bool Overflows(const Workload& workload, const WorkRange& range, int log2, uint32_t slices,
               SliceId* slice);

// kCounting: turns a slice's values before the step into those after it.
void AddStep(const Workload& workload, const Layout& layout, SliceId slice, uint64_t step,
             Values* values);

// kCounting: a slice's exact values with each item counted as often as `times` says.
Values ExpectedWith(const Workload& workload, const Layout& layout, SliceId slice,
                    const std::vector<std::pair<WorkRange, int>>& times);

Values InitialValues(const Slice& slice);

// How many evaluation samples of `range` count as predicted correctly.
uint64_t CorrectIn(const Workload& workload, const WorkRange& range);
uint64_t TestSamplesIn(const Workload& workload, const WorkRange& range);
// With each test sample counted once.
double ExpectedAccuracy(const Workload& workload, uint32_t epoch);

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_WORKLOAD_H_
