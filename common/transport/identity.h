// The identity of a caller. Every call between processes carries an identity, a version and a
// protocol number in its metadata; a server refuses a call without them, by name.
//
// An identity is the caller's own claim. Over TLS its role is also in its certificate
// (certificate.h), and the two must agree (grpc_security.h). Without TLS nothing backs the claim,
// so only loopback is allowed then, unless --insecure permits more.
#ifndef STARLING_COMMON_TRANSPORT_IDENTITY_H_
#define STARLING_COMMON_TRANSPORT_IDENTITY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace starling {

// With the numbers of Role (proto/coordinator.proto).
enum class PeerRole : uint8_t { kClient = 1, kWorker = 2, kShard = 3, kCoordinator = 4 };

inline constexpr PeerRole kPeerRoles[] = {PeerRole::kClient, PeerRole::kWorker, PeerRole::kShard,
                                          PeerRole::kCoordinator};

// "client", "worker", "shard", "coordinator".
const char* PeerRoleName(PeerRole role);
std::optional<PeerRole> PeerRoleFromName(absl::string_view name);

struct Identity {
  PeerRole role = PeerRole::kClient;
  std::string name;  // see CheckName
  friend bool operator==(const Identity&, const Identity&) = default;
};

struct PeerIdentity {
  Identity identity;
  std::string version;
  uint32_t protocol = 0;
};

// Metadata keys.
inline constexpr char kIdentityKey[] = "starling-identity";
inline constexpr char kVersionKey[] = "starling-version";
inline constexpr char kProtocolKey[] = "starling-protocol";

// 1 to limits::kNameBytesMax letters, digits, '.', '_' and '-', starting with a letter or digit.
// `what` names the thing in the error ("job name").
absl::Status CheckName(absl::string_view what, absl::string_view name);

std::string IdentityToString(const Identity& identity);  // "worker:worker-0"
absl::StatusOr<Identity> ParseIdentity(absl::string_view text);

// Reads a peer's metadata; `lookup` returns a key's value, or empty if it is missing.
// kUnauthenticated: no identity, or an invalid one. kFailedPrecondition: another protocol version;
// names both sides' versions.
absl::StatusOr<PeerIdentity> CheckPeer(
    const std::function<absl::string_view(absl::string_view)>& lookup);

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_IDENTITY_H_
