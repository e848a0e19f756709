// Certificates change while a job trains.
#include "tests/integration/protected_cluster.h"

namespace starling {
namespace {

class Rotation : public ProtectedClusterTest {
 protected:
  // Issues new certificates to all roles, each trusted by all; returns when all are in use.
  void Rotate(const TestAuthority& signer, const std::string& authorities, int hours) {
    for (const auto& [role, security] : securities_) {
      const TestCertificate own = signer.Issue(
          {.uris = {OwnerUri({kCluster, role})}, .not_after = absl::Now() + absl::Hours(hours)});
      WriteTlsFiles(testing::TempDir() + "/" + PeerRoleName(role), own, authorities);
    }
    const absl::Time deadline = absl::Now() + kLong;
    for (const auto& [role, security] : securities_) {
      while (security->valid_until() < absl::Now() + absl::Hours(hours - 1)) {
        ASSERT_LT(absl::Now(), deadline)
            << PeerRoleName(role) << " did not take up its certificate";
        absl::SleepFor(absl::Milliseconds(10));
      }
    }
  }
};

// Every push of every step counts at its first attempt, over the stream opened at the start, while
// certificates and authorities change.
TEST_F(Rotation, NoPushFails) {
  ASSERT_NO_FATAL_FAILURE(BeginJob(Policy::SSP));
  worker_->Enter();
  const TestAuthority next("next");
  uint64_t step = 0;
  const auto train = [&](int steps) {
    for (int i = 0; i < steps; ++i, ++step) {
      ASSERT_NO_FATAL_FAILURE(worker_->Step(step, static_cast<Clock>(step)));
    }
  };
  ASSERT_NO_FATAL_FAILURE(train(2));
  ASSERT_NO_FATAL_FAILURE(Rotate(authority_, authority_.certificate(), 10));
  ASSERT_NO_FATAL_FAILURE(train(2));
  const std::string both = authority_.certificate() + next.certificate();
  ASSERT_NO_FATAL_FAILURE(Rotate(authority_, both, 20));
  ASSERT_NO_FATAL_FAILURE(train(2));
  ASSERT_NO_FATAL_FAILURE(Rotate(next, both, 30));
  ASSERT_NO_FATAL_FAILURE(train(2));
  ASSERT_NO_FATAL_FAILURE(Rotate(next, next.certificate(), 40));
  ASSERT_NO_FATAL_FAILURE(train(2));
  EXPECT_EQ(SecurityOf(PeerRole::kShard)->refusals().calls(), 0u);

  // New connections use the new certificates once gRPC has read them, too.
  const absl::Time deadline = absl::Now() + kLong;
  absl::Status status = absl::UnknownError("not asked yet");
  while (!status.ok()) {
    ASSERT_LT(absl::Now(), deadline) << status;
    const auto channel =
        MakeChannel(server_->address(), SecurityOf(PeerRole::kClient), {PeerRole::kCoordinator});
    grpc::ClientContext context;
    AddIdentity({PeerRole::kClient, "me"}, &context);
    ListJobsReply reply;
    status = FromGrpc(CoordinatorService::NewStub(channel)->ListJobs(&context, {}, &reply));
  }
  // The old certificate is refused.
  const TestCertificate old = authority_.Issue({kCluster, PeerRole::kClient});
  const auto channel = StrangerChannel(server_->address(), &old);
  EXPECT_EQ(
      StrangerCalls(channel, "/starling.CoordinatorService/ListJobs", {PeerRole::kClient, "me"}, "")
          .code(),
      absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace starling
