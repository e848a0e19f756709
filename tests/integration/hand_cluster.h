// The real coordinator and real shards in one process, over real gRPC, with a hand-driven worker:
// it sends exactly what a test wants.
#ifndef STARLING_TESTS_INTEGRATION_HAND_CLUSTER_H_
#define STARLING_TESTS_INTEGRATION_HAND_CLUSTER_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/control/worker_orders.h"
#include "common/daemon/coordinator_client.h"
#include "common/daemon/daemon_service.h"
#include "common/placement/layout.h"
#include "common/transport/grpc_util.h"
#include "common/transport/transport.h"
#include "proto/coordinator_service.grpc.pb.h"
#include "server/coordinator/host/coordinator_host.h"
#include "server/coordinator/host/coordinator_service.h"
#include "server/coordinator/store/testing/memory_store.h"
#include "server/shard/apply/verify.h"
#include "server/shard/host/shard_runtime.h"

namespace starling {

inline constexpr absl::Duration kLong = absl::Seconds(60);  // reached only by failures
inline constexpr uint64_t kSamples = 40;
inline constexpr uint32_t kBatch = 4;
inline constexpr uint32_t kMicroBatches = 4;
inline constexpr uint32_t kSteps = kSamples / kBatch;
inline constexpr float kRate = 0.5f;

inline void AddHidden(JobSpec& spec, int64_t size) {
  (*spec.mutable_model_source()->mutable_arguments())["hidden"].mutable_ints()->add_values(size);
}

inline JobSpec Spec(const std::string& name, Policy::Kind policy, uint32_t hidden = 8) {
  JobSpec spec;
  spec.set_name(name);
  spec.set_seed(7);
  spec.mutable_model_source()->set_builtin("mlp");
  AddHidden(spec, hidden);
  spec.mutable_train()->mutable_csv()->set_path("/data/train.csv");
  spec.mutable_batch()->set_global(kBatch);
  spec.mutable_batch()->set_micro_batches(kMicroBatches);
  spec.mutable_batch()->set_kernel_threads(1);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_optimizer()->mutable_learning_rate()->set_constant(kRate);
  spec.mutable_policy()->set_kind(policy);
  if (policy == Policy::SSP) spec.mutable_policy()->set_staleness(2);
  spec.set_workers_min(1);
  spec.set_workers_max(1);
  spec.mutable_stop()->set_epochs(2);
  return spec;
}

// A shard's answers, by request.
class Mailbox : public StreamHandler {
 public:
  struct Letter {
    FrameHeader header;
    std::vector<float> floats;
    std::string text;
  };

  void OnFrame(const FrameHeader& header, ReceivedPayload payload) override {
    Letter letter{header, {}, {}};
    if (header.kind == PayloadKind::kText) {
      letter.text.resize(payload.size());
      payload.CopyTo(letter.text.data());
    } else {
      letter.floats.resize(payload.size() / sizeof(float));
      payload.CopyTo(letter.floats.data());
    }
    absl::MutexLock lock(&mutex_);
    letters_[header.request_id] = std::move(letter);
  }
  void OnDown(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    down_ = status;
  }

  // Blocks until the stream has ended, which is expected; returns its status.
  absl::Status AwaitDown() {
    absl::MutexLock lock(&mutex_);
    const auto over = [&] { return down_.has_value(); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&over), kLong)) << "the stream goes on";
    return down_.value_or(absl::OkStatus());
  }

  Letter Await(uint64_t request) {
    absl::MutexLock lock(&mutex_);
    const auto here = [&] { return letters_.count(request) > 0 || down_.has_value(); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&here), kLong)) << "request " << request;
    EXPECT_FALSE(down_.has_value()) << *down_;
    return letters_[request];
  }

 private:
  absl::Mutex mutex_;
  std::map<uint64_t, Letter> letters_;
  std::optional<absl::Status> down_;
};

// A worker whose gradient is 1 everywhere.
class HandWorker {
 public:
  HandWorker(const std::string& coordinator, const Identity& self,
             std::shared_ptr<const LinkSecurity> security = nullptr)
      : self_(self),
        client_(MakeCoordinatorClient(coordinator, self, security)),
        streams_(MakeStreamClient(self, security)) {}

  void Register() {
    std::promise<absl::StatusOr<RegisterReply>> done;
    client_->Register(MakeRegisterRequest(self_, "127.0.0.1:1"), kLong,
                      [&](auto reply) { done.set_value(std::move(reply)); });
    const absl::StatusOr<RegisterReply> reply = done.get_future().get();
    ASSERT_TRUE(reply.ok()) << reply.status();
    ASSERT_EQ(reply->refused(), "");
    identity_ = *reply;
  }

  void Report(const Fault& fault = {}) {
    WorkerReport report;
    if (fault.kind() != Fault::KIND_UNSPECIFIED) *report.mutable_fault() = fault;
    report.set_worker(identity_.id());
    report.set_incarnation(identity_.incarnation());
    report.set_sequence(++sequence_);
    report.set_generation(identity_.generation());
    report.set_orders_seen(orders_.version());
    if (orders_.has_job()) {
      *report.mutable_run() = orders_.job().run();
      report.set_prepared(true);
    }
    for (const Lease& lease : orders_.leases()) report.add_leases_held(lease.id());
    for (const InspectRequest& request : orders_.inspect()) {
      Inspection* const inspection = report.add_inspections();
      inspection->set_request(request.request());
      inspection->set_train_samples(kSamples);
      inspection->add_sample_shape(4);
      inspection->set_classes(3);
    }
    std::promise<absl::StatusOr<WorkerOrders>> done;
    client_->ReportWorker(report, kLong, [&](auto orders) { done.set_value(std::move(orders)); });
    const absl::StatusOr<WorkerOrders> orders = done.get_future().get();
    ASSERT_TRUE(orders.ok()) << orders.status();
    ASSERT_FALSE(orders->rejoin());
    if (orders->unchanged()) return;
    CompleteOrders(std::exchange(orders_, *orders), orders_);
  }

  bool IsMember() const {
    for (const Member& member : orders_.roster().members()) {
      if (member.worker() == identity_.id()) return true;
    }
    return false;
  }

  void Connect() {
    layout_ = MakeLayout(orders_.job().spec()).value();
    EXPECT_EQ(layout_.digest, orders_.job().layout_digest());
    connected_ = orders_;
    mail_ = std::make_shared<Mailbox>();
    stream_of_.clear();
    for (const View& view : orders_.views()) {
      std::shared_ptr<FrameStream>& stream = stream_of_[view.primary_address()];
      if (stream == nullptr)
        stream = streams_->Connect({.address = view.primary_address(), .whom = "the shard"}, mail_);
    }
  }

  size_t shards() const { return stream_of_.size(); }

  absl::Status Send(const FrameHeader& header, OutgoingPayload payload, int64_t urgency) {
    // A request for a partition that does not exist goes to an arbitrary shard.
    const auto partition = static_cast<int>(header.partition.value);
    const View& view = connected_.views(partition < connected_.views_size() ? partition : 0);
    return stream_of_.at(view.primary_address())->Send(header, std::move(payload), urgency);
  }

  FrameHeader Header(FrameType type, PartitionId partition, Clock clock) {
    FrameHeader header;
    header.type = type;
    header.key.run = {JobUid(connected_.job().run().job_uid()), connected_.job().run().era()};
    header.partition = partition;
    header.view = ViewNumber(connected_.views(static_cast<int>(partition.value)).number());
    header.roster = RosterNumber(orders_.roster().number());
    header.origin = {ReplicaId(identity_.id()), WorkerId(identity_.id()),
                     Incarnation(identity_.incarnation()), 0};
    header.clock = clock;
    header.request_id = ++last_request_;
    return header;
  }

  static WorkRange Item(uint64_t step) {
    return {WorkPurpose::kTrain, static_cast<uint32_t>(step / kSteps),
            step % kSteps * kMicroBatches, kMicroBatches};
  }

  // Sends a frame that must make the shard end the stream.
  absl::Status SendToTheEnd(const FrameHeader& header, OutgoingPayload payload = {}) {
    EXPECT_TRUE(Send(header, std::move(payload), 0).ok());
    return mail_->AwaitDown();
  }

  Mailbox::Letter Ask(const FrameHeader& header, OutgoingPayload payload = {},
                      int64_t urgency = 0) {
    EXPECT_TRUE(Send(header, std::move(payload), urgency).ok());
    return mail_->Await(header.request_id);
  }

  Mailbox::Letter Await(uint64_t request) { return mail_->Await(request); }

  FrameHeader PushHeader(const Slice& slice, uint64_t step, Clock clock,
                         const std::vector<float>& gradient, OutgoingPayload* payload) {
    FrameHeader header = Header(FrameType::kPush, slice.partition, clock);
    header.kind = PayloadKind::kDense;
    header.key.slice = slice.id;
    header.key.work = Item(step);
    header.samples = kBatch;
    header.elements = static_cast<uint32_t>(gradient.size());
    header.payload_bytes = header.elements * sizeof(float);
    auto copy = std::make_shared<std::vector<float>>(gradient);
    *payload = {
        absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(copy->data()), header.payload_bytes),
        copy};
    header.digest = VerifyPayload(Payload(&payload->bytes, 1)).digest;
    return header;
  }

  Clock Enter() {
    Clock clock = 0;
    for (uint32_t p = 0; p < layout_.partitions.size(); ++p) {
      FrameHeader enter = Header(FrameType::kClose, PartitionId(p), 0);
      enter.flags = frame_flags::kEnter;
      // The shard may learn of the job after its worker does: then the request is repeated.
      Mailbox::Letter ack = Ask(enter, {}, -1);
      for (const absl::Time deadline = absl::Now() + kLong;
           ack.header.answer == Answer::kNotHosted && absl::Now() < deadline;) {
        Report();
        enter.request_id = ++last_request_;
        enter.roster = RosterNumber(orders_.roster().number());
        ack = Ask(enter, {}, -1);
      }
      EXPECT_EQ(ack.header.type, FrameType::kAck) << ack.text;
      clock = std::max(clock, ack.header.clock);
    }
    return clock;
  }

  // One step: pushes all slices and closes all partitions.
  void Step(uint64_t step, Clock clock) {
    std::vector<uint64_t> requests;
    for (const Slice& slice : layout_.slices) {
      OutgoingPayload payload;
      const FrameHeader push =
          PushHeader(slice, step, clock, std::vector<float>(slice.elements, 1.0f), &payload);
      ASSERT_TRUE(Send(push, std::move(payload), slice.id.value).ok());
      requests.push_back(push.request_id);
    }
    for (uint32_t p = 0; p < layout_.partitions.size(); ++p) {
      FrameHeader close = Header(FrameType::kClose, PartitionId(p), clock);
      close.key.work = Item(step);
      ASSERT_TRUE(Send(close, {}, -1).ok());
      requests.push_back(close.request_id);
    }
    for (const uint64_t request : requests) {
      const Mailbox::Letter ack = mail_->Await(request);
      ASSERT_EQ(ack.header.type, FrameType::kAck) << ack.text;
      ASSERT_EQ(ack.header.answer, Answer::kCounted);
    }
  }

  Mailbox::Letter Pull(const Slice& slice, Clock clock, uint16_t flags = 0) {
    FrameHeader pull = Header(FrameType::kPull, slice.partition, clock);
    pull.key.slice = slice.id;
    pull.flags = flags;
    return Ask(pull, {}, slice.id.value);
  }

  // The answers to one push per slice, in a step of which some pushes may be refused.
  std::vector<Answer> PushAll(uint64_t step, const std::function<float(size_t slice)>& gradient) {
    std::vector<Answer> answers;
    for (size_t s = 0; s < layout_.slices.size(); ++s) {
      const Slice& slice = layout_.slices[s];
      OutgoingPayload payload;
      const FrameHeader push =
          PushHeader(slice, step, static_cast<Clock>(step),
                     std::vector<float>(slice.elements, gradient(s)), &payload);
      answers.push_back(Ask(push, std::move(payload)).header.answer);
    }
    return answers;
  }

  std::vector<float> PullAll(Clock clock, uint16_t flags = 0) {
    std::vector<float> flat;
    for (const Slice& slice : layout_.slices) {
      const Mailbox::Letter value = Pull(slice, clock, flags);
      EXPECT_EQ(value.header.type, FrameType::kValue) << value.text;
      EXPECT_EQ(value.floats.size(), slice.elements);
      const PayloadPiece bytes(reinterpret_cast<const uint8_t*>(value.floats.data()),
                               value.floats.size() * sizeof(float));
      EXPECT_EQ(VerifyPayload(Payload(&bytes, 1)).digest, value.header.digest);
      flat.insert(flat.end(), value.floats.begin(), value.floats.end());
    }
    return flat;
  }

  // Reads the same job without being a member.
  void ReadAs(const HandWorker& other) {
    orders_ = other.connected_;
    Connect();
  }

  const WorkerOrders& orders() const { return orders_; }
  const Layout& layout() const { return layout_; }

 private:
  const Identity self_;
  std::unique_ptr<CoordinatorClient> client_;
  RegisterReply identity_;
  uint64_t sequence_ = 0;
  WorkerOrders orders_;     // the newest
  WorkerOrders connected_;  // those of Connect
  Layout layout_;
  std::unique_ptr<StreamClient> streams_;
  std::shared_ptr<Mailbox> mail_;
  std::map<std::string, std::shared_ptr<FrameStream>> stream_of_;  // by the shard's address
  uint64_t last_request_ = 0;
};

class ClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    // A hand-driven worker is silent while the test does something else, on slow machines, too.
    auto host = coordinator::CoordinatorHost::Start(
        {.liveness = kLong}, {.store = std::make_unique<coordinator::MemoryStore>(),
                              .on_fatal = [](const absl::Status& status) { FAIL() << status; }});
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    service_ = coordinator::MakeCoordinatorService(host_.get());
    const Identity self{PeerRole::kCoordinator, "coordinator"};
    daemon_ = MakeDaemonService({self, ""}, nullptr);
    auto server = StartRpcServer({.listen = "127.0.0.1:0",
                                  .security = SecurityOf(self.role),
                                  .self = self,
                                  .services = {daemon_.get(), service_.get()},
                                  .accept = {}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    AddShard("ps-0");
    worker_ = std::make_unique<HandWorker>(server_->address(), Identity{PeerRole::kWorker, "w-0"},
                                           SecurityOf(PeerRole::kWorker));
    stub_ = CoordinatorService::NewStub(
        MakeChannel(server_->address(), SecurityOf(PeerRole::kClient), {PeerRole::kCoordinator}));
  }

  // How processes of this role protect their links. One object per role.
  virtual std::shared_ptr<const LinkSecurity> SecurityOf(PeerRole) { return nullptr; }

  // Waits injected into the shards.
  virtual ShardInjections Injections() { return {}; }

  void AddShard(const std::string& name) {
    ShardOptions options;
    options.name = name;
    options.inject = Injections();
    options.coordinator = server_->address();
    options.security = SecurityOf(PeerRole::kShard);
    auto shard = StartShard(options, [](const absl::Status& status) { FAIL() << status; });
    ASSERT_TRUE(shard.ok()) << shard.status();
    shards_.push_back(*std::move(shard));
  }

  // Blocks until all added shards are registered.
  void AwaitShards() {
    const absl::Time deadline = absl::Now() + kLong;
    for (int ready = 0; ready < static_cast<int>(shards_.size());) {
      ASSERT_LT(absl::Now(), deadline);
      grpc::ClientContext context;
      AddIdentity({PeerRole::kClient, "me"}, &context);
      ListShardsReply reply;
      ASSERT_TRUE(stub_->ListShards(&context, ListShardsRequest(), &reply).ok());
      ready = 0;
      for (const ShardStatus& shard : reply.shards()) ready += shard.state() == "ready" ? 1 : 0;
    }
  }

  void TearDown() override {
    worker_.reset();
    const absl::Time begin = absl::Now();
    for (const auto& shard : shards_) shard->Stop();
    host_->BeginShutdown();
    server_.reset();
    EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  }

  absl::Status Submit(const JobSpec& spec) {
    grpc::ClientContext context;
    AddIdentity({PeerRole::kClient, "me"}, &context);
    SubmitRequest request;
    *request.mutable_spec() = spec;
    SubmitReply reply;
    return FromGrpc(stub_->Submit(&context, request, &reply));
  }

  absl::Status Delete(const std::string& job) {
    JobRequest request;
    request.set_name(job);
    Empty reply;
    {
      grpc::ClientContext context;
      AddIdentity({PeerRole::kClient, "me"}, &context);
      const absl::Status status = FromGrpc(stub_->CancelJob(&context, request, &reply));
      if (!status.ok()) return status;
    }
    grpc::ClientContext context;
    AddIdentity({PeerRole::kClient, "me"}, &context);
    return FromGrpc(stub_->DeleteJob(&context, request, &reply));
  }

  JobReply Described(const std::string& job) {
    grpc::ClientContext context;
    AddIdentity({PeerRole::kClient, "me"}, &context);
    JobRequest request;
    request.set_name(job);
    JobReply reply;
    const grpc::Status status = stub_->GetJob(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  JobStatus Status(const std::string& job) { return Described(job).status(); }

  // Submits the job; returns when it is accepted and the worker is a member with streams to the
  // shards.
  void BeginJob(Policy::Kind policy, uint32_t hidden = 8) { BeginJob(Spec("job", policy, hidden)); }
  void BeginJob(const JobSpec& spec) {
    worker_->Register();
    std::future<absl::Status> submitted =
        std::async(std::launch::async, [=, this] { return Submit(spec); });
    const absl::Time deadline = absl::Now() + kLong;
    while (!worker_->IsMember()) {
      ASSERT_LT(absl::Now(), deadline);
      ASSERT_NO_FATAL_FAILURE(worker_->Report());
    }
    const absl::Status status = submitted.get();
    ASSERT_TRUE(status.ok()) << status;
    worker_->Connect();
  }

  std::unique_ptr<coordinator::CoordinatorHost> host_;
  std::shared_ptr<grpc::Service> daemon_;
  std::shared_ptr<grpc::Service> service_;
  std::unique_ptr<RpcServer> server_;
  std::vector<std::unique_ptr<ShardRuntime>> shards_;
  std::unique_ptr<HandWorker> worker_;
  std::unique_ptr<CoordinatorService::Stub> stub_;
};

}  // namespace starling

#endif  // STARLING_TESTS_INTEGRATION_HAND_CLUSTER_H_
