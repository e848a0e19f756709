// The real coordinator and a real shard in one process, over real gRPC, against a worker written by
// hand: what is pushed is counted once and what is pulled is exactly that.
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
#include "common/daemon/coordinator_client.h"
#include "common/placement/layout.h"
#include "common/transport/grpc_util.h"
#include "common/transport/transport.h"
#include "proto/coordinator_service.grpc.pb.h"
#include "server/coordinator/service/coordinator_host.h"
#include "server/coordinator/store/memory_store.h"
#include "server/shard/apply/verify.h"
#include "server/shard/service/shard_runtime.h"

namespace starling {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);  // only ever reached by a failure
constexpr uint64_t kSamples = 40;
constexpr uint32_t kBatch = 4;
constexpr uint32_t kMicroBatches = 4;
constexpr uint32_t kSteps = kSamples / kBatch;
constexpr float kRate = 0.5f;

void AddHidden(JobSpec& spec, int64_t size) {
  (*spec.mutable_model_source()->mutable_arguments())["hidden"].mutable_ints()->add_values(size);
}

JobSpec Spec(const std::string& name, Policy::Kind policy, uint32_t hidden = 8) {
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

// Answers of a shard, by request.
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
  HandWorker(const std::string& coordinator, const Identity& self)
      : self_(self),
        client_(MakeCoordinatorClient(coordinator, self)),
        streams_(MakeStreamClient(self)) {}

  void Register() {
    std::promise<absl::StatusOr<RegisterReply>> done;
    client_->Register(MakeRegisterRequest(self_, "127.0.0.1:1"), kLong,
                      [&](auto reply) { done.set_value(std::move(reply)); });
    const absl::StatusOr<RegisterReply> reply = done.get_future().get();
    ASSERT_TRUE(reply.ok()) << reply.status();
    ASSERT_EQ(reply->refused(), "");
    identity_ = *reply;
  }

  void Report() {
    WorkerReport report;
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
    if (!orders->unchanged()) orders_ = *orders;
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
    // A partition that is not there is asked for somewhere.
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

  Mailbox::Letter Ask(const FrameHeader& header, OutgoingPayload payload = {}, int64_t urgency = 0) {
    EXPECT_TRUE(Send(header, std::move(payload), urgency).ok());
    return mail_->Await(header.request_id);
  }

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
    *payload = {absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(copy->data()),
                                    header.payload_bytes),
                copy};
    header.digest = VerifyPayload(Payload(&payload->bytes, 1)).digest;
    return header;
  }

  Clock Enter() {
    Clock clock = 0;
    for (uint32_t p = 0; p < layout_.partitions.size(); ++p) {
      FrameHeader enter = Header(FrameType::kClose, PartitionId(p), 0);
      enter.flags = frame_flags::kEnter;
      // The shard may hear of the job after its worker: then it is asked again.
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

  // One step: all slices pushed, all partitions closed.
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

  // The answers to one push of each slice, in a step of which some may be refused.
  std::vector<Answer> PushAll(uint64_t step, const std::function<float(size_t slice)>& gradient) {
    std::vector<Answer> answers;
    for (size_t s = 0; s < layout_.slices.size(); ++s) {
      const Slice& slice = layout_.slices[s];
      OutgoingPayload payload;
      const FrameHeader push = PushHeader(slice, step, static_cast<Clock>(step),
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

  // The same job, read by somebody who is no member.
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
    auto host = CoordinatorHost::Start({}, std::make_unique<MemoryStore>(),
                                       [](const absl::Status& status) { FAIL() << status; });
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    service_ = MakeCoordinatorService(host_.get());
    auto server = StartRpcServer({.listen = "127.0.0.1:0",
                                  .self = {PeerRole::kCoordinator, "coordinator"},
                                  .services = {service_.get()},
                                  .accept = {}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    AddShard("ps-0");
    worker_ = std::make_unique<HandWorker>(server_->address(), Identity{PeerRole::kWorker, "w-0"});
    stub_ = CoordinatorService::NewStub(MakeChannel(server_->address()));
  }

  void AddShard(const std::string& name) {
    ShardOptions options;
    options.name = name;
    options.coordinator = server_->address();
    auto shard = StartShard(options, [](const absl::Status& status) { FAIL() << status; });
    ASSERT_TRUE(shard.ok()) << shard.status();
    shards_.push_back(*std::move(shard));
  }

  // As many of them as were added are registered.
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

  JobStatus Status(const std::string& job) {
    grpc::ClientContext context;
    AddIdentity({PeerRole::kClient, "me"}, &context);
    JobRequest request;
    request.set_name(job);
    JobReply reply;
    const grpc::Status status = stub_->GetJob(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.status();
  }

  // Submitted, accepted, and the worker a member with a stream to the shard.
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

  std::unique_ptr<CoordinatorHost> host_;
  std::shared_ptr<grpc::Service> service_;
  std::unique_ptr<RpcServer> server_;
  std::vector<std::unique_ptr<ShardRuntime>> shards_;
  std::unique_ptr<HandWorker> worker_;
  std::unique_ptr<CoordinatorService::Stub> stub_;
};

// Every gradient is 1 everywhere: its norm is the root of the number of parameters.
class GlobalClipTest : public ClusterTest {
 protected:
  // All values after 12 steps, with so many shards.
  std::vector<float> Train(int shards) {
    for (int i = 1; i < shards; ++i) AddShard(absl::StrCat("ps-", i));
    AwaitShards();
    JobSpec spec = Spec("job", Policy::BSP);
    spec.mutable_clip()->set_scope(Clip::GLOBAL);
    spec.mutable_clip()->set_norm(0.5);
    BeginJob(spec);
    if (testing::Test::HasFailure()) return {};
    EXPECT_EQ(worker_->shards(), static_cast<size_t>(shards));
    worker_->Enter();
    const std::vector<float> before = worker_->PullAll(0);
    for (uint64_t step = 0; step < 12 && !testing::Test::HasFailure(); ++step)
      worker_->Step(step, static_cast<Clock>(step));
    const std::vector<float> after = worker_->PullAll(12);
    const auto scale = static_cast<float>(
        0.5 / (std::sqrt(static_cast<double>(before.size())) + 1e-6));
    for (size_t i = 0; i < after.size(); ++i) {
      float expected = before[i];
      for (int step = 0; step < 12; ++step) expected = expected - kRate * scale;
      EXPECT_EQ(after[i], expected) << "element " << i;
    }
    return after;
  }
};

TEST_F(GlobalClipTest, OneShardDecidesForItself) { Train(1); }

// The job has two partitions.
TEST_F(GlobalClipTest, TwoShardsAgree) { Train(2); }

class CoordinatorShardTest : public ClusterTest, public testing::WithParamInterface<Policy::Kind> {};

TEST_P(CoordinatorShardTest, WhatIsPushedIsWhatIsPulledAndTheJobEnds) {
  ASSERT_NO_FATAL_FAILURE(BeginJob(GetParam()));
  const Clock first = worker_->Enter();
  EXPECT_EQ(first, 0);
  const std::vector<float> before = worker_->PullAll(0);
  float energy = 0;
  for (const float value : before) energy += value * value;
  EXPECT_GT(energy, 0) << "weights are initialised";
  for (uint64_t step = 0; step < 2 * kSteps; ++step) {
    ASSERT_NO_FATAL_FAILURE(worker_->Step(step, static_cast<Clock>(step)));
    if (step % 5 == 4) {
      ASSERT_NO_FATAL_FAILURE(worker_->Report());
    }
  }
  const std::vector<float> after = worker_->PullAll(2 * kSteps);
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i) {
    float expected = before[i];
    for (uint64_t step = 0; step < 2 * kSteps; ++step) expected = expected - kRate * 1.0f;
    ASSERT_EQ(after[i], expected) << "element " << i;
  }

  const absl::Time deadline = absl::Now() + kLong;
  while (Status("job").state() == RUNNING && absl::Now() < deadline) worker_->Report();
  const JobStatus status = Status("job");
  EXPECT_EQ(status.state(), SUCCEEDED) << status.reason();
  EXPECT_EQ(status.coverage_min(), kSteps);
  EXPECT_EQ(status.coverage_max(), kSteps);

  // A finished job's parameters stay, for readers.
  HandWorker reader(server_->address(), {PeerRole::kClient, "reader"});
  reader.ReadAs(*worker_);
  EXPECT_EQ(reader.PullAll(0, frame_flags::kReader), after);
}

TEST_P(CoordinatorShardTest, WrongRequestsAreRefusedByName) {
  ASSERT_NO_FATAL_FAILURE(BeginJob(GetParam()));
  worker_->Enter();
  const Slice& slice = worker_->layout().slices[0];
  const std::vector<float> gradient(slice.elements, 1.0f);
  OutgoingPayload payload;

  FrameHeader bad_digest = worker_->PushHeader(slice, 0, 0, gradient, &payload);
  bad_digest.digest ^= 1;
  EXPECT_EQ(worker_->Ask(bad_digest, payload).header.answer, Answer::kBadDigest);

  FrameHeader elsewhere = worker_->PushHeader(slice, 0, 0, gradient, &payload);
  elsewhere.partition = PartitionId(1'000'000);
  EXPECT_EQ(worker_->Ask(elsewhere, payload).header.answer, Answer::kNotHosted);

  FrameHeader other_run = worker_->PushHeader(slice, 0, 0, gradient, &payload);
  other_run.key.run.era += 1;
  EXPECT_EQ(worker_->Ask(other_run, payload).header.answer, Answer::kStaleRun);

  FrameHeader zombie = worker_->PushHeader(slice, 0, 0, gradient, &payload);
  zombie.origin.incarnation = Incarnation(zombie.origin.incarnation.value + 1000);
  EXPECT_EQ(worker_->Ask(zombie, payload).header.answer, Answer::kStaleIncarnation);

  ASSERT_NO_FATAL_FAILURE(worker_->Step(0, 0));
  const FrameHeader again = worker_->PushHeader(slice, 0, 0, gradient, &payload);
  EXPECT_EQ(worker_->Ask(again, payload).header.answer, Answer::kAlreadyCounted);

  std::vector<float> spoiled = gradient;
  spoiled[slice.elements / 2] = std::nanf("");
  const FrameHeader non_finite = worker_->PushHeader(slice, 1, 1, spoiled, &payload);
  const Mailbox::Letter refused = worker_->Ask(non_finite, payload);
  EXPECT_EQ(refused.header.answer, Answer::kNonFinite);
  EXPECT_NE(refused.text.find(worker_->orders().job().spec().model().parameters(0).name()),
            std::string::npos)
      << refused.text;
  // The job stops, says why, and keeps what it had.
  const absl::Time deadline = absl::Now() + kLong;
  while (Status("job").state() == RUNNING && absl::Now() < deadline) worker_->Report();
  EXPECT_EQ(Status("job").state(), FAILED);
}

// A NaN in the last slice's gradient of step 1: the slices before have sealed it, and the job ends. What a
// reader gets is step 1's beginning, for all slices.
TEST_F(ClusterTest, ABspJobThatEndsInAStepIsReadAsItWasBefore) {
  ASSERT_NO_FATAL_FAILURE(BeginJob(Policy::BSP));
  worker_->Enter();
  ASSERT_NO_FATAL_FAILURE(worker_->Step(0, 0));
  const std::vector<float> before = worker_->PullAll(1);
  const size_t last = worker_->layout().slices.size() - 1;
  ASSERT_GT(last, 0u);
  const std::vector<Answer> answers =
      worker_->PushAll(1, [&](size_t slice) { return slice == last ? std::nanf("") : 1.0f; });
  EXPECT_EQ(answers.front(), Answer::kCounted);
  EXPECT_EQ(answers.back(), Answer::kNonFinite);
  const absl::Time deadline = absl::Now() + kLong;
  while (Status("job").state() == RUNNING && absl::Now() < deadline) worker_->Report();
  JobStatus status = Status("job");
  while (status.sealed_steps() != 1 && absl::Now() < deadline) status = Status("job");
  EXPECT_EQ(status.state(), FAILED);
  EXPECT_EQ(status.sealed_steps(), 1u);

  HandWorker reader(server_->address(), {PeerRole::kClient, "reader"});
  reader.ReadAs(*worker_);
  EXPECT_NE(reader.PullAll(0, frame_flags::kReader), before) << "the newest are of two versions";
  EXPECT_EQ(reader.PullAll(1, frame_flags::kReader | frame_flags::kVersion), before);
}

// Whatever a client sends, it cannot change a job's parameters.
TEST_F(ClusterTest, AClientMayOnlyRead) {
  ASSERT_NO_FATAL_FAILURE(BeginJob(Policy::SSP));
  worker_->Enter();
  const std::vector<float> before = worker_->PullAll(0);
  HandWorker client(server_->address(), {PeerRole::kClient, "reader"});
  client.ReadAs(*worker_);
  const Slice& slice = worker_->layout().slices[0];
  OutgoingPayload payload;
  // In the name of a member.
  const FrameHeader push = worker_->PushHeader(slice, 0, 0, std::vector<float>(slice.elements, 1.0f), &payload);
  EXPECT_EQ(client.Ask(push, payload).header.answer, Answer::kBadFrame);
  FrameHeader close = worker_->Header(FrameType::kClose, slice.partition, 0);
  close.flags = frame_flags::kPark;
  EXPECT_EQ(client.Ask(close).header.answer, Answer::kBadFrame);
  EXPECT_EQ(client.PullAll(0, frame_flags::kReader), before);
}

// A worker that takes another's place in a frame is told so; the other goes on.
TEST_F(ClusterTest, NoWorkerSpeaksForAnother) {
  ASSERT_NO_FATAL_FAILURE(BeginJob(Policy::SSP));
  worker_->Enter();
  HandWorker other(server_->address(), {PeerRole::kWorker, "w-1"});
  other.ReadAs(*worker_);
  FrameHeader park = worker_->Header(FrameType::kClose, worker_->layout().slices[0].partition, 0);
  park.flags = frame_flags::kPark;
  const Mailbox::Letter refused = other.Ask(park);
  EXPECT_EQ(refused.header.answer, Answer::kBadFrame);
  EXPECT_NE(refused.text.find("w-1 is not worker"), std::string::npos) << refused.text;
  ASSERT_NO_FATAL_FAILURE(worker_->Step(0, 0));
}

// Job specifications made by hand, past the client: the daemons refuse or run them, and live.
TEST_F(ClusterTest, NoSpecificationEndsADaemon) {
  worker_->Register();
  const auto submit = [&](const JobSpec& spec) {
    std::future<absl::Status> reply = std::async(std::launch::async, [&] { return Submit(spec); });
    while (reply.wait_for(std::chrono::seconds(0)) != std::future_status::ready) worker_->Report();
    return reply.get();
  };
  const auto layers = [](const std::string& op, const std::vector<std::pair<std::string, int64_t>>& attributes) {
    return [=](JobSpec& spec) {
      spec.mutable_model_source()->Clear();
      ModelSource::Layer& layer = *spec.mutable_model_source()->add_layers();
      layer.set_op(op);
      for (const auto& [name, value] : attributes) (*layer.mutable_attributes())[name].set_i(value);
    };
  };
  const auto graph = [](const std::function<void(Graph&)>& fill) {
    return [=](JobSpec& spec) {
      spec.clear_model_source();
      fill(*spec.mutable_model());
    };
  };
  const std::vector<std::function<void(JobSpec&)>> spoilers = {
      [](JobSpec& spec) { spec.Clear(); },
      [](JobSpec& spec) { spec.set_name(std::string("a\0b", 3)); },
      [](JobSpec& spec) { spec.set_name(std::string(1 << 20, 'a')); },
      [](JobSpec& spec) { spec.mutable_batch()->set_global(0); },
      [](JobSpec& spec) { spec.mutable_batch()->set_global(UINT32_MAX); },
      [](JobSpec& spec) { spec.mutable_batch()->set_micro_batches(1u << 31); },
      [](JobSpec& spec) { spec.mutable_batch()->set_kernel_threads(UINT32_MAX); },
      [](JobSpec& spec) { spec.set_workers_max(UINT32_MAX); },
      [](JobSpec& spec) { spec.mutable_stop()->set_epochs(UINT32_MAX); },
      [](JobSpec& spec) { spec.mutable_stop()->set_epochs(0); },
      [](JobSpec& spec) { spec.mutable_stop()->set_wall_time_seconds(-INFINITY); },
      [](JobSpec& spec) { spec.mutable_evaluate()->set_every_epochs(UINT32_MAX); },
      [](JobSpec& spec) { spec.mutable_policy()->set_kind(static_cast<Policy::Kind>(-1)); },
      [](JobSpec& spec) { spec.mutable_optimizer()->Clear(); },
      [](JobSpec& spec) { spec.mutable_optimizer()->mutable_learning_rate()->mutable_step()->set_every_steps(0); },
      [](JobSpec& spec) { spec.add_sample_shape(INT64_MIN); },
      [](JobSpec& spec) { for (int i = 0; i < 4; ++i) spec.add_sample_shape(INT64_MAX); },
      [](JobSpec& spec) { AddHidden(spec, INT64_MAX); },
      [](JobSpec& spec) {
        auto& arguments = *spec.mutable_model_source()->mutable_arguments();
        arguments["hidden"].mutable_ints()->set_values(0, -1);
      },
      [](JobSpec& spec) { for (int i = 0; i < 200'000; ++i) AddHidden(spec, 1); },
      [](JobSpec& spec) { spec.mutable_train()->mutable_counter()->set_samples(INT64_MIN); },
      layers("", {}),
      layers("conv2d", {{"out_channels", INT64_MAX}, {"kernel", INT64_MAX}}),
      layers("linear", {{"out_features", (int64_t{1} << 24) + 1}}),
      layers("gather_rows", {{"rows", 3}}),
      graph([](Graph& g) { g.add_nodes(); }),
      graph([](Graph& g) {
        g.mutable_input()->set_name("x");
        g.mutable_input()->add_shape(4);
        Node& node = *g.add_nodes();
        node.set_name("n");
        node.set_op("linear");
        node.add_inputs("n");  // itself
        (*node.mutable_attributes())["out_features"].set_i(3);
      }),
      graph([](Graph& g) {
        for (int i = 0; i < 100'000; ++i) g.add_parameters()->add_shape(-1);
        g.add_nodes()->set_op("negative_sum");
      }),
  };
  for (size_t i = 0; i < spoilers.size(); ++i) {
    JobSpec spec = Spec("job", Policy::SSP);
    spoilers[i](spec);
    const absl::Status status = submit(spec);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << "spoiler " << i << ": " << status;
  }
  // Far more steps than a lifetime has is no mistake.
  JobSpec endless = Spec("endless", Policy::SSP);
  endless.mutable_stop()->set_steps(UINT64_MAX);
  const absl::Status status = submit(endless);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(Status("endless").steps(), 2 * kSteps);
}

// Answers nothing and lets nothing go.
class Hoarder : public StreamHandler {
 public:
  void OnFrame(const FrameHeader&, ReceivedPayload payload) override {
    absl::MutexLock lock(&mutex_);
    kept_.push_back(std::move(payload));
  }
  void OnDown(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    down_ = status;
  }
  absl::Status AwaitDown() {
    absl::MutexLock lock(&mutex_);
    const auto over = [&] { return down_.has_value(); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&over), kLong));
    return down_.value_or(absl::OkStatus());
  }

 private:
  absl::Mutex mutex_;
  std::vector<ReceivedPayload> kept_;
  std::optional<absl::Status> down_;
};

TEST_P(CoordinatorShardTest, WhoAsksForMoreThanItReadsIsCutOff) {
  ASSERT_NO_FATAL_FAILURE(BeginJob(GetParam(), /*hidden=*/4000));
  worker_->Enter();
  const auto streams = MakeStreamClient({PeerRole::kClient, "hoarder"});
  const auto hoarder = std::make_shared<Hoarder>();
  const auto stream = streams->Connect(
      {.address = worker_->orders().views(0).primary_address(), .whom = "the shard"}, hoarder);
  const Slice& slice = worker_->layout().slices[0];
  FrameHeader pull = worker_->Header(FrameType::kPull, slice.partition, 0);
  pull.key.slice = slice.id;
  pull.flags = frame_flags::kReader;
  uint64_t values = 0;
  for (const Slice& each : worker_->layout().slices) values += each.elements * sizeof(float);
  // The window, what may wait, and what more is surely too much.
  const uint64_t pulls =
      2 * (2 * limits::kStreamInFlightBytesMax + 2 * values) / (slice.elements * sizeof(float));
  for (uint64_t i = 0; i < pulls; ++i) {
    if (!stream->Send(pull).ok()) break;  // it is over already
  }
  const absl::Status status = hoarder->AwaitDown();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find("asks for more than it reads"), absl::string_view::npos) << status;
  // The others go on.
  ASSERT_NO_FATAL_FAILURE(worker_->Step(0, 0));
}

INSTANTIATE_TEST_SUITE_P(Policies, CoordinatorShardTest,
                         testing::Values(Policy::BSP, Policy::SSP, Policy::ASYNC),
                         [](const auto& info) { return Policy::Kind_Name(info.param); });

}  // namespace
}  // namespace starling
