// For the few files that use gRPC directly: identity on calls, and status translation. Includes
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

// Keeps gRPC running until the process exits. Otherwise the last channel or server to go stops
// gRPC, which at times waits for ten seconds. The functions here that make channels and servers
// call it.
void KeepGrpcRunning();

// A channel to a daemon with one of the roles `servers`: keepalive, mutual TLS if `security`
// requires it, a message limit of limits::kControlMessageBytesMax, and connections of its own
// (local subchannel pool). If CheckPeerAddress refuses the address, the channel never connects and
// every call fails with kInvalidArgument; check addresses from outside first, for a better message.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           std::shared_ptr<const LinkSecurity> security = nullptr,
                                           RoleSet servers = kAllRoles);

// Every one of our calls carries this.
void AddIdentity(const Identity& self, grpc::ClientContext* context);
// The same for frequent callers: `self` is IdentityToString's text.
void AddIdentityText(const std::string& self, grpc::ClientContext* context);

// Every one of our methods starts with this.
absl::StatusOr<PeerIdentity> CheckCaller(const grpc::ServerContextBase& context);

// A deadline `patience` from now, for calls and alarms, on the monotonic clock.
gpr_timespec GrpcDeadline(absl::Duration patience);

namespace grpc_limits {
inline constexpr int kKeepaliveIntervalMs = 10'000;
inline constexpr int kKeepaliveTimeoutMs = 10'000;
inline constexpr int kServerMinPingIntervalMs = 5'000;
// From accepting a connection to the end of the TLS and HTTP/2 handshakes; a silent peer is dropped
// then.
inline constexpr int kHandshakeTimeoutMs = 10'000;
// A connection without a call. A process that needs one later connects again.
inline constexpr int kConnectionIdleMs = 300'000;
// Concurrent calls on one connection.
inline constexpr int kConcurrentStreamsMax = 1'000;
// A server's threads for synchronous calls, which hold one each; beyond it, calls get
// kResourceExhausted. Callback services and streams hold none.
inline constexpr int kServerThreadsMax = 64;
// An error's text on the wire: in a call's metadata, which gRPC limits to 16 KiB in total. More
// would end the call with "Stream removed".
inline constexpr size_t kErrorWireBytesMax = 12 << 10;
static_assert(kServerMinPingIntervalMs < kKeepaliveIntervalMs, "or the server hangs up on pings");
}  // namespace grpc_limits

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_GRPC_UTIL_H_
