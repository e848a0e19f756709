// Which shard has which copy of a partition (docs/decisions/0012): pure functions of its view. Each
// change takes the next number; the caller makes it durable before it is visible.
#ifndef STARLING_SERVER_COORDINATOR_CORE_VIEWS_H_
#define STARLING_SERVER_COORDINATOR_CORE_VIEWS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/placement/layout.h"
#include "common/protocol/ids.h"
#include "proto/coordinator.pb.h"

namespace starling::coordinator {

// A shard as a view names it.
struct ShardAt {
  uint32_t id = 0;
  uint64_t incarnation = 0;
  std::string address;
};

// "partitions 3, 7", for messages.
std::string PartitionsText(const std::vector<uint32_t>& partitions);

// Its backup has all that is committed.
bool IsWhole(const View& view);

bool Leads(const View& view, const ShardAt& shard);
bool Backs(const View& view, const ShardAt& shard);

// The first view of a partition.
View FirstView(uint32_t partition, const ShardAt& primary);

enum class Loss {
  kNothing,   // the shard has no copy
  kBackup,    // the primary goes on alone
  kPromoted,  // the backup is the primary now
  kValues     // the view stays as it is: no copy of the values is left
};
// The shard is gone. `backup_lives`: the shard of the view's backup is not.
Loss LoseShard(const ShardAt& shard, bool backup_lives, View& view);

// The view gets an empty backup, instead of the one that it has, if any.
void AddLearner(const ShardAt& shard, View& view);
void DropBackup(View& view);
// The whole backup leads, and the primary backs it. Only where nothing is applied any more: the
// shards are not told.
void SwapCopies(View& view);

// What a primary says of its backup. True: the view has changed.
bool TakeWhole(const PartitionStatus& status, View& view);

// A partition that should have a backup.
struct WantsBackup {
  uint32_t partition = 0;
  ShardId primary;
  uint64_t elements = 0;
  uint64_t bytes = 0;        // planned
  std::set<ShardId> not_on;  // shards that are unfit for it
};
struct BackupPlace {
  uint32_t partition = 0;
  ShardId shard;
  friend bool operator==(const BackupPlace&, const BackupPlace&) = default;
};
// The shard of each one's backup: not that of its primary, fit, with room for it, and of these that
// with least of what is placed here, then with least in all, then the first. `copying` counts, by
// shard, the snapshots that come and go; none gets more than `copying_max`. Partitions for which
// there is no place are left out.
std::vector<BackupPlace> PlaceBackups(absl::Span<const WantsBackup> wanting,
                                      std::vector<ShardLoad> shards,
                                      std::map<ShardId, uint32_t> copying, uint32_t copying_max);

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_VIEWS_H_
