// What a job's way back to a checkpoint promises, checked against what the coordinator makes
// durable and says at the end.
#ifndef STARLING_TESTS_SIM_ROLLBACK_TRUTH_H_
#define STARLING_TESTS_SIM_ROLLBACK_TRUTH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/coordinator.pb.h"
#include "tests/sim/checkpoint_truth.h"
#include "tests/sim/coordinator_node.h"
#include "tests/sim/world.h"

namespace starling::sim {

// One of each cluster. The cluster tells it of every batch that its coordinator makes durable,
// before anyone else hears of it, and of every job's end as a client hears of it. What it finds
// goes to World::Violate. Not thread-safe.
class RollbackTruth {
 public:
  using StoredRun = CoordinatorNode::StoredRun;
  // Whether some partition of these views is on no shard that lives.
  using IsLost = std::function<bool(absl::Span<const View>)>;
  // `world` and `checkpoints` outlive it.
  RollbackTruth(World* world, const CheckpointTruth* checkpoints, IsLost is_lost)
      : world_(world), checkpoints_(checkpoints), is_lost_(std::move(is_lost)) {}

  // See CoordinatorNode::on_stored. Once for each job of the batch.
  void OnStored(uint64_t uid, const StoredRun& before, const StoredRun& after);
  // Once for each job, when its client hears that it is over.
  void OnEnd(const JobStatus& status);
  // Whether it may have ended since its shards could not make first values again and again.
  bool EndedWithoutFirstValues(const JobStatus& status) const;

 private:
  struct Job {
    uint32_t rollbacks = 0;
    size_t made = 0;               // checkpoints, when the newest era began
    absl::Time lost;               // when the newest rollback began
    absl::Time begun;              // the newest era; not set in the first
    std::optional<Restore> first;  // what it began with
  };

  void OnBegun(uint64_t uid, const StoredRun& before, const StoredRun& after);
  void OnNextEra(uint64_t uid, const StoredRun& before, const StoredRun& after);
  void CheckCheckpoint(uint64_t uid, const Restore& first, const Restore& restore);
  void CheckBeginsAgain(uint64_t uid, const Restore& first);
  // Whether something kept the shard that `what` names from making first values since then.
  bool LacksFirstValues(absl::string_view what, absl::Time since) const;
  // How often the disk may have kept the coordinator from reading since then.
  int64_t FailedReads(absl::Time since) const;
  void Violate(uint64_t uid, const std::string& what);

  World* const world_;
  const CheckpointTruth* const checkpoints_;
  const IsLost is_lost_;
  std::map<uint64_t, Job> jobs_;
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_ROLLBACK_TRUTH_H_
