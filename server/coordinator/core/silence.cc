// Shards that do not answer (docs/protocol.md, section 12). A shard is silent when nothing came
// from it for a while. One whose connections break is asked at once, twice, and counts as silent if
// it does not answer. What has another copy goes on there; what the shard alone has waits for it
// until it is lost. One that answers is never replaced.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

// A shard that has answered is not asked again for this long, whoever does not reach it.
constexpr absl::Duration kTrust = absl::Seconds(1);

}  // namespace

// Whether the shard is heard, and answers. One that has not reported since the coordinator's start
// is not.
bool Core::IsPresent(const Shard& shard) const {
  const bool answers = !shard.suspicion || !shard.suspicion->asked_again;
  return shard.live() && !shard.absent && answers &&
         now_ - shard.last_heard <= options_.shard_liveness;
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
    Hear(shard, heartbeat.at);
    if (shard.suspicion && request.asked() >= shard.suspicion->question) Trust(shard);
  }
}

void Core::Hear(Shard& shard, absl::Time at) {
  shard.last_heard = std::max(shard.last_heard, at);
  if (!std::exchange(shard.absent, false)) return;
  schedule_ = true;
  sentences_.push_back(absl::StrCat(shard.name(), " is heard again"));
}

void Core::Suspect(Shard& shard, const std::string& why) {
  if (!shard.live() || shard.absent || shard.suspicion || now_ < shard.trusted_until) return;
  Ask(shard);
  Shard::Suspicion& suspicion = shard.suspicion.emplace();
  suspicion.why = why;
  suspicion.question = last_question_;
  suspicion.until = now_ + options_.answer_wait;
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

// Questions also ascend across a coordinator's restarts.
void Core::Ask(const Shard& shard) {
  last_question_ = std::max(last_question_, generation() << 32) + 1;
  questions_.push_back({shard.id(), shard.stored.incarnation(), last_question_});
}

void Core::Trust(Shard& shard) {
  shard.suspicion.reset();
  shard.trusted_until = now_ + kTrust;
}

void Core::LookForSilence() {
  std::vector<const Shard*> lost;
  for (auto& [id, shard] : shards_) {
    if (LookForSilence(shard)) lost.push_back(&shard);
  }
  for (const Shard* shard : lost) ResolveRegistration(*shard);
}

// True: it is lost.
bool Core::LookForSilence(Shard& shard) {
  if (!shard.live() || shard.absent) return false;
  const absl::Duration silent = now_ - shard.last_heard;
  if (silent > options_.shard_liveness) {
    return Miss(shard, absl::StrFormat("not heard for %.1f s", absl::ToDoubleSeconds(silent)));
  }
  if (!shard.suspicion || now_ < shard.suspicion->until) return false;
  Shard::Suspicion& suspicion = *shard.suspicion;
  if (!suspicion.asked_again) {
    suspicion.asked_again = now_;
    suspicion.until = now_ + options_.answer_wait;
    Ask(shard);
    return false;
  }
  // A report, or an old heartbeat, that was sent after the second question says as much.
  if (shard.last_heard > *suspicion.asked_again) {
    Trust(shard);
    return false;
  }
  return Miss(shard, absl::StrCat(suspicion.why, ", and it has not answered twice within ",
                                  absl::FormatDuration(2 * options_.answer_wait)));
}

// True: nothing is only there, so it is lost, and may come back at once.
bool Core::Miss(Shard& shard, const std::string& why) {
  shard.suspicion.reset();
  shard.absent = true;
  sentences_.push_back(absl::StrCat(shard.name(), " does not answer: ", why));
  for (const uint64_t uid : JobsOn(shard)) MoveAway(*FindJob(uid), shard, why);
  if (!JobsOn(shard).empty()) return false;
  Lose(shard, why);
  ++shards_lost_;
  return true;
}

// What the shard shares with one that is heard goes on without it. Two that are silent at once keep
// what they share: the coordinator may be the one that hears nothing.
void Core::MoveAway(Job& job, Shard& shard, const std::string& why) {
  std::vector<uint32_t> moved, alone;
  for (const View& view : job.state.views()) {
    if (shard.leads(view) && IsWhole(view) && BackupLives(view) &&
        IsPresent(shards_.at(view.backup())))
      moved.push_back(view.partition());
    if (shard.backs(view) && IsPresent(shards_.at(view.primary())))
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
                                        " does not answer (", why, "): ");
  if (!moved.empty())
    Log(job, absl::StrCat(gone, "the other copy leads now of ", PartitionsText(moved)));
  if (!alone.empty()) Log(job, absl::StrCat(gone, "one copy is left of ", PartitionsText(alone)));
}

}  // namespace starling::coordinator
