#include "server/shard/host/shard_runtime.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/memory.h"
#include "common/base/status_macros.h"
#include "common/control/shard_orders.h"
#include "common/daemon/daemon.h"
#include "common/daemon/daemon_service.h"
#include "common/event_loop/threaded_loop.h"
#include "common/sync/mutex.h"
#include "common/trace/span_ring.h"
#include "common/transport/access.h"
#include "common/transport/transport.h"
#include "server/shard/apply/instruction_set.h"
#include "server/shard/host/decision_links.h"
#include "server/shard/host/ended_partition.h"
#include "server/shard/host/orders.h"
#include "server/shard/host/partition_host.h"
#include "server/shard/host/shard_reporter.h"

namespace starling {
namespace {

// A partition in the hands of its owner. What it has belongs to the owner's thread: a host, once
// its job is over what that left, or neither, where it could not be made.
struct HostedPartition {
  EventLoop* owner = nullptr;
  std::unique_ptr<PartitionHost> host;
  std::unique_ptr<EndedPartition> ended;

  void Clear() {
    host.reset();
    ended.reset();
  }
};

using PartitionKey = std::pair<JobUid, PartitionId>;
using Plan = std::shared_ptr<const ShardJobPlan>;

class Routes {
 public:
  using Table = std::map<PartitionKey, std::shared_ptr<HostedPartition>>;

  std::shared_ptr<HostedPartition> Find(const PartitionKey& key) const {
    MutexLock lock(&mutex_);
    for (const auto* routes : {&routes_, &ended_}) {
      if (const auto it = routes->find(key); it != routes->end()) return it->second;
    }
    return nullptr;
  }
  void Set(const PartitionKey& key, std::shared_ptr<HostedPartition> partition) {
    MutexLock lock(&mutex_);
    routes_[key] = std::move(partition);
  }
  std::shared_ptr<HostedPartition> Remove(const PartitionKey& key) {
    MutexLock lock(&mutex_);
    for (auto* routes : {&routes_, &ended_}) {
      if (auto node = routes->extract(key)) return std::move(node.mapped());
    }
    return nullptr;
  }
  // Of jobs that are not over.
  Table Live() const {
    MutexLock lock(&mutex_);
    return routes_;
  }
  Table All() const {
    MutexLock lock(&mutex_);
    Table all = routes_;
    all.insert(ended_.begin(), ended_.end());
    return all;
  }
  Table Of(JobUid job) const {
    MutexLock lock(&mutex_);
    Table of;
    for (const auto* routes : {&routes_, &ended_}) {
      for (auto it = routes->lower_bound({job, PartitionId(0)});
           it != routes->end() && it->first.first == job; ++it) {
        of.insert(*it);
      }
    }
    return of;
  }
  // The job is over.
  void End(JobUid job) {
    MutexLock lock(&mutex_);
    for (auto it = routes_.lower_bound({job, PartitionId(0)});
         it != routes_.end() && it->first.first == job;) {
      ended_.insert(routes_.extract(it++));
    }
  }

  // Which worker has which name, as the rosters say it. Ids are durable per name.
  void SetNames(std::map<WorkerId, std::string> names) {
    MutexLock lock(&mutex_);
    names_ = std::move(names);
  }
  // Whether a stream of the worker `name` may speak for `worker`. Of one that no roster knows the
  // partition decides, which then knows it no more than we do.
  bool MaySpeakFor(const std::string& name, WorkerId worker) const {
    MutexLock lock(&mutex_);
    const auto it = names_.find(worker);
    return it == names_.end() || it->second == name;
  }

 private:
  mutable Mutex mutex_;
  Table routes_ ABSL_GUARDED_BY(mutex_);
  Table ended_ ABSL_GUARDED_BY(mutex_);  // many, and seldom asked for
  std::map<WorkerId, std::string> names_ ABSL_GUARDED_BY(mutex_);
};

bool IsReaderPull(const FrameHeader& header) {
  return header.type == FrameType::kPull && (header.flags & frame_flags::kReader) != 0;
}

// A stream, from its first frame to its end. Frames come on the transport's thread.
class Connection final : public StreamHandler,
                         public ShardConnection,
                         public ValueStream,
                         public std::enable_shared_from_this<Connection> {
 public:
  Connection(ConnectionId id, std::shared_ptr<FrameStream> stream, const Identity& peer,
             const Routes* routes, const ShardMemory* memory,
             std::shared_ptr<const LinkSecurity> security, absl::Duration queue_wait)
      : id_(id),
        stream_(std::move(stream)),
        peer_(IdentityToString(peer)),
        name_(peer.name),
        role_(peer.role),
        routes_(routes),
        memory_(memory),
        security_(std::move(security)),
        queue_wait_(queue_wait) {}

  ConnectionId id() const override { return id_; }

  void OnFrame(const FrameHeader& header, ReceivedPayload payload) override {
    if (const absl::Status allowed = CheckFrameSender(header, role_); !allowed.ok()) {
      if (security_ != nullptr) security_->refusals().CountCall();
      return End(allowed);
    }
    if (!MaySpeak(header)) {
      return SendRefusal(*this, header, Answer::kBadFrame,
                         absl::StrCat(peer_, " is not worker ", header.origin.worker.value));
    }
    const PartitionKey key(header.key.run.job, header.partition);
    std::shared_ptr<HostedPartition> partition = routes_->Find(key);
    if (partition == nullptr) return RefuseNotHosted(header);
    {
      MutexLock lock(&mutex_);
      if (down_) return;
      partitions_.insert(partition);
    }
    EventLoop* const owner = partition->owner;
    auto take = [self = shared_from_this(), partition = std::move(partition), header,
                 payload = std::move(payload), arrived_us = SpanRing::NowMicros()]() mutable {
      // Behind its end a frame would bring the connection back for good.
      if (self->down()) return;
      if (partition->ended != nullptr) return partition->ended->OnFrame(*self, header);
      if (partition->host == nullptr) return self->RefuseNotHosted(header);
      partition->host->OnFrame(std::move(self), header, std::move(payload), arrived_us);
    };
    if (queue_wait_ > absl::ZeroDuration()) {
      owner->PostAfter(queue_wait_, std::move(take));
    } else {
      owner->Post(std::move(take));
    }
  }

  void OnDown(const absl::Status& status) override {
    spdlog::debug("stream of {} ended: {}", peer_, status.ToString());
    Forget();
  }

  void Send(const FrameHeader& header, OutgoingPayload payload, int64_t urgency) override {
    if (down()) return;
    const FrameStream::Stats stats = stream_->stats();
    NoteProgress(stats);
    absl::Status status = CheckQueue(stats, payload.bytes.size());
    if (status.ok()) status = stream_->Send(header, std::move(payload), urgency);
    if (status.code() == absl::StatusCode::kResourceExhausted) End(status);  // else OnDown is near
  }

  Load load() override {
    const FrameStream::Stats stats = stream_->stats();
    const double stalled = NoteProgress(stats);
    return {.reads_only = role_ == PeerRole::kClient,
            .over = down(),
            .bytes = stats.queued_payload_bytes + stats.writing_payload_bytes,
            .stalled_seconds = stalled};
  }
  void CloseForMemory(const std::string& why) override { End(absl::ResourceExhaustedError(why)); }

 private:
  // For how long nothing was sent although something waits, in seconds.
  double NoteProgress(const FrameStream::Stats& stats) {
    const uint64_t now_us = SpanRing::NowMicros();
    MutexLock lock(&mutex_);
    const bool idle = stats.queued_payload_bytes + stats.writing_payload_bytes == 0;
    if (idle || stats.sent_payload_bytes != sent_bytes_) {
      sent_bytes_ = stats.sent_payload_bytes;
      progress_us_ = now_us;
    }
    return 1e-6 * static_cast<double>(now_us - std::min(now_us, progress_us_));
  }

  void End(const absl::Status& why) {
    spdlog::warn("closing the stream of {}: {}", peer_, why.ToString());
    stream_->Close(why);
    Forget();
  }

  // Never was, is not any more, or could not be made.
  void RefuseNotHosted(const FrameHeader& header) {
    SendRefusal(*this, header, Answer::kNotHosted,
                absl::StrCat("partition ", header.partition.value, " of job ",
                             header.key.run.job.value, " is not hosted here"));
  }

  // Whether the frame speaks for no worker, or for the one that this peer is.
  bool MaySpeak(const FrameHeader& header) const {
    return role_ != PeerRole::kWorker || IsReaderPull(header) ||
           routes_->MaySpeakFor(name_, header.origin.worker);
  }

  // Values that wait to be sent keep their memory, so there is an end to them.
  absl::Status CheckQueue(const FrameStream::Stats& stats, size_t bytes) const {
    if (role_ == PeerRole::kClient && stats.queued_frames >= limits::kReaderFramesQueuedMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the peer asks for more than it reads: ", stats.queued_frames,
                       " frames wait to be sent"));
    }
    const uint64_t queued = stats.queued_payload_bytes;
    const uint64_t most = memory_->StreamQueueBytesMax();
    if (queued + bytes <= most) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        "the peer asks for more than it reads: ", queued, " bytes wait to be sent, ", bytes,
        " more would exceed ", most, " (twice what this shard holds, and the window)"));
  }

  bool down() const {
    MutexLock lock(&mutex_);
    return down_;
  }

  // Tells the partitions that it is gone. Once.
  void Forget() {
    std::set<std::shared_ptr<HostedPartition>> partitions;
    {
      MutexLock lock(&mutex_);
      down_ = true;
      partitions.swap(partitions_);
    }
    for (const std::shared_ptr<HostedPartition>& partition : partitions) {
      partition->owner->Post([id = id_, partition] {
        if (partition->host != nullptr) partition->host->OnConnectionDown(id);
      });
    }
  }

  const ConnectionId id_;
  const std::shared_ptr<FrameStream> stream_;
  const std::string peer_;
  const std::string name_;
  const PeerRole role_;
  const Routes* const routes_;
  const ShardMemory* const memory_;
  const std::shared_ptr<const LinkSecurity> security_;
  const absl::Duration queue_wait_;  // injected
  mutable Mutex mutex_;
  bool down_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t sent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // when something was last seen to be sent
  uint64_t progress_us_ ABSL_GUARDED_BY(mutex_) = SpanRing::NowMicros();
  std::set<std::shared_ptr<HostedPartition>> partitions_ ABSL_GUARDED_BY(mutex_);
};

// Partitions of this shard that ask one of this shard.
class LocalConnection final : public ShardConnection {
 public:
  using Answer = std::function<void(const FrameHeader& header, std::string text)>;
  LocalConnection(ConnectionId id, Answer answer) : id_(id), answer_(std::move(answer)) {}
  ConnectionId id() const override { return id_; }
  void Send(const FrameHeader& header, OutgoingPayload payload, int64_t) override {
    answer_(header, std::string(payload.bytes.begin(), payload.bytes.end()));
  }

 private:
  const ConnectionId id_;
  const Answer answer_;
};

class GrpcShard final : public ShardRuntime {
 public:
  GrpcShard(const ShardOptions& options, std::function<void(const absl::Status&)> on_failed)
      : options_(options),
        self_{PeerRole::kShard, options.name},
        on_failed_(std::move(on_failed)),
        daemon_(MakeDaemonService({.self = self_,
                                   .instruction_set = InstructionSetName(BestInstructionSet()),
                                   .admin_address = options.admin_address,
                                   .clock_offset = options.clock_offset,
                                   .addresses = addresses_,
                                   .security = options.security},
                                  &spans_)),
        local_(
            std::make_shared<LocalConnection>(ConnectionId(next_connection_.fetch_add(1)),
                                              [this](const FrameHeader& answer, std::string text) {
                                                TakeDecision(answer, std::move(text));
                                              })),
        links_(self_, options.security,
               {[this](const FrameHeader& answer, std::string text) {
                  TakeDecision(answer, std::move(text));
                },
                [this](const FrameHeader& report) { TakeLocalReport(report); }}) {
    for (int i = 0; i < options.owner_threads; ++i) {
      owners_.push_back(std::make_unique<ThreadedLoop>(absl::StrCat("owner-", i)));
    }
  }

  ~GrpcShard() override { Stop(); }

  absl::Status Start() {
    RpcServer::Options server;
    server.listen = options_.listen;
    server.security = options_.security;
    server.self = self_;
    server.services = {daemon_.get()};
    server.accept =
        [this](std::shared_ptr<FrameStream> stream,
               const PeerIdentity& peer) -> absl::StatusOr<std::shared_ptr<StreamHandler>> {
      return Accept(std::move(stream), peer);
    };
    absl::StatusOr<std::unique_ptr<RpcServer>> started = StartRpcServer(std::move(server));
    if (!started.ok()) return started.status();
    server_ = *std::move(started);
    STARLING_ASSIGN_OR_RETURN(address_,
                              AdvertisedAddress(options_.advertise_address, server_->address()));
    links_.SetOwnAddress(address_);
    addresses_->Set({server_->address(), address_, options_.coordinator});
    reporter_ = std::make_unique<ShardReporter>(
        &control_, MakeCoordinatorClient(options_.coordinator, self_, options_.security),
        ShardReporter::Options{options_.coordinator, self_, address_,
                               options_.security != nullptr && options_.security->insecure(),
                               options_.register_deadline},
        ShardReporter::Callbacks{
            [this](ShardId id, Incarnation) { id_ = id; },
            [this](const ShardOrders& orders) { TakeOrders(orders); },
            [this] {
              book_.Clear();
              DropAll();
            },
            [this](const absl::Status& status) { on_failed_(status); },
            [this] { return std::min(memory_->room(), ForJobs(AvailableMemoryBytes())); },
        });
    control_.Post([this] { reporter_->Start(); });
    for (const auto& owner : owners_) Tick(owner.get());
    return absl::OkStatus();
  }

  int port() const override { return server_->port(); }
  std::string address() const override { return address_; }

  void ShowOn(admin::Admin* admin) override {
    for (size_t i = 0; i < owners_.size(); ++i) {
      admin->health().Watch(owners_[i].get(), absl::StrCat("owner-", i));
    }
    admin->health().Watch(&control_, "control");
    admin->SetReadiness([this] { return reporter_->WhyNotReady(); });
    admin->AddMetricsOf([this](admin::MetricsText& metrics) {
      metrics_.AddMetrics(metrics);
      metrics.Gauge("starling_ps_memory_bytes", "Memory of all tensors on this shard.", {},
                    static_cast<double>(memory_->allocated()));
      metrics.Gauge("starling_ps_old_values_bytes",
                    "Of these, of values that were replaced and that streams have still to send.",
                    {}, static_cast<double>(memory_->old_values()));
      metrics.Gauge("starling_ps_ended_value_bytes",
                    "Parameters of jobs that are over, kept to be read until the jobs are deleted.",
                    {}, static_cast<double>(memory_->ended()));
    });
  }

  void Stop() override {
    if (stopped_.exchange(true)) return;
    control_.Post([this] {
      if (reporter_ != nullptr) reporter_->Stop();
    });
    control_.Stop();
    if (server_ != nullptr) server_->Shutdown(absl::Seconds(1));
    links_.Stop();
    for (const auto& owner : owners_) owner->Stop();
    // Partitions know the connections that are still open, and those know them.
    for (const auto& [key, partition] : routes_.All()) partition->Clear();
  }

 private:
  ShardMemory::Options MemoryOptions() const {
    const uint64_t most = ShardMemory::ShareOf(AvailableMemoryBytes());
    return {.bytes_max = most,
            .old_values_bytes_max = options_.inject.old_values_bytes_max.value_or(most / 8)};
  }

  absl::StatusOr<std::shared_ptr<StreamHandler>> Accept(std::shared_ptr<FrameStream> stream,
                                                        const PeerIdentity& peer) {
    auto connection = std::make_shared<Connection>(
        ConnectionId(next_connection_.fetch_add(1)), std::move(stream), peer.identity, &routes_,
        memory_.get(), options_.security, options_.inject.queue_wait);
    memory_->AddStream(connection);
    return connection;
  }

  void Tick(EventLoop* owner) {
    owner->PostAfter(kShardTickPeriod, [this, owner] {
      for (const auto& [key, partition] : routes_.Live()) {
        if (partition->owner == owner && partition->host != nullptr) partition->host->OnTick();
      }
      Tick(owner);
    });
  }

  // ---- Decisions: any thread ----

  void TakeDecision(const FrameHeader& answer, std::string text) {
    const std::shared_ptr<HostedPartition> partition =
        routes_.Find({answer.key.run.job, answer.reporter});
    if (partition == nullptr) return;
    partition->owner->Post([partition, answer, text = std::move(text)]() mutable {
      if (partition->host != nullptr) partition->host->OnDecision(answer, std::move(text));
    });
  }

  // Where the partition is not there (yet), the report is repeated.
  void TakeLocalReport(const FrameHeader& report) {
    const std::shared_ptr<HostedPartition> partition =
        routes_.Find({report.key.run.job, report.partition});
    if (partition == nullptr) return;
    partition->owner->Post([partition, report, local = local_, arrived_us = SpanRing::NowMicros()] {
      if (partition->host != nullptr) {
        partition->host->OnFrame(local, report, ReceivedPayload(), arrived_us);
      }
    });
  }

  // ---- The control thread ----

  void TakeOrders(const ShardOrders& orders) {
    const ShardOrderBook::Changes changes = book_.Take(orders);
    std::map<WorkerId, std::string> names;
    std::map<JobUid, std::string> deciders;
    for (const auto& [uid, job] : book_.jobs()) {
      if (job.has_decider()) deciders[JobUid(uid)] = job.decider().primary_address();
      for (const Member& member : job.roster().members())
        names[WorkerId(member.worker())] = member.name();
    }
    routes_.SetNames(std::move(names));
    links_.SetDeciders(std::move(deciders));
    for (const uint64_t uid : changes.dropped) DropJob(JobUid(uid));
    for (const ShardJob& job : changes.jobs) {
      reporter_->Hold(job.run());
      job.over() ? EndJob(job) : TakeJob(job, orders.generation());
    }
  }

  void TakeJob(const ShardJob& job, uint64_t generation) {
    const JobUid uid(job.run().job_uid());
    auto it = plans_.find(uid);
    if (it == plans_.end()) {
      if (!job.has_job()) return;  // it was refused
      absl::StatusOr<std::shared_ptr<const ShardJobPlan>> plan = MakeShardJobPlan(job.job());
      absl::Status status = plan.status();
      if (status.ok()) status = CheckMemory(**plan, job);
      if (!status.ok()) {
        for (const PartitionOrders& partition : job.partitions()) Refuse(job, partition, status);
        return;
      }
      metrics_.Show(job.job().spec().name(), (*plan)->metrics);
      it = plans_.emplace(uid, *std::move(plan)).first;
    }
    std::set<PartitionKey> wanted;
    for (const PartitionOrders& partition : job.partitions()) {
      wanted.emplace(uid, PartitionId(partition.partition()));
      TakePartition(it->second, job, partition, generation);
    }
    for (const auto& [key, partition] : routes_.Of(uid)) {
      if (wanted.contains(key)) continue;
      Drop(key);
      reporter_->DropPartition(key.first, key.second);
    }
  }

  // Frees all but the values that are read, and tells the coordinator when all owners have.
  void EndJob(const ShardJob& job) {
    const JobUid uid(job.run().job_uid());
    if (ending_.contains(uid)) return;  // it was ordered twice
    const Routes::Table partitions = routes_.Of(uid);
    std::optional<uint64_t> keep;
    if (job.has_keep_version()) keep = job.keep_version();
    plans_.erase(uid);
    *ending_[uid].mutable_run() = job.run();
    ending_left_[uid] = partitions.size();
    if (partitions.empty()) return Ended(uid);
    for (const auto& [key, partition] : partitions) {
      partition->owner->Post([this, uid, keep, partition = partition] {
        if (partition->host != nullptr) partition->ended = partition->host->End(keep);
        partition->host.reset();
        const uint64_t bytes = partition->ended == nullptr ? 0 : partition->ended->value_bytes();
        control_.Post([this, uid, bytes] {
          const auto ending = ending_.find(uid);
          if (ending == ending_.end()) return;  // it was dropped
          ending->second.set_value_bytes(ending->second.value_bytes() + bytes);
          if (--ending_left_[uid] == 0) Ended(uid);
        });
      });
    }
  }

  void Ended(JobUid uid) {
    const HeldJob held = std::move(ending_.extract(uid).mapped());
    ending_left_.erase(uid);
    routes_.End(uid);
    reporter_->End(held.run(), held.value_bytes());
    ReturnMemorySoon();
  }

  void DropJob(JobUid uid) {
    for (const auto& [key, partition] : routes_.Of(uid)) Drop(key);
    plans_.erase(uid);
    ending_.erase(uid);
    ending_left_.erase(uid);
    reporter_->Drop(uid);
    ReturnMemorySoon();
  }

  // Once for all jobs that end meanwhile; by then the owners have left what they held.
  void ReturnMemorySoon() {
    constexpr absl::Duration kReturnMemoryAfter = absl::Seconds(1);
    if (std::exchange(returns_memory_, true)) return;
    control_.PostAfter(kReturnMemoryAfter, [this] {
      returns_memory_ = false;
      ReturnFreedMemory();
    });
  }

  // Of what is available, without what readers may pin.
  uint64_t ForJobs(uint64_t available) const {
    const uint64_t share = ShardMemory::ShareOf(available);
    return share - std::min(share, memory_->old_values_room());
  }

  absl::Status CheckMemory(const ShardJobPlan& plan, const ShardJob& job) const {
    uint64_t wanted = 0;
    for (const PartitionOrders& partition : job.partitions()) {
      if (partition.partition() >= plan.layout.partitions.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the job has no partition ", partition.partition()));
      }
      const PartitionId id(partition.partition());
      wanted += plan.PlannedBytes(id);
      // The policy may have been set while the job waited for workers.
      if (job.policy().policy().kind() == Policy::BSP) wanted += plan.BspBytesMore(id);
    }
    if (wanted <= ForJobs(AvailableMemoryBytes())) return absl::OkStatus();
    ReturnFreedMemory();
    const uint64_t available = AvailableMemoryBytes();
    if (wanted <= ForJobs(available)) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        "shard ", options_.name, " would need ", wanted >> 20, " MiB for its part of job ",
        job.job().spec().name(), ", and ", available >> 20, " MiB are available, of which ",
        memory_->old_values_room() >> 20,
        " MiB are for values that readers have not read yet; add shards, or memory"));
  }

  void TakePartition(const Plan& plan, const ShardJob& job, const PartitionOrders& partition,
                     uint64_t generation) {
    if (partition.view().backup() != 0) {
      return Refuse(job, partition, absl::UnimplementedError("this release keeps no backups"));
    }
    const PartitionKey key(plan->run.job, PartitionId(partition.partition()));
    std::shared_ptr<HostedPartition> hosted = routes_.Find(key);
    const bool is_new = hosted == nullptr;
    if (is_new) {
      hosted = std::make_shared<HostedPartition>();
      hosted->owner = owners_[key.second.value % owners_.size()].get();
    }
    hosted->owner->Post([this, hosted, is_new, plan, key, id = id_,
                         orders = ToPartitionOrders(job, partition, generation)] {
      if (is_new) Create(hosted.get(), plan, key, id);
      if (hosted->host != nullptr) hosted->host->OnOrders(orders);
    });
    // Frames find it only behind its creation.
    if (is_new) routes_.Set(key, std::move(hosted));
  }

  // On the owner's thread.
  void Create(HostedPartition* hosted, const Plan& plan, const PartitionKey& key, ShardId id) {
    auto report = [this](const PartitionStatus& status, bool at_once) {
      control_.Post([this, status, at_once] {
        const PartitionKey key(JobUid(status.run().job_uid()), PartitionId(status.partition()));
        if (routes_.Find(key) != nullptr) reporter_->Update(status, at_once);
      });
    };
    absl::StatusOr<std::unique_ptr<PartitionHost>> host =
        PartitionHost::Create(plan, key.second, id, memory_, &spans_, report,
                              [this](const FrameHeader& norm) { links_.Send(norm); });
    if (host.ok()) {
      hosted->host = *std::move(host);
      hosted->host->InjectApplyWait(options_.inject.ApplyWait(key.second));
      return;
    }
    PartitionStatus status;
    *status.mutable_run() = plan->description.run();
    status.set_partition(key.second.value);
    status.set_fault(std::string(host.status().message()));
    report(status, true);
  }

  void Refuse(const ShardJob& job, const PartitionOrders& partition, const absl::Status& why) {
    spdlog::error("cannot host partition {} of job {}: {}", partition.partition(),
                  job.job().spec().name(), why.ToString());
    PartitionStatus status;
    *status.mutable_run() = job.run();
    status.set_partition(partition.partition());
    status.set_view(partition.view().number());
    status.set_fault(std::string(why.message()));
    reporter_->Update(status, true);
  }

  void Drop(const PartitionKey& key) {
    std::shared_ptr<HostedPartition> partition = routes_.Remove(key);
    if (partition == nullptr) return;
    EventLoop* const owner = partition->owner;
    owner->Post([partition = std::move(partition)] { partition->Clear(); });
  }

  void DropAll() {
    for (const auto& [key, partition] : routes_.All()) Drop(key);
    plans_.clear();
    ending_.clear();
    ending_left_.clear();
  }

  const ShardOptions options_;
  const Identity self_;
  const std::function<void(const absl::Status&)> on_failed_;
  SpanRing spans_;
  const std::shared_ptr<ShardMemory> memory_ = std::make_shared<ShardMemory>(MemoryOptions());
  Routes routes_;
  ShardMetrics metrics_;
  std::atomic<uint64_t> next_connection_ = 1;
  std::atomic<bool> stopped_ = false;
  bool returns_memory_ = false;  // is posted; of the control thread
  const std::shared_ptr<DaemonAddresses> addresses_ = std::make_shared<DaemonAddresses>();
  const std::shared_ptr<grpc::Service> daemon_;
  const std::shared_ptr<LocalConnection> local_;
  DecisionLinks links_;

  // The control thread only.
  ShardId id_;
  ShardOrderBook book_;
  std::map<JobUid, Plan> plans_;          // of jobs that are not over
  std::map<JobUid, HeldJob> ending_;      // what their owners have told so far, of
  std::map<JobUid, size_t> ending_left_;  // partitions that have not
  std::unique_ptr<ShardReporter> reporter_;

  std::vector<std::unique_ptr<EventLoop>> owners_;
  ThreadedLoop control_{"control"};
  std::unique_ptr<RpcServer> server_;
  std::string address_;  // constant after Start
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShardRuntime>> StartShard(
    const ShardOptions& options, std::function<void(const absl::Status&)> on_failed) {
  auto shard = std::make_unique<GrpcShard>(options, std::move(on_failed));
  if (absl::Status status = shard->Start(); !status.ok()) return status;
  return std::unique_ptr<ShardRuntime>(std::move(shard));
}

}  // namespace starling
