#include "tests/sim/cluster.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/names.h"
#include "common/checkpoint/store.h"
#include "spdlog/spdlog.h"

namespace starling::sim {
namespace {

// G8: jobs end within this time after faults have healed.
constexpr absl::Duration kProgressBound = absl::Seconds(60);
constexpr absl::Duration kPollPeriod = absl::Milliseconds(100);
// For a reader that holds what it reads: a slice or two in flight, whose memory it keeps from being
// freed.
constexpr size_t kSmallWindowBytes = 256;
constexpr uint64_t kFewOldValuesBytes = 256;

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
  // Others train on meanwhile, and checkpoints have the copy that it evaluates.
  if (shape.faults && shape.checkpoints && Random(Mix(seed, 925)).Chance(0.4) &&
      world_.Happens("slow evaluations", "worker-1"))
    workers_[1]->set_evaluation_factor(10);
  // Draws from its own random numbers.
  if (shape.faults && Random(Mix(seed, 920)).Chance(0.3) &&
      world_.Happens("two workers on one device", "worker-0, worker-1")) {
    workers_[0]->ShareDeviceWith(workers_[1].get());
  }
  for (int i = 0; i < shape.jobs; ++i) {
    ClientJob& job = jobs_.emplace_back();
    job.workload = shape.from != nullptr ? *shape.from->workload : MakeWorkload(seed, i);
    if (shape.checkpoints) PlanCheckpoints(i);
    job.nonce = Mix(seed, 3000 + i);
    if (shape.workers == 1) job.workload.spec.set_workers_min(1);
    const auto workers = static_cast<uint32_t>(shape.workers);
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
  const absl::Time deadline = losses_until_ + kProgressBound;
  bool asked = false;
  while (!settled_ && world_.RunOne()) {
    if (AllOver() && world_.now() >= heal_at_ && !asked) {
      asked = true;
      ListJobs();
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

// No call here is invalid: a call can only come too early, or to the wrong coordinator.
void Cluster::OnRefusedCall(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status) && !absl::IsNotFound(status)) return;
  world_.Violate(absl::IsNotFound(status) ? Promise::kG5 : Promise::kG8,
                 std::string(status.message()));
}

void Cluster::Submit(size_t i) {
  ClientJob& job = jobs_[i];
  SubmitRequest request;
  if (shape_.from == nullptr) {
    *request.mutable_spec() = job.workload.spec;
  } else {
    request.set_from(shape_.from->checkpoint);
  }
  request.set_nonce(job.nonce);
  CallWith<SubmitReply>(
      &client_,
      [this, request](CoordinatorNode::Answer answer) {
        coordinator_.ServeSubmit(request, std::move(answer));
      },
      [this, i](absl::StatusOr<SubmitReply> reply) {
        if (jobs_[i].uid != 0) return;
        if (!reply.ok()) {
          return world_.After(kPollPeriod, &client_, [this, i] { Submit(i); });
        }
        jobs_[i].uid = reply->uid();
        control_.OnSubmitted(reply->uid(), jobs_[i].workload.spec.name());
        PlanSwitches(i);
        Poll(i);
        if (jobs_[i].cancel_after)
          world_.After(*jobs_[i].cancel_after, &client_, [this, i] { Cancel(i); });
        if (jobs_[i].read_every) ReadNow(i);
        if (jobs_[i].checkpoint_every) PlanToAsk(i);
      });
}

// At any time, also before the job runs, and sometimes two at once.
void Cluster::PlanSwitches(size_t i) {
  Random& random = world_.random();
  absl::Duration at;
  for (uint32_t k = 0; k < jobs_[i].workload.switches; ++k) {
    if (!random.Chance(0.3)) at += random.Between(absl::Milliseconds(1), absl::Milliseconds(700));
    Policy policy;
    policy.set_kind(static_cast<Policy::Kind>(random.Between(1, 3)));
    if (policy.kind() == Policy::SSP) policy.set_staleness(static_cast<uint32_t>(random.Below(4)));
    world_.After(at, &client_,
                 [this, i, policy, nonce = random.Next()] { SetPolicy(i, policy, nonce); });
  }
}

void Cluster::SetPolicy(size_t i, const Policy& policy, uint64_t nonce) {
  SetPolicyRequest request;
  request.set_name(jobs_[i].workload.spec.name());
  *request.mutable_policy() = policy;
  request.set_nonce(nonce);
  if (jobs_[i].over) return;
  ++jobs_[i].calls;
  Call<SetPolicyReply>(
      &client_, 0,
      [request](coordinator::CallId call) {
        return coordinator::event::SetPolicy{call, request};
      },
      [this, i, policy, nonce](std::optional<SetPolicyReply> reply) {
        --jobs_[i].calls;
        if (jobs_[i].over) return;
        if (reply.has_value()) {
          const int waiting = static_cast<int>(
              std::count_if(reply->status().policies().begin(), reply->status().policies().end(),
                            [](const PolicyRecord& p) { return !p.in_force(); }));
          if (waiting > 1) world_.Count("policies that waited for another");
          return;
        }
        world_.After(kPollPeriod, &client_,
                     [this, i, policy, nonce] { SetPolicy(i, policy, nonce); });
      });
}

void Cluster::Poll(size_t i) {
  JobRequest request;
  request.set_name(jobs_[i].workload.spec.name());
  Call<JobReply>(
      &client_, 0,
      [request](coordinator::CallId call) {
        return coordinator::event::GetJob{call, request};
      },
      [this, i](std::optional<JobReply> reply) {
        const bool over = reply.has_value() && reply->status().state() != PENDING &&
                          reply->status().state() != RUNNING;
        if (over) return OnEnd(i, *reply);
        if (reply.has_value() && i > 0 && reply->status().state() == PENDING)
          world_.Count("polls of a queued job");
        if (reply.has_value() && reply->status().checkpoint().has_last())
          checkpoints_.OnListed(reply->status().checkpoint().last());
        if (reply.has_value()) NoteSetAside(reply->status());
        if (reply.has_value()) jobs_[i].status = reply->status();
        world_.After(kPollPeriod, &client_, [this, i] { Poll(i); });
      });
}

void Cluster::NoteSetAside(const JobStatus& status) {
  if (status.state() != RUNNING) return;
  const std::string& why = status.reason();
  if (absl::StrContains(why, kNoMemory)) world_.Count("polls: no memory on a worker");
  if (absl::StrContains(why, kWorkerFault)) world_.Count("polls: a worker's fault");
  if (absl::StrContains(why, "its computation has made no progress"))
    world_.Count("polls: a worker hangs");
}

// Reads the job's final values, as clients do.
void Cluster::OnEnd(size_t i, const JobReply& reply) {
  const JobTruth* const truth = TruthOf({JobUid(jobs_[i].uid), reply.status().era()});
  if (truth == nullptr) return Finish(i, reply, {});
  const absl::StatusOr<ReadPoint> point = ValuesAtTheEnd(reply);
  const auto again = [this, i] { world_.After(kPollPeriod, &client_, [this, i] { Poll(i); }); };
  if (absl::IsUnavailable(point.status())) return again();  // some final reports are missing
  if (!point.ok()) {
    // They were lost with a shard, or never existed.
    const bool failed = reply.status().state() != SUCCEEDED;
    const bool may_be =
        absl::IsDataLoss(point.status())
            ? shard_lost_ || (failed && (shard_exhausted_ || RefusesDamage(reply.status())))
            : failed;
    if (!may_be) {
      world_.Violate(Promise::kG1, absl::StrCat("values of ", reply.status().name(), " are gone: ",
                                                std::string(point.status().message())));
    }
    jobs_[i].values_lost = true;
    return Finish(i, reply, {std::vector<ValuesPtr>(truth->layout().slices.size()), {}});
  }
  reader_->Read(reply, truth->layout(), *point,
                [this, i, reply, again](const absl::StatusOr<ReadValues>& values) {
                  if (values.ok()) {
                    world_.Count("jobs that were read at their end");
                    return Finish(i, reply, *values);
                  }
                  if (absl::IsDeadlineExceeded(values.status())) {
                    world_.Violate(Promise::kAnswer,
                                   absl::StrCat(reply.status().name(), ": ",
                                                std::string(values.status().message())));
                  }
                  world_.Count(absl::IsAborted(values.status()) ? "reads that were refused"
                                                                : "reads that broke off");
                  again();
                });
}

void Cluster::Finish(size_t i, const JobReply& reply, const ReadValues& values) {
  ClientJob& job = jobs_[i];
  const JobStatus& status = reply.status();
  job.over = true;
  job.end = reply;
  if (job.to_delete) Delete(i);
  if (shape_.in_turn && i + 1 < jobs_.size()) {
    world_.Count("jobs submitted after another");
    world_.After(absl::ZeroDuration(), &client_, [this, i] { Submit(i + 1); });
  }
  if (status.state() != SUCCEEDED && !MayEndEarly(job, status)) {
    world_.Violate(Promise::kG8,
                   absl::StrCat(status.name(), " ended as ", JobState_Name(status.state()), ": ",
                                status.reason()));
  }
  rollbacks_.OnEnd(status);
  JobTruth* const truth = TruthOf({JobUid(job.uid), status.era()});
  if (truth == nullptr) return;
  if (status.state() != SUCCEEDED) return truth->OnFailed(values, reply);
  const bool all = std::all_of(values.slices.begin(), values.slices.end(),
                               [](const ValuesPtr& slice) { return slice != nullptr; });
  if (all) truth->OnSucceeded(values, reply);
}

// Whether the job ended since it found the bit that differs in its checkpoint.
bool Cluster::RefusesDamage(const JobStatus& status) const {
  return shape_.from != nullptr && shape_.from->damaged &&
         absl::StrContains(status.reason(), ": expected the digest ");
}

// Whether a job that did not succeed may have ended for the reason that it gives.
bool Cluster::MayEndEarly(const ClientJob& job, const JobStatus& status) {
  const bool failed = status.state() == FAILED;
  const auto says = [&](const char* text) {
    return failed && absl::StrContains(status.reason(), text);
  };
  const bool served = job.served();
  // A job that no worker has served may fail if no free worker has memory for it. A job that was
  // served never fails for want of memory on a worker.
  const bool no_memory = says(kNoMemory) && !served;
  if (no_memory) world_.Count("jobs that found no memory");
  // A job that was served fails for workers' faults only once all workers have had one.
  const bool faulty = says(kWorkerFault) && says("worker worker-") &&
                      (!served || job.faulty_workers().size() == workers_.size());
  if (faulty) world_.Count("jobs that no worker can serve");
  const bool cancelled = status.state() == CANCELLED && job.cancel_after.has_value();
  if (cancelled) world_.Count("jobs that were cancelled");
  const bool exhausted = shard_exhausted_ && says("no memory for ");
  if (exhausted) world_.Count("jobs whose shard had no memory");
  const bool too_short = says("wallTime was over before any of") && status.step() == 0 &&
                         job.workload.spec.stop().wall_time_seconds() > 0 &&
                         (job.truth() == nullptr || !job.truth()->AnyStepDone());
  if (too_short) world_.Count("jobs that wallTime ended before their first step");
  const bool lost = shard_lost_ && says("lost partition");
  if (lost) world_.Count("jobs that failed with their shard");
  const bool damaged = failed && RefusesDamage(status);
  if (damaged) world_.Count("jobs that refused a damaged checkpoint");
  if (says("is not whole")) world_.Violate(Promise::kG4, status.reason());
  return no_memory || damaged || faulty || cancelled || exhausted || too_short || lost ||
         (job.workload.poisoned && says("not finite")) ||
         (job.workload.overflows_from != std::numeric_limits<uint64_t>::max() && says("fp16"));
}

void Cluster::ListJobs() {
  Call<ListJobsReply>(
      &client_, 0, [](coordinator::CallId call) { return coordinator::event::ListJobs{call}; },
      [this](std::optional<ListJobsReply> reply) {
        if (!reply.has_value()) {
          return world_.After(kPollPeriod, &client_, [this] { ListJobs(); });
        }
        std::vector<std::pair<uint64_t, std::string>> listed;
        for (const JobStatus& status : reply->jobs())
          listed.push_back({status.uid(), status.name()});
        control_.OnListed(listed, Generation(coordinator_.generation()));
        listed_ = true;
        Settle();
      });
}

namespace {

// The final values of the seed's first job after so many steps, undisturbed: 0 if there are none.
uint64_t UndisturbedHash(uint64_t seed, uint64_t steps, World* world) {
  ClusterShape solo;
  solo.shards = 1;
  solo.workers = 1;
  solo.faults = false;
  solo.steps = steps;
  Cluster reference(seed, solo);
  reference.Run();
  for (const Violation& v : reference.world().violations())
    world->Violate(v.promise, "solo run: " + v.what);
  return reference.final_hash();
}

// One bit of a tensor of the first file that has one.
void Damage(Random& random, const std::string& checkpoint, MemoryDisk* disk) {
  const auto names = disk->List(checkpoint);
  for (const std::string& name : *names) {
    if (name == kManifestFile) continue;
    std::string bytes = *disk->Get(checkpoint, name);
    uint64_t header = 0;  // safetensors: its length comes first, little-endian
    for (int i = 7; i >= 0; --i) header = header << 8 | static_cast<uint8_t>(bytes[i]);
    const uint64_t data = 8 + header;
    if (data == bytes.size()) continue;
    bytes[data + random.Below(bytes.size() - data)] ^= static_cast<char>(1 << random.Below(8));
    return disk->Put(checkpoint, name, bytes);
  }
}

// The job of one of the checkpoints goes on, on another cluster with another number of shards.
void GoOn(uint64_t seed, const ClusterShape& before, Cluster& first, std::vector<Fault>* faults) {
  World& world = first.world();
  Random random(Mix(seed, 1300));
  const Workload& workload = first.first_workload();
  const bool ends_early = workload.poisoned || workload.spec.stop().wall_time_seconds() > 0 ||
                          workload.overflows_from != std::numeric_limits<uint64_t>::max();
  Source source{first.stored(), "", &workload, nullptr, &first.checkpoints()};
  source.disk->FaultAt(0, DiskFault::kNone);  // one may be left that met no operation
  const auto found = ListCheckpoints(*source.disk);
  std::vector<std::string> ids;
  for (const CheckpointInfo& info : found->whole) {
    if (info.job() == workload.spec.name()) ids.push_back(info.id());
  }
  if (ends_early || ids.empty() || random.Chance(0.3)) return;
  source.checkpoint = ids[random.Below(ids.size())];
  source.truth = first.checkpoints().TruthOf(source.checkpoint);
  source.damaged = random.Chance(0.2) && world.Happens("damaged checkpoint", "disk");
  if (source.damaged) Damage(random, source.checkpoint, source.disk.get());
  ClusterShape shape = before;
  shape.jobs = 1;
  shape.in_turn = false;
  shape.shards = before.shards == 2 ? 3 : static_cast<int>(random.Between(1, 2)) * 2;
  shape.from = &source;
  Workload again = workload;
  again.partitions = random.Chance(0.5) ? 0 : static_cast<uint32_t>(random.Between(1, 3));
  source.workload = &again;
  Cluster second(Mix(seed, 1301), shape);
  second.Run();
  if (!source.damaged) world.Count("jobs that went on from a checkpoint");
  for (const Violation& v : second.world().violations())
    world.Violate(v.promise, absl::StrCat("from ", source.checkpoint, ": ", v.what));
  for (const auto& [what, times] : second.world().counts()) world.Count(what.c_str(), times);
  faults->insert(faults->end(), second.world().faults().begin(), second.world().faults().end());
  world.Trace(second.world().trace(), 0);
  const bool succeeded = second.first_truth() != nullptr && second.first_truth()->succeeded();
  if (source.damaged && succeeded)
    world.Violate(Promise::kGoesOn, "a job went on from a damaged checkpoint");
  if (source.damaged || workload.gradient != GradientKind::kDependent || second.final_hash() == 0)
    return;
  world.Count("jobs that went on, compared with a solo run");
  if (UndisturbedHash(seed, second.final_steps(), &world) == second.final_hash()) return;
  world.Violate(Promise::kGoesOn,
                absl::StrCat("the values of a job that went on from ", source.checkpoint,
                             " are not those of one that never stopped"));
}

}  // namespace

SeedResult RunSeed(uint64_t seed, const std::set<FaultId>* allowed) {
  Random random(Mix(seed, 7));
  ClusterShape shape;
  shape.shards = static_cast<int>(random.Between(2, 3));
  shape.workers = static_cast<int>(random.Between(3, 5));
  shape.jobs = random.Chance(0.2) ? 2 : 1;
  // Draw from their own random numbers.
  if (Random(Mix(seed, 940)).Chance(0.06)) {
    shape.jobs = 4;
    shape.in_turn = true;
  }
  shape.checkpoints = Random(Mix(seed, 945)).Chance(0.4);
  shape.allowed = allowed;
  Cluster cluster(seed, shape);
  cluster.Run();
  World& world = cluster.world();
  if (cluster.first_workload().gradient == GradientKind::kDependent && cluster.final_hash() != 0) {
    world.Count("runs compared with a solo run");
    if (cluster.first_truth()->run().era > 0)
      world.Count("runs that went back, compared with a solo run");
    if (UndisturbedHash(seed, cluster.final_steps(), &world) != cluster.final_hash()) {
      world.Violate(Promise::kG3,
                    "the values are not those of one worker on one shard without faults");
    }
  }
  std::vector<Fault> after;
  if (shape.checkpoints) GoOn(seed, shape, cluster, &after);
  std::vector<Fault> faults = world.faults();
  faults.insert(faults.end(), after.begin(), after.end());
  return {seed,           world.trace(),   world.violations(), world.violated(),
          world.counts(), world.elapsed(), std::move(faults)};
}

}  // namespace starling::sim
