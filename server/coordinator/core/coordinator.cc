#include "server/coordinator/core/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"
#include "server/coordinator/core/records.h"

namespace starling::coordinator {

Coordinator::Coordinator(std::unique_ptr<Core> core) : core_(std::move(core)) {}
Coordinator::~Coordinator() = default;

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(const CoordinatorOptions& options,
                                                                 const StoreSnapshot& snapshot) {
  auto core = std::make_unique<Core>(options);
  const absl::Status loaded = core->Load(snapshot);
  if (!loaded.ok()) return loaded;
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(core)));
}

void Coordinator::Start(absl::Time now, absl::Time wall, Actions& actions) {
  core_->Start(now, wall, actions);
}

void Coordinator::Step(const Event& event, absl::Time now, Actions& actions) {
  core_->Step(event, now, actions);
}

bool Coordinator::AsksForDisk(const SubmitRequest& request) const {
  return core_->AsksForDisk(request);
}

std::optional<CheckpointInfo> Coordinator::FindCheckpoint(const SubmitRequest& request) const {
  return core_->FindCheckpoint(request);
}

uint64_t Coordinator::generation() const { return core_->generation(); }

// ---- One step ----

void Core::Start(absl::Time now, absl::Time wall, Actions& actions) {
  now_ = last_step_ = started_ = now;
  wall_ahead_ = wall - now;
  cluster_.set_schema(records::kSchema);
  cluster_.set_generation(cluster_.generation() + 1);
  if (cluster_.cluster() == 0) cluster_.set_cluster(options_.new_cluster);
  SaveCluster();
  ForEachDaemon([&](Daemon& daemon) {
    daemon.last_heard = now;
    daemon.awaited = true;
  });
  for (auto& [id, shard] : shards_)
    shard.report_by = now + options_.start_grace + options_.report_liveness;
  list_checkpoints_at_ = options_.checkpoint_root.empty() ? absl::InfiniteFuture() : now;
  LookForCheckpoints();
  for (auto& [id, shard] : shards_) shard.since = now;
  for (auto& [uid, job] : jobs_) {
    job.running_since = now;
    if (job.over()) {
      DropLearnersOfEnded(job);
      if (job.state.output().state() == OutputStatus::WRITING) OrderOutput(job);
      const absl::Time ended = absl::FromUnixMicros(job.state.ended_us());
      job.ended_at = now - std::max(absl::ZeroDuration(), wall - ended);
      unpacked_.insert(uid);
      continue;
    }
    if (!job.unreadable.empty()) {
      End(job, FAILED, job.unreadable);
      continue;
    }
    if (job.running() && !job.state.has_running_us())  // written by a version that did not store it
      job.state.set_running_us(
          std::max<int64_t>(0, absl::ToUnixMicros(wall) - job.state.started_us()));
    const absl::Time submitted = absl::FromUnixMicros(job.stored.submitted_us());
    const bool ran = RollsBack(job) || job.state.restarts_total() > 0;
    job.pending_since = ran ? now : now - std::max(absl::ZeroDuration(), wall - submitted);
    if (job.state.stopping()) job.last_cut = now;  // its last losses may still come
    const absl::Time started = absl::FromUnixMicros(job.state.started_us());
    job.checkpoint.last_cut = now - std::max(absl::ZeroDuration(), wall - started);
    TellCurveAgain(job);
    Log(job, absl::StrCat("coordinator started again, generation ", generation()));
  }
  Archive();
  Flush(actions, false);
}

void Core::Step(const Event& event, absl::Time now, Actions& actions) {
  now_ = std::max(now, now_);
  NoticePause();
  std::visit([this](const auto& e) { On(e); }, event);
  // Scheduling and progress trigger each other until nothing changes.
  while (schedule_ || !advance_.empty()) {
    if (schedule_) {
      schedule_ = false;
      Schedule();
    }
    const std::set<uint64_t> jobs = std::exchange(advance_, {});
    for (const uint64_t uid : jobs) {
      auto it = jobs_.find(uid);
      if (it != jobs_.end() && it->second.running()) Advance(it->second);
    }
  }
  for (const uint32_t id : std::exchange(touched_workers_, {})) {
    auto it = workers_.find(id);
    if (it != workers_.end()) Settle(it->second);
  }
  for (const auto& [id, uid] : std::exchange(touched_jobs_, {})) {
    auto it = shards_.find(id);
    if (it == shards_.end()) continue;
    NoteOrders(it->second, uid);
    touched_shards_.insert(id);
  }
  for (const uint32_t id : std::exchange(touched_shards_, {})) {
    auto it = shards_.find(id);
    if (it != shards_.end()) Settle(it->second);
  }
  AnswerLogs();
  Archive();
  Flush(actions, std::holds_alternative<event::Tick>(event));
}

// A coordinator that was suspended (SIGSTOP, a closed laptop) could not hear daemons meanwhile.
void Core::NoticePause() {
  const absl::Duration pause = now_ - last_step_;
  last_step_ = now_;
  if (pause <= 2 * kCoordinatorTickPeriod) return;
  // An answer has little time, so that short pauses count, too. Each step takes some of it, also
  // where all are late.
  for (auto& [id, shard] : shards_) {
    if (!shard.suspicion) continue;
    shard.suspicion->until += pause - kCoordinatorTickPeriod;
    if (shard.suspicion->asked_again) *shard.suspicion->asked_again += pause;
  }
  if (pause <= std::min(options_.liveness, options_.shard_liveness) / 4) return;
  ForEachDaemon([&](Daemon& daemon) { daemon.last_heard += pause; });
  for (auto& [id, shard] : shards_) shard.report_by += pause;
  for (auto& [uid, job] : jobs_) {
    for (auto& [partition, copy] : job.copies) copy.since += pause;
    job.backups_awaited += pause;
    if (job.checkpoint.attempt) job.checkpoint.attempt->since += pause;
  }
  for (auto& [id, shard] : shards_) shard.checkpoint_moved += pause;
}

void Core::Flush(Actions& actions, bool tick) {
  const bool persist = !DefenceMasked(Defence::kCoordinatorPersist) || tick;
  if (persist && !batch_.empty()) actions.push_back(action::Persist{std::exchange(batch_, {})});
  for (CurveNews& news : curve_news_) actions.push_back(action::WriteCurve{std::move(news)});
  for (JobReply& job : outputs_) actions.push_back(action::WriteOutput{std::move(job)});
  for (Action& action : disk_actions_) actions.push_back(std::move(action));
  for (const action::AskShard& question : questions_) actions.push_back(question);
  for (std::string& sentence : sentences_) actions.push_back(action::Log{std::move(sentence)});
  for (auto& [call, reply] : replies_) actions.push_back(action::Reply{call, std::move(reply)});
  curve_news_.clear();
  outputs_.clear();
  disk_actions_.clear();
  questions_.clear();
  sentences_.clear();
  replies_.clear();
}

void Core::On(const event::CallGone& event) {
  ForEachDaemon([&](Daemon& daemon) {
    if (daemon.parked && daemon.parked->call == event.call) daemon.parked.reset();
  });
  std::erase_if(registrations_, [&](const auto& entry) { return entry.second.call == event.call; });
  std::erase_if(submissions_, [&](const auto& entry) { return entry.second.call == event.call; });
  std::erase_if(logs_, [&](const PendingLogs& logs) { return logs.call == event.call; });
  std::erase_if(checkpoint_calls_,
                [&](const PendingCheckpoint& pending) { return pending.call == event.call; });
  for (auto& [id, calls] : dropping_) std::erase(calls, event.call);
}

// ---- Common ----

void Core::Reply(CallId call, CallReply reply) { replies_.emplace_back(call, std::move(reply)); }

void Core::Log(Job& job, const std::string& text) {
  LogEntry entry;
  entry.set_number(++job.last_log);
  entry.set_time(TimeText(wall()));
  entry.set_text(text);
  job.log.push_back(std::move(entry));
  if (job.log.size() > limits::kLogEntriesPerJobMax) job.log.pop_front();
  sentences_.push_back(absl::StrCat("job ", job.name(), ": ", text));
}

// In one batch a key is either put or deleted: the later call wins.
void Core::Put(const std::string& key, std::string value) {
  std::erase(batch_.deletes, key);
  batch_.puts[key] = std::move(value);
}

void Core::Delete(const std::string& key) {
  batch_.puts.erase(key);
  batch_.deletes.push_back(key);
}

void Core::SaveCluster() { batch_.puts[records::Cluster()] = cluster_.SerializeAsString(); }

void Core::Save(const Worker& worker) {
  batch_.puts[records::Worker(worker.id())] = worker.stored.SerializeAsString();
}

void Core::Save(const Shard& shard) {
  batch_.puts[records::Shard(shard.id())] = shard.stored.SerializeAsString();
}

// How long the job has run while a coordinator was up.
int64_t Core::RunningMicros(const Job& job) const {
  return job.state.running_us() +
         (job.running() ? absl::ToInt64Microseconds(now_ - job.running_since) : 0);
}

double Core::RunningSeconds(const Job& job) const {
  return static_cast<double>(RunningMicros(job)) / 1e6;
}

std::string Core::TimeText(absl::Time time) {
  return absl::FormatTime(absl::RFC3339_sec, time, absl::UTCTimeZone());
}

void Core::SaveState(Job& job) {
  const int64_t running = RunningMicros(job);
  job.running_since += absl::Microseconds(running - job.state.running_us());
  job.state.set_running_us(running);
  if (job.over()) unpacked_.insert(job.uid());  // this may have been its last change
  batch_.puts[records::JobState(job.uid())] = job.state.SerializeAsString();
}

}  // namespace starling::coordinator
