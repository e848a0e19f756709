// The checkpoints that are on disk, those who ask for one, and whether shards see the disk.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kListAgain = absl::Seconds(10);
// For a shard to look for the folder. Until then it may report what it found of the coordinator
// before.
constexpr absl::Duration kLookWait = absl::Seconds(10);
constexpr size_t kMadeRemembered = 100;
constexpr int kCallsPerJobMax = 100;  // that wait for a checkpoint
constexpr size_t kBlindShown = 4;

}  // namespace

// ---- Where they are ----

// Why the shard cannot write to the coordinator's folder; empty: it can.
std::string Core::WhyBlind(const Shard& shard) const {
  if (shard.checkpoint_nonce == options_.checkpoint_nonce) return "";
  const std::string why = !shard.checkpoint_error.empty() ? shard.checkpoint_error
                          : shard.checkpoint_nonce != 0   ? "it sees another folder"
                                                          : "it has not looked yet";
  return absl::StrCat("shard ", shard.name(), " does not see the coordinator's checkpoint folder ",
                      options_.checkpoint_root, ": ", why);
}

// Whether the shard has not said yet whether it sees the folder: it reads the nonce once that is
// written.
bool Core::StillLooks(const Shard& shard) const {
  return shard.checkpoint_nonce != options_.checkpoint_nonce && shard.checkpoint_error.empty() &&
         now_ < std::max(shard.since, checkpoints_marked_at_) + kLookWait;
}

// "WHY; WHY; and 3 more"; empty: all of them see it.
std::string Core::BlindText(const std::vector<const Shard*>& shards) const {
  std::vector<std::string> blind;
  for (const Shard* const shard : shards) {
    if (std::string why = WhyBlind(*shard); !why.empty()) blind.push_back(std::move(why));
  }
  const size_t more = blind.size() - std::min(blind.size(), kBlindShown);
  blind.resize(blind.size() - more);
  return absl::StrCat(absl::StrJoin(blind, "; "),
                      more > 0 ? absl::StrCat("; and ", more, " more") : "");
}

absl::Status Core::CheckCheckpointRoot() const {
  if (!options_.checkpoint_root.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "checkpoint: this coordinator has no folder for checkpoints: start it, and all shards, with "
      "--checkpoint-root DIR, a folder that all of them see");
}

// Whether checkpoints can be taken and read here, as far as that is known.
absl::Status Core::CheckCheckpoints() const {
  if (absl::Status status = CheckCheckpointRoot(); !status.ok()) return status;
  if (!checkpoints_marked_.ok()) return absl::FailedPreconditionError(NotWritableText());
  std::vector<const Shard*> shards;  // that have looked
  for (const auto& [id, shard] : shards_) {
    if (shard.live() && !StillLooks(shard)) shards.push_back(&shard);
  }
  const std::string blind = BlindText(shards);
  if (blind.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint: ", blind,
                   ": start each shard with --checkpoint-root and the same folder there"));
}

// Whether jobs can begin with one. A folder that takes nothing new can be read all the same; a
// shard that does not see it says so when it reads.
absl::Status Core::CheckSources() const {
  return checkpoints_marked_.ok() ? CheckCheckpoints() : CheckCheckpointRoot();
}

void Core::LookForCheckpoints() {
  if (now_ < list_checkpoints_at_) return;
  list_checkpoints_at_ = absl::InfiniteFuture();
  const bool first = checkpoints_marked_at_ == absl::InfinitePast();
  bool known = !first;
  for (const JobState state : {PENDING, RUNNING}) {
    for (const uint64_t uid : UidsIn(state)) {
      const Job& job = jobs_.at(uid);
      known |= job.state.last_checkpoint() > 0 || job.stored.description().has_restore();
    }
  }
  std::vector<CheckpointId> there;
  for (const auto& [id, info] : checkpoints_) {
    if (id.cluster == cluster_.cluster() && !dropping_.contains(id)) there.push_back(id);
  }
  disk_actions_.push_back(action::ListCheckpoints{cluster_.cluster(), options_.checkpoint_nonce,
                                                  first, known, std::move(there)});
}

// Somebody sees a folder without this coordinator's nonce: the list writes it again where it is
// overwritten. Shards that read it before do not notice that.
void Core::DoubtMark() {
  if (now_ < doubt_mark_at_) return;
  doubt_mark_at_ = absl::InfiniteFuture();  // until the disk has answered
  list_checkpoints_at_ = now_;
}

void Core::On(const event::CheckpointsFound& event) {
  doubt_mark_at_ = now_ + kLookWait;
  if (!event.checkpoints.ok()) {
    list_checkpoints_at_ = now_ + kListAgain;
    std::string trouble(event.checkpoints.status().message());
    if (trouble != checkpoints_trouble_)
      sentences_.push_back(absl::StrCat("cannot list checkpoints beneath ",
                                        options_.checkpoint_root, ": ", trouble));
    checkpoints_trouble_ = std::move(trouble);
    return;
  }
  const FoundCheckpoints& found = *event.checkpoints;
  checkpoints_trouble_.clear();
  checkpoints_.clear();
  for (const CheckpointInfo& info : found.whole) {
    const auto id = ParseCheckpointId(info.id());
    if (id && !dropping_.contains(*id)) checkpoints_[*id] = info;
  }
  NoteUnreadable(found.unreadable);
  PassUsedUids();
  if (found.marked_now && checkpoints_marked_at_ != absl::InfinitePast()) {
    sentences_.push_back(
        absl::StrCat(options_.checkpoint_root,
                     " had the number of another coordinator of this cluster, so that "
                     "shards took it for another folder: this one's is written again"));
  }
  if (found.marked_now) checkpoints_marked_at_ = now_;
  const bool news = checkpoints_marked_ != found.marked;
  checkpoints_marked_ = found.marked;
  if (!found.marked.ok()) {
    list_checkpoints_at_ = now_ + kListAgain;
    if (news) sentences_.push_back(NotWritableText());
  }
  schedule_ = true;  // jobs may wait for that
  if (std::exchange(checkpoints_listed_, true)) return;
  for (const JobState state : {PENDING, RUNNING}) {
    for (Job* const job : JobsIn(state)) FindSealed(*job);
  }
  for (Job* const job : JobsIn(PENDING)) AdvanceRollback(*job);
  sentences_.push_back(
      absl::StrCat(checkpoints_.size(), " checkpoints are beneath ", options_.checkpoint_root));
  for (Job* const job : JobsIn(RUNNING)) {
    const CheckpointInfo* last =
        LastCheckpoint(checkpoints_, cluster_.cluster(), JobUid(job->uid()));
    absl::Time created;
    if (last == nullptr || !absl::ParseTime(absl::RFC3339_full, last->created(), &created, nullptr))
      continue;
    job->checkpoint.last_cut =
        std::max(job->checkpoint.last_cut, now_ - std::max(absl::ZeroDuration(), wall() - created));
  }
}

// One may have been sealed just before the coordinator's end, or by an earlier release.
void Core::FindSealed(Job& job) {
  const CheckpointInfo* last = LastCheckpoint(checkpoints_, cluster_.cluster(), JobUid(job.uid()));
  const uint64_t number = last == nullptr ? 0 : ParseCheckpointId(last->id())->number;
  if (number <= job.state.sealed_checkpoint()) return;
  job.state.set_sealed_checkpoint(number);
  SaveState(job);
}

void Core::NoteUnreadable(std::map<CheckpointId, std::string> unreadable) {
  std::erase_if(unreadable, [&](const auto& entry) { return dropping_.contains(entry.first); });
  for (const auto& [id, why] : unreadable) {
    if (!unreadable_checkpoints_.contains(id))
      sentences_.push_back(absl::StrCat("checkpoint ", ToString(id), " cannot be read: ", why));
  }
  unreadable_checkpoints_ = std::move(unreadable);
}

// The state may be an older copy, which does not know of jobs whose checkpoints are there. A new
// job with the uid of one of them would take these for its own.
void Core::PassUsedUids() {
  uint64_t newest = cluster_.last_job_uid();
  const auto pass = [&](const CheckpointId& id) {
    if (id.cluster == cluster_.cluster()) newest = std::max(newest, id.job.value);
  };
  for (const auto& [id, info] : checkpoints_) pass(id);
  for (const auto& [id, why] : unreadable_checkpoints_) pass(id);
  if (newest == cluster_.last_job_uid()) return;
  sentences_.push_back(absl::StrCat("there are checkpoints of job ", newest,
                                    ", while the coordinator's state knows of ",
                                    cluster_.last_job_uid(), " jobs: it is an older copy"));
  cluster_.set_last_job_uid(newest);
  SaveCluster();
}

std::string Core::NotWritableText() const {
  return absl::StrCat("no checkpoint can be taken: ", options_.checkpoint_root,
                      " cannot be written: ", checkpoints_marked_.message());
}

std::string Core::NotListedText() const {
  return absl::StrCat("the checkpoints beneath ", options_.checkpoint_root, " are not listed yet",
                      checkpoints_trouble_.empty() ? "" : ": ", checkpoints_trouble_);
}

std::optional<CheckpointInfo> Core::FindCheckpoint(const SubmitRequest& request) const {
  auto id = ParseCheckpointId(request.from());
  if (!id) id = NewestNamed(checkpoints_, cluster_.cluster(), request.from());
  const auto found = id ? checkpoints_.find(*id) : checkpoints_.end();
  if (found == checkpoints_.end()) return std::nullopt;
  return found->second;
}

// ---- Deletion ----

void Core::DropCheckpoint(const CheckpointId& id) {
  checkpoints_.erase(id);
  unreadable_checkpoints_.erase(id);
  dropping_[id];
  disk_actions_.push_back(action::DropCheckpoint{id});
  const auto found = jobs_.find(id.job.value);  // one that is archived goes back to nothing
  if (id.cluster != cluster_.cluster() || found == jobs_.end()) return;
  Job& job = found->second;
  if (job.over() || job.state.sealed_checkpoint() != id.number) return;
  const CheckpointInfo* last = LastCheckpoint(checkpoints_, id.cluster, id.job);
  job.state.set_sealed_checkpoint(last == nullptr ? 0 : ParseCheckpointId(last->id())->number);
  SaveState(job);
}

void Core::DropSurplus(const Job& job) {
  if (!job.spec().has_checkpoint()) return;
  for (const CheckpointId& id :
       SurplusCheckpoints(checkpoints_, cluster_.cluster(), JobUid(job.uid()),
                          job.spec().checkpoint().keep(), SourcesInUse())) {
    DropCheckpoint(id);
  }
}

void Core::On(const event::CheckpointDropped& event) {
  if (Job* job = FindAttempt(event.id);
      job != nullptr && job->checkpoint.attempt->stage == CheckpointAttempt::Stage::kDropping) {
    job->checkpoint.attempt.reset();
    if (job->over()) unpacked_.insert(job->uid());
  }
  const std::string text = event.status.ok()
                               ? ""
                               : absl::StrCat("checkpoint ", ToString(event.id),
                                              " was not removed: ", event.status.message());
  if (!text.empty()) sentences_.push_back(text);
  const auto dropped = dropping_.find(event.id);
  if (dropped == dropping_.end()) return;
  for (const CallId call : dropped->second) {
    if (text.empty()) {
      Reply(call, Empty());
    } else {
      Reply(call, absl::AbortedError(text));
    }
  }
  dropping_.erase(dropped);
  if (!text.empty()) list_checkpoints_at_ = now_;  // what is there of it, the disk knows
}

void Core::On(const event::DeleteCheckpoint& event) {
  const std::string& text = event.request.id();
  if (absl::Status status = CheckCheckpointRoot(); !status.ok()) {
    return Reply(event.call, std::move(status));
  }
  const auto id = ParseCheckpointId(text);
  if (!id) {
    return Reply(event.call, absl::InvalidArgumentError(absl::StrCat(
                                 "expected a checkpoint's id, as `starling checkpoint list` prints "
                                 "it, got \"",
                                 text.substr(0, 200), "\"")));
  }
  if (const auto dropping = dropping_.find(*id); dropping != dropping_.end()) {
    return dropping->second.push_back(event.call);
  }
  if (id->cluster != cluster_.cluster()) {
    return Reply(event.call, absl::FailedPreconditionError(absl::StrCat(
                                 "checkpoint ", text, " belongs to cluster ", ToHex(id->cluster),
                                 ", whose coordinator may still need it: delete it there, or, if "
                                 "that cluster is no more, remove its folder")));
  }
  if (!checkpoints_listed_) return Reply(event.call, absl::UnavailableError(NotListedText()));
  if (!checkpoints_.contains(*id) && !unreadable_checkpoints_.contains(*id)) {
    return Reply(event.call,
                 absl::NotFoundError(absl::StrCat("there is no checkpoint ", text,
                                                  ": `starling checkpoint list` lists them")));
  }
  if (SourcesInUse().contains(*id)) {
    return Reply(event.call, absl::FailedPreconditionError(absl::StrCat(
                                 "a job that is not over starts from checkpoint ", text,
                                 ": delete it when that job is over, or cancel that job")));
  }
  DropCheckpoint(*id);
  dropping_[*id].push_back(event.call);
}

// ---- Calls ----

void Core::On(const event::ListCheckpoints& event) {
  if (absl::Status status = CheckCheckpointRoot(); !status.ok()) {
    return Reply(event.call, std::move(status));
  }
  if (!checkpoints_listed_) return Reply(event.call, absl::UnavailableError(NotListedText()));
  const Page& page = event.request.page();
  const size_t size = page.size() == 0 ? limits::kListEntriesMax
                                       : std::min<size_t>(page.size(), limits::kListEntriesMax);
  const std::vector<CheckpointId> ids =
      NewestFirst(checkpoints_, cluster_.cluster(), event.request.name());
  auto next = ids.begin();
  if (!page.after().empty()) {
    const auto after = ParseCheckpointId(page.after());
    const auto last = after ? std::find(ids.begin(), ids.end(), *after) : ids.end();
    if (last == ids.end()) {
      return Reply(event.call, absl::AbortedError("a checkpoint was deleted while they were being "
                                                  "listed: list them again"));
    }
    next = last + 1;
  }
  ListCheckpointsReply reply;
  size_t bytes = 0;
  for (; next != ids.end(); ++next) {
    if (static_cast<size_t>(reply.checkpoints_size()) >= size || bytes >= limits::kListBytesMax) {
      reply.set_next(reply.checkpoints().rbegin()->id());
      break;
    }
    *reply.add_checkpoints() = checkpoints_.at(*next);
    bytes += reply.checkpoints().rbegin()->ByteSizeLong();
  }
  Reply(event.call, std::move(reply));
}

void Core::On(const event::CreateCheckpoint& event) {
  const CreateCheckpointRequest& request = event.request;
  const auto made = std::find_if(
      checkpoints_made_.begin(), checkpoints_made_.end(),
      [&](const auto& entry) { return request.nonce() != 0 && entry.first == request.nonce(); });
  if (made != checkpoints_made_.end()) {
    CreateCheckpointReply reply;
    *reply.mutable_checkpoint() = made->second;
    return Reply(event.call, std::move(reply));
  }
  Job* job = FindJob(request.name());
  if (job == nullptr) return Reply(event.call, NoSuchJob(request.name()));
  if (!job->running() || IsStopped(*job)) {
    return Reply(event.call,
                 absl::FailedPreconditionError(absl::StrCat(
                     "job ", job->name(), " is ", JobState_Name(job->state.state()),
                     job->running() ? ", and its wallTime is over" : "",
                     ": a checkpoint is taken of a job that trains",
                     job->over() ? absl::StrCat("; export its values: starling export ",
                                                job->name(), " --format safetensors -o FILE")
                                 : "")));
  }
  if (absl::Status status = CheckCheckpoints(); !status.ok()) {
    return Reply(event.call, std::move(status));
  }
  for (PendingCheckpoint& pending : checkpoint_calls_) {
    if (request.nonce() == 0 || pending.nonce != request.nonce()) continue;
    Reply(pending.call, absl::AbortedError("the same call was made again"));
    pending.call = event.call;
    return;
  }
  const auto waiting = std::count_if(checkpoint_calls_.begin(), checkpoint_calls_.end(),
                                     [&](const auto& other) { return other.uid == job->uid(); });
  if (waiting >= kCallsPerJobMax) {
    return Reply(event.call, absl::ResourceExhaustedError(absl::StrCat(
                                 waiting, " calls wait for a checkpoint of job ", job->name(),
                                 ", which is the maximum: ask again when it is there")));
  }
  PendingCheckpoint& pending = checkpoint_calls_.emplace_back();
  pending.call = event.call;
  pending.uid = job->uid();
  pending.nonce = request.nonce();
  pending.until = now_ + options_.checkpoint_deadline;
  CheckpointProgress& progress = job->checkpoint;
  progress.retry_at = std::min(progress.retry_at, now_);  // somebody may have mended it
  // One whose step is not decided yet will have all that is done now.
  auto& attempt = progress.attempt;
  if (!attempt || attempt->given_up || attempt->stage > CheckpointAttempt::Stage::kDeciding) return;
  pending.number = attempt->id.number;
  attempt->asked_for = true;
}

// Those that wait for the job's attempt of that number; 0: for the next one.
void Core::AnswerCheckpoint(uint64_t uid, uint64_t number, const CallReply& reply) {
  std::erase_if(checkpoint_calls_, [&](const PendingCheckpoint& pending) {
    if (pending.uid != uid || pending.number != number) return false;
    Reply(pending.call, reply);
    if (const auto* made = std::get_if<CreateCheckpointReply>(&reply))
      checkpoints_made_.emplace_back(pending.nonce, made->checkpoint());
    return true;
  });
  while (checkpoints_made_.size() > kMadeRemembered) checkpoints_made_.pop_front();
}

void Core::ExpireCheckpointCalls() {
  std::erase_if(checkpoint_calls_, [&](const PendingCheckpoint& pending) {
    if (now_ < pending.until) return false;
    const auto job = jobs_.find(pending.uid);
    const std::string why =
        job != jobs_.end() ? WhatCheckpointWaitsFor(job->second) : "its manifest is being written";
    Reply(pending.call, absl::AbortedError(absl::StrCat(
                            "no checkpoint within ",
                            absl::FormatDuration(options_.checkpoint_deadline), ": ", why)));
    return true;
  });
}

}  // namespace starling::coordinator
