#include "tests/sim/cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace starling::sim {
namespace {

// G8: jobs end within this time after faults have healed.
constexpr absl::Duration kProgressBound = absl::Seconds(60);
// For a reader that holds what it reads: a slice or two in flight, whose memory it keeps from being
// freed.
constexpr size_t kSmallWindowBytes = 256;
constexpr uint64_t kFewOldValuesBytes = 256;

class SimShardAsker final : public coordinator::ShardAsker {
 public:
  using AskNow = std::function<void(const std::string& name, std::function<void()> answered)>;
  explicit SimShardAsker(AskNow ask) : ask_(std::move(ask)) {}
  void Ask(const std::string&, const std::string& name, std::function<void()> answered) override {
    ask_(name, [exists = std::weak_ptr(exists_), answered = std::move(answered)] {
      if (!exists.expired()) answered();
    });
  }

 private:
  const AskNow ask_;
  const std::shared_ptr<bool> exists_ = std::make_shared<bool>();
};

}  // namespace

Cluster::Cluster(uint64_t seed, const ClusterShape& shape)
    : seed_(seed),
      shape_(shape),
      world_(Mix(seed, 1), shape.allowed, shape.from == nullptr ? "" : "after it: "),
      network_(&world_),
      stored_(shape.from != nullptr ? shape.from->disk : std::make_shared<MemoryDisk>()),
      checkpoints_(
          &world_, stored_, [this](RunId run) { return TruthOf(run); },
          shape.from == nullptr ? nullptr : shape.from->checkpoints),
      rollbacks_(&world_, &checkpoints_, [this](auto views) { return IsLost(views); }),
      control_(&world_),
      coordinator_(&world_, &control_),
      loses_copies_(shape.faults && shape.checkpoints && Random(Mix(seed, 993)).Chance(0.5)) {
  spdlog::set_level(spdlog::level::off);  // the hosts log as daemons do
  streams_.SetObserver(this);
  coordinator_.on_replaced = [this](uint64_t incarnation, absl::Duration unheard) {
    OnShardReplaced(incarnation, unheard);
  };
  coordinator_.on_stored = [this](uint64_t uid, const CoordinatorNode::StoredRun& before,
                                  const CoordinatorNode::StoredRun& after) {
    rollbacks_.OnStored(uid, before, after);
  };
  coordinator_.new_cluster = Mix(seed, shape.from == nullptr ? 4 : 5) | 1;
  coordinator_.make_asker = [this](Process* process) { return MakeAsker(process); };
  coordinator_.mount = [this](Process* process) { return MountDisk(process, /*shard=*/false); };
  const bool slow_reader = shape.faults && Random(Mix(seed, 950)).Chance(0.1) &&
                           world_.Happens("reader that holds what it reads", "reader");
  const std::optional<uint64_t> old_values =
      slow_reader ? std::optional<uint64_t>(kFewOldValuesBytes) : std::nullopt;
  for (int i = 0; i < shape.shards; ++i) {
    shards_.push_back(std::make_unique<ShardProcess>(this, absl::StrCat("ps-", i),
                                                     Mix(seed, 1000 + i), old_values));
  }
  for (int i = 0; i < shape.workers; ++i) {
    workers_.push_back(
        std::make_unique<WorkerNode>(this, absl::StrCat("worker-", i), Mix(seed, 2000 + i)));
    workers_.back()->set_micro_batch_time(
        world_.random().Between(absl::Milliseconds(3), absl::Milliseconds(12)));
  }
  if (shape.faults && world_.random().Chance(0.2) && world_.Happens("slow worker", "worker-0")) {
    workers_.front()->set_micro_batch_time(absl::Milliseconds(250) /
                                           MakeWorkload(seed, 0).spec.batch().micro_batches());
  }
  // Others train on meanwhile, and checkpoints have the copy that it evaluates. Where both copies
  // die, all that it computes is slow already (PlanLosses).
  if (shape.faults && shape.checkpoints && Random(Mix(seed, 925)).Chance(0.4) &&
      world_.Happens("slow evaluations", "worker-1"))
    workers_[1]->set_evaluation_factor(loses_copies_ ? 2 : 10);
  // Draws from its own random numbers.
  if (shape.faults && Random(Mix(seed, 920)).Chance(0.3) &&
      world_.Happens("two workers on one device", "worker-0, worker-1")) {
    workers_[0]->ShareDeviceWith(workers_[1].get());
  }
  // Others find finite values there. It may be quarantined, and nobody restarts it.
  const bool spoils = shape.faults && shape.from == nullptr && shape.workers > 1 &&
                      Random(Mix(seed, 935)).Chance(0.15);
  if (spoils) workers_.back()->SpoilGradients();
  for (int i = 0; i < shape.jobs; ++i) {
    ClientJob& job = jobs_.emplace_back();
    job.workload = shape.from != nullptr ? *shape.from->workload : MakeWorkload(seed, i);
    if (shape.checkpoints) PlanCheckpoints(i);
    Random restarts(Mix(seed, 1300 + i));  // of a job that may only begin again
    if (!shape.checkpoints && restarts.Chance(0.3))
      job.workload.spec.set_restarts_max(static_cast<uint32_t>(restarts.Between(0, 2)));
    job.nonce = Mix(seed, 3000 + i);
    if (shape.workers == 1) job.workload.spec.set_workers_min(1);
    const auto workers = static_cast<uint32_t>(spoils ? shape.workers - 1 : shape.workers);
    job.workload.spec.set_workers_min(std::min(job.workload.spec.workers_min(), workers));
    if (shape.steps > 0) {
      job.workload.spec.mutable_stop()->clear_wall_time_seconds();
      job.workload.spec.mutable_stop()->set_steps(shape.steps);
    }
    if (!shape.faults || shape.from != nullptr) continue;
    PlanCalls(i);
    PlanOpenFaults(i);
  }
  client_.alive = true;
  client_.life = 1;
  reader_ = std::make_unique<Reader>(this, "reader");
  if (slow_reader) {
    streams_.SetWindow(kSmallWindowBytes);
    reader_->set_hold_for(absl::Milliseconds(500));
    for (ClientJob& job : jobs_) job.read_every = absl::Milliseconds(50);
  }
}

void Cluster::Run() {
  coordinator_.Start();
  for (auto& shard : shards_) shard->Start();
  for (auto& worker : workers_) worker->Start();
  // Only once a shard and a worker are there to inspect the data.
  for (size_t i = 0; i < (shape_.in_turn ? 1 : jobs_.size()); ++i) {
    world_.After(absl::Milliseconds(100 + 50 * i), &client_, [this, i] { Submit(i); });
  }
  heal_at_ = losses_until_ = world_.now();
  if (shape_.faults) {
    PlanFaults();
    if (shape_.from == nullptr) PlanUnitFaults();
    if (shape_.checkpoints && shape_.from == nullptr) PlanDiskFaults();
  }
  // Draws from its own random numbers.
  const bool rolls = shape_.faults && Random(Mix(seed_, 955)).Chance(0.3) &&
                     world_.Happens("SIGTERM of each shard in turn", "all shards");
  const absl::Time deadline = losses_until_ + kProgressBound;
  bool asked = false;
  while (!settled_ && world_.RunOne()) {
    if (AllOver() && world_.now() >= heal_at_ && !asked) {
      asked = true;
      rolls ? RollShards(0) : ListJobs();
    }
    if (world_.now() <= deadline) continue;
    std::string stuck;
    for (const ClientJob& job : jobs_) {
      if (job.over) continue;
      absl::StrAppend(&stuck, " ", job.workload.spec.name(), " (",
                      JobState_Name(job.status.state()), " at step ", job.status.step(), " of ",
                      job.status.steps(), ": ", job.status.reason(), ")");
    }
    for (const auto& worker : workers_) absl::StrAppend(&stuck, "; ", worker->ToString());
    absl::StrAppend(&stuck, "; ", watch_.ToString(), "; ", WhyNotSettled());
    world_.Violate(listed_ ? Promise::kMemory : Promise::kG8,
                   absl::StrCat("no end within ", absl::FormatDuration(kProgressBound),
                                " after faults healed:", stuck));
    break;
  }
  checkpoints_.CheckPolicies();
  for (const auto& shard : shards_) shard->Crash();  // which counts what is left
}

uint64_t Cluster::final_hash() const {
  const JobTruth* const truth = first_truth();
  return truth == nullptr ? 0 : truth->final_hash();
}

std::set<uint64_t> Cluster::LivingShards() const {
  std::set<uint64_t> living;
  for (const auto& shard : shards_) {
    const auto registered = registered_.find(shard.get());
    const bool heard = shard->paused_until <= world_.now() && shard->unheard_until <= world_.now();
    if (shard->alive && heard && !shard->draining() && registered != registered_.end() &&
        registered->second.first == shard->life)
      living.insert(registered->second.second);
  }
  return living;
}

// One that went on after it had been given up is heard again before it is told.
bool Cluster::IsLost(absl::Span<const View> views) const {
  const std::set<uint64_t> living = LivingShards();
  const auto there = [&](uint64_t incarnation) {
    return living.contains(incarnation) &&
           coordinator_.Unheard(incarnation) < coordinator::CoordinatorOptions().answer_wait;
  };
  return std::any_of(views.begin(), views.end(), [&](const View& view) {
    const bool backed = view.backup() != 0 && !view.learning();
    return !there(view.primary_incarnation()) && !(backed && there(view.backup_incarnation()));
  });
}

bool Cluster::AllWhole() const {
  const auto deleted =
      std::count_if(jobs_.begin(), jobs_.end(), [](const ClientJob& job) { return job.deleted; });
  return coordinator_.AllWhole(jobs_.size() - static_cast<size_t>(deleted), LivingShards());
}

bool Cluster::AllOver() const {
  return std::all_of(jobs_.begin(), jobs_.end(), [](const ClientJob& job) {
    return job.over && (job.deleted || !job.to_delete);
  });
}

void Cluster::OnSending(const Process& by, const Network::StreamPtr& link, Message* message) {
  for (const auto& worker : workers_) {
    if (worker.get() == &by) worker->wire().OnSending(link, message);
  }
}

ValueTruth Cluster::OnValueSent(const Process& by, const FrameHeader& header,
                                absl::Span<const uint8_t> bytes) {
  return watch_.OnValueSent(by, header, bytes);
}

void Cluster::OnDelivered(const Process& to, bool, const FrameHeader& header,
                          const ReceivedPayload&, const ValueTruth& truth) {
  for (const auto& worker : workers_) {
    if (worker.get() == &to) worker->wire().OnDelivered(header, truth);
  }
}

JobTruth* Cluster::Truth(const JobDescription& description) {
  for (ClientJob& job : jobs_) {
    if (job.workload.spec.name() != description.spec().name()) continue;
    std::unique_ptr<JobTruth>& truth = job.truths[description.run().era()];
    if (truth == nullptr)
      truth =
          std::make_unique<JobTruth>(&world_, &job.workload, description, TruthBefore(description));
    return truth.get();
  }
  return nullptr;
}

// Of the run whose checkpoint this one goes on from; null: it begins with step 0.
const JobTruth* Cluster::TruthBefore(const JobDescription& description) {
  if (!description.has_restore()) return nullptr;
  const std::string& checkpoint = description.restore().checkpoint();
  const JobTruth* truth = checkpoints_.TruthOf(checkpoint);
  if (shape_.from != nullptr && checkpoint == shape_.from->checkpoint) truth = shape_.from->truth;
  if (truth == nullptr) {
    world_.Violate(
        description.run().era() > 0 ? Promise::kGoesBack : Promise::kGoesOn,
        absl::StrCat("job ", description.run().job_uid(), " begins era ", description.run().era(),
                     " with checkpoint ", checkpoint, ", which nobody made"));
  }
  return truth;
}

JobTruth* Cluster::TruthOf(RunId run) {
  for (const ClientJob& job : jobs_) {
    const auto truth = job.truths.find(run.era);
    if (truth != job.truths.end() && truth->second->run() == run) return truth->second.get();
  }
  return nullptr;
}

bool Cluster::ClientJob::served() const {
  return std::any_of(truths.begin(), truths.end(),
                     [](const auto& truth) { return truth.second->served(); });
}

std::set<std::string> Cluster::ClientJob::faulty_workers() const {
  std::set<std::string> faulty;
  for (const auto& [era, truth] : truths)
    faulty.insert(truth->faulty_workers().begin(), truth->faulty_workers().end());
  return faulty;
}

const Workload& Cluster::WorkloadOf(const std::string& job_name) const {
  return std::find_if(jobs_.begin(), jobs_.end(),
                      [&](const ClientJob& job) { return job.workload.spec.name() == job_name; })
      ->workload;
}

const WorkerFault* Cluster::OpenFault(const std::string& job_name,
                                      const std::string& worker) const {
  for (const ClientJob& job : jobs_) {
    if (job.workload.spec.name() != job_name) continue;
    const auto fault = job.open_faults.find(worker);
    return fault == job.open_faults.end() ? nullptr : &fault->second;
  }
  return nullptr;
}

void Cluster::Register(Process* caller, const RegisterRequest& request,
                       std::function<void(absl::StatusOr<RegisterReply>)> done) {
  CallForStatus<RegisterReply>(
      caller, 0,
      [request](coordinator::CallId call) {
        return coordinator::event::Register{call, request};
      },
      [this, caller, life = caller->life, request, done](absl::StatusOr<RegisterReply> reply) {
        if (reply.ok() && reply->refused().empty()) {
          registered_[caller] = {life, reply->incarnation()};
          control_.OnRegistered(request.nonce(), reply->id(), Incarnation(reply->incarnation()));
        }
        done(std::move(reply));
      });
}

std::unique_ptr<coordinator::ShardAsker> Cluster::MakeAsker(Process* process) {
  return std::make_unique<SimShardAsker>(
      [this, process](const std::string& name, std::function<void()> answered) {
        const auto shard = std::find_if(shards_.begin(), shards_.end(),
                                        [&](const auto& other) { return other->name == name; });
        ShardProcess* const asked = shard->get();
        world_.Count("shards asked at their addresses");
        network_.Call<bool>(
            process, asked,
            [this, asked](std::function<void(bool)> answer) {
              const absl::Time heard = std::max(asked->deaf_until, asked->unheard_until);
              if (heard <= world_.now()) answer(true);
            },
            [this, answered = std::move(answered)](std::optional<bool> answer) {
              if (!answer) return;
              world_.Count("shards that answered at their addresses");
              answered();
            });
      });
}

void Cluster::Heartbeat(Process* caller, const HeartbeatRequest& request,
                        std::function<void(absl::StatusOr<HeartbeatReply>)> done) {
  using Answer = absl::StatusOr<HeartbeatReply>;
  network_.Call<Answer>(
      caller, &coordinator_,
      [this, request, caller](std::function<void(Answer)> answer) {
        coordinator_.ServeHeartbeat(request, caller->name, std::move(answer));
      },
      [done](std::optional<Answer> reply) {
        done(reply.has_value() ? *std::move(reply) : absl::UnavailableError("no answer"));
      });
}

}  // namespace starling::sim
