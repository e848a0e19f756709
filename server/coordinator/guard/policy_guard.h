// Tightens a job's consistency policy by itself, async -> SSP(s) -> BSP, when training with stale
// values goes wrong: the loss departs from its trend, or updates come too late. docs/consistency.md
// says what a user sees of it.
//
// The loss is judged by the median of the last `window` batches, which a few odd batches cannot
// move. Its *level* is the least such median of late: it follows a fall at once, and a rise over 64
// windows. The guard speaks when the median is above `loss_factor` times the level and is not
// falling. Near the end a loss is small and jumps, so levels below a sixth of the first one count
// as that. After a change of policy it waits for a whole window of batches under the new one.
#ifndef STARLING_SERVER_COORDINATOR_GUARD_POLICY_GUARD_H_
#define STARLING_SERVER_COORDINATOR_GUARD_POLICY_GUARD_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "proto/job.pb.h"

namespace starling {

struct Tightening {
  Policy policy;       // kind and staleness
  std::string reason;  // with the figures, for people
};

// What outlives a coordinator: losses. 0: not known.
struct LossTrend {
  double first = 0;
  double level = 0;
};

// Pure. Used by one thread.
class PolicyGuard {
 public:
  // `batch`: samples of one batch; `trend`: from before a restart of the coordinator.
  PolicyGuard(const Guard& options, uint64_t batch, LossTrend trend = {});

  // A batch was computed, or a part of one (BSP): parts are put together. `loss_sum`: over samples,
  // finite.
  void Observe(double loss_sum, uint64_t samples);

  // What the shards say of how late updates are now: updates between pull and apply, the greatest
  // of the last few.
  void ObserveLag(uint64_t updates) { lag_ = updates; }

  // A new policy is in force: what is seen from here on judges that one.
  void PolicyChanged();

  // The next policy, if `now` (the one in force) should be tightened. Nothing in BSP. It goes on
  // saying so until PolicyChanged, or until what it saw has passed.
  std::optional<Tightening> Judge(const Policy& now) const;

  const LossTrend& trend() const { return trend_; }

  // Windows of batches since it was made. The first whole one gives a trend.
  uint64_t windows() const { return batches_ / options_.window(); }

 private:
  void AddBatch(double loss);
  std::optional<std::string> WhyLoss() const;
  std::optional<std::string> WhyLag() const;
  double Limit() const;

  Guard options_;  // constant, as is:
  uint64_t batch_;
  LossTrend trend_;

  double loss_sum_ = 0;  // of the batch that is being put together
  uint64_t samples_ = 0;
  uint64_t batches_ = 0;
  std::deque<double> window_;  // under the policy in force
  uint64_t lag_ = 0;
  uint64_t late_batches_ = 0;  // one after the other, with a lag above the limit
};

}  // namespace starling

#endif  // STARLING_SERVER_COORDINATOR_GUARD_POLICY_GUARD_H_
