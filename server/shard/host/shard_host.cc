#include "server/shard/host/shard_host.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/defences.h"

namespace starling {

namespace action = shard::action;

ShardHost::ShardHost(const Options& options, Environment environment,
                     std::unique_ptr<StreamClient> streams)
    : options_(options),
      environment_(std::move(environment)),
      control_(environment_.make_loop("control")),
      memory_(std::make_shared<ShardMemory>(MemoryOptions())),
      local_(std::make_shared<LocalConnection>(ConnectionId(next_connection_.fetch_add(1)),
                                               [this](const FrameHeader& answer, std::string text) {
                                                 TakeDecision(answer, std::move(text));
                                               })),
      links_(
          std::move(streams),
          {[this](const FrameHeader& answer, std::string text) {
             TakeDecision(answer, std::move(text));
           },
           [this](const FrameHeader& report) { TakeLocalReport(report); },
           [this](const FrameHeader& answer, std::string text) {
             TakeBackupAnswer(answer, std::move(text));
           },
           [this](JobUid job, PartitionId partition, const std::string& address, std::string why) {
             TakeBackupDown({job, partition}, address, std::move(why));
           },
           [this](const FrameHeader& header, ReceivedPayload payload) {
             TakeValue(header, std::move(payload));
           },
           [this](const std::string& address) {
             control_->Post([this, address] { reporter_->Unreached(address); });
           }}),
      checkpoint_writer_(
          environment_.checkpoint_disk == nullptr
              ? nullptr
              : std::make_unique<CheckpointWriter>(environment_.make_loop("checkpoint"),
                                                   environment_.checkpoint_disk)) {
  for (int i = 0; i < options_.owner_threads; ++i) {
    owners_.push_back(environment_.make_loop(absl::StrCat("owner-", i)));
  }
}

ShardHost::~ShardHost() { Stop(); }

void ShardHost::Start(const std::string& address, std::unique_ptr<CoordinatorClient> coordinator,
                      std::unique_ptr<CoordinatorClient> heartbeats) {
  links_.SetOwnAddress(address);
  heartbeats_ =
      std::make_unique<ShardHeartbeats>(environment_.make_loop("heartbeat"), std::move(heartbeats));
  reporter_ = std::make_unique<ShardReporter>(
      control_.get(), std::move(coordinator),
      ShardReporter::Options{
          .coordinator = options_.coordinator,
          .self = options_.self,
          .address = address,
          .insecure = options_.security != nullptr && options_.security->insecure(),
          .register_deadline = options_.register_deadline,
          .report_bytes_max = options_.report_bytes_max},
      ShardReporter::Callbacks{
          [this](ShardId id, Incarnation incarnation, uint64_t cluster) {
            id_ = id;
            heartbeats_->Begin(id, incarnation, cluster);
          },
          [this](const ShardOrders& orders) { Step(shard::event::Orders{orders}); },
          [this] {
            heartbeats_->Pause();
            Step(shard::event::GivenUp{});
          },
          [this](const absl::Status& status) { environment_.on_failed(status); },
          [this] { return std::min(memory_->room(), ForJobs(environment_.available_memory())); },
          [this](const DrainOrders& orders) { on_drain_(orders); },
          [this](uint64_t cluster, uint64_t nonce) { FindCheckpointRoot(cluster, nonce); },
      });
  if (checkpoint_writer_ == nullptr)
    reporter_->SetCheckpointRoot(0, "it was started without --checkpoint-root");
  control_->Post([this] { reporter_->Start(); });
  for (const auto& owner : owners_) Tick(owner.get());
}

absl::StatusOr<std::shared_ptr<StreamHandler>> ShardHost::Accept(
    std::shared_ptr<FrameStream> stream, const PeerIdentity& peer) {
  auto connection = std::make_shared<Connection>(
      ConnectionId(next_connection_.fetch_add(1)), std::move(stream), peer.identity,
      Connection::Shard{.routes = &routes_,
                        .memory = memory_.get(),
                        .clock = control_.get(),
                        .security = options_.security,
                        .queue_wait = options_.inject.queue_wait});
  memory_->AddStream(connection);
  return connection;
}

void ShardHost::ShowOn(admin::Admin* admin) {
  for (size_t i = 0; i < owners_.size(); ++i) {
    admin->health().Watch(owners_[i].get(), absl::StrCat("owner-", i));
  }
  admin->health().Watch(control_.get(), "control");
  admin->SetReadiness([this] { return reporter_->WhyNotReady(); });
  admin->AddMetricsOf([this](admin::MetricsText& metrics) {
    metrics_.AddMetrics(metrics);
    metrics.Gauge("starling_ps_memory_bytes", "Memory of all tensors on this shard.", {},
                  static_cast<double>(memory_->allocated()));
    metrics.Gauge("starling_ps_old_values_bytes",
                  "Part of these: replaced values that streams still have to send.", {},
                  static_cast<double>(memory_->old_values()));
    metrics.Gauge("starling_ps_ended_value_bytes",
                  "Parameters of jobs that are over, kept to be read until the jobs are deleted.",
                  {}, static_cast<double>(memory_->ended()));
  });
}

void ShardHost::Drain(std::function<void(const DrainOrders&)> on_drain) {
  control_->Post([this, on_drain = std::move(on_drain)]() mutable {
    on_drain_ = std::move(on_drain);
    reporter_->Drain();
  });
}

void ShardHost::Leave(std::function<void()> done) {
  control_->Post([this, done = std::move(done)]() mutable { reporter_->Leave(std::move(done)); });
}

void ShardHost::StopControl() {
  if (control_stopped_.exchange(true)) return;
  // First: the control loop may hang, and then this shard must not seem to live.
  if (heartbeats_ != nullptr) heartbeats_->Stop();
  control_->Post([this] {
    if (reporter_ != nullptr) reporter_->Stop();
  });
  control_->Stop();
  for (const auto& [job, capture] : captures_) capture.blocks->GiveUp("the shard stops");
}

void ShardHost::Stop() {
  if (stopped_.exchange(true)) return;
  StopControl();
  links_.Stop();
  if (checkpoint_writer_ != nullptr) checkpoint_writer_->Stop();
  for (const auto& owner : owners_) owner->Stop();
  // Breaks the cycle between partitions and connections that are still open.
  for (const auto& [key, partition] : routes_.All()) partition->Clear();
}

ShardMemory::Options ShardHost::MemoryOptions() const {
  const uint64_t most = ShardMemory::ShareOf(environment_.available_memory());
  return {.bytes_max = most,
          .old_values_bytes_max = options_.inject.old_values_bytes_max.value_or(most / 8),
          .now = [clock = control_.get()] { return clock->Now(); },
          .allocate = environment_.allocate};
}

void ShardHost::Tick(EventLoop* owner) {
  owner->PostAfter(kShardTickPeriod, [this, owner] {
    for (const auto& [key, partition] : routes_.Live()) {
      if (partition->owner != owner) continue;
      if (partition->host != nullptr) partition->host->OnTick();
      StepReader(*partition, [owner](EndedReader& reader) { reader.OnTick(owner->Now()); });
    }
    Tick(owner);
  });
}

// ---- Decisions ----

void ShardHost::TakeDecision(const FrameHeader& answer, std::string text) {
  const std::shared_ptr<HostedPartition> partition =
      routes_.Find({answer.key.run.job, answer.reporter});
  if (partition == nullptr) return;
  partition->owner->Post([partition, answer, text = std::move(text)]() mutable {
    if (partition->host != nullptr) partition->host->OnDecision(answer, std::move(text));
  });
}

// If the partition is not there (yet), the report is repeated later.
void ShardHost::TakeLocalReport(const FrameHeader& report) {
  const std::shared_ptr<HostedPartition> partition =
      routes_.Find({report.key.run.job, report.partition});
  if (partition == nullptr) return;
  partition->owner->Post([partition, report, local = local_, arrived = control_->Now()] {
    if (partition->host != nullptr) {
      partition->host->OnFrame(local, report, ReceivedPayload(), arrived);
    }
  });
}

// ---- Backups ----

void ShardHost::TakeBackupAnswer(const FrameHeader& answer, std::string text) {
  const std::shared_ptr<HostedPartition> partition =
      routes_.Find({answer.key.run.job, answer.partition});
  if (partition == nullptr) return;
  partition->owner->Post([this, partition, answer, text = std::move(text)]() mutable {
    const bool to_reader = (answer.flags & frame_flags::kReader) != 0;
    if (to_reader)
      return StepReader(*partition, [&](EndedReader& reader) {
        reader.OnRefused(answer, text, partition->owner->Now());
      });
    if (partition->host != nullptr) partition->host->OnBackupAnswer(answer, std::move(text));
  });
}

void ShardHost::TakeBackupDown(const Routes::Key& key, const std::string& address,
                               std::string why) {
  const std::shared_ptr<HostedPartition> partition = routes_.Find(key);
  if (partition == nullptr) return;
  partition->owner->Post([partition, address, why = std::move(why)]() mutable {
    if (partition->reader != nullptr)
      partition->reader->OnDown(address, why, partition->owner->Now());
    if (partition->host != nullptr) partition->host->OnBackupDown(address, std::move(why));
  });
}

// ---- Copies of values of jobs that are over ----

void ShardHost::TakeValue(const FrameHeader& header, ReceivedPayload payload) {
  const std::shared_ptr<HostedPartition> partition =
      routes_.Find({header.key.run.job, header.partition});
  if (partition == nullptr) return;
  partition->owner->Post([this, partition, header, payload = std::move(payload)] {
    StepReader(*partition, [&](EndedReader& reader) {
      reader.OnValue(header, payload, partition->owner->Now());
    });
  });
}

void ShardHost::StepReader(HostedPartition& partition,
                           const std::function<void(EndedReader&)>& step) {
  if (partition.reader == nullptr) return;
  step(*partition.reader);
  if (!partition.reader->over()) return;
  const std::unique_ptr<EndedReader> reader = std::move(partition.reader);
  shard::event::EndedCopied event{.key = reader->orders().key,
                                  .instance = reader->orders().instance,
                                  .fault = reader->fault(),
                                  .no_memory = reader->no_memory()};
  if (event.fault.empty()) {
    partition.ended = reader->Take();
    event.value_bytes = partition.ended->value_bytes();
  }
  control_->Post([this, event = std::move(event)]() mutable { Step(std::move(event)); });
}

// ---- Creation and end of partitions ----

void ShardHost::Step(shard::Event event) {
  events_.push_back(std::move(event));
  if (std::exchange(stepping_, true)) return;
  while (!events_.empty()) {
    const shard::Event next = std::move(events_.front());
    events_.pop_front();
    std::vector<shard::Action> actions;
    core_.Step(next, actions);
    for (const shard::Action& a : actions) std::visit([this](const auto& x) { Do(x); }, a);
  }
  stepping_ = false;
}

void ShardHost::Do(const action::Plan& a) {
  const RunId run{JobUid(a.job.run().job_uid()), a.job.run().era()};
  absl::StatusOr<std::shared_ptr<const ShardJobPlan>> plan =
      environment_.make_plan(a.job.job(), environment_.checkpoint_disk);
  absl::Status status = plan.status();
  if (status.ok()) status = CheckMemory(**plan, a.job);
  if (status.ok()) {
    metrics_.Show(a.job.job().spec().name(), (*plan)->metrics);
    plans_[run] = *std::move(plan);
  } else {
    spdlog::error("cannot host partitions of job {}: {}", a.job.job().spec().name(),
                  status.ToString());
  }
  Step(shard::event::Planned{run, status});
}

void ShardHost::Do(const action::Forget& a) {
  plans_.erase(a.run);
  links_.Forget(a.run.job);
}

PartitionHost::Environment ShardHost::EnvironmentOf(const action::Create& a, EventLoop* owner) {
  const auto post = [this](shard::Event event) {
    control_->Post([this, event = std::move(event)]() mutable { Step(std::move(event)); });
  };
  return {
      .owner = owner,
      .self = id_,
      .memory = memory_,
      .spans = environment_.spans,
      .report =
          [post, key = a.key, instance = a.instance](const PartitionStatus& status, bool at_once) {
            post(shard::event::News{key, instance, status, at_once});
          },
      .send_report = [this](const FrameHeader& norm) { links_.Send(norm); },
      .send_to_backup =
          [this](const std::string& address, const FrameHeader& header, OutgoingPayload payload) {
            links_.Replicate(address, header, std::move(payload));
          },
      .captured =
          [this, key = a.key, instance = a.instance](uint64_t number, const CutState& state,
                                                     std::vector<CapturedBlock> blocks) {
            control_->Post(
                [this, event = shard::event::Captured{key, instance, number, state},
                 blocks = std::move(blocks)]() mutable { TakeCaptured(event, std::move(blocks)); });
          },
      .missed =
          [post, key = a.key, instance = a.instance](uint64_t number, const std::string& why) {
            post(shard::event::Missed{key, instance, number, why});
          },
      .give_up_capture = [this] { return GiveUpCaptures(); },
      .observer = environment_.observer,
      .apply_wait = options_.inject.ApplyWait(a.key.second)};
}

void ShardHost::Do(const action::Create& a) {
  auto hosted = std::make_shared<HostedPartition>();
  hosted->owner = owners_[a.key.second.value % owners_.size()].get();
  PartitionHost::Environment environment = EnvironmentOf(a, hosted->owner);
  const FirstState first = a.learns ? FirstState::kNothing : FirstState::kFirstValues;
  hosted->owner->Post([this, hosted, plan = plans_.at(a.run), partition = a.key.second,
                       orders = a.orders, environment = std::move(environment), first]() mutable {
    const auto report_to = environment.report;
    absl::StatusOr<std::unique_ptr<PartitionHost>> host =
        PartitionHost::Create(plan, partition, std::move(environment), first);
    if (host.ok()) {
      hosted->host = *std::move(host);
      return hosted->host->OnOrders(std::move(orders));
    }
    const absl::StatusCode code = host.status().code();
    if (plan->description.has_restore() &&
        (code == absl::StatusCode::kNotFound || code == absl::StatusCode::kUnavailable ||
         code == absl::StatusCode::kPermissionDenied || code == absl::StatusCode::kDataLoss))
      control_->Post([this] { DoubtCheckpointRoot(); });
    PartitionStatus status;
    *status.mutable_run() = plan->description.run();
    status.set_partition(partition.value);
    status.set_view(orders.view.value);
    status.set_fault(std::string(host.status().message()));
    report_to(status, true);
  });
  // Frames find it only now, so they are handled after its creation.
  routes_.Set(a.key, std::move(hosted));
}

void ShardHost::Do(const action::Order& a) {
  const std::shared_ptr<HostedPartition> partition = routes_.Find(a.key);
  partition->owner->Post([partition, orders = a.orders] {
    if (partition->host != nullptr) partition->host->OnOrders(orders);
  });
}

void ShardHost::Do(const action::End& a) {
  const std::shared_ptr<HostedPartition> partition = routes_.Find(a.key);
  partition->owner->Post([this, partition, a] {
    if (partition->host != nullptr) partition->ended = partition->host->End(a.keep_version);
    partition->host.reset();
    const uint64_t bytes = partition->ended == nullptr ? 0 : partition->ended->value_bytes();
    control_->Post([this, a, bytes] { Step(shard::event::Ended{a.key, a.instance, bytes}); });
  });
}

void ShardHost::Do(const action::CopyEnded& a) {
  auto hosted = std::make_shared<HostedPartition>();
  hosted->owner = owners_[a.key.second.value % owners_.size()].get();
  hosted->owner->Post([this, hosted, a] {
    hosted->reader = std::make_unique<EndedReader>(
        a, memory_, [this](const std::string& address, const FrameHeader& pull) {
          links_.Pull(address, pull);
        });
    StepReader(*hosted, [&](EndedReader& reader) { reader.Start(hosted->owner->Now()); });
  });
  routes_.Set(a.key, std::move(hosted));
}

void ShardHost::Do(const action::Shelve& a) { routes_.Shelve(a.job); }

void ShardHost::Do(const action::Drop& a) {
  if (DefenceMasked(Defence::kDrop)) return;
  std::shared_ptr<HostedPartition> partition = routes_.Remove(a.key);
  EventLoop* const owner = partition->owner;
  owner->Post([partition = std::move(partition)] { partition->Clear(); });
}

// Once for all jobs that end within this time. By then the owners have freed their memory.
void ShardHost::Do(const action::ReturnMemory&) {
  constexpr absl::Duration kReturnMemoryAfter = absl::Seconds(1);
  if (std::exchange(returns_memory_, true)) return;
  control_->PostAfter(kReturnMemoryAfter, [this] {
    returns_memory_ = false;
    environment_.return_memory();
  });
}

void ShardHost::Do(const action::Learn& a) {
  routes_.SetNames(a.names);
  routes_.SetLeaders(a.leaders);
  links_.SetDeciders(a.deciders);
}

void ShardHost::Do(const action::HoldRun& a) { reporter_->Hold(a.run); }
void ShardHost::Do(const action::Report& a) { reporter_->Update(a.status, a.at_once); }
void ShardHost::Do(const action::ReportEnd& a) { reporter_->End(a.ended); }
void ShardHost::Do(const action::ReportNothingOfPartition& a) {
  reporter_->DropPartition(a.key.first, a.key.second);
}
void ShardHost::Do(const action::ReportNothingOfJob& a) { reporter_->Drop(a.job); }
void ShardHost::Do(const action::ReportCheckpoint& a) { reporter_->Checkpoint(a.run, a.part); }

// The part of the available memory that jobs may use: without what readers may hold.
uint64_t ShardHost::ForJobs(uint64_t available) const {
  const uint64_t share = ShardMemory::ShareOf(available);
  return share - std::min(share, memory_->old_values_room());
}

absl::Status ShardHost::CheckMemory(const ShardJobPlan& plan, const ShardJob& job) const {
  uint64_t wanted = 0;
  for (const PartitionOrders& partition : job.partitions()) {
    if (partition.partition() >= plan.layout.partitions.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the job has no partition ", partition.partition()));
    }
    const PartitionId id(partition.partition());
    wanted += plan.PlannedBytes(id);
    // The policy may have been changed while the job waited for workers.
    if (job.policy().policy().kind() == Policy::BSP ||
        job.next_policy().policy().kind() == Policy::BSP)
      wanted += plan.BspBytesMore(id);
  }
  if (wanted <= ForJobs(environment_.available_memory())) return absl::OkStatus();
  environment_.return_memory();
  const uint64_t available = environment_.available_memory();
  if (wanted <= ForJobs(available)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("shard ", options_.self.name, " would need ", wanted >> 20,
                   " MiB for its part of job ", job.job().spec().name(), ", but ", available >> 20,
                   " MiB are available, of which ", memory_->old_values_room() >> 20,
                   " MiB are for values that readers have not read yet; add shards, or memory"));
}

}  // namespace starling
