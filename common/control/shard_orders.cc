#include "common/control/shard_orders.h"

#include <utility>

namespace starling {

ShardOrderBook::Changes ShardOrderBook::Take(const ShardOrders& orders) {
  Changes changes;
  for (const Run& run : orders.dropped()) {
    const auto known = jobs_.find(run.job_uid());
    if (known != jobs_.end() && known->second.run().era() <= run.era()) jobs_.erase(known);
    changes.dropped.push_back(run);
  }
  for (const ShardJob& news : orders.jobs()) {
    const auto before = jobs_.find(news.run().job_uid());
    if (before != jobs_.end() && before->second.run().era() > news.run().era()) continue;
    if (news.over()) {
      jobs_.erase(news.run().job_uid());
      changes.jobs.push_back(news);
      continue;
    }
    ShardJob& known = jobs_[news.run().job_uid()];
    if (known.run().era() != news.run().era()) known.Clear();  // nothing of it is unchanged
    ShardJob job = news;
    if (job.partitions_unchanged()) job.mutable_partitions()->Swap(known.mutable_partitions());
    if (job.roster_unchanged()) job.mutable_roster()->Swap(known.mutable_roster());
    job.clear_partitions_unchanged();
    job.clear_roster_unchanged();
    changes.jobs.push_back(job);
    job.clear_job();
    known = std::move(job);
  }
  return changes;
}

}  // namespace starling
