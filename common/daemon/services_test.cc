// A daemon's own services and calls to the coordinator, over loopback.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "absl/time/clock.h"
#include "common/daemon/coordinator_client.h"
#include "common/daemon/daemon_service.h"
#include "common/transport/grpc_util.h"
#include "common/transport/transport.h"
#include "common/version/version.h"
#include "proto/coordinator_service.grpc.pb.h"
#include "proto/daemon.grpc.pb.h"

namespace starling {
namespace {

// Answers registrations; reports it leaves unanswered until the call is cancelled.
class FakeCoordinator final : public CoordinatorService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const RegisterRequest* request,
                                     RegisterReply* reply) override {
    auto* reactor = context->DefaultReactor();
    const auto peer = CheckCaller(*context);
    if (peer.ok() && peer->identity.name == request->name()) reply->set_id(42);
    reactor->Finish(ToGrpc(peer.status()));
    return reactor;
  }
  grpc::ServerUnaryReactor* ReportShard(grpc::CallbackServerContext*, const ShardReport*,
                                        ShardOrders*) override {
    struct Held final : grpc::ServerUnaryReactor {
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override { delete this; }
    };
    return new Held;
  }
};

class Services : public testing::Test {
 protected:
  void SetUp() override {
    daemon_ = MakeDaemonService({{PeerRole::kShard, "ps-0"}, "avx2"}, &spans_);
    RpcServer::Options options;
    options.listen = "127.0.0.1:0";
    options.self = {PeerRole::kShard, "ps-0"};
    options.services = {daemon_.get(), &coordinator_};
    auto server = StartRpcServer(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  SpanRing spans_;
  std::shared_ptr<grpc::Service> daemon_;
  FakeCoordinator coordinator_;
  std::unique_ptr<RpcServer> server_;
  const Identity worker_{PeerRole::kWorker, "worker-0"};
};

TEST_F(Services, InfoAndSpans) {
  spans_.Record("apply conv1", SpanCategory::kApply, 10, 30, {.clock = 3, .slice = 4, .flow = 5});
  const auto stub = Daemon::NewStub(MakeChannel(server_->address()));
  {
    grpc::ClientContext context;
    AddIdentity(worker_, &context);
    InfoReply reply;
    ASSERT_TRUE(stub->Info(&context, {}, &reply).ok());
    EXPECT_EQ(reply.role(), SHARD);
    EXPECT_EQ(reply.name(), "ps-0");
    EXPECT_EQ(reply.version().version(), std::string(ReleaseVersion()));
    EXPECT_EQ(reply.version().protocol(), ProtocolVersion());
    EXPECT_EQ(reply.instruction_set(), "avx2");
  }
  grpc::ClientContext context;
  AddIdentity(worker_, &context);
  SpansReply reply;
  ASSERT_TRUE(stub->Spans(&context, {}, &reply).ok());
  ASSERT_EQ(reply.spans_size(), 1);
  const Span& span = reply.spans(0);
  EXPECT_EQ(span.name(), "apply conv1");
  EXPECT_EQ(span.category(), "apply");
  EXPECT_EQ(span.begin_us(), 10u);
  EXPECT_EQ(span.duration_us(), 20u);
  EXPECT_EQ(span.clock(), 3);
  EXPECT_EQ(span.slice(), 4u);
  EXPECT_EQ(span.flow(), 5u);
}

TEST_F(Services, AnonymousCallsAreRefused) {
  const auto stub = Daemon::NewStub(MakeChannel(server_->address()));
  grpc::ClientContext info, spans;
  InfoReply info_reply;
  SpansReply spans_reply;
  EXPECT_EQ(stub->Info(&info, {}, &info_reply).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(stub->Spans(&spans, {}, &spans_reply).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(info_reply.name().empty());
}

TEST_F(Services, RegistersWithIdentity) {
  const auto client = MakeCoordinatorClient(server_->address(), worker_);
  std::promise<absl::StatusOr<RegisterReply>> done;
  const RegisterRequest request = MakeRegisterRequest(worker_, "127.0.0.1:1");
  EXPECT_EQ(request.role(), WORKER);
  EXPECT_EQ(request.version().protocol(), ProtocolVersion());
  EXPECT_NE(request.nonce(), MakeRegisterRequest(worker_, "127.0.0.1:1").nonce());
  client->Register(request, absl::Seconds(10), [&](auto reply) { done.set_value(reply); });
  const absl::StatusOr<RegisterReply> reply = done.get_future().get();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->id(), 42u);
}

TEST_F(Services, HeldCallEndsWithTheClient) {
  auto client = MakeCoordinatorClient(server_->address(), {PeerRole::kShard, "ps-0"});
  std::promise<absl::Status> done;
  client->ReportShard({}, absl::Hours(1), [&](auto orders) { done.set_value(orders.status()); });
  client.reset();
  EXPECT_EQ(done.get_future().get().code(), absl::StatusCode::kCancelled);
}

TEST_F(Services, HeldCallEndsWithTheServerSoon) {
  const auto client = MakeCoordinatorClient(server_->address(), {PeerRole::kShard, "ps-0"});
  std::promise<absl::Status> done;
  client->ReportShard({}, absl::Hours(1), [&](auto orders) { done.set_value(orders.status()); });
  // A registration behind it shows that the held one has arrived.
  std::promise<void> arrived;
  client->Register(MakeRegisterRequest({PeerRole::kShard, "ps-0"}, ""), absl::Seconds(10),
                   [&](auto) { arrived.set_value(); });
  arrived.get_future().get();
  const absl::Time begin = absl::Now();
  server_->Shutdown(absl::Milliseconds(200));
  EXPECT_FALSE(done.get_future().get().ok());
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
}

TEST_F(Services, DeadlineEndsACall) {
  const auto client = MakeCoordinatorClient(server_->address(), {PeerRole::kShard, "ps-0"});
  std::promise<absl::Status> done;
  client->ReportShard({}, absl::Milliseconds(100), [&](auto orders) { done.set_value(orders.status()); });
  EXPECT_EQ(done.get_future().get().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace starling
