// The client's two network paths, gRPC calls and frame streams, against real servers.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/transport/grpc_util.h"
#include "common/values/slice_reader.h"
#include "proto/coordinator_service.grpc.pb.h"
#include "tools/cli/grpc_client.h"

namespace starling::cli {
namespace {

using ::testing::HasSubstr;

// ---- Calls ----------------------------------------------------------------------------------

class FakeService : public CoordinatorService::Service {
 public:
  grpc::Status GetJob(grpc::ServerContext* context, const JobRequest* request,
                      JobReply* reply) override {
    const auto caller = CheckCaller(*context);
    if (!caller.ok()) return ToGrpc(caller.status());
    has_deadline_ =
        context->deadline() < std::chrono::system_clock::now() + std::chrono::minutes(5);
    if (request->name() != "digits")
      return ToGrpc(absl::NotFoundError("no job is called " + request->name()));
    reply->mutable_status()->set_name(caller->identity.name);
    return grpc::Status::OK;
  }
  // The first attempt's answer is lost.
  grpc::Status DeleteJob(grpc::ServerContext*, const JobRequest*, Empty*) override {
    if (deletes_++ == 0) return ToGrpc(absl::UnavailableError("connection reset"));
    return ToGrpc(absl::NotFoundError("no such job"));
  }
  // The same submission is retried until it is answered. One without a nonce never is.
  grpc::Status Submit(grpc::ServerContext* context, const SubmitRequest* request,
                      SubmitReply* reply) override {
    while (request->nonce() == 0 && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    nonces_.push_back(request->nonce());
    if (nonces_.size() < 3) return ToGrpc(absl::UnavailableError("starting"));
    reply->set_uid(7);
    return grpc::Status::OK;
  }
  grpc::Status CreateCheckpoint(grpc::ServerContext* context,
                                const CreateCheckpointRequest* request,
                                CreateCheckpointReply* reply) override {
    while (request->nonce() == 0 && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    nonces_.push_back(request->nonce());
    if (nonces_.size() < 3) return ToGrpc(absl::UnavailableError("starting"));
    reply->mutable_checkpoint()->set_id("c-1-1");
    return grpc::Status::OK;
  }
  // Pages of one.
  grpc::Status ListCheckpoints(grpc::ServerContext*, const ListCheckpointsRequest* request,
                               ListCheckpointsReply* reply) override {
    const bool second = request->page().after() == "1";
    reply->add_checkpoints()->set_id(
        absl::StrCat("checkpoint ", second ? 2 : 1, " of ", request->name()));
    if (!second) reply->set_next("1");
    return grpc::Status::OK;
  }
  grpc::Status DeleteCheckpoint(grpc::ServerContext*, const DeleteCheckpointRequest*,
                                Empty*) override {
    if (deletes_++ == 0) return ToGrpc(absl::UnavailableError("connection reset"));
    return ToGrpc(absl::NotFoundError("no such checkpoint"));
  }
  bool has_deadline_ = false;
  int deletes_ = 0;
  std::vector<uint64_t> nonces_;
};

class CallsTest : public ::testing::Test {
 protected:
  CallsTest() {
    RpcServer::Options options{.listen = "127.0.0.1:0",
                               .self = {PeerRole::kCoordinator, "coordinator"}};
    options.services = {&service_};
    server_ = *StartRpcServer(std::move(options));
    client_ = MakeGrpcClient({.address = server_->address()});
  }
  FakeService service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(CallsTest, CarryIdentityAndDeadline) {
  const auto reply = client_->GetJob("digits");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->status().name(), "cli");
  EXPECT_TRUE(service_.has_deadline_);
}

TEST_F(CallsTest, TheCoordinatorsErrorsComeAsTheyAre) {
  const absl::Status status = client_->GetJob("nobody").status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(status.message(), "no job is called nobody");
}

TEST_F(CallsTest, ASubmissionIsTriedAgainWithItsNonce) {
  SubmitRequest request;
  request.set_nonce(42);
  const auto reply = client_->Submit(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_THAT(service_.nonces_, ::testing::ElementsAre(42, 42, 42));
}

TEST_F(CallsTest, ASubmissionWithoutAnAnswerIsAnInspectionThatTakesTooLong) {
  client_ =
      MakeGrpcClient({.address = server_->address(), .submit_deadline = absl::Milliseconds(200)});
  const absl::Status status = client_->Submit({}).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the inspection of the data takes too long: the coordinator at"));
}

TEST_F(CallsTest, ADeletionWhoseAnswerWasLostIsDone) {
  EXPECT_TRUE(client_->DeleteJob("digits").ok());
  EXPECT_TRUE(absl::IsNotFound(client_->DeleteJob("digits")));
}

TEST_F(CallsTest, ACheckpointIsAskedForAgainWithItsNonce) {
  CreateCheckpointRequest request;
  request.set_nonce(42);
  const auto reply = client_->CreateCheckpoint(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->checkpoint().id(), "c-1-1");
  EXPECT_THAT(service_.nonces_, ::testing::ElementsAre(42, 42, 42));
}

TEST_F(CallsTest, ACheckpointWithoutAnAnswerTakesTooLong) {
  client_ = MakeGrpcClient(
      {.address = server_->address(), .checkpoint_deadline = absl::Milliseconds(200)});
  const absl::Status status = client_->CreateCheckpoint({}).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the checkpoint takes too long: the coordinator at"));
}

TEST_F(CallsTest, AllCheckpointsAreListed) {
  const auto reply = client_->ListCheckpoints("digits");
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->checkpoints_size(), 2);
  EXPECT_EQ(reply->checkpoints(1).id(), "checkpoint 2 of digits");
}

TEST_F(CallsTest, ADeletedCheckpointIsDoneLikeADeletedJob) {
  EXPECT_TRUE(client_->DeleteCheckpoint("c-1-1").ok());
  EXPECT_TRUE(absl::IsNotFound(client_->DeleteCheckpoint("c-1-1")));
}

TEST(Unreachable, SaysWhoWhereHowLongAndWhatWouldHelp) {
  // A port that was free a moment ago.
  std::string address;
  {
    RpcServer::Options options{.listen = "127.0.0.1:0",
                               .self = {PeerRole::kCoordinator, "coordinator"}};
    address = (*StartRpcServer(std::move(options)))->address();
  }
  const auto client = MakeGrpcClient({.address = address, .patience = absl::Milliseconds(200)});
  const absl::Status status = client->ListJobs({}).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  for (const std::string& part :
       {"the coordinator at " + address, std::string("was not reached for 0."),
        std::string("last error: "), std::string("starling local up")}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

// ---- Streams --------------------------------------------------------------------------------

// Answers pulls with the flat buffer 0, 1, 2, ..., out of order, as a shard may.
class FakeShard {
 public:
  FakeShard(const Layout& layout, uint32_t damaged_slice, uint32_t refused_slice)
      : layout_(layout), damaged_(damaged_slice), refused_(refused_slice) {
    RpcServer::Options options{.listen = "127.0.0.1:0", .self = {PeerRole::kShard, "shard"}};
    options.accept = [this](std::shared_ptr<FrameStream> stream,
                            const PeerIdentity&) -> absl::StatusOr<std::shared_ptr<StreamHandler>> {
      return std::make_shared<Handler>(this, std::move(stream));
    };
    server_ = *StartRpcServer(std::move(options));
  }
  std::string address() const { return server_->address(); }
  std::vector<FrameHeader> pulls() {
    absl::MutexLock lock(&mutex_);
    return pulls_;
  }

 private:
  struct Handler : StreamHandler {
    Handler(FakeShard* shard, std::shared_ptr<FrameStream> stream)
        : shard(shard), stream(std::move(stream)) {}
    void OnFrame(const FrameHeader& pull, ReceivedPayload) override {
      absl::MutexLock lock(&shard->mutex_);
      shard->pulls_.push_back(pull);
      held.push_back(pull);
      // Pairs are answered in reverse; the last slices at once, as no other may follow.
      if (held.size() < 2 && pull.key.slice.value + 4 < shard->layout_.slices.size()) return;
      for (; !held.empty(); held.pop_back()) shard->Answer(held.back(), *stream);
    }
    void OnDown(const absl::Status&) override {}
    FakeShard* shard;
    std::shared_ptr<FrameStream> stream;
    std::vector<FrameHeader> held;
  };

  void Answer(FrameHeader header, FrameStream& stream) {
    const Slice& slice = layout_.slices[header.key.slice.value];
    if (slice.id.value == refused_) {
      const auto text = std::make_shared<std::string>("no copy of that epoch is here");
      header.type = FrameType::kError;
      header.kind = PayloadKind::kText;
      header.answer = Answer::kStaleClock;
      header.payload_bytes = text->size();
      const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(text->data()),
                                            text->size());
      ASSERT_TRUE(stream.Send(header, {bytes, text}, 0).ok());
      return;
    }
    const auto values = std::make_shared<std::vector<float>>(slice.elements);
    std::iota(values->begin(), values->end(), static_cast<float>(slice.flat_begin));
    header.type = FrameType::kValue;
    header.kind = PayloadKind::kDense;
    header.elements = slice.elements;
    header.payload_bytes = 4 * slice.elements;
    header.digest =
        XXH3_64bits(values->data(), header.payload_bytes) + (slice.id.value == damaged_ ? 1 : 0);
    const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(values->data()),
                                          header.payload_bytes);
    // A reader that got a damaged slice, or none, may leave before its next pull is answered.
    const bool may_leave = damaged_ < layout_.slices.size() || refused_ < layout_.slices.size();
    const absl::Status sent = stream.Send(header, {bytes, values}, 0);
    ASSERT_TRUE(sent.ok() || (may_leave && absl::IsUnavailable(sent))) << sent;
  }

  const Layout& layout_;
  const uint32_t damaged_, refused_;
  absl::Mutex mutex_;
  std::vector<FrameHeader> pulls_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<RpcServer> server_;
};

constexpr uint32_t kNone = ~0u;

class StreamsTest : public ::testing::Test {
 protected:
  StreamsTest() {
    Graph model;
    Parameter* parameter = model.add_parameters();
    parameter->set_name("w");
    parameter->add_shape(1000);
    parameter->add_shape(2700);  // 11 slices
    parameter->set_kind(TRAINABLE);
    layout_ = *MakeLayout(model);
    job_.mutable_status()->set_uid(5);
    job_.mutable_status()->set_era(1);
  }

  absl::Status Read(const std::vector<std::string>& shards, const ReadPoint& point = {}) {
    job_.clear_views();
    for (uint32_t partition = 0; partition < layout_.partitions.size(); ++partition) {
      View* view = job_.add_views();
      view->set_partition(partition);
      view->set_number(partition + 1);
      view->set_primary(partition % shards.size() + 1);
      view->set_primary_address(shards[partition % shards.size()]);
    }
    values_.clear();
    const auto client = MakeStreamClient({PeerRole::kClient, "cli"});
    return ReadSlices(*client, job_, layout_, point, MonotonicNow() + absl::Seconds(30),
                      [this](const Slice&, absl::Span<const float> values) {
                        values_.insert(values_.end(), values.begin(), values.end());
                        return absl::OkStatus();
                      });
  }

  Layout layout_;
  JobReply job_;
  std::vector<float> values_;
};

TEST_F(StreamsTest, SlicesOfTwoShardsComeInOrder) {
  FakeShard a(layout_, kNone, kNone), b(layout_, kNone, kNone);
  const absl::Status status = Read({a.address(), b.address()}, {.epoch = 3});
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(values_.size(), 2'700'000u);
  for (size_t i = 0; i < values_.size(); ++i) ASSERT_EQ(values_[i], static_cast<float>(i));
  const FrameHeader pull = a.pulls().at(0);
  EXPECT_EQ(pull.flags, frame_flags::kReader);
  EXPECT_EQ(pull.key.run.job.value, 5u);
  EXPECT_EQ(pull.key.run.era, 1u);
  EXPECT_EQ(pull.key.work.purpose, WorkPurpose::kEvaluate);
  EXPECT_EQ(pull.key.work.epoch, 3u);
  EXPECT_EQ(pull.view.value, pull.partition.value + 1);
}

TEST_F(StreamsTest, AVersionIsAskedForByItsNumber) {
  FakeShard shard(layout_, kNone, kNone);
  const absl::Status status = Read({shard.address()}, {.versions = {{0, 17}}});
  ASSERT_TRUE(status.ok()) << status;
  const FrameHeader pull = shard.pulls().at(0);
  EXPECT_EQ(pull.flags, frame_flags::kReader | frame_flags::kVersion);
  EXPECT_EQ(pull.clock, 17);
  EXPECT_EQ(pull.key.work.purpose, WorkPurpose::kNone);
}

TEST_F(StreamsTest, ADamagedSliceIsRefused) {
  FakeShard shard(layout_, 4, kNone);
  const absl::Status status = Read({shard.address()});
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(shard.pulls().at(0).key.work.purpose, WorkPurpose::kNone);
}

TEST_F(StreamsTest, ARefusalIsQuoted) {
  FakeShard shard(layout_, kNone, 4);
  const absl::Status status = Read({shard.address()});
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("shard 1 at ", shard.address())));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no copy of that epoch is here"));
}

TEST_F(StreamsTest, APartitionThatNobodyHoldsIsNamed) {
  job_.clear_views();
  const auto client = MakeStreamClient({PeerRole::kClient, "cli"});
  const absl::Status status =
      ReadSlices(*client, job_, layout_, {}, MonotonicNow() + absl::Seconds(30),
                 [](const Slice&, absl::Span<const float>) { return absl::OkStatus(); });
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("partition 0"));
}

}  // namespace
}  // namespace starling::cli
