#include "common/transport/grpc_util.h"

#include <grpc/grpc.h>

#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "common/protocol/limits.h"
#include "common/transport/grpc_security.h"
#include "common/version/version.h"

namespace starling {
namespace {

// Bytes that a character takes in the metadata.
size_t WireBytes(char c) { return c >= ' ' && c <= '~' && c != '%' ? 1 : 3; }

// The longest prefix that fits, with a mark that text is missing.
std::string CutForWire(absl::string_view text) {
  size_t wire = 0, size = 0;
  while (size < text.size() && wire + WireBytes(text[size]) <= grpc_limits::kErrorWireBytesMax) {
    wire += WireBytes(text[size++]);
  }
  if (size == text.size()) return std::string(text);
  return absl::StrCat(CutUtf8(text, size), " ... (cut: ", text.size(), " bytes in all)");
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), CutForWire(status.message()));
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

void KeepGrpcRunning() {
  static const bool running = (grpc_init(), true);
  (void)running;
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           std::shared_ptr<const LinkSecurity> security,
                                           RoleSet servers) {
  KeepGrpcRunning();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, grpc_limits::kKeepaliveIntervalMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, grpc_limits::kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Despite its name: the timeout of an attempt to connect. A busy machine needs more than a
  // moment.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(limits::kControlMessageBytesMax));
  arguments.SetMaxSendMessageSize(static_cast<int>(limits::kControlMessageBytesMax));
  const bool allowed = CheckPeerAddress(address, security.get()).ok();
  // Explicit, or gRPC takes a host named unix or ipv4 for a kind of target.
  const std::string target =
      absl::StartsWith(address, "[") ? address : absl::StrCat("dns:///", address);
  return grpc::CreateCustomChannel(
      target, allowed ? MakeChannelCredentials(std::move(security), servers) : nullptr, arguments);
}

void AddIdentity(const Identity& self, grpc::ClientContext* context) {
  AddIdentityText(IdentityToString(self), context);
}

void AddIdentityText(const std::string& self, grpc::ClientContext* context) {
  static const std::string identity_key(kIdentityKey), version_key(kVersionKey),
      protocol_key(kProtocolKey);
  static const std::string version(ReleaseVersion()), protocol = std::to_string(ProtocolVersion());
  context->AddMetadata(identity_key, self);
  context->AddMetadata(version_key, version);
  context->AddMetadata(protocol_key, protocol);
}

absl::StatusOr<PeerIdentity> CheckCaller(const grpc::ServerContextBase& context) {
  const auto& metadata = context.client_metadata();
  return CheckPeer([&](absl::string_view key) -> absl::string_view {
    const auto [it, end] = metadata.equal_range(grpc::string_ref(key.data(), key.size()));
    if (it == end || std::next(it) != end) return {};
    return {it->second.data(), it->second.size()};
  });
}

gpr_timespec GrpcDeadline(absl::Duration patience) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(absl::ToInt64Nanoseconds(patience), GPR_TIMESPAN));
}

}  // namespace starling
