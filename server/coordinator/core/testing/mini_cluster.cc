#include "server/coordinator/core/testing/mini_cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/manifest.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/records.h"
#include "server/coordinator/core/state.pb.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kRound = absl::Milliseconds(50);

}  // namespace

MiniCluster::MiniCluster(CoordinatorOptions options) : options_(std::move(options)) {
  if (options_.tensorboard_root.empty()) options_.tensorboard_root = "/runs";
  if (options_.output_root.empty()) options_.output_root = "/outputs";
  // Of hundreds, orders are copied for most of a test's time.
  options_.lease_items_max = std::min(options_.lease_items_max, 16u);
  if (options_.checkpoint_root.empty()) options_.checkpoint_root = "/checkpoints";
  StartCoordinator();
}

void MiniCluster::StartCoordinator() {
  CoordinatorOptions options = options_;
  options.overview_ended = 1;  // others are archived at once
  options.checkpoint_nonce = ++last_root_nonce_;
  auto created = Coordinator::Create(options, store);
  ASSERT_TRUE(created.ok()) << created.status();
  core = *std::move(created);
  disk_.clear();  // what the coordinator before was doing
  Actions actions;
  core->Start(now, now + wall_ahead, actions);
  CarryOut(std::move(actions));
  for (auto& [name, worker] : workers) worker.call = CallId();  // the connections broke
  for (auto& [name, shard] : shards) shard.call = CallId();
  if (!disk_hangs) AnswerDisk();
}

void MiniCluster::Step(const Event& event) {
  Actions actions;
  core->Step(event, now, actions);
  CarryOut(std::move(actions));
}

void MiniCluster::Tick() { Step(event::Tick{now + wall_ahead}); }

void MiniCluster::CarryOut(Actions actions) {
  for (Action& action : actions) {
    std::visit([this](auto& typed) { Do(typed); }, action);
  }
}

const CallReply* MiniCluster::Answer(CallId call) const {
  auto it = answers_.find(call.value);
  return it == answers_.end() ? nullptr : &it->second;
}

std::optional<CallReply> MiniCluster::TakeAnswer(CallId call) {
  auto answer = answers_.extract(call.value);
  if (answer.empty()) return std::nullopt;
  return std::move(answer.mapped());
}

CallReply MiniCluster::Await(CallId call) {
  RunUntil([&] { return Answer(call) != nullptr; }, absl::Minutes(10));
  return TakeAnswer(call).value_or(CallReply(absl::DeadlineExceededError("no answer")));
}

RegisterReply MiniCluster::Register(Role role, const std::string& name, const std::string& address,
                                    uint64_t nonce, bool gpu, uint64_t process) {
  RegisterRequest request;
  request.set_role(role);
  request.set_name(name);
  request.set_address(address);
  request.set_nonce(nonce);
  request.set_process(process == 0 ? nonce : process);
  request.set_gpu(gpu);
  request.set_device(gpu ? "a GPU (sm_90)" : "cpu (avx2), because there is no driver");
  request.mutable_version()->set_version(options_.version);
  request.mutable_version()->set_protocol(options_.protocol);
  return std::get<RegisterReply>(Ask<event::Register>(request));
}

void MiniCluster::AddWorker(const std::string& name, bool gpu, uint64_t process) {
  MiniWorker worker;
  worker.nonce = ++last_nonce_;
  worker.process = process == 0 ? worker.nonce : process;
  worker.identity = Register(WORKER, name, name + ":1", worker.nonce, gpu, worker.process);
  ASSERT_EQ(worker.identity.refused(), "");
  worker.generation = worker.identity.generation();
  workers[name] = worker;
}

void MiniCluster::AddShard(const std::string& name) {
  MiniShard shard;
  shard.nonce = ++last_nonce_;
  shard.identity = Register(SHARD, name, name + ":1", shard.nonce);
  ASSERT_EQ(shard.identity.refused(), "");
  shard.generation = shard.identity.generation();
  shards[name] = shard;
}

void MiniCluster::Rejoin(const std::string& worker) { AddWorker(worker); }

void MiniCluster::Round() {
  for (auto& [name, worker] : workers) {
    if (!worker.alive) continue;
    if (!worker.idle_hands && !worker.stuck) DoWork(worker);
    Report(worker);
  }
  for (auto& [name, shard] : shards) {
    if (shard.alive) Report(shard);
  }
  if (!disk_hangs) AnswerDisk();
  now += kRound;
  event::Tick tick{now + wall_ahead};
  for (const auto& [name, shard] : shards) {
    if (shard.alive && shard.beats) tick.heartbeats.push_back(Heartbeat(shard));
  }
  for (const std::string& name : std::exchange(listened_, {})) {
    tick.heartbeats.push_back(Heartbeat(shards.at(name)));
    tick.heartbeats.back().called = true;
  }
  Step(tick);
}

event::Heartbeat MiniCluster::Heartbeat(const MiniShard& shard) const {
  event::Heartbeat heartbeat{.at = now};
  heartbeat.request.set_shard(shard.identity.id());
  heartbeat.request.set_incarnation(shard.identity.incarnation());
  heartbeat.request.set_asked(shard.asked);
  return heartbeat;
}

void MiniCluster::AnswerDisk() {
  for (const Action& action : std::exchange(disk_, {})) Step(AnswerOfDisk(action));
}

Event MiniCluster::AnswerOfDisk(const Action& action) {
  if (const auto* make = std::get_if<action::MakeCheckpoint>(&action)) {
    if (checkpoints.contains(make->id))
      return event::CheckpointMade{make->id, absl::AlreadyExistsError("is there")};
    if (makes.ok()) folders.insert(make->id);
    return event::CheckpointMade{make->id, makes};
  }
  if (const auto* seal = std::get_if<action::SealCheckpoint>(&action)) {
    if (!seals.ok()) return event::CheckpointSealed{seal->id, seals};
    EXPECT_TRUE(folders.erase(seal->id) > 0) << "sealed without a folder";
    checkpoints[seal->id] = seal->manifest;
    return event::CheckpointSealed{
        seal->id, DescribeCheckpoint(seal->manifest, EncodeManifest(seal->manifest))};
  }
  if (const auto* drop = std::get_if<action::DropCheckpoint>(&action)) {
    if (!drops.ok()) return event::CheckpointDropped{drop->id, drops};
    folders.erase(drop->id);
    checkpoints.erase(drop->id);
    unreadable.erase(drop->id);
    dropped.push_back(drop->id);
    return event::CheckpointDropped{drop->id, absl::OkStatus()};
  }
  if (const auto* to_read = std::get_if<action::ReadCheckpoint>(&action)) {
    const CheckpointId id = *ParseCheckpointId(to_read->info.id());
    read.push_back(id.number);
    if (to_read->nonce != 0 && (!mounted || to_read->nonce != root_nonce))
      return event::CheckpointRead{id, absl::AbortedError("its nonce is missing")};
    if (!mounted) return event::CheckpointRead{id, absl::NotFoundError("it is not there")};
    if (!reads.ok()) return event::CheckpointRead{id, reads};
    if (damaged.contains(id)) return event::CheckpointRead{id, damaged.at(id)};
    if (!checkpoints.contains(id))
      return event::CheckpointRead{id, absl::NotFoundError("it is not there")};
    return event::CheckpointRead{id, checkpoints.at(id)};
  }
  const auto& list = std::get<action::ListCheckpoints>(action);
  if (!lists.ok()) return event::CheckpointsFound{lists};
  if (list.known && !mounted)
    return event::CheckpointsFound{absl::UnavailableError("its nonce is missing")};
  if (!mounted) return event::CheckpointsFound{FoundCheckpoints()};
  if (list.first)
    std::erase_if(folders, [&](const CheckpointId& id) { return id.cluster == list.cluster; });
  FoundCheckpoints found{.unreadable = unreadable};
  if (list.first || list.nonce != root_nonce) {
    found.marked = marks;
    found.marked_now = marks.ok();
    if (marks.ok()) root_nonce = list.nonce;
  }
  for (const auto& [id, manifest] : checkpoints)
    found.whole.push_back(DescribeCheckpoint(manifest, EncodeManifest(manifest)));
  return event::CheckpointsFound{found};
}

bool MiniCluster::RunUntil(const std::function<bool()>& condition, absl::Duration limit) {
  const absl::Time end = now + limit;
  while (!condition()) {
    if (now >= end) return false;
    Round();
  }
  return true;
}

void MiniCluster::RunFor(absl::Duration time) {
  RunUntil([] { return false; }, time);
}

// ---- Questions ----

JobSpec MiniCluster::Spec(const std::string& name, Policy::Kind policy, uint32_t workers_min,
                          uint32_t workers_max) {
  JobSpec spec;
  spec.set_name(name);
  spec.mutable_model_source()->set_builtin("mlp");
  (*spec.mutable_model_source()->mutable_arguments())["hidden"].mutable_ints()->add_values(8);
  spec.mutable_train()->mutable_csv()->set_path("/data/train.csv");
  spec.mutable_test()->mutable_csv()->set_path("/data/test.csv");
  spec.mutable_batch()->set_global(4);
  spec.mutable_batch()->set_micro_batches(4);
  spec.mutable_batch()->set_kernel_threads(1);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_optimizer()->mutable_learning_rate()->set_constant(0.1);
  spec.mutable_policy()->set_kind(policy);
  if (policy == Policy::SSP) spec.mutable_policy()->set_staleness(2);
  spec.set_workers_min(workers_min);
  spec.set_workers_max(workers_max);
  spec.set_durability(DURABILITY_NONE);
  spec.mutable_evaluate()->set_every_epochs(1);
  spec.mutable_stop()->set_epochs(2);
  return spec;
}

CallReply MiniCluster::Submit(const JobSpec& spec, uint64_t nonce, bool dry_run) {
  SubmitRequest request;
  *request.mutable_spec() = spec;
  request.set_nonce(nonce);
  request.set_dry_run(dry_run);
  return Submit(request);
}

// As the host does.
CallReply MiniCluster::Submit(const SubmitRequest& request) {
  event::Submit event{NewCall(), request};
  const auto info = core->FindCheckpoint(request);
  if (core->AsksForDisk(request) && info)
    event.from = checkpoints.at(*ParseCheckpointId(info->id()));
  Step(event);
  return Await(event.call);
}

JobReply MiniCluster::Get(const std::string& job) {
  JobRequest request;
  request.set_name(job);
  CallReply reply = Ask<event::GetJob>(request);
  auto* got = std::get_if<JobReply>(&reply);
  return got != nullptr ? std::move(*got) : JobReply();
}

std::string MiniCluster::JobLog(const std::string& job) {
  LogsRequest request;
  request.set_name(job);
  const CallReply reply = Ask<event::Logs>(request);
  std::string text;
  if (const auto* logs = std::get_if<LogsReply>(&reply)) {
    for (const LogEntry& entry : logs->entries()) absl::StrAppend(&text, entry.text(), "\n");
  }
  return text;
}

// ---- Actions ----

// A number is used once, so it is durable first.
void MiniCluster::Do(const action::MakeCheckpoint& action) {
  StoredJobState state;
  ASSERT_TRUE(state.ParseFromString(store[records::JobState(action.id.job.value)]));
  EXPECT_GE(state.last_checkpoint(), action.id.number);
  EXPECT_NE(action.nonce, 0u);
  disk_.push_back(action);
}

void MiniCluster::Do(const action::Persist& action) {
  const StoreBatch& batch = action.batch;
  ASSERT_FALSE(batch.empty());
  for (const auto& [key, value] : batch.puts) store[key] = value;
  for (const std::string& key : batch.deletes) {
    ASSERT_FALSE(batch.puts.contains(key)) << key;
    store.erase(key);
  }
}

void MiniCluster::Do(const action::AskShard& action) {
  ++questions;
  calls_to_shards += action.address.empty() ? 0 : 1;
  for (auto& [name, shard] : shards) {
    const bool called = shard.listens && action.address == name + ":1";
    if (shard.identity.id() != action.shard || (!called && (!shard.alive || !shard.beats)))
      continue;
    EXPECT_EQ(shard.identity.incarnation(), action.incarnation);
    EXPECT_GT(action.question, shard.asked);
    EXPECT_EQ(action.address.empty(), action.name.empty());
    shard.asked = action.question;
    if (called) listened_.push_back(name);
  }
}

// Orders may tell only what is durable already.
void MiniCluster::CheckDurable(const Run& run, const Roster* roster, uint32_t epoch) const {
  if (run.job_uid() == 0) return;
  auto stored = store.find(records::JobState(run.job_uid()));
  ASSERT_NE(stored, store.end());
  StoredJobState state;
  ASSERT_TRUE(state.ParseFromString(stored->second));
  if (roster != nullptr) {
    EXPECT_EQ(state.roster().SerializeAsString(), roster->SerializeAsString());
  }
  EXPECT_LE(epoch, state.epoch());
}

void MiniCluster::Do(action::Reply& action) {
  auto& [call, reply] = action;
  if (const auto* orders = std::get_if<WorkerOrders>(&reply)) {
    CheckDurable(orders->run(), orders->roster_unchanged() ? nullptr : &orders->roster(),
                 orders->epoch());
    if (orders->has_roster()) roster_numbers.push_back(orders->roster().number());
  } else if (const auto* shard_orders = std::get_if<ShardOrders>(&reply)) {
    for (const ShardJob& job : shard_orders->jobs()) {
      const bool whole = !job.over() && !job.roster_unchanged();
      CheckDurable(job.run(), whole ? &job.roster() : nullptr, job.epoch());
    }
    orders_bytes = shard_orders->ByteSizeLong();
  } else if (const auto* registered = std::get_if<RegisterReply>(&reply);
             registered != nullptr && registered->id() != 0) {
    StoredCluster cluster;
    ASSERT_TRUE(cluster.ParseFromString(store[records::Cluster()]));
    EXPECT_EQ(cluster.generation(), registered->generation());
    EXPECT_LE(registered->incarnation(), cluster.last_incarnation());
  }
  EXPECT_TRUE(answers_.emplace(call.value, std::move(reply)).second) << "a call was answered twice";
}

}  // namespace starling::coordinator
