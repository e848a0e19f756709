// A daemon's calls to its coordinator.
#ifndef STARLING_COMMON_DAEMON_COORDINATOR_CLIENT_H_
#define STARLING_COMMON_DAEMON_COORDINATOR_CLIENT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/transport/identity.h"
#include "common/transport/link_security.h"
#include "proto/coordinator.pb.h"

namespace starling {

// Each call makes one attempt; its `done` runs exactly once, on a gRPC thread, and must be quick
// (post to an event loop). The caller retries with a delay; reconnecting is quick and automatic.
// After kUnavailable or kDeadlineExceeded the call may or may not have been carried out.
// kFailedPrecondition (another protocol version) and kUnauthenticated are final. Thread-safe.
class CoordinatorClient {
 public:
  template <typename Reply>
  using Done = std::function<void(absl::StatusOr<Reply>)>;

  // Cancels calls in flight and waits until every `done` has run.
  virtual ~CoordinatorClient() = default;

  virtual void Register(const RegisterRequest& request, absl::Duration timeout,
                        Done<RegisterReply> done) = 0;
  virtual void ReportWorker(const WorkerReport& report, absl::Duration timeout,
                            Done<WorkerOrders> done) = 0;
  virtual void ReportShard(const ShardReport& report, absl::Duration timeout,
                           Done<ShardOrders> done) = 0;
  virtual void Heartbeat(const HeartbeatRequest& request, absl::Duration timeout,
                         Done<HeartbeatReply> done) = 0;
};

std::unique_ptr<CoordinatorClient> MakeCoordinatorClient(
    const std::string& address, const Identity& self,
    std::shared_ptr<const LinkSecurity> security = nullptr);

// A registration request for this process: role, version, host name, cores and a random nonce.
// `insecure`: the process was started with --insecure.
RegisterRequest MakeRegisterRequest(const Identity& self, const std::string& address,
                                    bool insecure = false);

}  // namespace starling

#endif  // STARLING_COMMON_DAEMON_COORDINATOR_CLIENT_H_
