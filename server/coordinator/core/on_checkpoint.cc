// A checkpoint that is being taken (docs/decisions/0013-checkpoints.md, part 3): its folder is
// made, its step is decided, shards keep and write what they have there, and the manifest makes it
// one. What fails on the way costs the attempt, never the job.
//
//   making ── folder is there ──> deciding ── step known ──> cutting ── all captured ──> writing
//   writing ── all parts written ──> sealing ── manifest durable ──> there
//   any ── error, missed, deadline, another primary ──> dropping ── folder removed ──> none
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/utf8.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

using Attempt = CheckpointAttempt;

constexpr size_t kAttemptsAtOnce = 4;  // in a cluster
constexpr int kMissesMax = 2;          // then the cut is made as a change of policy makes one
constexpr absl::Duration kPace = absl::Milliseconds(500);
constexpr absl::Duration kDiskWait = absl::Minutes(1);   // for a folder to be made, or sealed
constexpr absl::Duration kCutWait = absl::Minutes(1);    // and some steps
constexpr absl::Duration kWriteWait = absl::Minutes(1);  // for a shard to write some more
constexpr double kCutSteps = 3;
constexpr absl::Duration kAnotherWait = absl::Seconds(1);  // after a change of the views

// Differs for each id, and each start of a coordinator. (SplitMix64's finalizer, Steele et al.
// 2014, over the fields.)
uint64_t NonceOf(const CheckpointId& id, uint64_t seed) {
  uint64_t x = seed;
  for (const uint64_t field : {id.job.value, id.number}) {
    x += field + 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
  }
  return x == 0 ? 1 : x;
}

bool IsWritten(const Attempt::Part& part) { return part.said.state() == CheckpointPart::WRITTEN; }

}  // namespace

// ---- Whether one is taken now ----

// `done`: the job's steps that are done.
void Core::NoteCheckpointDue(Job& job, uint64_t done) const {
  CheckpointProgress& progress = job.checkpoint;
  if (progress.paced == absl::Time()) {
    progress.paced = now_;
    progress.paced_steps = done;
  } else if (now_ >= progress.paced + kPace) {
    progress.recent_steps = done - std::min(done, progress.paced_steps);
    progress.paced = now_;
    progress.paced_steps = done;
  }
  if (!job.spec().has_checkpoint()) return;
  const CheckpointInfo* last = LastCheckpoint(checkpoints_, cluster_.cluster(), JobUid(job.uid()));
  // One that lies ahead could not be read when the job went back.
  const uint64_t from = last != nullptr && last->step() <= done ? last->step() : job.first_step();
  if (!IsCheckpointDue(job.spec().checkpoint(), done - std::min(done, from),
                       now_ - progress.last_cut, absl::Seconds(progress.last_seconds))) {
    progress.due_since = absl::InfiniteFuture();
  } else if (progress.due_since == absl::InfiniteFuture()) {
    progress.due_since = now_;
  }
}

bool Core::WantsCheckpoint(const Job& job) const {
  return job.checkpoint.due_since != absl::InfiniteFuture() ||
         std::any_of(checkpoint_calls_.begin(), checkpoint_calls_.end(),
                     [&](const PendingCheckpoint& pending) {
                       return pending.uid == job.uid() && pending.number == 0;
                     });
}

// A change of policy under way may keep the job from reaching any step.
bool Core::MayTakeCheckpoint(const Job& job) const {
  return WantsCheckpoint(job) && now_ >= job.checkpoint.retry_at && !job.recovering &&
         job.next_policy() == nullptr && !IsStopped(job) && job.partitions.AllReported();
}

void Core::BeginCheckpoints() {
  if (!checkpoints_listed_) return;
  size_t under_way = 0;
  std::vector<Job*> wanting;
  for (Job* const job : JobsIn(RUNNING)) {
    if (job->checkpoint.attempt) {
      ++under_way;
    } else if (MayTakeCheckpoint(*job)) {
      wanting.push_back(job);
    }
  }
  std::stable_sort(wanting.begin(), wanting.end(), [](const Job* a, const Job* b) {
    return a->checkpoint.due_since < b->checkpoint.due_since;
  });
  for (Job* const job : wanting) {
    if (under_way >= kAttemptsAtOnce) return;
    BeginCheckpoint(*job);
    under_way += job->checkpoint.attempt.has_value() ? 1 : 0;
  }
}

void Core::BeginCheckpoint(Job& job) {
  if (!checkpoints_marked_.ok()) return FailCheckpoint(job, NotWritableText());
  for (const View& view : job.state.views()) {
    const Shard& shard = shards_.at(view.primary());
    if (StillLooks(shard)) return;
    const std::string blind = WhyBlind(shard);
    if (!blind.empty()) return FailCheckpoint(job, blind);
  }
  const bool ends = CutsAtBoundary(job) ? !FindBoundary(job) : StepsDone(job) >= job.steps();
  if (ends) {
    job.checkpoint.retry_at = now_ + kAnotherWait;
    return AnswerCheckpoint(
        job.uid(), 0,
        absl::FailedPreconditionError(
            absl::StrCat("job ", job.name(), " is at step ", StepsDone(job), " of ", job.steps(),
                         " and ends before a checkpoint could be taken: its "
                         "values can be exported then (starling export ",
                         job.name(), ")")));
  }
  if (CutsAtBoundary(job) && WaitsForEvaluation(job, *FindBoundary(job))) {
    job.checkpoint.retry_at = now_ + kAnotherWait;
    return;
  }
  const CheckpointInfo* last = LastCheckpoint(checkpoints_, cluster_.cluster(), JobUid(job.uid()));
  const auto last_id = last != nullptr ? ParseCheckpointId(last->id()) : std::nullopt;
  const uint64_t number =
      std::max(job.state.last_checkpoint(), last_id ? last_id->number : uint64_t{0}) + 1;
  job.state.set_last_checkpoint(number);
  SaveState(job);
  Attempt& attempt = job.checkpoint.attempt.emplace();
  attempt.id = {cluster_.cluster(), JobUid(job.uid()), number};
  attempt.nonce = NonceOf(attempt.id, options_.checkpoint_nonce);
  attempt.begun = attempt.since = now_;
  for (PendingCheckpoint& pending : checkpoint_calls_) {
    if (pending.uid != job.uid() || pending.number != 0) continue;
    pending.number = number;
    attempt.asked_for = true;
  }
  disk_actions_.push_back(action::MakeCheckpoint{attempt.id, attempt.nonce});
}

// ---- The step ----

// Whether a step that no worker has begun is found without a hold. Without workers none would come.
bool Core::CutsAtBoundary(const Job& job) const {
  return job.bsp() && job.checkpoint.misses < kMissesMax && !job.state.roster().members().empty();
}

std::optional<uint64_t> Core::FindBoundary(const Job& job) const {
  BoundaryEvidence evidence;
  evidence.begun = job.partitions.Max(StepsDone(job), &PartitionStatus::begun_steps);
  evidence.begun = job.partitions.Max(evidence.begun, &PartitionStatus::sealed_steps);
  for (const Member& member : job.state.roster().members()) {
    const int64_t clock = workers_.at(member.worker()).report.clock();
    evidence.begun = std::max(evidence.begun, static_cast<uint64_t>(std::max<int64_t>(0, clock)));
  }
  evidence.recent = job.checkpoint.recent_steps;
  evidence.misses = job.checkpoint.misses;
  evidence.end = job.steps();
  return BoundaryStep(evidence);
}

// Whether the step lies beyond the open epoch, which cannot end before an earlier one is evaluated.
bool Core::WaitsForEvaluation(const Job& job, uint64_t step) {
  const bool evaluates =
      !job.evaluations.empty() && job.evaluations.begin()->first < job.state.epoch();
  return evaluates && step >= (uint64_t{job.state.epoch()} + 1) * job.epoch_steps();
}

void Core::On(const event::CheckpointMade& event) {
  Job* job = FindAttempt(event.id);
  if (job == nullptr) {  // it is deleted
    if (!absl::IsAlreadyExists(event.status))
      disk_actions_.push_back(action::DropCheckpoint{event.id});
    return;
  }
  Attempt& attempt = *job->checkpoint.attempt;
  if (absl::IsAlreadyExists(event.status)) {  // of another state of this cluster, and not ours
    if (!attempt.given_up) FailCheckpoint(*job, std::string(event.status.message()));
    job->checkpoint.attempt.reset();
    return;
  }
  attempt.stage = Attempt::Stage::kDeciding;
  attempt.since = now_;
  if (std::exchange(attempt.given_up, false)) return GiveUpAttempt(*job);
  if (!event.status.ok()) return FailCheckpoint(*job, std::string(event.status.message()));
  if (!CutsAtBoundary(*job)) {
    attempt.policy = AddCheckpointPolicy(*job);
  } else if (const std::optional<uint64_t> step = FindBoundary(*job); !step) {
    NoCheckpointYet(*job, "the job ends first", kAnotherWait);
  } else if (WaitsForEvaluation(*job, *step)) {
    NoCheckpointYet(*job, "the epoch ends first, which waits for an evaluation", kAnotherWait);
  } else {
    DecideCheckpoint(*job, *step);
  }
}

void Core::DecideCheckpoint(Job& job, uint64_t step) {
  Attempt& attempt = *job.checkpoint.attempt;
  attempt.step = step;
  attempt.created = TimeText(wall());
  attempt.stage = Attempt::Stage::kCutting;
  attempt.since = now_;
  for (const View& view : job.state.views()) {
    attempt.leaders.push_back(view.primary());
    Attempt::Part& part = attempt.parts[view.primary()];
    part.name = shards_.at(view.primary()).name();
    part.incarnation = view.primary_incarnation();
    ++part.partitions;
  }
  TouchJob(job);
}

void Core::AddCheckpoint(const Job& job, ShardJob& orders) {
  const auto& attempt = job.checkpoint.attempt;
  if (!attempt || attempt->leaders.empty() || attempt->stage == Attempt::Stage::kDropping) return;
  orders.mutable_checkpoint()->set_id(ToString(attempt->id));
  orders.mutable_checkpoint()->set_number(attempt->id.number);
  orders.mutable_checkpoint()->set_step(attempt->step);
  orders.mutable_checkpoint()->set_nonce(attempt->nonce);
}

// ---- The parts ----

void Core::TakeCheckpointPart(Shard& shard, const HeldJob& held) {
  Job* job = FindRunning(held.run().job_uid());
  if (job == nullptr || !SameRun(held.run(), job->run())) return;
  auto& attempt = job->checkpoint.attempt;
  const CheckpointPart& said = held.checkpoint();
  if (!attempt || attempt->id.number != said.number()) return;
  const auto part = attempt->parts.find(shard.id());
  if (part == attempt->parts.end() || part->second.incarnation != shard.stored.incarnation()) {
    return;
  }
  if (IsWritten(part->second)) return;  // its file is the one that counts
  CheckpointPart& known = part->second.said;
  if (said.state() != known.state() || said.captured() != known.captured() ||
      said.bytes() != known.bytes())
    shard.checkpoint_moved = now_;
  known = said;
  known.set_error(std::string(CutUtf8(said.error(), limits::kFaultBytesMax)));
  advance_.insert(job->uid());
}

void Core::AdvanceCheckpoint(Job& job) {
  if (!job.checkpoint.attempt || job.checkpoint.attempt->given_up) return;
  Attempt& attempt = *job.checkpoint.attempt;
  switch (attempt.stage) {
    case Attempt::Stage::kDropping: return;
    case Attempt::Stage::kMaking:
    case Attempt::Stage::kSealing:
      if (now_ < attempt.since + kDiskWait) return;
      return FailCheckpoint(job, absl::StrCat(options_.checkpoint_root, " has not answered for ",
                                              absl::FormatDuration(kDiskWait),
                                              ": see whether the disk, or the mount, hangs"));
    case Attempt::Stage::kDeciding: break;
    case Attempt::Stage::kCutting:
    case Attempt::Stage::kWriting: return AdvanceParts(job);
  }
  for (const StoredPolicy& stored : job.state.policies()) {
    if (stored.record().number() != attempt.policy || !stored.record().has_step()) continue;
    if (stored.record().step() < job.steps()) return DecideCheckpoint(job, stored.record().step());
    return NoCheckpointYet(job, "the job ends first", kAnotherWait);
  }
  if (now_ < attempt.since + CutDeadline(job)) return;
  FailCheckpoint(job, absl::StrCat("workers have not come to one step within ",
                                   absl::FormatDuration(CutDeadline(job)),
                                   ": see starling explain ", job.name()));
}

void Core::AdvanceParts(Job& job) {
  Attempt& attempt = *job.checkpoint.attempt;
  for (const View& view : job.state.views()) {
    const uint32_t leader = attempt.leaders.at(view.partition());
    const Attempt::Part& part = attempt.parts.at(leader);
    const bool leads = view.primary() == leader && view.primary_incarnation() == part.incarnation;
    if (leads || IsWritten(part)) continue;
    return NoCheckpointYet(job,
                           absl::StrCat("partition ", view.partition(), " is on another shard now"),
                           kAnotherWait);
  }
  bool captured = true, written = true;
  for (const auto& [id, part] : attempt.parts) {
    const std::string why = absl::StrCat(part.name, ": ", part.said.error());
    // At a change of policy nothing is to be missed: another attempt would find the same.
    if (part.said.state() == CheckpointPart::MISSED && !attempt.policy) {
      ++job.checkpoint.misses;
      return NoCheckpointYet(job, why, absl::ZeroDuration());
    }
    if (part.said.state() == CheckpointPart::MISSED || part.said.state() == CheckpointPart::FAILED)
      return FailCheckpoint(job, why);
    if (part.said.captured() > part.partitions) {
      return NoCheckpointYet(
          job,
          absl::StrCat(part.name, " has captured ", part.said.captured(), " partitions, expected ",
                       part.partitions, ": another one came to it before it heard of the step"),
          kAnotherWait);
    }
    captured &= HasCaptured(part.said, part.partitions);
    written &= IsWritten(part);
  }
  if (attempt.stage == Attempt::Stage::kCutting && captured) {
    attempt.stage = Attempt::Stage::kWriting;
    attempt.since = now_;
    attempt.running_us = RunningMicros(job);
  }
  if (attempt.stage == Attempt::Stage::kCutting) {
    if (job.state.has_training_end() && attempt.step >= job.state.training_end())
      return NoCheckpointYet(job, "the job ends first", kAnotherWait);
    if (now_ < attempt.since + CutDeadline(job)) return;
    return FailCheckpoint(job, WhoIsLate(job));
  }
  // The results of the epochs below the step belong to the manifest.
  const bool cut = attempt.step / job.epoch_steps() <= job.state.epoch();
  if (written && cut) return SealAttempt(job);
  for (const auto& [id, part] : attempt.parts) {
    if (IsWritten(part)) continue;  // its shard may be forgotten since
    const auto shard = shards_.find(id);
    const absl::Time moved =
        shard == shards_.end() ? absl::InfinitePast() : shard->second.checkpoint_moved;
    // It writes one file after the other.
    if (now_ < std::max(attempt.since, moved) + kWriteWait) continue;
    return FailCheckpoint(
        job, absl::StrCat(part.name, " has written nothing for ", absl::FormatDuration(kWriteWait),
                          ", ", SizeText(part.said.bytes()), " until then: see whether its ",
                          options_.checkpoint_root, " hangs, and its log"));
  }
}

// Steps ahead, as many as a cut may be, at the job's speed.
absl::Duration Core::CutDeadline(const Job& job) const {
  const uint64_t done = StepsDone(job) - std::min(StepsDone(job), job.first_step());
  const double seconds = RunningSeconds(job) / static_cast<double>(std::max<uint64_t>(1, done));
  return absl::Floor(kCutWait + absl::Seconds(kCutSteps * seconds), absl::Seconds(1));
}

std::string Core::WhoIsLate(const Job& job) const {
  const Attempt& attempt = *job.checkpoint.attempt;
  std::vector<std::string> late;
  for (const auto& [id, part] : attempt.parts) {
    if (HasCaptured(part.said, part.partitions)) continue;
    late.push_back(absl::StrCat(part.name, " (", part.said.captured(), " of ", part.partitions,
                                " partitions)"));
  }
  return absl::StrCat("step ", attempt.step, " was not reached within ",
                      absl::FormatDuration(now_ - attempt.since), " on ", absl::StrJoin(late, ", "),
                      "; the job is at step ", StepsDone(job), ": see starling explain ",
                      job.name());
}

// ---- When it comes to nothing ----

// Not a failure: the next attempt may succeed at once.
void Core::NoCheckpointYet(Job& job, const std::string& why, absl::Duration wait) {
  const uint64_t number = job.checkpoint.attempt->id.number;
  Log(job, absl::StrCat("checkpoint ", number, " was given up: ", why));
  job.checkpoint.retry_at = now_ + wait;
  for (PendingCheckpoint& pending : checkpoint_calls_) {
    if (pending.uid == job.uid() && pending.number == number) pending.number = 0;
  }
  GiveUpAttempt(job);
}

void Core::FailCheckpoint(Job& job, const std::string& why) {
  CheckpointProgress& progress = job.checkpoint;
  ++progress.failures;
  if (progress.failed == 0) progress.failing_since = now_;
  const absl::Duration wait = CheckpointRetryWait(job.spec().checkpoint(), ++progress.failed);
  progress.retry_at = now_ + wait;
  progress.trouble = std::string(CutUtf8(why, limits::kFaultBytesMax));
  if (progress.attempt && !progress.attempt->leaders.empty())
    progress.trouble = absl::StrCat("at step ", progress.attempt->step, ": ", progress.trouble);
  Log(job, absl::StrCat("no checkpoint: ", progress.trouble,
                        job.spec().has_checkpoint()
                            ? absl::StrCat("; the next one in ", absl::FormatDuration(wait))
                            : ""));
  AnswerCheckpoint(job.uid(), progress.attempt ? progress.attempt->id.number : 0,
                   absl::AbortedError(
                       absl::StrCat("no checkpoint of job ", job.name(), ": ", progress.trouble)));
  if (progress.attempt) GiveUpAttempt(job);
}

// Its folder is removed once the disk has answered.
void Core::GiveUpAttempt(Job& job) {
  Attempt& attempt = *job.checkpoint.attempt;
  TouchJob(job);
  if (DropUndecidedCheckpointPolicies(job)) SaveState(job);
  if (attempt.stage == Attempt::Stage::kMaking || attempt.stage == Attempt::Stage::kSealing) {
    attempt.given_up = true;
    return;
  }
  attempt.stage = Attempt::Stage::kDropping;
  attempt.since = now_;
  disk_actions_.push_back(action::DropCheckpoint{attempt.id});
}

// The job is over. What only lacks its manifest gets it.
void Core::EndCheckpoints(Job& job) {
  job.checkpoint.due_since = absl::InfiniteFuture();
  auto& attempt = job.checkpoint.attempt;
  const bool sealing = attempt && attempt->stage == Attempt::Stage::kSealing;
  const absl::Status over = absl::FailedPreconditionError(
      absl::StrCat("job ", job.name(), " is over (", JobState_Name(job.state.state()),
                   "): its values can be exported (starling export ", job.name(), ")"));
  AnswerCheckpoint(job.uid(), 0, over);
  if (!attempt || sealing) return;
  AnswerCheckpoint(job.uid(), attempt->id.number, over);
  if (attempt->stage != Attempt::Stage::kDropping && !attempt->given_up) GiveUpAttempt(job);
}

Job* Core::FindAttempt(const CheckpointId& id) {
  const auto it = jobs_.find(id.job.value);
  if (it == jobs_.end()) return nullptr;
  const auto& attempt = it->second.checkpoint.attempt;
  return attempt && attempt->id == id ? &it->second : nullptr;
}

}  // namespace starling::coordinator
