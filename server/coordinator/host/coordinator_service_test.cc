// The coordinator's service over loopback, with the real core behind it.
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/daemon/coordinator_client.h"
#include "common/transport/grpc_util.h"
#include "common/transport/transport.h"
#include "common/version/version.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/empty.pb.h"
#include "proto/coordinator_service.grpc.pb.h"
#include "server/coordinator/core/testing/mini_cluster.h"
#include "server/coordinator/host/coordinator_host.h"
#include "server/coordinator/host/coordinator_service.h"
#include "server/coordinator/store/testing/memory_store.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);

// A store that fails from a given moment on, or takes its time.
class FailingStore final : public StateStore {
 public:
  FailingStore(std::atomic<bool>* fails, std::atomic<bool>* hangs) : fails_(fails), hangs_(hangs) {}
  absl::Status Apply(const StoreBatch& batch) override {
    while (*hangs_) absl::SleepFor(absl::Milliseconds(1));
    if (*fails_) return absl::UnavailableError("disk full");
    return memory_.Apply(batch);
  }
  absl::StatusOr<StoreSnapshot> Load() override { return memory_.Load(); }

 private:
  std::atomic<bool>* const fails_;
  std::atomic<bool>* const hangs_;
  MemoryStore memory_;
};

class CoordinatorServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    CoordinatorOptions options;
    options.tensorboard_root = testing::TempDir();
    auto host = CoordinatorHost::Start(
        options, {.store = std::make_unique<FailingStore>(&store_fails_, &store_hangs_),
                  .on_fatal = [this](const absl::Status& status) { fatal_.set_value(status); }});
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    service_ = MakeCoordinatorService(host_.get());
    auto server = StartRpcServer({.listen = "127.0.0.1:0",
                                  .self = {PeerRole::kCoordinator, "coordinator"},
                                  .services = {service_.get()},
                                  .accept = {}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  void TearDown() override {
    host_->BeginShutdown();
    server_.reset();
  }

  absl::StatusOr<RegisterReply> Register(CoordinatorClient* client,
                                         const RegisterRequest& request) {
    std::promise<absl::StatusOr<RegisterReply>> done;
    client->Register(request, kLong, [&](auto reply) { done.set_value(std::move(reply)); });
    return done.get_future().get();
  }

  std::atomic<bool> store_fails_ = false;
  std::atomic<bool> store_hangs_ = false;
  std::promise<absl::Status> fatal_;
  std::unique_ptr<CoordinatorHost> host_;
  std::shared_ptr<grpc::Service> service_;
  std::unique_ptr<RpcServer> server_;
  const Identity shard_{PeerRole::kShard, "ps-0"};
};

TEST_F(CoordinatorServiceTest, RegistersAndHoldsReports) {
  const auto client = MakeCoordinatorClient(server_->address(), shard_);
  const auto registered = Register(client.get(), MakeRegisterRequest(shard_, "127.0.0.1:1"));
  ASSERT_TRUE(registered.ok()) << registered.status();
  EXPECT_EQ(registered->refused(), "");
  EXPECT_GT(registered->id(), 0u);

  ShardReport report;
  report.set_shard(registered->id());
  report.set_incarnation(registered->incarnation());
  report.set_generation(registered->generation());
  for (int i = 1; i <= 3; ++i) {
    report.set_sequence(i);
    std::promise<absl::StatusOr<ShardOrders>> done;
    client->ReportShard(report, kLong, [&](auto orders) { done.set_value(std::move(orders)); });
    const absl::StatusOr<ShardOrders> orders = done.get_future().get();
    ASSERT_TRUE(orders.ok()) << orders.status();
    EXPECT_FALSE(orders->rejoin());
    report.set_orders_seen(orders->version());
  }

  const auto stub = CoordinatorService::NewStub(MakeChannel(server_->address()));
  grpc::ClientContext context;
  AddIdentity({PeerRole::kClient, "me"}, &context);
  ListShardsReply shards;
  ASSERT_TRUE(stub->ListShards(&context, {}, &shards).ok());
  ASSERT_EQ(shards.shards_size(), 1);
  EXPECT_EQ(shards.shards(0).name(), "ps-0");
}

// Heartbeats do not wait for the thread that waits for the disk.
TEST_F(CoordinatorServiceTest, TakesHeartbeatsWhileItsDiskHangs) {
  const auto client = MakeCoordinatorClient(server_->address(), shard_);
  const auto registered = Register(client.get(), MakeRegisterRequest(shard_, "127.0.0.1:1"));
  ASSERT_TRUE(registered.ok()) << registered.status();
  const Identity another{PeerRole::kShard, "ps-1"};
  const auto other = MakeCoordinatorClient(server_->address(), another);
  store_hangs_ = true;
  std::promise<absl::Status> waits;
  std::future<absl::Status> waiting = waits.get_future();
  other->Register(MakeRegisterRequest(another, "127.0.0.1:2"), kLong,
                  [&](auto reply) { waits.set_value(reply.status()); });
  HeartbeatRequest request;
  request.set_shard(registered->id());
  request.set_incarnation(registered->incarnation());
  for (int i = 0; i < 3; ++i) {
    std::promise<absl::Status> done;
    client->Heartbeat(request, kLong, [&](auto reply) { done.set_value(reply.status()); });
    EXPECT_TRUE(done.get_future().get().ok());
  }
  EXPECT_EQ(waiting.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  store_hangs_ = false;
  EXPECT_TRUE(waiting.get().ok());
}

TEST_F(CoordinatorServiceTest, OnlyShardsSendHeartbeats) {
  const auto client = MakeCoordinatorClient(server_->address(), {PeerRole::kWorker, "worker-0"});
  std::promise<absl::Status> done;
  client->Heartbeat({}, kLong, [&](auto reply) { done.set_value(reply.status()); });
  EXPECT_EQ(done.get_future().get().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(CoordinatorServiceTest, NobodyRegistersAsAnother) {
  const auto client = MakeCoordinatorClient(server_->address(), shard_);
  EXPECT_EQ(
      Register(client.get(), MakeRegisterRequest({PeerRole::kShard, "ps-1"}, "")).status().code(),
      absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(
      Register(client.get(), MakeRegisterRequest({PeerRole::kWorker, "ps-0"}, "")).status().code(),
      absl::StatusCode::kPermissionDenied);
  std::promise<absl::Status> done;
  client->ReportWorker({}, kLong, [&](auto orders) { done.set_value(orders.status()); });
  EXPECT_EQ(done.get_future().get().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(CoordinatorServiceTest, NobodyReportsForAnother) {
  const auto client = MakeCoordinatorClient(server_->address(), shard_);
  const auto registered = Register(client.get(), MakeRegisterRequest(shard_, "127.0.0.1:1"));
  ASSERT_TRUE(registered.ok()) << registered.status();
  ShardReport report;
  report.set_shard(registered->id());
  report.set_incarnation(registered->incarnation());
  report.set_sequence(1);
  const auto other = MakeCoordinatorClient(server_->address(), {PeerRole::kShard, "ps-1"});
  std::promise<absl::Status> done;
  other->ReportShard(report, kLong, [&](auto orders) { done.set_value(orders.status()); });
  EXPECT_EQ(done.get_future().get().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(CoordinatorServiceTest, UnknownJobIsNotFound) {
  const auto stub = CoordinatorService::NewStub(MakeChannel(server_->address()));
  grpc::ClientContext context;
  AddIdentity({PeerRole::kClient, "me"}, &context);
  JobRequest request;
  request.set_name("nothing");
  JobReply reply;
  EXPECT_EQ(stub->GetJob(&context, request, &reply).error_code(), grpc::StatusCode::NOT_FOUND);
}

// The disk is not touched for jobs that are refused anyway, or for dry runs.
TEST_F(CoordinatorServiceTest, AFolderForEventFilesIsMadeForGoodJobsAlone) {
  const auto stub = CoordinatorService::NewStub(MakeChannel(server_->address()));
  const std::string root = testing::TempDir(), folder = absl::StrCat(root, "/events");
  const auto submit = [&](const std::string& tensorboard, bool good, bool dry_run) {
    SubmitRequest request;
    *request.mutable_spec() = MiniCluster::Spec("job", Policy::SSP, 1, 1);
    request.mutable_spec()->set_tensorboard(tensorboard);
    if (!good) request.mutable_spec()->mutable_batch()->set_global(0);
    request.set_dry_run(dry_run);
    grpc::ClientContext context;
    AddIdentity({PeerRole::kClient, "me"}, &context);
    SubmitReply reply;
    const grpc::Status status = stub->Submit(&context, request, &reply);
    EXPECT_FALSE(status.ok()) << "there is no worker";
    return status.error_message();
  };
  for (const bool dry_run : {false, true}) {
    EXPECT_NE(submit(folder, false, dry_run).find("batch.global"), std::string::npos);
    EXPECT_NE(submit("events", true, dry_run).find("absolute path"), std::string::npos);
    EXPECT_NE(submit("/proc/nothing", true, dry_run).find("--tensorboard-root"), std::string::npos);
  }
  EXPECT_NE(submit(folder, true, true).find("no worker"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_NE(submit(folder, true, false).find("no worker"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_directory(folder));
  std::ofstream(absl::StrCat(root, "/in-the-way"));
  const std::string said = submit(absl::StrCat(root, "/in-the-way"), true, false);
  EXPECT_NE(said.find("cannot"), std::string::npos) << said;
}

// Every method of the service, found by reflection, so that a new one cannot be forgotten.
TEST_F(CoordinatorServiceTest, NoMethodServesAnonymousCallers) {
  const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
      "starling.CoordinatorService");
  ASSERT_NE(service, nullptr);
  ASSERT_GE(service->method_count(), 11);
  const auto channel = MakeChannel(server_->address());
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string path =
        absl::StrCat("/starling.CoordinatorService/", service->method(i)->name());
    grpc::internal::RpcMethod method(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC);
    grpc::ClientContext context;
    google::protobuf::Empty request, reply;  // an empty message of any type
    const grpc::Status status =
        grpc::internal::BlockingUnaryCall<google::protobuf::Empty, google::protobuf::Empty>(
            channel.get(), method, &context, request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << path;
  }
}

TEST_F(CoordinatorServiceTest, ManyHeldReportsHoldNoThreadsAndEndWithShutdown) {
  constexpr int kShards = 50;
  std::vector<std::unique_ptr<CoordinatorClient>> clients;
  std::vector<std::future<absl::Status>> answers;
  for (int i = 0; i < kShards; ++i) {
    const Identity self{PeerRole::kShard, absl::StrCat("ps-", i)};
    clients.push_back(MakeCoordinatorClient(server_->address(), self));
    const auto registered =
        Register(clients.back().get(), MakeRegisterRequest(self, "127.0.0.1:1"));
    ASSERT_TRUE(registered.ok()) << registered.status();
    auto done = std::make_shared<std::promise<absl::Status>>();
    answers.push_back(done->get_future());
    ShardReport report;
    report.set_shard(registered->id());
    report.set_incarnation(registered->incarnation());
    report.set_generation(registered->generation());
    report.set_sequence(1);
    clients.back()->ReportShard(report, kLong,
                                [done](auto orders) { done->set_value(orders.status()); });
  }
  const absl::Time begin = absl::Now();
  host_->BeginShutdown();
  server_->Shutdown(absl::Seconds(2));
  for (std::future<absl::Status>& answer : answers) answer.wait();  // each ends, either way
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
}

TEST_F(CoordinatorServiceTest, StoreThatFailsAnswersNobodyAndEndsTheProcess) {
  store_fails_ = true;
  const auto client = MakeCoordinatorClient(server_->address(), shard_);
  const auto registered = Register(client.get(), MakeRegisterRequest(shard_, "127.0.0.1:1"));
  EXPECT_EQ(registered.status().code(), absl::StatusCode::kUnavailable) << registered.status();
  EXPECT_EQ(fatal_.get_future().get().message(), "disk full");
}

}  // namespace
}  // namespace starling::coordinator
