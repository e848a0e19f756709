// A parameter-server shard in a process: a ShardHost on threads and gRPC.
#ifndef STARLING_SERVER_SHARD_HOST_SHARD_RUNTIME_H_
#define STARLING_SERVER_SHARD_HOST_SHARD_RUNTIME_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/admin/admin.h"
#include "common/transport/identity.h"
#include "common/transport/link_security.h"
#include "proto/coordinator.pb.h"
#include "server/shard/host/injections.h"

namespace starling {

struct ShardOptions {
  std::string name;
  std::string listen = "127.0.0.1:0";
  std::string advertise_address;  // AdvertisedAddress
  std::string coordinator;
  std::shared_ptr<const LinkSecurity> security = nullptr;
  int owner_threads = 2;
  std::string admin_address = {};  // for Info
  absl::Duration register_deadline = absl::Seconds(60);
  std::string checkpoint_root = {};  // folder, on a disk that all daemons see; empty: none
  bool shared_memory = true;         // with workers of this host
  ShardInjections inject;            // for tests
  absl::Duration clock_offset;       // for tests: DaemonInfo
};

class ShardRuntime {
 public:
  virtual ~ShardRuntime() = default;  // Stop()
  virtual int port() const = 0;
  virtual std::string address() const = 0;  // at which others reach it
  // Shows this shard on the admin port until Admin::BeginShutdown, which must come before Stop.
  virtual void ShowOn(admin::Admin* admin) = 0;
  // Asks the coordinator to hand over what counts on this shard. `on_drain` gets what it says until
  // Stop, on a thread of the shard's; it must not block. Call once.
  virtual void Drain(std::function<void(const DrainOrders&)> on_drain) = 0;
  // Tells the coordinator that this shard leaves now. Blocks for a second or so at most.
  virtual void Leave() = 0;
  // Ends streams, calls and threads, within 5 seconds. Idempotent.
  virtual void Stop() = 0;
};

// Listens and starts to register. `checkpoint_root` that cannot be opened is an error. `on_failed`
// is called once if the shard cannot go on: no coordinator answered within `register_deadline`, or
// it refused the shard. The process should then end.
absl::StatusOr<std::unique_ptr<ShardRuntime>> StartShard(
    const ShardOptions& options, std::function<void(const absl::Status&)> on_failed);

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_SHARD_RUNTIME_H_
