#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/coordinator/explain/findings.h"

namespace starling::explain {
namespace {

// A daemon counts as silent after this share of the time after which it is considered lost.
constexpr double kSilentShare = 0.5;
constexpr double kRecoveringSecondsMin = 1;
constexpr double kPreparingSecondsMin = 15;
constexpr double kPolicyChangeSecondsMin = 3;
constexpr double kStalledSecondsMin = 30;
constexpr double kStalledStepsMin = 10;       // as long as this many steps usually take
constexpr double kFirstStepSecondsMin = 120;  // before the first step
constexpr double kEvaluationSecondsMin = 120;
constexpr double kNoWorkersSecondsMin = 1;
constexpr double kSlowBackupSecondsMin = 3;
constexpr double kUnreplicatedSecondsMin = 60;
constexpr double kCheckpointDueSecondsMin = 60;

uint32_t Members(const Evidence& evidence) {
  return static_cast<uint32_t>(std::count_if(evidence.workers.begin(), evidence.workers.end(),
                                             [](const WorkerEvidence& w) { return w.member; }));
}

void FindSilentShards(const Evidence& evidence, Findings& findings) {
  for (const ShardEvidence& shard : evidence.shards) {
    if (shard.silent_seconds < kSilentShare * evidence.liveness_seconds) continue;
    findings.Add("missing-shard", shard.name, shard.silent_seconds,
                 absl::StrCat("shard ", At(shard.name, shard.address), " has not reported for ",
                              TimeText(shard.silent_seconds), "; after ",
                              TimeText(evidence.liveness_seconds),
                              " it is given up, and the job goes back where it has the only copy"),
                 Weight::kStops);
  }
}

// The last error of its streams, if there is one.
std::string LastError(const WorkerEvidence& worker) {
  for (const LinkEvidence& link : worker.links) {
    if (!link.link.last_error().empty()) {
      return absl::StrCat("; its last error, with shard ", link.shard, ": ",
                          link.link.last_error());
    }
  }
  return "";
}

// The share of the job that each of `missing` workers would do, beside those that serve it or will
// soon.
double ShareOfEach(size_t others, size_t missing) {
  return others == 0 ? 1.0 : 1.0 / static_cast<double>(others + missing);
}

void FindMissingWorkers(const Evidence& evidence, Findings& findings) {
  const uint32_t members = Members(evidence);
  for (const WorkerEvidence& worker : evidence.workers) {
    if (!worker.member || worker.silent_seconds < kSilentShare * evidence.liveness_seconds)
      continue;
    findings.Add("missing-worker", worker.name, worker.silent_seconds,
                 absl::StrCat("worker ", At(worker.name, worker.address), " has not reported for ",
                              TimeText(worker.silent_seconds), "; after ",
                              TimeText(evidence.liveness_seconds), " its work goes to others",
                              LastError(worker)),
                 Weight::kStops);
  }
  const bool too_few = members < evidence.workers_min;
  for (const LostEvidence& lost : evidence.lost) {
    if (members >= evidence.workers_max) break;
    findings.Add(
        "missing-worker", lost.name, lost.silent_seconds,
        absl::StrCat("worker ", At(lost.name, lost.address), " was lost, ", lost.why,
                     ": it was last heard of ", TimeText(lost.silent_seconds), " ago; ", members,
                     members == 1 ? " worker is" : " workers are", " left (workers.min ",
                     evidence.workers_min, ", at most ", evidence.workers_max, ")"),
        too_few ? Weight::kStops : Weight::kSlows, ShareOfEach(members, evidence.lost.size()));
  }
}

void FindBrokenLinks(const Evidence& evidence, Findings& findings) {
  for (const WorkerEvidence& worker : evidence.workers) {
    for (const LinkEvidence& link : worker.links) {
      if (link.down_seconds <= 0) continue;
      const std::string error = link.link.last_error().empty()
                                    ? ""
                                    : absl::StrCat("; last error: ", link.link.last_error());
      findings.Add("broken-link", absl::StrCat(worker.name, " -> ", link.shard), link.down_seconds,
                   absl::StrCat("worker ", worker.name, " has had no stream to shard ",
                                At(link.shard, link.link.address()), " for ",
                                TimeText(link.down_seconds), error),
                   Weight::kStops);
    }
  }
}

// What daemons report that they cannot send or receive.
void FindUndelivered(const Evidence& evidence, Findings& findings) {
  const auto find = [&](const std::string& role, const std::string& name,
                        const std::string& address, const std::string& trouble) {
    if (trouble.empty()) return;
    findings.Add("undelivered", name, 0, absl::StrCat(role, " ", At(name, address), ": ", trouble),
                 Weight::kStops);
  };
  for (const ShardEvidence& shard : evidence.shards)
    find("shard", shard.name, shard.address, shard.trouble);
  for (const WorkerEvidence& worker : evidence.workers)
    find("worker", worker.name, worker.address, worker.trouble);
}

void FindSlowBackups(const Evidence& evidence, Findings& findings) {
  for (const CopyEvidence& copy : evidence.copies) {
    if (copy.silent_seconds < kSlowBackupSecondsMin) continue;
    findings.Add(
        "slow-backup", copy.backup, copy.silent_seconds,
        absl::StrCat("partition ", copy.partition, " on shard ", copy.shard,
                     " waits for its copy on shard ", At(copy.backup, copy.backup_address),
                     ", which lacks ", copy.behind, copy.behind == 1 ? " record" : " records",
                     " and has taken none for ", TimeText(copy.silent_seconds)),
        Weight::kStops);
  }
}

void FindUndecided(const Evidence& evidence, Findings& findings) {
  for (const UndecidedEvidence& waiting : evidence.undecided) {
    findings.Add(
        "undecided", waiting.shard, waiting.seconds,
        absl::StrCat("partition ", waiting.partition, " on shard ", waiting.shard,
                     " has not reached shard ", At(waiting.decider, waiting.decider_address),
                     ", which decides about each step of the job, for ", TimeText(waiting.seconds),
                     ": ", waiting.why),
        Weight::kStops);
  }
}

// It does not slow the job, and ranks last.
void FindUnreplicated(const Evidence& evidence, Findings& findings) {
  if (evidence.unreplicated_seconds < kUnreplicatedSecondsMin) return;
  findings.Add("not-replicated", evidence.job, evidence.unreplicated_seconds,
               absl::StrCat("for ", TimeText(evidence.unreplicated_seconds),
                            " not all partitions have had two copies, and ", evidence.unreplicated,
                            evidence.unreplicated == 1 ? " has" : " have",
                            " one now: ", evidence.copies_trouble),
               Weight::kSlows, 0);
}

// Nor does this.
void FindFailingCheckpoints(const Evidence& evidence, Findings& findings) {
  const CheckpointEvidence& checkpoint = evidence.checkpoint;
  if (checkpoint.trouble.empty() && checkpoint.seconds < kCheckpointDueSecondsMin) return;
  findings.Add(
      "checkpoint-failing", evidence.job, checkpoint.seconds,
      absl::StrCat("no checkpoint has got through for ", TimeText(checkpoint.seconds),
                   checkpoint.trouble.empty()
                       ? absl::StrCat(": ", checkpoint.waits_for)
                       : absl::StrCat("; the last attempt failed: ", checkpoint.trouble),
                   checkpoint.last.empty() ? "; the job has none"
                                           : absl::StrCat("; the last one ", checkpoint.last)),
      Weight::kSlows, 0);
}

// Nor this: what was computed since the checkpoint is computed again.
void FindWentBack(const Evidence& evidence, Findings& findings) {
  if (evidence.went_back.empty()) return;
  findings.Add("went-back", evidence.job, 0,
               absl::StrCat("the job went back: ", evidence.went_back), Weight::kSlows, 0);
}

void FindNoWorkers(const Evidence& evidence, Findings& findings) {
  for (const WorkerEvidence& worker : evidence.workers) {
    if (worker.member || worker.preparing_seconds < kPreparingSecondsMin) continue;
    findings.Add(
        "preparing", worker.name, worker.preparing_seconds,
        absl::StrCat("worker ", At(worker.name, worker.address), " has been getting ready for ",
                     TimeText(worker.preparing_seconds), LastError(worker)),
        Members(evidence) == 0 ? Weight::kStops : Weight::kSlows);
  }
  const double since = evidence.staffed_seconds;
  const bool coming = !evidence.workers.empty();
  if (Members(evidence) > 0 || coming || since < kNoWorkersSecondsMin) return;
  findings.Add("no-workers", evidence.job, since,
               absl::StrCat("the job has had no worker for ", TimeText(since)), Weight::kStops,
               0.5);  // ranks behind the missing workers
}

struct SetAsideWords {
  const char* cause;
  const char* text;
};

SetAsideWords WordsOf(SetAsideEvidence::Cause cause) {
  switch (cause) {
    case SetAsideEvidence::Cause::kNoMemory: return {"no-memory", ", which has no memory for it: "};
    case SetAsideEvidence::Cause::kUnfit: break;
    case SetAsideEvidence::Cause::kSuspected:
      return {"not-finite", ", until another worker has done the same work: "};
    case SetAsideEvidence::Cause::kQuarantined: return {"quarantined", ", which it must not use: "};
  }
  return {"set-aside", ", which cannot serve it: "};
}

void FindSetAside(const Evidence& evidence, Findings& findings) {
  const size_t others = evidence.workers.size();  // including those that prepare
  if (others >= evidence.workers_max) return;     // they do its share
  for (const SetAsideEvidence& worker : evidence.set_aside) {
    const SetAsideWords words = WordsOf(worker.cause);
    findings.Add(words.cause, worker.name, 0,
                 absl::StrCat("the job ",
                              others == 0 ? "waits for a worker other than " : "goes on without ",
                              At(worker.name, worker.address), words.text, worker.why),
                 others == 0 ? Weight::kStops : Weight::kSlows,
                 ShareOfEach(others, evidence.set_aside.size()));
  }
}

void FindPolicyChange(const Evidence& evidence, Findings& findings) {
  if (evidence.policy_change_seconds < kPolicyChangeSecondsMin) return;
  findings.Add("policy-change", evidence.job, evidence.policy_change_seconds,
               absl::StrCat("workers hold: the change of the policy to ", evidence.next_policy,
                            " was asked for ", TimeText(evidence.policy_change_seconds),
                            " ago and is not in force yet"),
               Weight::kStops, 0.5);
}

// Workers evaluate before they train, so this does not wait for steps.
void FindEndlessEvaluation(const Evidence& evidence, Findings& findings) {
  const double stalled = evidence.evaluation_stalled_seconds;
  if (stalled < kEvaluationSecondsMin) return;
  findings.Add("no-progress", evidence.job, stalled,
               absl::StrCat("nothing of the evaluation that is under way was finished for ",
                            TimeText(stalled)),
               Weight::kStops, 0.1);
}

// Only when nothing else is known to stop the job.
void FindNoProgress(const Evidence& evidence, Findings& findings) {
  if (!findings.empty() || Members(evidence) == 0) return;
  if (evidence.evaluating) return FindEndlessEvaluation(evidence, findings);
  const double usual = evidence.steps == 0 ? kFirstStepSecondsMin / kStalledStepsMin
                                           : (evidence.running_seconds - evidence.stalled_seconds) /
                                                 static_cast<double>(evidence.steps);
  // Without a worker it could not finish any step.
  const double patience = std::max(kStalledSecondsMin, kStalledStepsMin * usual);
  if (std::min(evidence.stalled_seconds, evidence.staffed_seconds) < patience) return;
  const std::string before = evidence.steps == 0
                                 ? std::string("no step is finished yet")
                                 : absl::StrCat("a step took ", TimeText(usual), " until then");
  findings.Add("no-progress", evidence.job, evidence.stalled_seconds,
               absl::StrCat("the job has finished no step for ", TimeText(evidence.stalled_seconds),
                            "; ", before),
               Weight::kStops, 0.1);
}

void FindRecovery(const Evidence& evidence, Findings& findings) {
  if (evidence.recovering_seconds < kRecoveringSecondsMin) return;
  findings.Add("recovering", evidence.job, evidence.recovering_seconds,
               absl::StrCat("the coordinator started again ", TimeText(evidence.recovering_seconds),
                            " ago and has not heard of ", absl::StrJoin(evidence.unheard, ", ")),
               Weight::kStops);
}

}  // namespace

void FindStops(const Evidence& evidence, Findings& findings) {
  switch (evidence.state) {
    case FAILED:
      return findings.Add("failed", evidence.job, 0,
                          absl::StrCat("the job failed: ", evidence.reason), Weight::kStops);
    case PENDING:
      return findings.Add(
          "pending", evidence.job, evidence.pending_seconds,
          absl::StrCat("the job has been pending for ", TimeText(evidence.pending_seconds), ": it ",
                       evidence.reason),
          Weight::kStops);
    case RUNNING: break;
    default: return;  // the job ended as it should
  }
  if (evidence.recovering_seconds > 0)
    return FindRecovery(evidence, findings);  // nothing else is known during recovery
  FindSilentShards(evidence, findings);
  FindMissingWorkers(evidence, findings);
  FindBrokenLinks(evidence, findings);
  FindUndelivered(evidence, findings);
  FindSlowBackups(evidence, findings);
  FindUndecided(evidence, findings);
  FindNoWorkers(evidence, findings);
  FindPolicyChange(evidence, findings);
  FindNoProgress(evidence, findings);
  FindUnreplicated(evidence, findings);
  FindFailingCheckpoints(evidence, findings);
  FindWentBack(evidence, findings);
  FindSetAside(evidence, findings);  // does not stop the workers that serve it
}

}  // namespace starling::explain
