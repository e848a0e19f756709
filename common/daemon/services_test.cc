// A daemon's own services and calls to the coordinator, over loopback.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/support/sync_stream.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/daemon/coordinator_client.h"
#include "common/daemon/daemon_service.h"
#include "common/daemon/measure.h"
#include "common/transport/grpc_util.h"
#include "common/transport/transport.h"
#include "common/version/version.h"
#include "proto/coordinator_service.grpc.pb.h"
#include "proto/daemon.grpc.pb.h"

namespace starling {
namespace {

// Answers registrations; leaves reports unanswered until the call is cancelled.
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
    daemon_ = MakeDaemonService({.self = {PeerRole::kShard, "ps-0"},
                                 .instruction_set = "avx2",
                                 .admin_address = "127.0.0.1:7080",
                                 .addresses = addresses_},
                                &spans_);
    RpcServer::Options options;
    options.listen = "127.0.0.1:0";
    options.self = {PeerRole::kShard, "ps-0"};
    options.services = {daemon_.get(), &coordinator_};
    auto server = StartRpcServer(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  SpanRing spans_;
  const std::shared_ptr<DaemonAddresses> addresses_ = std::make_shared<DaemonAddresses>();
  std::shared_ptr<grpc::Service> daemon_;
  FakeCoordinator coordinator_;
  std::unique_ptr<RpcServer> server_;
  const Identity worker_{PeerRole::kWorker, "worker-0"};
  const Identity client_{PeerRole::kClient, "cli"};
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
    EXPECT_EQ(reply.admin_address(), "127.0.0.1:7080");
  }
  {
    grpc::ClientContext context;
    AddIdentity(worker_, &context);
    SpansReply reply;
    EXPECT_EQ(stub->Spans(&context, {}, &reply).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  }
  grpc::ClientContext context;
  AddIdentity(client_, &context);
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

// For tests of code that aligns the clocks of several daemons.
TEST_F(Services, AnInjectedOffsetShiftsAllThatIsSaidOfTime) {
  const auto ahead = MakeDaemonService(
      {.self = {PeerRole::kShard, "ps-1"}, .instruction_set = "", .clock_offset = absl::Seconds(1)},
      &spans_);
  auto server = StartRpcServer({.listen = "127.0.0.1:0",
                                .self = {PeerRole::kShard, "ps-1"},
                                .services = {ahead.get()},
                                .accept = {}});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = Daemon::NewStub(MakeChannel((*server)->address()));
  const uint64_t before = SpanRing::NowMicros();
  spans_.Record("early", SpanCategory::kApply, before - 10, before - 5);
  spans_.Record("late", SpanCategory::kApply, before, before + 10);
  grpc::ClientContext info_context;
  AddIdentity(worker_, &info_context);
  InfoReply info;
  ASSERT_TRUE(stub->Info(&info_context, {}, &info).ok());
  EXPECT_GE(info.now_us(), before + 1'000'000);
  EXPECT_LE(info.now_us(), SpanRing::NowMicros() + 1'000'000);
  EXPECT_GT(static_cast<int64_t>(info.unix_us()), absl::ToUnixMicros(absl::Now()));
  grpc::ClientContext context;
  AddIdentity(client_, &context);
  SpansRequest request;
  request.set_after_us(before + 1'000'000);
  SpansReply reply;
  ASSERT_TRUE(stub->Spans(&context, request, &reply).ok());
  ASSERT_EQ(reply.spans_size(), 1);
  EXPECT_EQ(reply.spans(0).name(), "late");
  EXPECT_EQ(reply.spans(0).begin_us(), before + 1'000'000);
  EXPECT_EQ(reply.recorded(), 2u);
  EXPECT_GE(reply.now_us(), info.now_us());
}

// ---- Node, Echo, Measure --------------------------------------------------------------------

class Paths : public Services {
 protected:
  void SetUp() override {
    Services::SetUp();
    stub_ = Daemon::NewStub(MakeChannel(server_->address()));
  }
  // The daemon measures the path to itself: one process is enough.
  grpc::Status Measure(const MeasureRequest& request, MeasureReply* reply) {
    grpc::ClientContext context;
    AddIdentity(client_, &context);
    return stub_->Measure(&context, request, reply);
  }
  grpc::Status Echo(const EchoRequest& request, EchoReply* reply) {
    grpc::ClientContext context;
    AddIdentity(worker_, &context);
    return stub_->Echo(&context, request, reply);
  }
  std::unique_ptr<Daemon::Stub> stub_;
};

TEST_F(Paths, NodeSaysWhereItIsReached) {
  addresses_->Set({"0.0.0.0:70", "10.0.0.7:70", "10.0.0.1:7070"});
  grpc::ClientContext context;
  AddIdentity(client_, &context);
  NodeReply reply;
  ASSERT_TRUE(stub_->Node(&context, {}, &reply).ok());
  EXPECT_EQ(reply.bound_address(), "0.0.0.0:70");
  EXPECT_EQ(reply.advertised_address(), "10.0.0.7:70");
  EXPECT_EQ(reply.coordinator_address(), "10.0.0.1:7070");
  EXPECT_GE(reply.cores(), 1u);
}

TEST_F(Paths, EchoCarriesWhatWasAskedForAndNoMore) {
  EchoRequest request;
  request.set_payload(std::string(1000, 'x'));
  request.set_reply_bytes(kEchoBytesMax);
  EchoReply reply;
  ASSERT_TRUE(Echo(request, &reply).ok());
  EXPECT_EQ(reply.payload().size(), kEchoBytesMax);
  EXPECT_NEAR(1e-6 * static_cast<double>(reply.unix_us()),
              absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()), 60);
  request.set_reply_bytes(kEchoBytesMax + 1);
  EXPECT_EQ(Echo(request, &reply).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_reply_bytes(0);
  request.set_payload(std::string(kEchoBytesMax + 1, 'x'));
  EXPECT_EQ(Echo(request, &reply).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

int ThreadsNamed(const std::string& name) {
  int found = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string comm;
    std::getline(std::ifstream(task.path() / "comm"), comm);
    found += comm == name;
  }
  return found;
}

// Each call whose answer is not read holds a server thread until it is cancelled.
TEST_F(Paths, AnswersThatNobodyReadHoldABoundedNumberOfThreads) {
  constexpr int kCalls = 3 * grpc_limits::kServerThreadsMax;
  struct Unread {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
  };
  const auto channel = MakeChannel(server_->address());
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  const auto next = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  EchoRequest request;
  request.set_reply_bytes(kEchoBytesMax);
  const grpc::Slice slice(request.SerializeAsString());
  std::vector<std::unique_ptr<Unread>> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(std::make_unique<Unread>());
    AddIdentity(worker_, &calls.back()->context);
    calls.back()->call = stub.PrepareCall(&calls.back()->context, "/starling.Daemon/Echo", &queue);
    calls.back()->call->StartCall(nullptr);
    ASSERT_TRUE(next());
    calls.back()->call->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
    ASSERT_TRUE(next());
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  int threads = 0, most = 0;
  while (threads < grpc_limits::kServerThreadsMax / 2 && absl::Now() < deadline) {
    threads = ThreadsNamed("grpcpp_sync_ser");
  }
  for (int i = 0; i < 20; ++i) {
    most = std::max(most, ThreadsNamed("grpcpp_sync_ser"));
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_GE(most, grpc_limits::kServerThreadsMax / 2) << "or nothing was held";
  EXPECT_LE(most, grpc_limits::kServerThreadsMax);
  RecordProperty("threads", most);
  EchoReply reply;
  for (const auto& unread : calls) unread->context.TryCancel();
  grpc::Status status = grpc::Status(grpc::StatusCode::UNKNOWN, "not asked");
  while (!status.ok() && absl::Now() < deadline) status = Echo({}, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  for (const auto& unread : calls) {
    unread->call->Finish(&status, nullptr);
    next();
  }
}

// A daemon whose Echo waits until it is cancelled.
class Mute final : public Daemon::Service {
 public:
  grpc::Status Echo(grpc::ServerContext* context, const EchoRequest*, EchoReply*) override {
    if (!asked_.HasBeenNotified()) asked_.Notify();
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::CANCELLED;
  }
  void AwaitCall() { asked_.WaitForNotification(); }

 private:
  absl::Notification asked_;
};

TEST_F(Paths, AMeasurementEndsWithTheServer) {
  Mute mute;
  auto other = StartRpcServer({.listen = "127.0.0.1:0",
                               .self = {PeerRole::kShard, "ps-1"},
                               .services = {&mute},
                               .accept = {}});
  ASSERT_TRUE(other.ok()) << other.status();
  MeasureRequest request;
  request.set_address((*other)->address());
  request.set_deadline_seconds(kMeasureSecondsMax);
  const absl::Time begin = absl::Now();
  auto measured = std::async(std::launch::async, [&] {
    MeasureReply reply;
    return Measure(request, &reply).error_code();
  });
  mute.AwaitCall();
  server_->Shutdown(absl::ZeroDuration());
  EXPECT_NE(measured.get(), grpc::StatusCode::OK);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(kMeasureSecondsMax / 2));
}

TEST_F(Paths, MeasuresDelayRatesAndClock) {
  MeasureRequest request;
  request.set_address(server_->address());
  request.set_bytes(kEchoBytesMax + 5);
  request.set_deadline_seconds(10);
  MeasureReply reply;
  ASSERT_TRUE(Measure(request, &reply).ok());
  EXPECT_EQ(reply.error(), "");
  EXPECT_GT(reply.delay_seconds(), 0);
  EXPECT_GT(reply.to_bytes_per_second(), 0);
  EXPECT_GT(reply.from_bytes_per_second(), 0);
  EXPECT_NEAR(reply.clock_ahead_seconds(), 0, 10);
  request.set_bytes(0);
  reply.Clear();
  ASSERT_TRUE(Measure(request, &reply).ok());
  EXPECT_GT(reply.delay_seconds(), 0);
  EXPECT_EQ(reply.to_bytes_per_second(), 0);
}

TEST_F(Paths, NobodyThereIsAnAnswer) {
  std::string address;
  {  // a port that was free a moment ago
    RpcServer::Options options;
    options.listen = "127.0.0.1:0";
    options.self = worker_;
    address = (*StartRpcServer(std::move(options)))->address();
  }
  MeasureRequest request;
  request.set_address(address);
  request.set_deadline_seconds(2);
  MeasureReply reply;
  ASSERT_TRUE(Measure(request, &reply).ok());
  EXPECT_NE(reply.error().find(address + " was not reached within 2 s"), std::string::npos)
      << reply.error();
}

// Plain links stay on this machine, whoever asks.
TEST_F(Paths, WithoutTlsNothingBeyondLoopbackIsMeasured) {
  MeasureRequest request;
  request.set_address("192.0.2.1:7071");
  request.set_deadline_seconds(2);
  MeasureReply reply;
  ASSERT_TRUE(Measure(request, &reply).ok());
  EXPECT_NE(reply.error().find("192.0.2.1:7071"), std::string::npos) << reply.error();
}

TEST_F(Paths, WhatIsOutOfRangeIsRefused) {
  MeasureRequest good;
  good.set_address(server_->address());
  good.set_deadline_seconds(1);
  EXPECT_TRUE(CheckMeasure(good).ok());
  MeasureRequest request = good;
  request.set_address("");
  MeasureReply reply;
  EXPECT_EQ(Measure(request, &reply).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = good;
  request.set_bytes(kMeasureBytesMax + 1);
  EXPECT_EQ(Measure(request, &reply).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  for (const double seconds : {0.0, -1.0, kMeasureSecondsMax + 1, std::nan("")}) {
    request = good;
    request.set_deadline_seconds(seconds);
    EXPECT_EQ(Measure(request, &reply).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << seconds;
  }
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

grpc::ByteBuffer Bytes(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string Text(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) text.append(slice.begin(), slice.end());
  return text;
}

// A supervisor's probes carry no identity. HealthCheckResponse{status: SERVING} is 08 01.
TEST_F(Services, HealthAnswersAnybody) {
  const auto channel = MakeChannel(server_->address());
  grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check",
                                   grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::ClientContext serving;
  grpc::ByteBuffer reply;
  ASSERT_TRUE(
      grpc::internal::BlockingUnaryCall(channel.get(), method, &serving, Bytes(""), &reply).ok());
  EXPECT_EQ(Text(reply), std::string("\x08\x01"));
  server_->SetServing(false);
  grpc::ClientContext not_serving;
  ASSERT_TRUE(
      grpc::internal::BlockingUnaryCall(channel.get(), method, &not_serving, Bytes(""), &reply)
          .ok());
  EXPECT_EQ(Text(reply), std::string("\x08\x02"));
}

// ServerReflectionRequest{list_services: "*"} is 3a 01 2a.
TEST_F(Services, ReflectionListsTheServices) {
  const auto channel = MakeChannel(server_->address());
  grpc::internal::RpcMethod method("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                   grpc::internal::RpcMethod::BIDI_STREAMING);
  grpc::ClientContext context;
  const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> call(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          channel.get(), method, &context));
  ASSERT_TRUE(call->Write(Bytes("\x3a\x01*")));
  grpc::ByteBuffer reply;
  ASSERT_TRUE(call->Read(&reply));
  const std::string services = Text(reply);
  for (const char* name :
       {"starling.Daemon", "starling.CoordinatorService", "grpc.health.v1.Health"}) {
    EXPECT_NE(services.find(name), std::string::npos) << name;
  }
  call->WritesDone();
  EXPECT_TRUE(call->Finish().ok());
}

TEST_F(Services, RegistersWithIdentity) {
  const auto client = MakeCoordinatorClient(server_->address(), worker_);
  std::promise<absl::StatusOr<RegisterReply>> done;
  const RegisterRequest request = MakeRegisterRequest(worker_, "127.0.0.1:1");
  EXPECT_EQ(request.role(), WORKER);
  EXPECT_EQ(request.version().protocol(), ProtocolVersion());
  EXPECT_NE(request.nonce(), MakeRegisterRequest(worker_, "127.0.0.1:1").nonce());
  EXPECT_NE(request.process(), 0u);
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
  // A registration sent after it shows that the held call has arrived.
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
  client->ReportShard({}, absl::Milliseconds(100),
                      [&](auto orders) { done.set_value(orders.status()); });
  EXPECT_EQ(done.get_future().get().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace starling
