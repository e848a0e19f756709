#include "server/coordinator/core/views.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/defences.h"

namespace starling::coordinator {

std::string PartitionsText(const std::vector<uint32_t>& partitions) {
  return absl::StrCat("partition", partitions.size() == 1 ? " " : "s ",
                      absl::StrJoin(partitions, ", "));
}

bool IsWhole(const View& view) { return view.backup() != 0 && !view.learning(); }

bool Leads(const View& view, const ShardAt& shard) {
  return view.primary() == shard.id && view.primary_incarnation() == shard.incarnation;
}

bool Backs(const View& view, const ShardAt& shard) {
  return view.backup() != 0 && view.backup() == shard.id &&
         view.backup_incarnation() == shard.incarnation;
}

View FirstView(uint32_t partition, const ShardAt& primary) {
  View view;
  view.set_partition(partition);
  view.set_number(1);
  view.set_primary(primary.id);
  view.set_primary_address(primary.address);
  view.set_primary_incarnation(primary.incarnation);
  return view;
}

void DropBackup(View& view) {
  view.set_number(view.number() + 1);
  view.clear_backup();
  view.clear_backup_address();
  view.clear_backup_incarnation();
  view.clear_learning();
}

void SwapCopies(View& view) {
  const View before = view;
  view.set_number(before.number() + 1);
  view.set_primary(before.backup());
  view.set_primary_address(before.backup_address());
  view.set_primary_incarnation(before.backup_incarnation());
  view.set_backup(before.primary());
  view.set_backup_address(before.primary_address());
  view.set_backup_incarnation(before.primary_incarnation());
}

void AddLearner(const ShardAt& shard, View& view) {
  view.set_number(view.number() + 1);
  view.set_backup(shard.id);
  view.set_backup_address(shard.address);
  view.set_backup_incarnation(shard.incarnation);
  view.set_learning(true);
}

Loss LoseShard(const ShardAt& shard, bool backup_lives, View& view) {
  if (Backs(view, shard)) {
    DropBackup(view);
    return Loss::kBackup;
  }
  if (!Leads(view, shard)) return Loss::kNothing;
  const bool whole = !view.learning() || DefenceMasked(Defence::kWholeBeforeLead);
  if (view.backup() == 0 || !whole || !backup_lives) return Loss::kValues;
  view.set_primary(view.backup());
  view.set_primary_address(view.backup_address());
  view.set_primary_incarnation(view.backup_incarnation());
  DropBackup(view);
  return Loss::kPromoted;
}

bool TakeWhole(const PartitionStatus& status, View& view) {
  if (!view.learning() || !status.backup_whole() || status.view() != view.number()) return false;
  view.clear_learning();
  return true;
}

std::vector<BackupPlace> PlaceBackups(absl::Span<const WantsBackup> wanting,
                                      std::vector<ShardLoad> shards,
                                      std::map<ShardId, uint32_t> copying, uint32_t copying_max) {
  std::vector<BackupPlace> places;
  std::vector<uint64_t> own(shards.size(), 0);
  for (const WantsBackup& wants : wanting) {
    if (copying[wants.primary] >= copying_max) continue;
    const auto load = [&](size_t i) { return std::pair(own[i], shards[i].elements); };
    size_t best = shards.size();
    for (size_t i = 0; i < shards.size(); ++i) {
      if (shards[i].id == wants.primary || shards[i].room_bytes < wants.bytes) continue;
      if (copying[shards[i].id] >= copying_max || wants.not_on.contains(shards[i].id)) continue;
      if (best == shards.size() || load(i) < load(best)) best = i;
    }
    if (best == shards.size()) continue;
    places.push_back({wants.partition, shards[best].id});
    own[best] += wants.elements;
    shards[best].elements += wants.elements;
    shards[best].room_bytes -= wants.bytes;
    ++copying[wants.primary];
    ++copying[shards[best].id];
  }
  return places;
}

}  // namespace starling::coordinator
