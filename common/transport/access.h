// The access table: which roles may make which call and send which frame. Every server checks it
// before anything else. A method or frame type without a row is refused to all.
#ifndef STARLING_COMMON_TRANSPORT_ACCESS_H_
#define STARLING_COMMON_TRANSPORT_ACCESS_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/protocol/frame.h"
#include "common/transport/identity.h"

namespace starling {

class RoleSet {
 public:
  constexpr RoleSet() = default;
  constexpr RoleSet(std::initializer_list<PeerRole> roles) {
    for (const PeerRole role : roles) bits_ |= Bit(role);
  }
  constexpr bool has(PeerRole role) const { return (bits_ & Bit(role)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  std::string ToString() const;  // "client or worker"; "nobody"
  friend constexpr bool operator==(RoleSet, RoleSet) = default;

 private:
  static constexpr uint8_t Bit(PeerRole role) {
    return static_cast<uint8_t>(1u << static_cast<unsigned>(role));
  }
  uint8_t bits_ = 0;
};

inline constexpr RoleSet kAllRoles = {PeerRole::kClient, PeerRole::kWorker, PeerRole::kShard,
                                      PeerRole::kCoordinator};

// `method` is "/package.Service/Method"; empty result: no such method.
RoleSet CallersOf(absl::string_view method);

// Whether the method may be called without an identity in the metadata: health and reflection,
// which are called by tools that are not ours. Over TLS the certificate identifies the caller, as
// for all calls.
bool IsGeneralMethod(absl::string_view method);

// kPermissionDenied names the allowed roles and the caller's; kUnimplemented: no such method.
absl::Status CheckCall(absl::string_view method, PeerRole caller);

// The roles that may send such a frame to a shard. CREDIT belongs to the transport itself, in both
// directions.
RoleSet SendersOf(FrameType type);

// Checks a frame that arrived at a shard. kPermissionDenied names the allowed roles and the
// sender's. A client may only read: its pulls carry the reader flag.
absl::Status CheckFrameSender(const FrameHeader& header, PeerRole sender);

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_ACCESS_H_
