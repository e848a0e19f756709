// Calls of a daemon to its coordinator.
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

// Each call makes one attempt, whose `done` runs exactly once, on a thread of gRPC's: it must be
// quick (post to an event loop). A caller retries with a delay; connecting again is quick and on
// its own. kUnavailable and kDeadlineExceeded say nothing of whether the call was carried out.
// kFailedPrecondition (another protocol) and kUnauthenticated are final. Thread-safe.
class CoordinatorClient {
 public:
  template <typename Reply>
  using Done = std::function<void(absl::StatusOr<Reply>)>;

  // Cancels what is under way and waits until all `done` have run.
  virtual ~CoordinatorClient() = default;

  virtual void Register(const RegisterRequest& request, absl::Duration timeout,
                        Done<RegisterReply> done) = 0;
  virtual void ReportWorker(const WorkerReport& report, absl::Duration timeout,
                            Done<WorkerOrders> done) = 0;
  virtual void ReportShard(const ShardReport& report, absl::Duration timeout,
                           Done<ShardOrders> done) = 0;
};

std::unique_ptr<CoordinatorClient> MakeCoordinatorClient(
    const std::string& address, const Identity& self,
    std::shared_ptr<const LinkSecurity> security = nullptr);

// A registration request of this process: role, version, host name, cores; a random nonce.
// `insecure`: it was started with --insecure.
RegisterRequest MakeRegisterRequest(const Identity& self, const std::string& address,
                                    bool insecure = false);

}  // namespace starling

#endif  // STARLING_COMMON_DAEMON_COORDINATOR_CLIENT_H_
