// Internal to this folder: what shards do during a step, and which shard or partition holds it up.
#ifndef STARLING_SERVER_COORDINATOR_EXPLAIN_SHARDS_H_
#define STARLING_SERVER_COORDINATOR_EXPLAIN_SHARDS_H_

#include <map>
#include <string>
#include <vector>

#include "server/coordinator/explain/evidence.h"
#include "server/coordinator/explain/findings.h"

namespace starling::explain {

class ShardLoads {
 public:
  // `step_seconds`: a worker's mean step.
  ShardLoads(const Evidence& evidence, double step_seconds);

  // Neither its updates nor its queue take a noticeable part of the step.
  bool KeepsUp(const std::string& shard) const;

  // Call only when workers wait for shards.
  void Find(Findings& findings);
  bool found() const { return found_; }

 private:
  struct Partition {
    const PartitionEvidence* evidence = nullptr;
    double busy = 0;  // share of the window spent on verifying and updating
  };
  struct Shard {
    std::string address;
    std::vector<Partition> partitions;
    double seconds = 0;  // of work, in total
    double updates = 0;
    double bytes = 0;
    double queued = 0;  // seconds, summed over pushes
    double pushes = 0;
    double load = 0;  // of its busiest thread, 0 to 1
    double per_update() const { return updates > 0 ? seconds / updates : 0; }
    double per_byte() const { return bytes > 0 ? seconds / bytes : 0; }
    double per_push() const { return pushes > 0 ? queued / pushes : 0; }
  };
  using Named = std::pair<const std::string, Shard>;

  bool Queues(const Shard& shard) const;
  void FindBusy(const Named& shard, Findings& findings);
  bool FindHotPartition(const Named& shard, Findings& findings) const;
  bool IsSlow(const Named& shard, double* others) const;
  void FindQueue(const Named& shard, Findings& findings);

  const double step_seconds_;
  std::map<std::string, Shard> shards_;
  bool found_ = false;
  bool apply_bound_ = false;
};

}  // namespace starling::explain

#endif  // STARLING_SERVER_COORDINATOR_EXPLAIN_SHARDS_H_
