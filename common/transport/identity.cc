#include "common/transport/identity.h"

#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/protocol/limits.h"
#include "common/version/version.h"

namespace starling {

const char* PeerRoleName(PeerRole role) {
  constexpr const char* kNames[] = {"unknown", "client", "worker", "shard", "coordinator"};
  static_assert(std::size(kNames) == std::size(kPeerRoles) + 1);
  const auto number = static_cast<size_t>(role);
  return kNames[number < std::size(kNames) ? number : 0];
}

std::optional<PeerRole> PeerRoleFromName(absl::string_view name) {
  for (const PeerRole role : kPeerRoles) {
    if (name == PeerRoleName(role)) return role;
  }
  return std::nullopt;
}

absl::Status CheckName(absl::string_view what, absl::string_view name) {
  if (name.empty() || name.size() > limits::kNameBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(what, " must have 1 to ", limits::kNameBytesMax,
                                                   " characters, not ", name.size()));
  }
  for (size_t i = 0; i < name.size(); ++i) {
    const auto c = static_cast<unsigned char>(name[i]);
    if (absl::ascii_isalnum(c)) continue;
    if (i > 0 && (c == '.' || c == '_' || c == '-')) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        what, " may hold letters, digits, '.', '_' and '-', and begins with a letter or",
        " digit; character ", i + 1, " is another"));
  }
  return absl::OkStatus();
}

std::string IdentityToString(const Identity& identity) {
  return absl::StrCat(PeerRoleName(identity.role), ":", identity.name);
}

absl::StatusOr<Identity> ParseIdentity(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  if (parts.size() != 2) return absl::UnauthenticatedError("identity must be <role>:<name>");
  const std::optional<PeerRole> role = PeerRoleFromName(parts[0]);
  if (!role.has_value()) {
    return absl::UnauthenticatedError(
        "identity's role must be client, worker, shard or coordinator");
  }
  if (const absl::Status status = CheckName("identity's name", parts[1]); !status.ok()) {
    return absl::UnauthenticatedError(status.message());
  }
  return Identity{*role, std::string(parts[1])};
}

absl::StatusOr<PeerIdentity> CheckPeer(
    const std::function<absl::string_view(absl::string_view)>& lookup) {
  const absl::string_view text = lookup(kIdentityKey);
  if (text.empty()) {
    return absl::UnauthenticatedError(absl::StrCat("the call carries no identity; send metadata ",
                                                   kIdentityKey, ": <role>:<name>, ", kVersionKey,
                                                   " and ", kProtocolKey));
  }
  absl::StatusOr<Identity> identity = ParseIdentity(text);
  if (!identity.ok()) return std::move(identity).status();
  PeerIdentity peer{*std::move(identity), std::string(lookup(kVersionKey)), 0};
  const absl::string_view protocol = lookup(kProtocolKey);
  if (!absl::SimpleAtoi(protocol, &peer.protocol) || peer.protocol != ProtocolVersion()) {
    const std::string_view mine = ReleaseVersion();
    return absl::FailedPreconditionError(absl::StrCat(
        IdentityToString(peer.identity), " has version ", peer.version, ", protocol ", protocol,
        "; this side has version ", absl::string_view(mine.data(), mine.size()), ", protocol ",
        ProtocolVersion(), ": run the same release on both"));
  }
  return peer;
}

}  // namespace starling
