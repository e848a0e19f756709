// From frames to the partitions that they are for: what the control thread publishes and the
// transport's thread reads.
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
#include "server/shard/host/partition_host.h"

namespace starling {

// A partition in the hands of its owner. What it has belongs to the owner's thread: a host, once
// its job is over what that left, or neither, where it could not be made or was dropped.
struct HostedPartition {
  EventLoop* owner = nullptr;
  std::unique_ptr<PartitionHost> host;
  std::unique_ptr<EndedPartition> ended;

  void Clear() {
    host.reset();
    ended.reset();
  }
};

// Thread-safe.
class Routes {
 public:
  using Key = shard::PartitionKey;
  using Table = std::map<Key, std::shared_ptr<HostedPartition>>;

  // nullptr: no partition is there, or not any more.
  std::shared_ptr<HostedPartition> Find(const Key& key) const;
  void Set(const Key& key, std::shared_ptr<HostedPartition> partition);
  std::shared_ptr<HostedPartition> Remove(const Key& key);
  // Of jobs that are not over.
  Table Live() const;
  Table All() const;
  // The job is over: its partitions are many, and seldom asked for.
  void Shelve(JobUid job);

  // Which worker has which name, as the rosters say it. Ids are durable per name.
  void SetNames(std::map<WorkerId, std::string> names);
  // Whether a stream of the worker `name` may speak for `worker`. Of one that no roster knows the
  // partition decides, which then knows it no more than we do.
  bool MaySpeakFor(const std::string& name, WorkerId worker) const;

 private:
  mutable Mutex mutex_;
  Table routes_ ABSL_GUARDED_BY(mutex_);
  Table shelved_ ABSL_GUARDED_BY(mutex_);
  std::map<WorkerId, std::string> names_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_ROUTES_H_
