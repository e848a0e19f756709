// For the few files that speak gRPC directly: identity on calls, and status translation. Includes
// gRPC: never include this from a header.
#ifndef STARLING_COMMON_TRANSPORT_GRPC_UTIL_H_
#define STARLING_COMMON_TRANSPORT_GRPC_UTIL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/transport/access.h"
#include "common/transport/identity.h"
#include "common/transport/link_security.h"

namespace starling {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// Starts gRPC for the rest of the process's life. Without it the last channel or server to go stops
// gRPC, and that waits at times for ten seconds. What makes channels and servers here calls it.
void KeepGrpcRunning();

// A channel to a daemon of one of the roles `servers`: keepalive, mutual TLS where `security` says
// so, a message limit of limits::kControlMessageBytesMax, and connections of its own (local
// subchannel pool). Where CheckPeerAddress refuses the address, nothing is connected to and every
// call fails with kInvalidArgument; who takes addresses from others asks first, for a better
// message.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           std::shared_ptr<const LinkSecurity> security = nullptr,
                                           RoleSet servers = kAllRoles);

// Every call of ours carries this.
void AddIdentity(const Identity& self, grpc::ClientContext* context);
// The same, for who calls all the time: `self` is IdentityToString's.
void AddIdentityText(const std::string& self, grpc::ClientContext* context);

// Every method of ours begins with this.
absl::StatusOr<PeerIdentity> CheckCaller(const grpc::ServerContextBase& context);

// A deadline `patience` from now, for calls and alarms; no step of the wall clock moves it.
gpr_timespec GrpcDeadline(absl::Duration patience);

namespace grpc_limits {
inline constexpr int kKeepaliveIntervalMs = 10'000;
inline constexpr int kKeepaliveTimeoutMs = 10'000;
inline constexpr int kServerMinPingIntervalMs = 5'000;
// From accepting a connection to the end of TLS's and HTTP/2's beginnings: who says nothing is gone
// then.
inline constexpr int kHandshakeTimeoutMs = 10'000;
// A connection without a call; a process that wants one later connects again.
inline constexpr int kConnectionIdleMs = 300'000;
// Calls under way on one connection.
inline constexpr int kConcurrentStreamsMax = 1'000;
// Of a server's, for calls that hold one each; beyond, calls get kResourceExhausted. Services that
// are callbacks, and streams, hold none.
inline constexpr int kServerThreadsMax = 64;
// Of an error's text, as it travels: in a call's metadata, of which gRPC takes 16 KiB in all. More
// would end the call with "Stream removed".
inline constexpr size_t kErrorWireBytesMax = 12 << 10;
static_assert(kServerMinPingIntervalMs < kKeepaliveIntervalMs, "or the server hangs up on pings");
}  // namespace grpc_limits

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_GRPC_UTIL_H_
