// Tightens a job's consistency policy, async -> SSP(s) -> BSP, when training with stale values goes
// wrong: the loss departs from its trend, or updates come too late. docs/consistency.md describes
// it for users.
//
// The loss is judged by the median of the last `window` batches, which a few outliers cannot move.
// Its *level* is the lowest recent median: it follows a fall at once and a rise over 64 windows.
// The guard acts when the median is above `loss_factor` times the level and is not falling. Near
// the end a loss is small and jumps, so a level below a sixth of the first one counts as that
// sixth. After a change of policy the guard waits for a whole window of batches under the new
// policy.
#ifndef STARLING_SERVER_COORDINATOR_GUARD_POLICY_GUARD_H_
#define STARLING_SERVER_COORDINATOR_GUARD_POLICY_GUARD_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "proto/job.pb.h"

namespace starling::coordinator {

struct Tightening {
  Policy policy;       // kind and staleness
  std::string reason;  // for users, with the figures
};

// The part that outlives a coordinator: losses. 0: unknown.
struct LossTrend {
  double first = 0;
  double level = 0;
};

// Pure. Not thread-safe.
class PolicyGuard {
 public:
  // `batch`: samples per batch; `trend`: from before the coordinator's restart.
  PolicyGuard(const Guard& options, uint64_t batch, LossTrend trend = {});

  // Adds a batch or, in BSP, a part of one; parts are put together. `loss_sum` is over samples and
  // finite.
  void Observe(double loss_sum, uint64_t samples);

  // Sets the lag that shards report: updates between pull and apply, the greatest of the last few.
  void ObserveLag(uint64_t updates) { lag_ = updates; }

  // A new policy is in force: observations from here on judge that one.
  void PolicyChanged();

  // The next policy if `now`, the one in force, should be tightened; nothing in BSP. The result
  // stays the same until PolicyChanged is called or the evidence has passed.
  std::optional<Tightening> Judge(const Policy& now) const;

  const LossTrend& trend() const { return trend_; }

  // Windows of batches since construction. The first complete one sets the trend.
  uint64_t windows() const { return batches_ / options_.window(); }

 private:
  void AddBatch(double loss);
  std::optional<std::string> WhyLoss() const;
  std::optional<std::string> WhyLag() const;
  double Limit() const;

  Guard options_;  // constant
  uint64_t batch_;
  LossTrend trend_;

  double loss_sum_ = 0;  // of the batch that is being put together
  uint64_t samples_ = 0;
  uint64_t batches_ = 0;
  std::deque<double> window_;  // under the policy in force
  uint64_t lag_ = 0;
  uint64_t late_batches_ = 0;  // consecutive, with a lag above the limit
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_GUARD_POLICY_GUARD_H_
