#include "server/coordinator/core/testing/mini_cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/manifest.h"
#include "common/control/worker_orders.h"
#include "common/data_plan/job_steps.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/records.h"
#include "server/coordinator/core/state.pb.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kRound = absl::Milliseconds(50);

StepMetrics Metrics(const Work& work, uint64_t samples) {
  StepMetrics metrics;
  *metrics.mutable_work() = work;
  metrics.set_samples(samples);
  metrics.set_loss_sum(0.5 * static_cast<double>(samples));
  metrics.set_correct(work.purpose() == EVALUATE ? samples - 1 : 0);
  return metrics;
}

void SetLoss(double loss, StepMetrics& metrics) {
  metrics.set_loss_sum(loss * static_cast<double>(metrics.samples()));
}

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

// ---- Workers ----

void MiniCluster::Report(MiniWorker& worker) {
  if (const auto reply = TakeAnswer(worker.call)) {
    if (const auto* orders = std::get_if<WorkerOrders>(&*reply)) TakeOrders(worker, *orders);
    worker.call = CallId();
  }
  WorkerReport report;
  report.set_worker(worker.identity.id());
  report.set_incarnation(worker.identity.incarnation());
  report.set_sequence(++worker.sequence);
  report.set_generation(worker.generation);
  report.set_orders_seen(worker.orders_seen);
  report.set_draining(worker.draining);
  report.set_drained(worker.drained);
  *report.mutable_run() = worker.run;
  const Fault::Kind kind = worker.no_room.empty() ? worker.cannot : Fault::NO_ROOM;
  const bool broken = worker.run.job_uid() != 0 && kind != Fault::KIND_UNSPECIFIED;
  report.set_prepared(worker.run.job_uid() != 0 && worker.prepares && !broken);
  if (report.prepared()) report.set_data_digest(worker.data_digest);
  if (broken) {
    report.mutable_fault()->set_kind(kind);
    *report.mutable_fault()->mutable_run() = worker.run;
    report.mutable_fault()->set_message(worker.no_room.empty() ? worker.why_not : worker.no_room);
  }
  *report.mutable_activity() = worker.activity;
  for (const Lease& lease : worker.orders.leases()) {
    if (worker.done.contains(lease.id())) continue;
    report.add_leases_held(lease.id());
    if (worker.stuck && report.leases_begun().empty()) report.add_leases_begun(lease.id());
  }
  for (const uint64_t lease : worker.done) report.add_leases_done(lease);
  report.set_clock(static_cast<int64_t>(Covered(worker.run.job_uid())));
  if (!worker.holds_losses) {
    for (const StepMetrics& metrics : std::exchange(worker.finished, {}))
      *report.add_finished() = metrics;
  }
  for (const Inspection& inspection : std::exchange(worker.inspections, {})) {
    *report.add_inspections() = inspection;
  }
  if (worker.fault.kind() != Fault::KIND_UNSPECIFIED) *report.mutable_fault() = worker.fault;
  if (worker.run.job_uid() != 0) {
    if (!worker.idle_hands) Grow(worker.pace, worker.times);
    *report.mutable_times() = worker.times;
    for (const LinkStatus& link : worker.links) *report.add_links() = link;
    report.set_samples_per_second(worker.samples_per_second);
    report.set_hidden_share(worker.hidden_share);
    if (worker.repeats.worker() != 0) *report.mutable_repeats() = worker.repeats;
  }
  const CallId held = std::exchange(worker.call, NewCall());
  Step(event::WorkerReport{worker.call, report});
  for (const CallId call : {held, worker.call}) {
    const auto reply = TakeAnswer(call);
    if (!reply) continue;
    if (const auto* orders = std::get_if<WorkerOrders>(&*reply)) TakeOrders(worker, *orders);
    if (call == worker.call) worker.call = CallId();
  }
}

void MiniCluster::TakeOrders(MiniWorker& worker, const WorkerOrders& orders) {
  ASSERT_GE(orders.generation(), worker.generation) << "orders of a coordinator that is over";
  worker.generation = orders.generation();
  if (orders.unchanged() || orders.rejoin()) {
    worker.orders.set_rejoin(orders.rejoin());
    return;
  }
  ASSERT_TRUE(worker.orders_seen < orders.version()) << "versions grow";
  if (worker.never_holds && orders.hold()) return;
  WorkerOrders whole = orders;
  const auto same = [](const Run& a, const Run& b) {
    return a.job_uid() == b.job_uid() && a.era() == b.era();
  };
  const bool same_run = same(orders.run(), worker.orders.run());
  worker.described += orders.has_job();
  if (orders.has_run() && !orders.has_job()) {
    ASSERT_TRUE(same_run) << "orders without a description that the worker never saw";
  }
  CompleteOrders(worker.orders, whole);
  if (!same_run) worker.done.clear();
  if (!same_run && orders.run().job_uid() == worker.orders.run().job_uid()) worker.finished.clear();
  worker.orders = whole;
  worker.orders_seen = orders.version();
  for (const InspectRequest& request : orders.inspect()) {
    if (!worker.inspects) continue;
    Inspection inspection;
    inspection.set_request(request.request());
    inspection.set_error(worker.inspect_error);
    for (const std::string& warning : worker.inspect_warnings) inspection.add_warnings(warning);
    inspection.set_train_samples(train_samples);
    inspection.set_test_samples(test_samples);
    inspection.set_data_digest(worker.data_digest);
    inspection.add_sample_shape(4);
    inspection.set_classes(3);
    worker.inspections.push_back(inspection);
  }
  std::set<uint64_t> held;
  for (const Lease& lease : orders.leases()) held.insert(lease.id());
  std::erase_if(worker.done, [&](uint64_t lease) { return !held.contains(lease); });
  const bool gives_back = worker.run.job_uid() != 0 && !same(orders.run(), worker.run);
  if (worker.stubborn && gives_back) return;
  if (gives_back) worker.fault.Clear();
  worker.run = orders.run();
}

void MiniCluster::Grow(const StepTimes& pace, StepTimes& times) {
  times.set_units(times.units() + pace.units());
  times.set_samples(times.samples() + pace.samples());
  times.set_total(times.total() + pace.total());
  times.set_data(times.data() + pace.data());
  times.set_forward(times.forward() + pace.forward());
  times.set_wait(times.wait() + pace.wait());
}

void MiniCluster::DoWork(MiniWorker& worker) {
  const WorkerOrders& orders = worker.orders;
  const uint64_t uid = orders.run().job_uid();
  if (uid == 0 || worker.drained || orders.hold()) return;
  if (orders.run().era() < eras_[uid]) return;  // shards answer that the run is over
  if (orders.policy().policy().kind() == Policy::BSP && orders.leases_size() == 0)
    return DoBspWork(worker);
  for (const Lease& lease : orders.leases()) {
    if (worker.done.contains(lease.id())) continue;
    if (worker.lies && lease.work().purpose() == TRAIN) {
      worker.done.insert(lease.id());
      return;
    }
    const uint64_t item = lease.work().first() / lease.work().count();
    const uint64_t all = lease.work().purpose() == EVALUATE ? orders.job().test_samples()
                                                            : orders.job().train_samples();
    const uint64_t batch = orders.job().spec().batch().global();
    worker.finished.push_back(Metrics(lease.work(), std::min(batch, all - item * batch)));
    if (lease.work().purpose() == TRAIN) SetLoss(train_loss, worker.finished.back());
    if (lease.work().purpose() == TRAIN) ++covered[uid][lease.work().epoch()][item];
    worker.done.insert(lease.id());
    ++worker.items;
    return;
  }
}

// The first member does whole steps for all members.
void MiniCluster::DoBspWork(MiniWorker& worker) {
  const WorkerOrders& orders = worker.orders;
  if (!orders.training_open() || orders.roster().members_size() == 0) return;
  if (orders.roster().members(0).worker() != worker.identity.id()) return;
  const JobDescription& job = orders.job();
  auto& items = covered[job.run().job_uid()][orders.epoch()];
  const uint64_t step = items.size();
  if (orders.has_policy_end() && Covered(job.run().job_uid()) >= orders.policy_end()) return;
  if (step >= StepsInEpoch(job.spec(), job.train_samples(), orders.epoch())) return;
  ++items[step];
  ++worker.items;
  const uint32_t micro_batches = job.spec().batch().micro_batches();
  const uint32_t parts = bsp_in_parts ? micro_batches : 1;
  for (uint32_t part = 0; part < parts; ++part) {
    starling::Work work;
    work.set_purpose(TRAIN);
    work.set_epoch(orders.epoch());
    work.set_count(micro_batches / parts);
    work.set_first(step * micro_batches + part * work.count());
    worker.finished.push_back(Metrics(work, job.spec().batch().global() / parts));
    SetLoss(train_loss, worker.finished.back());
  }
}

// ---- Shards ----

uint64_t MiniCluster::Covered(uint64_t uid) const {
  uint64_t items = 0;
  const auto epochs = covered.find(uid);
  if (epochs == covered.end()) return 0;
  for (const auto& [epoch, counts] : epochs->second) items += counts.size();
  return items;
}

uint64_t MiniCluster::Begun(const JobDescription& job) const {
  const auto epochs = covered.find(job.run().job_uid());
  if (epochs == covered.end() || epochs->second.empty()) return 0;
  const auto& [epoch, items] = *epochs->second.rbegin();
  const uint64_t full = StepsInFullEpoch(job.spec(), job.train_samples());
  return items.empty() ? epoch * full : epoch * full + items.rbegin()->first + 1;
}

// What a job that goes on from a checkpoint has from there.
void MiniCluster::CoverBefore(const JobDescription& job) {
  const uint64_t full = StepsInFullEpoch(job.spec(), job.train_samples());
  for (uint64_t step = 0; step < job.restore().step(); ++step)
    covered[job.run().job_uid()][static_cast<uint32_t>(step / full)][step % full] = 1;
}

void MiniCluster::TakeOrders(MiniShard& shard, const ShardOrders& orders) {
  if (orders.rejoin()) return;
  if (orders.generation() > shard.generation) shard.reports.TellAll();
  shard.generation = orders.generation();
  if (shard.checkpoint_looks && orders.checkpoint_nonce() != 0)
    shard.checkpoint_nonce = shard.checkpoint_error.empty() ? root_nonce : 0;
  shard.drain = orders.drain();
  shard.reports.Taken(orders.sequence_taken());
  if (orders.unchanged() || orders.version() <= shard.orders_seen) return;
  shard.orders_seen = orders.version();
  const ShardOrderBook::Changes changes = shard.orders.Take(orders);
  for (const Run& run : changes.dropped) {
    const uint64_t uid = run.job_uid();
    const auto description = shard.descriptions.find(uid);
    if (description != shard.descriptions.end() && description->second.run().era() > run.era())
      continue;
    shard.reports.Drop(uid);
    shard.descriptions.erase(uid);
  }
  for (const ShardJob& job : changes.jobs) {
    const uint64_t uid = job.run().job_uid();
    if (job.run().era() > std::exchange(eras_[uid], std::max(eras_[uid], job.run().era())))
      covered[uid].clear();  // it begins with other values
    if (job.has_job()) shard.descriptions[uid] = job.job();
    if (job.has_job() && covered[uid].empty()) CoverBefore(job.job());
    shard.described += job.has_job();
    shard.reports.Hold(job.run());
    if (!job.over()) {
      shard.hosted[uid] = job.partitions_size();
      EXPECT_TRUE(shard.descriptions.contains(uid))
          << "orders without a description that was never seen";
      continue;
    }
    shard.descriptions.erase(uid);
    shard.reports.End(job.run(), 100 * static_cast<uint64_t>(std::exchange(shard.hosted[uid], 0)));
    ++shard.ended;
  }
}

PartitionStatus MiniCluster::StatusOf(MiniShard& shard, const ShardJob& orders,
                                      const PartitionOrders& partition) {
  const uint64_t uid = orders.run().job_uid();
  const JobDescription& job = shard.descriptions.at(uid);
  PartitionStatus status;
  *status.mutable_run() = orders.run();
  status.set_partition(partition.partition());
  status.set_view(partition.view().number());
  status.set_fault(shard.refuses.empty() && partition.backup() ? shard.refuses_backups
                                                               : shard.refuses);
  status.set_copies_differ(partition.backup() && shard.differs);
  status.set_diverged(!partition.backup() && shard.diverges);
  if (status.fault().empty() && !partition.backup() && !shard.no_memory.empty()) {
    status.set_fault(shard.no_memory);
    status.set_no_memory(true);
  }
  if (!status.fault().empty() || partition.backup()) return status;
  const bool cut = shard.cut.contains(partition.view().backup_address());
  status.set_backup_whole(partition.view().backup() != 0 && shard.copies && !cut);
  status.set_backup_frames(cut ? shard.frames : 0);
  status.set_backup_behind(cut ? 7 : 0);
  status.set_epoch(orders.epoch());
  status.set_value_bytes(100);
  *status.mutable_times() = shard.times;
  // A member's departure takes effect when the backup has it.
  status.set_roster(orders.roster().number() - (cut && orders.roster().members_size() == 0));
  status.set_begun_steps(Begun(job));
  status.set_recent_lag(recent_lag);
  status.set_bsp_bytes_more(bsp_bytes_more);
  uint64_t& policy = policies_[uid];
  EXPECT_TRUE(orders.policy().in_force()) << "a shard may not have heard of it before";
  const PolicyRecord& newest = orders.has_next_policy() ? orders.next_policy() : orders.policy();
  if (Covered(uid) >= newest.step() && !shard.lags) policy = newest.number();
  status.set_policy(policy);
  bool& bsp = shard.bsp[uid];
  if (!shard.deaf) bsp = orders.policy().policy().kind() == Policy::BSP;
  if (bsp) status.set_sealed_steps(Covered(uid) + shard.sealed_ahead);
  const uint64_t steps = StepsInEpoch(job.spec(), job.train_samples(), orders.epoch());
  const auto& epochs = covered[uid];
  const auto items = epochs.find(orders.epoch());
  const uint64_t done = items == epochs.end() ? 0 : items->second.size();
  status.set_cut_epochs(done == steps ? orders.epoch() + 1 : orders.epoch());
  status.set_applied_min(steps);
  status.set_applied_max(steps);
  if (items == epochs.end()) return status;
  for (const auto& [item, count] : items->second) {
    const int last = status.covered_ranges_size() - 1;
    if (last > 0 && status.covered_ranges(last) == item) {
      status.set_covered_ranges(last, item + 1);
    } else {
      status.add_covered_ranges(item);
      status.add_covered_ranges(item + 1);
    }
  }
  return status;
}

// What the shard has of a checkpoint, one round further.
void MiniCluster::ReportCheckpoint(MiniShard& shard, const ShardJob& orders, ShardReport& report) {
  const uint64_t uid = orders.run().job_uid();
  const ShardCheckpoint& wanted = orders.checkpoint();
  if (!orders.has_checkpoint()) {
    shard.parts.erase(uid);
    return;
  }
  const auto id = ParseCheckpointId(wanted.id());
  ASSERT_TRUE(id && id->number == wanted.number());
  CheckpointPart& part = shard.parts[uid];
  if (part.number() != wanted.number()) {
    part.Clear();
    part.set_number(wanted.number());
    part.set_state(CheckpointPart::WAITING);
    const bool late = Begun(shard.descriptions.at(uid)) > wanted.step();
    if (late || shard.checkpoint_misses) {
      part.set_state(CheckpointPart::MISSED);
      part.set_error("partition 0 has begun the step");
    }
  }
  if (part.state() == CheckpointPart::WAITING && Covered(uid) >= wanted.step() &&
      !shard.checkpoint_waits) {
    for (const PartitionOrders& partition : orders.partitions())
      part.set_captured(part.captured() + (partition.backup() ? 0 : 1));
    part.set_state(CheckpointPart::WRITING);
    part.set_step(wanted.step());
    part.set_skipped(shard.checkpoint_skipped);
    if (shard.checkpoint_copy) part.set_copy_epoch(*shard.checkpoint_copy);
  } else if (part.state() == CheckpointPart::WRITING) {
    part.set_bytes(std::min(shard.checkpoint_bytes, part.bytes() + shard.checkpoint_pace));
    if (part.bytes() == shard.checkpoint_bytes) part.set_state(CheckpointPart::WRITTEN);
    part.mutable_file()->set_name(ShardFileName(ShardId(shard.identity.id())));
    part.mutable_file()->set_bytes(shard.checkpoint_bytes);
    part.mutable_file()->set_xxh3("0123456789abcdef");
  }
  if (!shard.checkpoint_fails.empty()) {
    part.set_state(CheckpointPart::FAILED);
    part.set_error(shard.checkpoint_fails);
  }
  HeldJob& held = *report.add_held();
  *held.mutable_run() = orders.run();
  *held.mutable_checkpoint() = part;
}

void MiniCluster::Report(MiniShard& shard) {
  const auto take = [&](CallId call) {
    const auto reply = TakeAnswer(call);
    if (!reply) return;
    if (call == shard.call) shard.call = CallId();
    if (const auto* orders = std::get_if<ShardOrders>(&*reply)) TakeOrders(shard, *orders);
  };
  take(shard.call);
  shard.times.set_pushes(shard.times.pushes() + shard.pace.pushes());
  shard.times.set_applies(shard.times.applies() + shard.pace.applies());
  shard.times.set_apply(shard.times.apply() + shard.pace.apply());
  shard.times.set_queue(shard.times.queue() + shard.pace.queue());
  for (const auto& [uid, job] : shard.orders.jobs()) {
    if (job.over()) continue;
    for (const PartitionOrders& partition : job.partitions()) {
      shard.reports.Update(StatusOf(shard, job, partition));
    }
  }
  ShardReport report;
  report.set_shard(shard.identity.id());
  report.set_incarnation(shard.identity.incarnation());
  report.set_sequence(++shard.sequence);
  report.set_generation(shard.generation);
  report.set_orders_seen(shard.orders_seen);
  report.set_memory_room(shard.memory_room.value_or(memory_room));
  report.set_draining(shard.draining);
  report.set_drained(shard.drained);
  for (const std::string& address : shard.unreached) report.add_unreached(address);
  report.set_checkpoint_nonce(shard.checkpoint_nonce);
  report.set_checkpoint_error(shard.checkpoint_error);
  shard.reports.Fill(shard.sequence, report);
  for (const auto& [uid, job] : shard.orders.jobs()) {
    if (!job.over()) ReportCheckpoint(shard, job, report);
  }
  report_bytes = report.ByteSizeLong();
  const CallId held = std::exchange(shard.call, NewCall());
  Step(event::ShardReport{shard.call, report});
  if (held != CallId()) take(held);
  take(shard.call);
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
