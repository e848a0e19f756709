// The table from frames to partitions. The control thread writes it, the transport's thread reads
// it.
#ifndef STARLING_SERVER_SHARD_HOST_ROUTES_H_
#define STARLING_SERVER_SHARD_HOST_ROUTES_H_

#include <map>
#include <memory>
#include <string>

#include "common/event_loop/event_loop.h"
#include "common/protocol/ids.h"
#include "common/sync/mutex.h"
#include "server/shard/core/shard.h"
#include "server/shard/host/ended_partition.h"
#include "server/shard/host/ended_reader.h"
#include "server/shard/host/partition_host.h"

namespace starling {

// A partition and its owner. Only the owner's thread uses the others. `host` is set while the job
// runs, `ended` after it, `reader` before that if the values come from another shard then; none is
// set if the partition could not be made or was dropped.
struct HostedPartition {
  EventLoop* owner = nullptr;
  std::unique_ptr<PartitionHost> host;
  std::unique_ptr<EndedReader> reader;
  std::unique_ptr<EndedPartition> ended;

  void Clear() {
    host.reset();
    reader.reset();
    ended.reset();
  }
};

// Thread-safe.
class Routes {
 public:
  using Key = shard::PartitionKey;
  using Table = std::map<Key, std::shared_ptr<HostedPartition>>;

  // Null: there is no such partition, or not any more.
  std::shared_ptr<HostedPartition> Find(const Key& key) const;
  void Set(const Key& key, std::shared_ptr<HostedPartition> partition);
  std::shared_ptr<HostedPartition> Remove(const Key& key);
  // Partitions of jobs that are not over, or of which values are still to come.
  Table Live() const;
  Table All() const;
  // The job is over: its partitions are no longer Live. Such partitions are numerous and seldom
  // asked for.
  void Shelve(JobUid job);

  // The workers' names from the rosters. An id belongs to one name for good.
  void SetNames(std::map<WorkerId, std::string> names);
  // Which shard leads each partition that is backed here.
  using Leaders = std::map<Key, shard::action::Learn::Leader>;
  void SetLeaders(Leaders leaders);
  // Whether a stream of the worker `name` may send frames of `worker`. True for a worker in no
  // known roster: the partition refuses it.
  bool MaySpeakFor(const std::string& name, WorkerId worker) const;
  // Whether a stream of the shard `name` may send what is replicated in this run and view. True for
  // those that are not known here (yet, or any more): the partition refuses it.
  bool MayReplicate(const std::string& name, const RunId& run, PartitionId partition,
                    ViewNumber view) const;

 private:
  mutable Mutex mutex_;
  Table routes_ ABSL_GUARDED_BY(mutex_);
  Table shelved_ ABSL_GUARDED_BY(mutex_);
  std::map<WorkerId, std::string> names_ ABSL_GUARDED_BY(mutex_);
  Leaders leaders_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_ROUTES_H_
