// Sums over finished ranges of micro-batches, each range counted once.
#ifndef STARLING_SERVER_COORDINATOR_CORE_RANGE_SUMS_H_
#define STARLING_SERVER_COORDINATOR_CORE_RANGE_SUMS_H_

#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "common/data_plan/coverage.h"
#include "proto/coordinator.pb.h"

namespace starling::coordinator {

// Ranges are aligned, so two of them are either disjoint or nested. A range inside a known one is
// ignored; a range that contains known ones replaces them. The halves of a range become that range,
// so the same ids give the same bits, in whatever order they arrive and however steps are divided,
// and a pass without gaps is a few ranges.
//
// Only the highest `ranges_kept` ranges are kept individually; the others are folded into one sum.
// A late range below them counts unless it overlaps a folded one. So memory does not grow with the
// length of an epoch.
class RangeSums {
 public:
  RangeSums() = default;
  explicit RangeSums(size_t ranges_kept) : ranges_kept_(ranges_kept) {}

  // False: the range is ignored. Ranges that are not aligned are ignored, too.
  bool Add(const StepMetrics& metrics);

  // Whether an added range contains micro-batch `id`.
  bool Has(uint64_t id) const;

  uint64_t ids() const { return ids_; }  // micro-batches in the sums

  // The micro-batches for which Has is true, as disjoint ranges [first, second).
  std::vector<std::pair<uint64_t, uint64_t>> Ranges() const;

  struct Total {
    double loss_sum = 0;
    uint64_t samples = 0;
    uint64_t correct = 0;
    double loss() const { return samples == 0 ? 0 : loss_sum / static_cast<double>(samples); }
    double accuracy() const {
      return samples == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(samples);
    }
  };
  Total Sum() const;

 private:
  struct Entry {
    uint64_t end = 0;
    Total sum;
  };
  using Entries = std::multimap<uint64_t, Entry>;  // by first id

  void MergeSiblings(Entries::iterator it);
  static void AddTo(Total& total, const Total& more);

  size_t ranges_kept_ = 1 << 16;
  Entries ranges_;
  Coverage folded_{std::numeric_limits<uint64_t>::max()};  // ids in folded_sum_
  Total folded_sum_;
  uint64_t ids_ = 0;
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_RANGE_SUMS_H_
