// What checkpoints must have, and which must be there, checked against what partitions applied and
// what was said of them (G7). It looks at the disk itself, as a crash then would leave it.
#ifndef STARLING_TESTS_SIM_CHECKPOINT_TRUTH_H_
#define STARLING_TESTS_SIM_CHECKPOINT_TRUTH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/names.h"
#include "common/checkpoint/reader.h"
#include "common/checkpoint/testing/memory_disk.h"
#include "common/protocol/record.h"
#include "proto/checkpoint.pb.h"
#include "proto/coordinator.pb.h"
#include "server/shard/host/partition_observer.h"
#include "tests/sim/checker.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/world.h"

namespace starling::sim {

// Not thread-safe.
class CheckpointTruth final : public DiskObserver {
 public:
  using FindTruth = std::function<JobTruth*(RunId)>;
  // `world` outlives it, and so does `source`: of the cluster whose checkpoint the job goes on
  // from; null: there is none.
  CheckpointTruth(World* world, std::shared_ptr<const MemoryDisk> disk, FindTruth find,
                  const CheckpointTruth* source)
      : world_(world), disk_(std::move(disk)), find_(std::move(find)), source_(source) {}

  // ---- Shards: any copy of a slice has an update, and its values and slots are these now.
  void OnCarriedOut(RunId run, const Record& record, const HostedSlice& slice);

  // ---- The disk
  void OnRenamed(const std::string& from, const std::string& to) override;
  void OnRemoved(const std::string& folder) override;
  void OnRestarted();

  // ---- What the coordinator says, and is asked for
  void OnListed(const CheckpointInfo& info);
  // A call reaches the coordinator. Each one is refused later, or not.
  void OnAskedToDelete(const std::string& id) { ++asked_to_delete_[id]; }
  void OnRefusedToDelete(const std::string& id);  // by one call, which has changed nothing
  void OnDeleted(const std::string& id);          // the coordinator says so
  // Of the run that the checkpoint is of; null: none was made with this id.
  const JobTruth* TruthOf(const std::string& id) const;
  // The manifest that it was made with; null: as above.
  const CheckpointManifest* Made(const std::string& id) const;
  // How many were made of the job.
  size_t CountMade(JobUid job) const;
  // The newest one of the job that was listed, that nobody asked to delete but in vain, and that
  // could be read if nothing failed; nullopt: there is none.
  std::optional<CheckpointId> NewestReadable(JobUid job) const;
  // At the end of the run. By then partitions have heard of policies that had been decided.
  void CheckPolicies() const;

 private:
  // Digests of what a slice has behind an update.
  struct Content {
    uint64_t value = 0;
    std::array<uint64_t, 2> slots = {};
  };

  // Null, and a violation: it is not whole.
  std::unique_ptr<CheckpointReader> CheckWhole(const std::shared_ptr<MemoryDisk>& disk,
                                               const std::string& id, const std::string& when);
  void CheckValues(const CheckpointReader& reader);
  void CheckNumbers(const CheckpointManifest& manifest, const JobTruth& truth);
  void CheckSlice(const CheckpointReader& reader, const JobTruth& truth, const Slice& slice);
  static Content FirstContent(const Slice& slice);
  // nullopt: no update is known that makes the slice's so many-th, in this run or in one before.
  std::optional<Content> ContentOf(const JobTruth& truth, SliceId slice, uint64_t updates) const;
  void CheckMayDrop(const std::string& id);

  World* const world_;
  const std::shared_ptr<const MemoryDisk> disk_;
  const FindTruth find_;
  const CheckpointTruth* const source_;
  std::map<std::pair<const JobTruth*, SliceId>, std::map<Lsn, Content>> contents_;
  std::map<std::string, CheckpointManifest> made_;  // by id
  std::set<std::string> listed_;
  std::map<std::string, int> asked_to_delete_;  // calls that were not refused
  std::set<std::string> dropped_;               // no longer listed
  std::set<std::string> looked_at_;             // folders of which a file was removed
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_CHECKPOINT_TRUTH_H_
