// A shard reports what it holds and the state of its partitions, as changes since the last accepted
// report.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kFirstValuesAgain = absl::Seconds(10);

}  // namespace

void Core::On(const event::ShardReport& event) {
  const ShardReport& report = event.report;
  if (RefuseOtherCluster(event.call, report.cluster())) return;
  if (RefuseStaleCoordinator(event.call, report.generation())) return;
  auto it = shards_.find(report.shard());
  if (it == shards_.end() || it->second.fenced() ||
      it->second.stored.incarnation() != report.incarnation()) {
    return TellToRejoin<ShardOrders>(event.call);
  }
  Shard& shard = it->second;
  if (RefuseImpostor(event.call, shard, event.caller)) return;
  if (!shard.heard) shard.heard = schedule_ = true;
  shard.reported = now_;
  shard.report_by = now_ + options_.report_liveness;
  TakeAwaited(shard);
  Hear(shard, now_);
  if (report.drained()) return TakeLeave(shard, event.call);
  shard.copies_ended = report.copies_ended();
  if (report.draining()) TakeDraining(shard, true);  // for good: reports may be reordered
  // A report to the previous coordinator is ignored; the answer makes the shard report everything.
  const bool ours = report.generation() >= generation();
  if (ours && report.sequence() > shard.sequence) {
    shard.sequence = report.sequence();
    shard.memory_room = report.memory_room();
    shard.trouble = std::string(CutUtf8(report.trouble(), limits::kFaultBytesMax));
    std::string error(CutUtf8(report.checkpoint_error(), limits::kFaultBytesMax));
    // Jobs may wait for shards that see the folder.
    schedule_ |= shard.checkpoint_nonce != report.checkpoint_nonce();
    schedule_ |= shard.checkpoint_error != error;
    shard.checkpoint_nonce = report.checkpoint_nonce();
    shard.checkpoint_error = std::move(error);
    const bool other = shard.checkpoint_nonce != options_.checkpoint_nonce;
    if (shard.checkpoint_nonce != 0 && other) DoubtMark();
    shard.dropped.erase(shard.dropped.begin(), shard.dropped.upper_bound(report.orders_seen()));
    SuspectUnreached(shard, report);
    TakeHeld(shard, report);
    for (const PartitionStatus& status : report.partitions()) TakePartition(shard, status);
  }
  Park(shard, event.call, report.orders_seen());
  touched_shards_.insert(shard.id());
  if (!ours || report.more()) AnswerHeld(shard);
  ResolveRegistration(shard);
}

// Orders are changes to what the shard holds, so it gets none before it has reported everything.
void Core::TakeHeld(Shard& shard, const ShardReport& report) {
  if (report.whole()) {
    shard.whole = false;
    while (!shard.held.empty()) DropHeld(shard, shard.held.begin()->first);
  }
  for (const HeldJob& held : report.held()) SetHeld(shard, held);
  if (shard.whole || report.more()) return;
  shard.whole = true;
  for (const uint64_t uid : JobsOn(shard)) touched_jobs_.emplace(shard.id(), uid);
  for (const auto& [uid, held] : shard.held) touched_jobs_.emplace(shard.id(), uid);
}

// Planned sizes depend on what the shard holds.
void Core::CountViews(const Shard& shard, uint64_t uid, int sign) {
  if (const auto archived = archive_.find(uid); archived != archive_.end()) {
    for (const Archived::Partition& on : archived->second.on) {
      if (on.shard == shard.id()) CountView(uid, on, sign);
    }
    return;
  }
  const auto job = jobs_.find(uid);
  if (job == jobs_.end()) return;
  for (const View& view : job->second.state.views()) {
    for (const Archived::Partition& on : OnShards(job->second, view)) {
      if (on.shard == shard.id()) CountView(uid, on, sign);
    }
  }
}

void Core::SetHeld(Shard& shard, const HeldJob& held) {
  const uint64_t uid = held.run().job_uid();
  CountViews(shard, uid, -1);
  HeldJob& known = shard.held[uid];
  shard.value_bytes += held.value_bytes() - known.value_bytes();
  known = held;
  CountViews(shard, uid, 1);
  // The job may have been deleted, or have ended on the shard.
  touched_jobs_.emplace(shard.id(), uid);
  if (held.has_checkpoint()) TakeCheckpointPart(shard, held);
  known.clear_copies();
  if (held.copies_size() > 0) TakeEndedCopies(shard, held);
}

void Core::DropHeld(Shard& shard, uint64_t uid) {
  const auto held = shard.held.find(uid);
  if (held == shard.held.end()) return;
  CountViews(shard, uid, -1);
  shard.value_bytes -= held->second.value_bytes();
  shard.held.erase(held);
  CountViews(shard, uid, 1);
}

void Core::TakePartition(Shard& shard, const PartitionStatus& status) {
  auto it = jobs_.find(status.run().job_uid());
  if (it == jobs_.end()) return;  // no such job, or it is settled
  Job& job = it->second;
  const uint32_t partition = status.partition();
  if (!SameRun(status.run(), job.run()) || ValuesSettled(job)) return;
  if (partition >= job.partitions.size() ||
      partition >= static_cast<uint32_t>(job.state.views_size())) {
    return;
  }
  View& view = *job.state.mutable_views(static_cast<int>(partition));
  if (shard.backs(view)) return TakeBackup(job, shard, status);
  if (!shard.leads(view)) return;
  // What the shard reported as the backup may be older than what the previous primary reported. It
  // reports again once it knows the view.
  if (status.view() < view.number() && status.fault().empty()) return;
  if (TakeWhole(status, view)) {
    job.backups_at = absl::InfinitePast();  // others may have waited for it
    SaveState(job);
  }
  if (job.running() && ReplacePrimary(job, shard, status)) return;
  const PartitionStatus& known = job.partitions.Take(status);
  if (job.running()) NoteCopy(job, known);
  if (job.running()) NoteUndecided(job, known);
  if (job.running()) NoteCounters(job, partition);
  if (job.over()) SettleValues(job);
  if (!job.running()) return;
  if (!known.fault().empty()) {
    const std::string what =
        absl::StrCat("partition ", partition, " on ", shard.name(), ": ", known.fault());
    if (known.diverged()) return Diverge(job, what);
    // It could not read its first values, perhaps only now. As each time counts, that has an end.
    const bool first_values = job.run().era() > 0 && known.value_bytes() == 0;
    if (first_values && MayRollBack(job, /*counts=*/true)) {
      if (job.stored.description().has_restore() && !known.no_memory())
        NoteUnread(job, shard, known.fault());
      return BeginRollback(job, what, /*counts=*/true, kFirstValuesAgain);
    }
    return End(job, FAILED, absl::StrCat(what, first_values ? WhyNoRollback(job) : ""));
  }
  WatchLag(job);
  advance_.insert(job.uid());
}

}  // namespace starling::coordinator
