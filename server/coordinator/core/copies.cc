// Which shards have copies of which partitions (docs/decisions/0012): learners for partitions
// without a backup, and what becomes of a partition whose shard is gone.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/utf8.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

constexpr uint32_t kSnapshotsAtOnce = 4;  // to and from a shard
constexpr absl::Duration kBackupsPeriod = absl::Milliseconds(250);

std::string PartitionsText(const std::vector<uint32_t>& partitions) {
  return absl::StrCat("partition", partitions.size() == 1 ? " " : "s ",
                      absl::StrJoin(partitions, ", "));
}

}  // namespace

bool Core::Replicates(const Job& job, size_t shards) {
  const Durability durability = job.spec().durability();
  return durability == DURABILITY_REPLICATED || (durability == DURABILITY_AUTO && shards >= 2);
}

uint32_t Core::WholePartitions(const Job& job) {
  const auto& views = job.state.views();
  return static_cast<uint32_t>(std::count_if(views.begin(), views.end(), [](const View& view) {
    return view.backup() != 0 && !view.learning();
  }));
}

// The change is durable before anyone is told. Shards that had copies before are told, too.
void Core::ChangeViews(Job& job, const std::function<void()>& change) {
  for (const View& view : job.state.views()) CountView(job, view, -1);
  TouchJob(job);
  change();
  for (const View& view : job.state.views()) CountView(job, view, 1);
  ++job.views_number;
  SaveState(job);
  TouchJob(job);
}

void Core::LoseCopies(Job& job, const Shard& shard, const std::string& why) {
  std::vector<uint32_t> lost, promoted, alone;
  uint64_t elements = 0;
  ChangeViews(job, [&] {
    for (View& view : *job.state.mutable_views()) {
      const auto backup = shards_.find(view.backup());
      const bool lives =
          backup != shards_.end() && !backup->second.fenced() && backup->second.backs(view);
      switch (LoseShard(shard.at(), lives, view)) {
        case Loss::kNothing: break;
        case Loss::kBackup: alone.push_back(view.partition()); break;
        case Loss::kPromoted: promoted.push_back(view.partition()); break;
        case Loss::kValues:
          lost.push_back(view.partition());
          elements += job.partition_elements[view.partition()];
          break;
      }
    }
    job.state.set_failovers(job.state.failovers() + promoted.size());
  });
  const std::string gone =
      absl::StrCat("shard ", shard.name(), " at ", shard.stored.registration().address(),
                   " is gone (", why, "): ");
  advance_.insert(job.uid());
  if (!promoted.empty())
    Log(job, absl::StrCat(gone, PartitionsText(promoted), " continue on the other copy"));
  if (!alone.empty()) Log(job, absl::StrCat(gone, PartitionsText(alone), " have one copy left"));
  if (lost.empty()) return;
  const std::string what =
      absl::StrCat(gone, "lost ", PartitionsText(lost), " of ", job.state.views_size(), ", ",
                   elements, " of ", job.stored.parameters(), " parameters");
  LoseValues(job, shard, lost, why);
  if (job.running()) return End(job, FAILED, what);
  if (!job.over()) return;
  Log(job, what);
  if (job.state.state() != SUCCEEDED) return;
  job.state.set_reason(what);
  SaveState(job);
}

// A partition gets a backup once its primary has reported in the present view: then it has its
// copy.
void Core::GiveBackups(Job& job) {
  const auto shards = static_cast<size_t>(std::count_if(
      shards_.begin(), shards_.end(), [](const auto& entry) { return entry.second.live(); }));
  const bool replicates = Replicates(job, shards) || job.state.failovers() > 0;
  const bool whole = WholePartitions(job) == static_cast<uint32_t>(job.state.views_size());
  if (!replicates || whole) {
    job.unreplicated_since = absl::InfiniteFuture();
  } else if (job.unreplicated_since == absl::InfiniteFuture()) {
    job.unreplicated_since = now_;
  }
  if (!job.running() || !Replicates(job, shards) || whole || now_ < job.backups_at) return;
  job.backups_at = now_ + kBackupsPeriod;
  std::vector<WantsBackup> wanting;
  for (const View& view : job.state.views()) {
    const uint32_t p = view.partition();
    const auto& status = job.partitions[p];
    const bool ready =
        status && status->view() == view.number() && shards_.at(view.primary()).live();
    if (view.backup() != 0 || !ready) continue;
    wanting.push_back(
        {p, ShardId(view.primary()), job.partition_elements[p], job.partition_bytes[p]});
  }
  if (wanting.empty()) return;
  std::map<ShardId, uint32_t> copying;
  for (const uint64_t uid : UidsIn(RUNNING)) {
    for (const View& view : jobs_.at(uid).state.views()) {
      if (!view.learning()) continue;
      ++copying[ShardId(view.primary())];
      ++copying[ShardId(view.backup())];
    }
  }
  std::vector<ShardLoad> loads = LiveShards(/*alone=*/false);
  std::erase_if(loads, [&](const ShardLoad& load) {
    const Shard& shard = shards_.at(load.id.value);
    return !shard.whole || job.unfit.contains(shard.stored.incarnation());
  });
  const std::vector<BackupPlace> places =
      PlaceBackups(wanting, std::move(loads), std::move(copying), kSnapshotsAtOnce);
  if (places.empty()) return;
  ChangeViews(job, [&] {
    for (const BackupPlace& place : places) {
      AddLearner(shards_.at(place.shard.value).at(),
                 *job.state.mutable_views(static_cast<int>(place.partition)));
    }
  });
}

// A backup reports that it cannot be one. Its primary waits for it, so the next view has none.
void Core::TakeBackup(Job& job, const Shard& shard, const PartitionStatus& status) {
  View& view = *job.state.mutable_views(static_cast<int>(status.partition()));
  if (status.fault().empty() || status.view() != view.number()) return;
  ChangeViews(job, [&] { DropBackup(view); });
  job.unfit.insert(shard.stored.incarnation());
  Log(job, absl::StrCat("partition ", status.partition(), " has no copy on ", shard.name(), ": ",
                        CutUtf8(status.fault(), limits::kFaultBytesMax)));
}

void Core::AddCopies(const Job& job, JobStatus& status) const {
  if (job.state.views().empty()) return;
  const uint32_t whole = WholePartitions(job);
  status.set_partitions(static_cast<uint32_t>(job.state.views_size()));
  status.set_partitions_whole(whole);
  status.set_failovers(job.state.failovers());
  const bool waits = job.running() && job.unreplicated_since != absl::InfiniteFuture();
  status.set_durability(waits || whole > 0 ? "replicated" : "none");
  if (!job.running()) return;
  if (waits) status.set_unreplicated_seconds(SecondsSince(job.unreplicated_since));
  status.set_backup_behind(job.partitions.Max(uint64_t{0}, &PartitionStatus::backup_behind));
}

}  // namespace starling::coordinator
