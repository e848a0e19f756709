// Shards that do not answer (docs/protocol.md, section 12). A shard is silent when nothing came
// from it for a while. One whose connections break is asked at once, twice, and counts as silent if
// it does not answer. So is one of which nothing was heard since the coordinator's start, at its
// own address, too. What has another copy goes on there; what the shard alone has waits for it
// until it is lost. One that answers is never replaced, unless its reports do not come for long.
#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

// A shard that has answered is not asked again for this long, whoever does not reach it, and twice
// as long each time for the same cause, up to a limit. That is forgotten as long after it.
constexpr absl::Duration kTrust = absl::Seconds(1);
constexpr absl::Duration kTrustMost = absl::Minutes(1);
// One that takes over was heard so lately, and for so long without such a gap: a dead one would
// lose what it is given, and where the coordinator heard nobody for a while, others come back, too.
constexpr absl::Duration kSteady = absl::Milliseconds(500);
constexpr absl::Duration kEndedJobsPeriod = absl::Seconds(1);  // between passes over all jobs
constexpr int kUnpackedAtOnce = 32;                            // archived jobs

// For longer than any single silence of a cluster that is heard. After the second time those that
// are silent are lost, whoever is cut off.
constexpr absl::Duration kDeaf = absl::Milliseconds(500);
constexpr absl::Duration kDeafMost = absl::Minutes(1);

}  // namespace

// Whether the shard is heard, and answers. One that has not reported since the coordinator's start
// is not.
bool Core::IsPresent(const Shard& shard) const {
  const bool answers = !shard.suspicion || !shard.suspicion->asked_again;
  return shard.live() && shard.absent.empty() && answers &&
         now_ - shard.last_heard <= options_.shard_liveness;
}

// Since when the silence counts by which a daemon is lost.
absl::Time Core::SilentFrom(const Daemon& daemon) const {
  return daemon.last_heard + (daemon.awaited ? options_.start_grace : absl::ZeroDuration());
}

bool Core::IsSteady(const Shard& shard) const {
  return IsPresent(shard) && now_ - shard.last_heard <= kSteady &&
         now_ - shard.steady_since >= kSteady;
}

// Heartbeats of others than the shards that are known change nothing.
void Core::TakeHeartbeats(const std::vector<event::Heartbeat>& heartbeats) {
  for (const event::Heartbeat& heartbeat : heartbeats) {
    const HeartbeatRequest& request = heartbeat.request;
    const auto it = shards_.find(request.shard());
    if (it == shards_.end()) continue;
    Shard& shard = it->second;
    const bool ours = request.cluster() == 0 || request.cluster() == cluster_.cluster();
    const bool its = request.incarnation() == shard.stored.incarnation() && !shard.fenced() &&
                     (heartbeat.caller.empty() || heartbeat.caller == shard.name());
    if (!ours || !its) continue;
    if (heartbeat.broke) {
      Suspect(shard, "its connection to the coordinator broke");
      continue;
    }
    if (now_ > shard.report_by) continue;
    if (!heartbeat.called) TakeAwaited(shard);
    Hear(shard, heartbeat.at);
    if (shard.suspicion && request.asked() >= shard.suspicion->question) Trust(shard);
  }
}

void Core::TakeAwaited(Shard& shard) const {
  if (std::exchange(shard.awaited, false)) shard.steady_since = now_;
}

void Core::Hear(Shard& shard, absl::Time at) {
  if (at - shard.last_heard > kSteady) shard.steady_since = now_;
  shard.last_heard = std::max(shard.last_heard, at);
  if (at > shard.doubted) shard.doubt.clear();
  if (std::exchange(shard.absent, {}).empty()) return;
  schedule_ = true;
  sentences_.push_back(absl::StrCat(shard.name(), " is heard again"));
}

absl::Time Core::TrustedUntil(const Shard& shard, const std::string& why) {
  const auto trust = shard.trusted.find(why);
  return trust == shard.trusted.end() ? shard.trusted_until
                                      : std::max(shard.trusted_until, trust->second.until);
}

// A cause that comes while the shard is trusted may be told only once.
void Core::Suspect(Shard& shard, const std::string& why) {
  if (shard.fenced() || !shard.absent.empty() || shard.suspicion) return;
  const absl::Time trusted = TrustedUntil(shard, why);
  if (now_ < trusted) {
    if (!shard.doubt.empty() && TrustedUntil(shard, shard.doubt) <= trusted) return;
    shard.doubt = why;
    shard.doubted = now_;
    return;
  }
  Ask(shard);
  Shard::Suspicion& suspicion = shard.suspicion.emplace();
  suspicion.why = why;
  suspicion.question = last_question_;
  suspicion.until = now_ + AnswerWait(shard);
}

void Core::SuspectUnreached(const Worker& worker) {
  for (const LinkStatus& link : worker.report.links()) {
    const auto it = link.connected() ? shards_.end() : shards_.find(link.shard());
    // The worker may not have heard of the shard's present incarnation.
    if (it == shards_.end() || it->second.stored.registration().address() != link.address())
      continue;
    Suspect(it->second, absl::StrCat(worker.name(), " does not reach it"));
  }
}

void Core::SuspectUnreached(const Shard& reporter, const ShardReport& report) {
  const auto& unreached = report.unreached();
  if (unreached.empty()) return;
  for (auto& [id, shard] : shards_) {
    const std::string& address = shard.stored.registration().address();
    if (&shard == &reporter ||
        std::find(unreached.begin(), unreached.end(), address) == unreached.end())
      continue;
    Suspect(shard, absl::StrCat(reporter.name(), " does not reach it"));
  }
}

// Questions also ascend across a coordinator's restarts. After one, a shard may take seconds to
// connect again.
void Core::Ask(const Shard& shard) {
  last_question_ = std::max(last_question_, generation() << 32) + 1;
  action::AskShard& question =
      questions_.emplace_back(shard.id(), shard.stored.incarnation(), last_question_);
  if (!shard.awaited) return;
  question.address = shard.stored.registration().address();
  question.name = shard.name();
}

absl::Duration Core::AnswerWait(const Shard& shard) const {
  return shard.awaited ? options_.call_wait : options_.answer_wait;
}

void Core::Trust(Shard& shard) {
  std::erase_if(shard.trusted,
                [&](const auto& entry) { return now_ >= entry.second.until + kTrustMost; });
  Shard::Trust& trust = shard.trusted[shard.suspicion->why];
  trust.time = std::clamp(2 * trust.time, kTrust, kTrustMost);
  trust.until = now_ + trust.time;
  shard.trusted_until = now_ + kTrust;
  shard.suspicion.reset();
}

// Since when another process wants to register by its name; infinite: none does.
absl::Time Core::ClaimedSince(const Daemon& daemon) const {
  const auto it = registrations_.find({daemon.stored.registration().role(), daemon.name()});
  return it == registrations_.end() ? absl::InfiniteFuture() : it->second.first;
}

// Whether nobody is heard: then the coordinator may be the one that is cut off. Silence is held
// against nobody meanwhile, nor afterwards. Where the names of all that were heard are claimed, the
// network is no reason.
bool Core::IsDeaf() {
  size_t heard = 0;
  absl::Time newest = absl::InfinitePast();
  ForEachDaemon([&](const Daemon& daemon) {
    if (daemon.fenced() || !daemon.heard) return;
    ++heard;
    if (ClaimedSince(daemon) == absl::InfiniteFuture())
      newest = std::max(newest, daemon.last_heard);
  });
  const bool may_be = heard > 1 && newest != absl::InfinitePast();
  const absl::Duration silence = may_be ? now_ - newest : absl::ZeroDuration();
  if (silence > kDeaf) {
    deaf_for_ = silence;
    return silence <= kDeafMost;
  }
  if (deaf_for_ == absl::ZeroDuration()) return false;
  sentences_.push_back(absl::StrFormat("nobody was heard for %.1f s: nobody is blamed for it",
                                       absl::ToDoubleSeconds(deaf_for_)));
  ForEachDaemon(
      [&](Daemon& daemon) { daemon.last_heard = std::min(now_, daemon.last_heard + deaf_for_); });
  for (auto& [id, shard] : shards_) {
    shard.report_by += deaf_for_;
    shard.suspicion.reset();
  }
  deaf_for_ = absl::ZeroDuration();
  return false;
}

void Core::LookForSilence() {
  std::vector<const Shard*> lost;
  for (auto& [id, shard] : shards_) {
    LookForSilence(shard);
    if (shard.fenced() || shard.absent.empty()) continue;
    // Nothing waits for it but its name.
    if (!registrations_.contains({SHARD, shard.name()}) || !JobsOn(shard).empty()) continue;
    Lose(shard, shard.absent);
    ++shards_lost_;
    lost.push_back(&shard);
  }
  for (const Shard* shard : lost) ResolveRegistration(*shard);
}

void Core::LookForSilence(Shard& shard) {
  if (shard.fenced()) return;
  if (!shard.absent.empty()) return MoveAway(shard);
  const absl::Duration silent = now_ - shard.last_heard;
  if (silent > options_.shard_liveness && shard.awaited) {
    // Where no shard is heard, the coordinator may be the one that is cut off.
    const bool others = std::any_of(shards_.begin(), shards_.end(),
                                    [this](const auto& entry) { return IsSteady(entry.second); });
    if (others) Suspect(shard, "nothing was heard of it since the coordinator started");
  } else if (silent > options_.shard_liveness) {
    if (now_ <= shard.report_by)
      return Miss(shard, absl::StrFormat("not heard for %.1f s", absl::ToDoubleSeconds(silent)));
    return Miss(shard,
                absl::StrCat("no report for ", absl::FormatDuration(options_.report_liveness),
                             ", though heartbeats come"));
  }
  if (!shard.suspicion && !shard.doubt.empty() && now_ >= TrustedUntil(shard, shard.doubt))
    return Suspect(shard, std::exchange(shard.doubt, {}));
  if (!shard.suspicion || now_ < shard.suspicion->until) return;
  Shard::Suspicion& suspicion = *shard.suspicion;
  if (!suspicion.asked_again) {
    suspicion.asked_again = now_;
    suspicion.until = now_ + AnswerWait(shard);
    return Ask(shard);
  }
  // A report, or an old heartbeat, that was sent after the second question says as much.
  if (shard.last_heard > *suspicion.asked_again) return Trust(shard);
  Miss(shard, absl::StrCat(suspicion.why, ", and it has not answered twice within ",
                           absl::FormatDuration(2 * AnswerWait(shard))));
}

// It keeps its incarnation: it may be heard again.
void Core::Miss(Shard& shard, const std::string& why) {
  shard.suspicion.reset();
  shard.doubt.clear();
  shard.absent = why;
  shard.silent_pass = {};
  sentences_.push_back(absl::StrCat(shard.name(), " does not answer: ", why));
  MoveAway(shard);
}

// Again and again: whoever has the other copies may not be heard at first.
void Core::MoveAway(Shard& shard) {
  for (Job* const job : JobsIn(RUNNING)) MoveAway(*job, shard);
  if (now_ < shard.silent_pass.at) return;
  const bool done = PassOverJobs(
      shard, shard.silent_pass,
      [&](uint64_t, const Archived& archived) { return MayMove(archived, shard); },
      [&](Job& job) { MoveAway(job, shard); });
  if (done) shard.silent_pass.at = now_ + kEndedJobsPeriod;
}

// What the shard shares with one that is heard goes on without it. Two that are silent at once keep
// what they share: the coordinator may be the one that hears nothing.
void Core::MoveAway(Job& job, Shard& shard) {
  std::vector<uint32_t> moved, alone;
  for (const View& view : job.state.views()) {
    if (shard.leads(view) && IsWhole(view) && BackupLives(view) &&
        IsSteady(shards_.at(view.backup())))
      moved.push_back(view.partition());
    if (shard.backs(view) && IsSteady(shards_.at(view.primary())))
      alone.push_back(view.partition());
  }
  if (moved.empty() && alone.empty()) return;
  ChangeViews(job, [&] {
    for (const std::vector<uint32_t>* partitions : {&moved, &alone}) {
      for (const uint32_t partition : *partitions) {
        LoseShard(shard.at(), /*backup_lives=*/true,
                  *job.state.mutable_views(static_cast<int>(partition)));
      }
    }
    job.state.set_failovers(job.state.failovers() + moved.size());
  });
  advance_.insert(job.uid());
  const std::string gone = absl::StrCat("shard ", shard.name(), " at ", shard.at().address,
                                        " does not answer (", shard.absent, "): ");
  if (!moved.empty())
    Log(job, absl::StrCat(gone, "the other copy leads now of ", PartitionsText(moved)));
  if (!alone.empty()) Log(job, absl::StrCat(gone, "one copy is left of ", PartitionsText(alone)));
}

// Whether something of an archived job has a copy on this shard, and one on a shard that is heard.
bool Core::MayMove(const Archived& archived, const Shard& shard) const {
  const auto is_on = [](const Archived::Partition& copy, const Shard& other) {
    return copy.shard == other.id() && copy.incarnation == other.stored.incarnation();
  };
  const auto is_heard = [&](const Archived::Partition& copy) {
    const auto it = shards_.find(copy.shard);
    return it != shards_.end() && is_on(copy, it->second) && IsSteady(it->second);
  };
  for (size_t i = 1; i < archived.on.size(); ++i) {
    const Archived::Partition &primary = archived.on[i - 1], &backup = archived.on[i];
    if (!backup.backup) continue;
    if (is_on(primary, shard) && is_heard(backup)) return true;
    if (is_on(backup, shard) && is_heard(primary)) return true;
  }
  return false;
}

// Visits the jobs on the shard that do not run, from where the pass has come to. Returns whether
// this ends it. There may be thousands: those that are archived are unpacked only if they may
// change, some at a time.
bool Core::PassOverJobs(const Shard& shard, Shard::JobsPass& pass,
                        const std::function<bool(uint64_t uid, const Archived&)>& may_change,
                        const std::function<void(Job&)>& visit) {
  int left = kUnpackedAtOnce;
  for (const uint64_t uid : JobsOn(shard)) {
    if (uid < pass.from || FindRunning(uid) != nullptr) continue;
    const auto archived = archive_.find(uid);
    if (archived != archive_.end()) {
      if (!may_change(uid, archived->second)) continue;
      if (left-- == 0) {
        pass.from = uid;
        return false;
      }
    }
    visit(*FindJob(uid));
  }
  pass.from = 0;
  return true;
}

}  // namespace starling::coordinator
