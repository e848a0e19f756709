// Which shards have copies of which partitions (docs/decisions/0012): learners for partitions
// without a backup, and what becomes of a partition whose shard is gone.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/utf8.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

constexpr uint32_t kSnapshotsAtOnce = 4;  // to and from a shard
constexpr absl::Duration kBackupsPeriod = absl::Milliseconds(250);
// For a learner to get one more frame, and for an ended job's primary to have its backup's answer.
constexpr absl::Duration kCopyWait = absl::Minutes(1);
// For a whole backup to take one more record: time enough to notice that a link is dead (keepalive:
// 20 s) and to open another one.
constexpr absl::Duration kBackupWait = absl::Seconds(30);
// A shard is unfit for this long, twice as long the next time, and so on, up to 32 minutes. An hour
// after it was last unfit it starts over.
constexpr absl::Duration kUnfit = absl::Seconds(30);
constexpr int kUnfitDoublings = 6;
constexpr absl::Duration kUnfitForgotten = absl::Hours(1);
constexpr double kSilentSecondsTold = 3;

std::string MebibytesText(uint64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

bool Core::Replicates(const Job& job, size_t shards) {
  const Durability durability = job.spec().durability();
  return durability == DURABILITY_REPLICATED || (durability == DURABILITY_AUTO && shards >= 2);
}

uint32_t Core::WholePartitions(const Job& job) {
  const auto& views = job.state.views();
  return static_cast<uint32_t>(std::count_if(views.begin(), views.end(), IsWhole));
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
  ended_changes_ += job.over();
}

bool Core::BackupLives(const View& view) const {
  const auto backup = shards_.find(view.backup());
  return backup != shards_.end() && !backup->second.fenced() && backup->second.backs(view);
}

void Core::LoseCopies(Job& job, const Shard& shard, const std::string& why) {
  std::vector<uint32_t> lost, promoted, alone;
  uint64_t elements = 0;
  bool copying = false;  // a second copy that was not whole yet
  ChangeViews(job, [&] {
    for (View& view : *job.state.mutable_views()) {
      const bool backed = view.backup() != 0 && !shard.backs(view);
      switch (LoseShard(shard.at(), BackupLives(view), view)) {
        case Loss::kNothing: break;
        case Loss::kBackup: alone.push_back(view.partition()); break;
        case Loss::kPromoted: promoted.push_back(view.partition()); break;
        case Loss::kValues:
          lost.push_back(view.partition());
          copying |= backed;
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
    Log(job, absl::StrCat(gone, "the other copy leads now of ", PartitionsText(promoted)));
  if (!alone.empty()) Log(job, absl::StrCat(gone, "one copy is left of ", PartitionsText(alone)));
  if (lost.empty()) return;
  const std::string what =
      absl::StrCat(gone, "lost ", PartitionsText(lost), " of ", job.state.views_size(), ", ",
                   elements, " of ", job.stored.parameters(), " parameters",
                   copying ? ", of which a second copy was still being made" : "",
                   job.running() ? absl::StrCat(", at step ", StepsDone(job)) : "");
  const bool counts = !shard.left();
  if (job.running() && MayRollBack(job, counts))
    return BeginRollback(job, what, counts, absl::ZeroDuration());
  LoseValues(job, shard, lost, why);
  if (job.running()) return End(job, FAILED, absl::StrCat(what, WhyNoRollback(job)));
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
  const bool twice = Replicates(job, shards);
  // A job that has had a backup lacks it when the other shard is gone.
  const auto& views = job.state.views();
  const bool had_one =
      job.spec().durability() != DURABILITY_NONE &&
      std::any_of(views.begin(), views.end(), [](const View& view) { return view.number() > 1; });
  const bool whole = WholePartitions(job) == static_cast<uint32_t>(job.state.views_size());
  if ((!twice && !had_one) || whole) {
    job.unreplicated_since = absl::InfiniteFuture();
  } else if (job.unreplicated_since == absl::InfiniteFuture()) {
    job.unreplicated_since = now_;
  }
  if (!job.running()) return;
  HandOver(job);
  if (now_ < job.backups_at) return;
  job.backups_at = now_ + kBackupsPeriod;
  std::erase_if(job.unfit,
                [&](const auto& entry) { return now_ >= entry.second.until + kUnfitForgotten; });
  DropStalledBackups(job);
  MoveUndecided(job);
  const std::vector<BackupPlace> places = FindBackups(WantBackups(job, twice));
  if (places.empty()) return;
  ChangeViews(job, [&] {
    for (const BackupPlace& place : places) {
      View& view = *job.state.mutable_views(static_cast<int>(place.partition));
      if (view.backup() != 0) NoteHandedOver(job, view, view.backup());
      AddLearner(shards_.at(place.shard.value).at(), view);
    }
  });
}

// Planned memory of one more copy: of values alone, once the job is over.
uint64_t Core::CopyBytes(const Job& job, uint32_t partition) {
  if (ValuesSettled(job)) return job.partition_elements[partition] * sizeof(float);
  const auto& status = job.partitions[partition];
  return job.partition_bytes[partition] + (job.bsp() && status ? status->bsp_bytes_more() : 0);
}

// `twice`: the job is to have two copies. Where the primary drains, another copy is wanted in any
// case, and where the backup does, another one.
std::vector<WantsBackup> Core::WantBackups(const Job& job, bool twice) const {
  std::vector<WantsBackup> wanting;
  for (const View& view : job.state.views()) {
    const uint32_t p = view.partition();
    const auto& status = job.partitions[p];
    const bool ready =
        status && status->view() == view.number() && IsPresent(shards_.at(view.primary()));
    const bool goes = Drains(view.primary()) || Drains(view.backup());
    if ((view.backup() != 0 && !Drains(view.backup())) || (!twice && !goes) || !ready) continue;
    WantsBackup& wants = wanting.emplace_back();
    wants.partition = p;
    wants.primary = ShardId(view.primary());
    wants.elements = job.partition_elements[p];
    wants.bytes = CopyBytes(job, p);
    for (const auto& [id, shard] : shards_) {
      if (FindUnfit(job, view, shard) != nullptr) wants.not_on.insert(ShardId(id));
    }
  }
  return wanting;
}

std::vector<BackupPlace> Core::FindBackups(const std::vector<WantsBackup>& wanting) const {
  if (wanting.empty()) return {};
  std::map<ShardId, uint32_t> copying;
  for (const uint64_t uid : UidsIn(RUNNING)) {
    for (const View& view : jobs_.at(uid).state.views()) {
      if (!view.learning()) continue;
      ++copying[ShardId(view.primary())];
      ++copying[ShardId(view.backup())];
    }
  }
  std::vector<ShardLoad> loads = LiveShards(/*alone=*/false);
  std::erase_if(loads, [&](const ShardLoad& load) { return !shards_.at(load.id.value).whole; });
  return PlaceBackups(wanting, std::move(loads), std::move(copying), kSnapshotsAtOnce);
}

// A backup reports that it cannot be one. Its primary waits for it, so the next view has none. If
// it differs from its primary, neither is trained on: its values stay as they are at the primary.
void Core::TakeBackup(Job& job, const Shard& shard, const PartitionStatus& status) {
  View& view = *job.state.mutable_views(static_cast<int>(status.partition()));
  if (status.fault().empty() || status.view() != view.number()) return;
  if (status.copies_differ() && job.running()) {
    return End(job, FAILED,
               absl::StrCat(CutUtf8(status.fault(), limits::kFaultBytesMax), " (primary: ",
                            shards_.at(view.primary()).name(), ", backup: ", shard.name(), ")"));
  }
  ChangeViews(job, [&] { DropBackup(view); });
  const std::string why(CutUtf8(status.fault(), limits::kFaultBytesMax));
  SetUnfit(job, 0, shard.stored.incarnation(), why);
  Log(job,
      absl::StrCat("partition ", status.partition(), " has no copy on ", shard.name(), ": ", why));
}

// Whether the primary, which has no memory, was replaced by its backup, as if its shard were gone.
// The backup has all that was acknowledged.
bool Core::ReplacePrimary(Job& job, const Shard& shard, const PartitionStatus& status) {
  View& view = *job.state.mutable_views(static_cast<int>(status.partition()));
  if (!status.no_memory() || !IsWhole(view) || !BackupLives(view)) return false;
  ChangeViews(job, [&] {
    LoseShard(shard.at(), /*backup_lives=*/true, view);
    job.state.set_failovers(job.state.failovers() + 1);
  });
  const std::string why(CutUtf8(status.fault(), limits::kFaultBytesMax));
  SetUnfit(job, 0, shard.stored.incarnation(), why);
  Log(job,
      absl::StrCat("partition ", status.partition(), " stopped on ", shard.name(), " (", why,
                   ") and continues on the other copy, on ", shards_.at(view.primary()).name()));
  return true;
}

void Core::NoteCopy(Job& job, const PartitionStatus& status) const {
  const View& view = job.state.views(static_cast<int>(status.partition()));
  if (view.backup() == 0 || status.view() != view.number()) return;
  CopyProgress& copy = job.copies[status.partition()];
  const bool fresh = copy.view != view.number();
  const bool grew = view.learning() ? status.backup_frames() > copy.frames
                                    : !copy.waits || status.lsn() > copy.lsn;
  if (fresh || grew) copy = {view.number(), status.backup_frames(), status.lsn(), false, now_};
  copy.waits = view.learning() || status.backup_behind() > 0;
}

// Whether the primary of the view has reported at that time or later. A backup is not dropped for
// the silence of its primary, which may have died: then the backup is the copy that counts.
bool Core::PrimaryHasReported(const View& view, absl::Time at) const {
  const auto shard = shards_.find(view.primary());
  return shard != shards_.end() && shard->second.leads(view) && shard->second.live() &&
         shard->second.reported >= at;
}

// A learner that gets nothing, for example since the link from its primary is broken, keeps others
// from being copied. A whole backup that takes nothing keeps its partition from training.
void Core::DropStalledBackups(Job& job) {
  std::vector<std::pair<uint32_t, std::string>> stalled;
  for (const View& view : job.state.views()) {
    if (view.backup() == 0) continue;
    CopyProgress& copy = job.copies[view.partition()];
    if (copy.view != view.number()) copy = {view.number(), 0, 0, view.learning(), now_};
    const absl::Duration wait = view.learning() ? kCopyWait : kBackupWait;
    if (!copy.waits || now_ < copy.since + wait) continue;
    if (!PrimaryHasReported(view, copy.since + wait)) continue;
    const std::string what = view.learning()
                                 ? absl::StrCat("frame ", copy.frames, " of its copy has not come")
                                 : "no record has come through";
    stalled.emplace_back(view.partition(),
                         absl::StrCat(what, " from ", shards_.at(view.primary()).name(), " for ",
                                      absl::FormatDuration(wait)));
  }
  if (stalled.empty()) return;
  ChangeViews(job, [&] {
    for (const auto& [partition, why] : stalled) {
      View& view = *job.state.mutable_views(static_cast<int>(partition));
      SetUnfit(job, view.primary_incarnation(), view.backup_incarnation(), why);
      Log(job, absl::StrCat("partition ", partition, " has no copy on ",
                            shards_.at(view.backup()).name(), ": ", why));
      DropBackup(view);
    }
  });
}

// The last values of a job that is over are final once they have taken effect, for which a primary
// may wait for its backup. One that reports, but not that, for so long does without.
void Core::DropBackupsOfEnded() {
  for (auto& [uid, job] : jobs_) {
    const bool settled = job.state.has_figures() || job.state.views().empty();
    if (!job.over() || settled) continue;
    if (job.backups_awaited == absl::InfiniteFuture()) job.backups_awaited = now_;
    const absl::Time enough = job.backups_awaited + kCopyWait;
    if (now_ < enough) continue;
    std::vector<uint32_t> dropped;
    for (const PartitionValues& values : ValuesOf(job)) {
      const View& view = job.state.views(static_cast<int>(values.partition()));
      if (values.unknown() && view.backup() != 0 && PrimaryHasReported(view, enough))
        dropped.push_back(values.partition());
    }
    if (dropped.empty()) continue;
    ChangeViews(job, [&] {
      for (const uint32_t partition : dropped)
        DropBackup(*job.state.mutable_views(static_cast<int>(partition)));
    });
    Log(job, absl::StrCat("one copy is left of ", PartitionsText(dropped),
                          ": what came before the job's end has not taken effect on both for ",
                          absl::FormatDuration(kCopyWait)));
  }
}

// `primary` 0: with any.
void Core::SetUnfit(Job& job, uint64_t primary, uint64_t shard, const std::string& why) const {
  Unfit& unfit = job.unfit[{primary, shard}];
  if (now_ < unfit.until) return;  // another partition has found out
  unfit.until = now_ + kUnfit * (1 << std::min(unfit.times++, kUnfitDoublings));
  unfit.why = why;
}

// The coordinator has read all of the checkpoint, so what the shard sees may be another copy of the
// folder: an older one, that has the number, too.
void Core::NoteUnread(Job& job, const Shard& shard, const std::string& why) {
  std::erase_if(job.unread,
                [&](const auto& entry) { return now_ >= entry.second.until + kUnfitForgotten; });
  Unfit& unfit = job.unread[shard.stored.incarnation()];
  unfit.until = now_ + kUnfit * (1 << std::min(unfit.times++, kUnfitDoublings));
  unfit.why = std::string(CutUtf8(why, limits::kFaultBytesMax));
}

// Empty: it may be asked.
std::string Core::WhyUnread(const Job& job, const Shard& shard) const {
  const auto unread = job.unread.find(shard.stored.incarnation());
  if (unread == job.unread.end() || now_ >= unread->second.until) return "";
  return absl::StrCat(
      "shard ", shard.name(), " cannot read it, although the coordinator can: ", unread->second.why,
      " (has it another copy of ", options_.checkpoint_root, "? it is asked again within ",
      absl::FormatDuration(absl::Ceil(unread->second.until - now_, absl::Seconds(1))), ")");
}

// Why the shard is unfit for the partition's backup, now; null: it is not.
const Unfit* Core::FindUnfit(const Job& job, const View& view, const Shard& shard) const {
  for (const uint64_t primary : {uint64_t{0}, view.primary_incarnation()}) {
    const auto it = job.unfit.find({primary, shard.stored.incarnation()});
    if (it != job.unfit.end() && now_ < it->second.until) return &it->second;
  }
  return nullptr;
}

void Core::AddCopies(const Job& job, JobStatus& status) const {
  if (job.state.views().empty()) return;
  const uint32_t whole = WholePartitions(job);
  status.set_partitions(static_cast<uint32_t>(job.state.views_size()));
  status.set_partitions_whole(whole);
  status.set_failovers(job.state.failovers());
  const bool waits = job.running() && job.unreplicated_since != absl::InfiniteFuture();
  const bool twice = job.spec().durability() != DURABILITY_NONE && (waits || whole > 0);
  status.set_durability(twice ? "replicated" : "none");
  if (!job.running()) return;
  if (waits) status.set_unreplicated_seconds(SecondsSince(job.unreplicated_since));
  status.set_backup_behind(job.partitions.Max(uint64_t{0}, &PartitionStatus::backup_behind));
  for (const View& view : job.state.views()) {
    if (!IsWhole(view)) continue;
    status.set_backup_silent_seconds(
        std::max(status.backup_silent_seconds(), SilentCopySeconds(job, view)));
  }
  if (status.durability() != "replicated") return;
  // One that stops training comes first.
  for (const bool is_whole : {true, false}) {
    for (const View& view : job.state.views()) {
      if (IsWhole(view) != is_whole || !status.copies_trouble().empty()) continue;
      status.set_copies_trouble(CopyTrouble(job, view));
    }
  }
}

// For how long the backup has given the primary nothing that it waits for.
double Core::SilentCopySeconds(const Job& job, const View& view) const {
  const auto it = job.copies.find(view.partition());
  const bool waits = it != job.copies.end() && it->second.view == view.number() && it->second.waits;
  return waits ? SecondsSince(it->second.since) : 0;
}

std::string Core::CopyTrouble(const Job& job, const View& view) const {
  const std::string primary =
      absl::StrCat("partition ", view.partition(), " on ", shards_.at(view.primary()).name());
  if (view.backup() == 0)
    return absl::StrCat(primary, " has no second copy: ", WhyNoBackup(job, view));
  const double silent = SilentCopySeconds(job, view);
  const bool tell = silent >= kSilentSecondsTold;
  const std::string& backup = shards_.at(view.backup()).name();
  if (view.learning()) {
    return absl::StrCat(primary, " is being copied to ", backup,
                        tell ? absl::StrFormat(", without progress for %.0f s", silent) : "");
  }
  if (!tell) return "";
  return absl::StrFormat("%s waits for its copy on %s, which has not answered for %.0f s", primary,
                         backup, silent);
}

std::string Core::WhyNoBackup(const Job& job, const View& view) const {
  std::vector<std::string> unfit;
  size_t others = 0, leaving = 0;
  for (const auto& [id, shard] : shards_) {
    if (id == view.primary()) continue;
    leaving += Drains(id);
    if (!TakesCopies(shard)) continue;
    ++others;
    if (const Unfit* why = FindUnfit(job, view, shard)) {
      unfit.push_back(absl::StrFormat("%s is asked again in %.0f s: %s", shard.name(),
                                      absl::ToDoubleSeconds(why->until - now_), why->why));
    }
  }
  if (others == 0) return leaving > 0 ? "each other shard drains" : "no other shard is live";
  if (unfit.size() == others) return absl::StrJoin(unfit, "; ");
  const uint64_t bytes = CopyBytes(job, view.partition());
  uint64_t most = 0;
  for (const ShardLoad& load : LiveShards(/*alone=*/false)) {
    if (load.id.value != view.primary()) most = std::max(most, load.room_bytes);
  }
  if (most < bytes)
    return absl::StrCat("it needs ", MebibytesText(bytes), ", and no other shard has more than ",
                        MebibytesText(most));
  return "it waits for its turn";
}

}  // namespace starling::coordinator
