// Every method and every frame type, against every caller that is not allowed: refused and counted
// at the handshake, or denied, and nothing has changed. Rows are checked against the protobuf
// descriptors and the frame types, so a new method or type needs a row.
#include <google/protobuf/descriptor.h>

#include "common/transport/access.h"
#include "proto/daemon.grpc.pb.h"
#include "proto/parameter_server.grpc.pb.h"
#include "tests/integration/protected_cluster.h"

namespace starling {
namespace {

constexpr PeerRole kClient = PeerRole::kClient;
constexpr PeerRole kWorker = PeerRole::kWorker;
constexpr PeerRole kShard = PeerRole::kShard;

// Which roles may call each method: written down here a second time, by hand.
const std::map<std::string, RoleSet>& MethodRows() {
  static const auto* const rows = new std::map<std::string, RoleSet>{
      {"/starling.CoordinatorService/Register", {kWorker, kShard}},
      {"/starling.CoordinatorService/ReportWorker", {kWorker}},
      {"/starling.CoordinatorService/ReportShard", {kShard}},
      {"/starling.CoordinatorService/Heartbeat", {kShard}},
      {"/starling.CoordinatorService/Submit", {kClient}},
      {"/starling.CoordinatorService/GetJob", {kClient}},
      {"/starling.CoordinatorService/ListJobs", {kClient}},
      {"/starling.CoordinatorService/ListWorkers", {kClient}},
      {"/starling.CoordinatorService/ListShards", {kClient}},
      {"/starling.CoordinatorService/CancelJob", {kClient}},
      {"/starling.CoordinatorService/DeleteJob", {kClient}},
      {"/starling.CoordinatorService/SetPolicy", {kClient}},
      {"/starling.CoordinatorService/Logs", {kClient}},
      {"/starling.CoordinatorService/Curves", {kClient}},
      {"/starling.CoordinatorService/Explain", {kClient}},
      {"/starling.CoordinatorService/CreateCheckpoint", {kClient}},
      {"/starling.CoordinatorService/ListCheckpoints", {kClient}},
      {"/starling.CoordinatorService/DeleteCheckpoint", {kClient}},
      {"/starling.ParameterServer/Exchange", {kClient, kWorker, kShard, PeerRole::kCoordinator}},
      {"/starling.Daemon/Info", kAllRoles},
      {"/starling.Daemon/Echo", kAllRoles},
      {"/starling.Daemon/Spans", {kClient, PeerRole::kCoordinator}},
      {"/starling.Daemon/Node", {kClient, PeerRole::kCoordinator}},
      {"/starling.Daemon/Measure", {kClient, PeerRole::kCoordinator}},
      {"/grpc.health.v1.Health/Check", kAllRoles},
      {"/grpc.health.v1.Health/Watch", kAllRoles},
      {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", {kClient}},
  };
  return *rows;
}

// Which roles may send each frame type to a shard.
const std::map<FrameType, RoleSet>& FrameRows() {
  static const auto* const rows = new std::map<FrameType, RoleSet>{
      {FrameType::kPush, {kWorker}},
      {FrameType::kClose, {kWorker}},
      {FrameType::kPull, {kWorker}},  // except for readers, below
      {FrameType::kCredit, {kClient, kWorker, kShard, PeerRole::kCoordinator}},
      {FrameType::kDecision, {kShard}},
      {FrameType::kAck, {}},
      {FrameType::kValue, {}},
      {FrameType::kError, {}},
      {FrameType::kReplicate, {kShard}},
      {FrameType::kActivation, {}},
  };
  return *rows;
}

// All methods of our protocol: those of the services in these files.
std::vector<std::string> DeclaredMethods() {
  std::vector<std::string> methods;
  const auto* const pool = google::protobuf::DescriptorPool::generated_pool();
  for (const char* file :
       {"proto/coordinator_service.proto", "proto/daemon.proto", "proto/parameter_server.proto"}) {
    const auto* const found = pool->FindFileByName(file);
    EXPECT_NE(found, nullptr) << file;
    for (int i = 0; found != nullptr && i < found->service_count(); ++i) {
      const auto* const service = found->service(i);
      for (int m = 0; m < service->method_count(); ++m) {
        methods.push_back(absl::StrCat("/", std::string(service->full_name()), "/",
                                       std::string(service->method(m)->name())));
      }
    }
  }
  EXPECT_GE(methods.size(), 20u);
  return methods;
}

TEST(Rows, EveryMethodHasOneAndTheServersTableAgrees) {
  for (const std::string& method : DeclaredMethods()) {
    EXPECT_EQ(MethodRows().count(method), 1u) << "add a row for " << method;
  }
  for (const auto& [method, callers] : MethodRows())
    EXPECT_EQ(CallersOf(method), callers) << method;
}

TEST(Rows, EveryFrameTypeHasOneAndTheServersTableAgrees) {
  for (uint8_t type = 1; type <= kFrameTypeLast; ++type) {
    EXPECT_EQ(FrameRows().count(static_cast<FrameType>(type)), 1u)
        << "add a row for the frame type " << FrameTypeName(static_cast<FrameType>(type));
  }
  for (const auto& [type, senders] : FrameRows()) {
    for (const PeerRole role : kPeerRoles) {
      FrameHeader header;
      header.type = type;
      EXPECT_EQ(CheckFrameSender(header, role).ok(), senders.has(role))
          << FrameTypeName(type) << " " << PeerRoleName(role);
    }
  }
}

std::string Frame(const FrameHeader& header, const OutgoingPayload& payload = {}) {
  std::string frame(limits::kFrameHeaderBytes, '\0');
  EncodeFrameHeader(header, reinterpret_cast<uint8_t*>(frame.data()));
  frame.append(reinterpret_cast<const char*>(payload.bytes.data()), payload.bytes.size());
  return frame;
}

class Matrix : public ProtectedClusterTest {
 protected:
  // Callers that fail the handshake, and the reason under which they are counted.
  struct Stranger {
    std::string name;
    std::optional<TestCertificate> certificate;
    HandshakeRefusal reason;
  };
  std::vector<Stranger> Strangers(PeerRole role) const {
    return {
        {"no certificate", std::nullopt, HandshakeRefusal::kNoCertificate},
        {"wrong authority", foreign_.Issue({kCluster, role}), HandshakeRefusal::kUnknownAuthority},
        {"expired", authority_.IssueExpired({kCluster, role}), HandshakeRefusal::kExpired}};
  }

  // Runs a job to the end of its first step, and records its state.
  void SetUp() override {
    ProtectedClusterTest::SetUp();
    ASSERT_NO_FATAL_FAILURE(BeginJob(Policy::SSP));
    worker_->Enter();
    ASSERT_NO_FATAL_FAILURE(worker_->Step(0, 0));
    before_ = Seen();
  }

  struct State {
    std::vector<float> values;
    JobReply job;
    std::vector<std::string> daemons;
  };
  State Seen() {
    State state;
    HandWorker reader(server_->address(), {kClient, "reader"}, SecurityOf(kClient));
    reader.ReadAs(*worker_);
    state.values = reader.PullAll(0, frame_flags::kReader);
    state.job = Described("job");
    state.job.mutable_status()->clear_running_seconds();
    grpc::ClientContext workers, shards, jobs;
    ListWorkersReply workers_reply;
    ListShardsReply shards_reply;
    ListJobsReply jobs_reply;
    for (grpc::ClientContext* context : {&workers, &shards, &jobs})
      AddIdentity({kClient, "me"}, context);
    EXPECT_TRUE(stub_->ListWorkers(&workers, {}, &workers_reply).ok());
    EXPECT_TRUE(stub_->ListShards(&shards, {}, &shards_reply).ok());
    EXPECT_TRUE(stub_->ListJobs(&jobs, {}, &jobs_reply).ok());
    for (const WorkerStatus& one : workers_reply.workers()) {
      state.daemons.push_back(absl::StrCat(one.name(), " ", one.incarnation(), " ", one.job()));
    }
    for (const ShardStatus& one : shards_reply.shards()) {
      state.daemons.push_back(
          absl::StrCat(one.name(), " ", one.incarnation(), " ", one.partitions()));
    }
    for (const JobStatus& one : jobs_reply.jobs()) state.daemons.push_back(one.name());
    return state;
  }

  // Waits for the shard's last report, so that all metrics are of the same moment.
  void ExpectNothingChanged() {
    ASSERT_NO_FATAL_FAILURE(worker_->Report());
    const State now = Seen();
    EXPECT_EQ(now.values, before_.values);
    EXPECT_EQ(now.daemons, before_.daemons);
    EXPECT_EQ(now.job.status().state(), RUNNING);
    EXPECT_EQ(now.job.status().roster(), before_.job.status().roster());
    EXPECT_EQ(now.job.status().policies_size(), before_.job.status().policies_size());
    EXPECT_EQ(now.job.spec().SerializeAsString(), before_.job.spec().SerializeAsString());
    // The worker continues where it was.
    ASSERT_NO_FATAL_FAILURE(worker_->Step(1, 1));
  }

  // The address and the counters of the process that serves the method.
  std::string AddressOf(const std::string& method) const {
    const bool shard = method == "/starling.ParameterServer/Exchange";
    return shard ? shards_[0]->address() : server_->address();
  }
  const RefusalCounters& RefusalsOf(const std::string& method) {
    const bool shard = method == "/starling.ParameterServer/Exchange";
    return SecurityOf(shard ? kShard : PeerRole::kCoordinator)->refusals();
  }

  const TestAuthority foreign_{"foreign authority"};
  State before_;
};

// A stranger's message, in case it gets through: any method can parse it.
constexpr char kEmpty[] = "";

TEST_F(Matrix, MethodsRefuseStrangersAtTheHandshakeAndCountThem) {
  for (const auto& [method, callers] : MethodRows()) {
    const PeerRole role = callers.has(kClient) ? kClient : callers.has(kWorker) ? kWorker : kShard;
    for (const Stranger& stranger : Strangers(role)) {
      const RefusalCounters& refusals = RefusalsOf(method);
      const uint64_t counted = refusals.handshakes(stranger.reason);
      const auto channel = StrangerChannel(
          AddressOf(method), stranger.certificate.has_value() ? &*stranger.certificate : nullptr);
      const absl::Status status = StrangerCalls(channel, method, {role, "stranger"}, kEmpty);
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable)
          << method << " " << stranger.name << status;
      EXPECT_GT(refusals.handshakes(stranger.reason), counted) << method << " " << stranger.name;
    }
  }
  ExpectNothingChanged();
}

TEST_F(Matrix, MethodsDenyTheWrongRole) {
  for (const auto& [method, callers] : MethodRows()) {
    for (const PeerRole role : kPeerRoles) {
      const TestCertificate certificate = authority_.Issue({kCluster, role});
      const auto channel = StrangerChannel(AddressOf(method), &certificate);
      const std::string who = absl::StrCat(method, " by a ", PeerRoleName(role));
      const uint64_t denied = RefusalsOf(method).calls();
      uint64_t refused = 0;
      if (!callers.has(role)) {
        const absl::Status status = StrangerCalls(channel, method, {role, "w-0"}, kEmpty);
        EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << who << status;
        EXPECT_NE(status.message().find(absl::StrCat("by a ", callers.ToString(),
                                                     "; the caller is a ", PeerRoleName(role))),
                  absl::string_view::npos)
            << status;
        ++refused;
      }
      // A certificate of one role, and an identity that claims another.
      for (const PeerRole claimed : kPeerRoles) {
        if (claimed == role) continue;
        const absl::Status status = StrangerCalls(channel, method, {claimed, "w-0"}, kEmpty);
        EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied)
            << who << " that says it is a " << PeerRoleName(claimed) << status;
        ++refused;
      }
      EXPECT_EQ(RefusalsOf(method).calls(), denied + refused) << who;
    }
  }
  ExpectNothingChanged();
}

TEST_F(Matrix, MethodsDenyTheWrongClusterAndNoOwner) {
  for (const auto& [method, callers] : MethodRows()) {
    for (const PeerRole role : kPeerRoles) {
      const TestCertificate other = authority_.Issue({"test", role});
      const absl::Status status =
          StrangerCalls(StrangerChannel(AddressOf(method), &other), method, {role, "w-0"}, kEmpty);
      EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << method << status;
      EXPECT_NE(status.message().find(absl::StrCat(
                    "of the cluster prod, got one of starling://test/", PeerRoleName(role))),
                absl::string_view::npos)
          << status;
    }
    for (const std::vector<std::string>& uris : std::vector<std::vector<std::string>>{
             {}, {"starling://prod/client", "starling://prod/worker"}, {"https://prod/worker"}}) {
      const TestCertificate none = authority_.Issue({.uris = uris});
      const absl::Status status = StrangerCalls(StrangerChannel(AddressOf(method), &none), method,
                                                {kWorker, "w-0"}, kEmpty);
      EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << method << status;
    }
  }
  ExpectNothingChanged();
}

// The gate must judge the identity that the service reads, so none may be given twice: neither
// another nor the same, before the real one or after it. Exchange carries the member's frame.
TEST_F(Matrix, MethodsDenyAnIdentityGivenTwice) {
  const Slice& slice = worker_->layout().slices[0];
  OutgoingPayload payload;
  const FrameHeader push =
      worker_->PushHeader(slice, 1, 1, std::vector<float>(slice.elements, 1.0f), &payload);
  const std::string frame = Frame(push, payload);
  for (const auto& [method, callers] : MethodRows()) {
    const std::string message = method == "/starling.ParameterServer/Exchange" ? frame : kEmpty;
    for (const PeerRole role : kPeerRoles) {
      const TestCertificate certificate = authority_.Issue({kCluster, role});
      const auto channel = StrangerChannel(AddressOf(method), &certificate);
      for (const auto& [key, value] : Metadata{{kIdentityKey, "worker:w-0"},
                                               {kIdentityKey, "client:me"},
                                               {kIdentityKey, ""},
                                               {kVersionKey, "0"},
                                               {kProtocolKey, "1"}}) {
        const Metadata twice = {{key, value}};
        for (const auto& [before, after] :
             {std::pair(twice, Metadata()), std::pair(Metadata(), twice)}) {
          const uint64_t denied = RefusalsOf(method).calls();
          const absl::Status status =
              StrangerCalls(channel, method, {role, "w-0"}, message, before, after);
          EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied)
              << method << " by a " << PeerRoleName(role) << " with " << key << ": " << value
              << status;
          EXPECT_NE(status.message().find(key), absl::string_view::npos) << status;
          EXPECT_EQ(RefusalsOf(method).calls(), denied + 1) << method;
        }
      }
    }
  }
  ExpectNothingChanged();
}

// Frames on behalf of the member, as its own stream would carry them.
TEST_F(Matrix, FramesOfStrangersAreRefusedOrDeniedByType) {
  const std::string exchange = "/starling.ParameterServer/Exchange";
  const Slice& slice = worker_->layout().slices[0];
  for (const auto& [type, senders] : FrameRows()) {
    OutgoingPayload payload;
    FrameHeader header = worker_->Header(type, slice.partition, 1);
    header.key.slice = slice.id;
    if (type == FrameType::kPush) {
      header = worker_->PushHeader(slice, 1, 1, std::vector<float>(slice.elements, 1.0f), &payload);
    }
    if (type == FrameType::kClose) header.flags = frame_flags::kPark;
    const std::string frame = Frame(header, payload);
    const std::string name = FrameTypeName(type);
    for (const Stranger& stranger : Strangers(kWorker)) {
      const uint64_t counted = RefusalsOf(exchange).handshakes(stranger.reason);
      const auto channel = StrangerChannel(
          AddressOf(exchange), stranger.certificate.has_value() ? &*stranger.certificate : nullptr);
      const absl::Status status = StrangerCalls(channel, exchange, {kWorker, "w-0"}, frame);
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable)
          << name << " " << stranger.name << status;
      EXPECT_GT(RefusalsOf(exchange).handshakes(stranger.reason), counted) << name;
    }
    for (const PeerRole role : kPeerRoles) {
      const TestCertificate other = authority_.Issue({"test", role});
      const absl::Status cluster = StrangerCalls(StrangerChannel(AddressOf(exchange), &other),
                                                 exchange, {role, "w-0"}, frame);
      EXPECT_EQ(cluster.code(), absl::StatusCode::kPermissionDenied) << name << cluster;
      if (senders.has(role)) continue;
      const TestCertificate certificate = authority_.Issue({kCluster, role});
      const absl::Status status = StrangerCalls(StrangerChannel(AddressOf(exchange), &certificate),
                                                exchange, {role, "w-0"}, frame);
      EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied)
          << name << " by a " << PeerRoleName(role) << status;
      EXPECT_NE(status.message().find(PeerRoleName(role)), absl::string_view::npos) << status;
    }
  }
  ExpectNothingChanged();
}

// The other direction: clients refuse a server with a certificate of the cluster but of another
// role.
TEST_F(Matrix, NobodyTalksToAServerOfAnotherRole) {
  for (const PeerRole role : kPeerRoles) {
    auto impostor = StartRpcServer({.listen = "127.0.0.1:0",
                                    .security = SecurityOf(role),
                                    .self = {role, "impostor"},
                                    .services = {daemon_.get()},
                                    .accept = {}});
    ASSERT_TRUE(impostor.ok()) << impostor.status();
    for (const PeerRole expected : kPeerRoles) {
      const auto channel = MakeChannel((*impostor)->address(), SecurityOf(kClient), {expected});
      const auto stub = Daemon::NewStub(channel);
      grpc::ClientContext context;
      AddIdentity({kClient, "me"}, &context);
      context.set_deadline(GrpcDeadline(kLong));
      InfoReply reply;
      const absl::Status status = FromGrpc(stub->Info(&context, {}, &reply));
      if (expected == role) {
        EXPECT_TRUE(status.ok()) << status;
        continue;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_NE(status.message().find(
                    absl::StrCat("expected the certificate of a ", PeerRoleName(expected),
                                 " there, got one of starling://prod/", PeerRoleName(role))),
                absl::string_view::npos)
          << status;
    }
  }
}

}  // namespace
}  // namespace starling
