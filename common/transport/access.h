// Who may make which call, and send which frame: the one table that every server asks before it
// looks at anything else. A method or a type of frame without a row here is nobody's.
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

// Of "/package.Service/Method"; empty: no such method.
RoleSet CallersOf(absl::string_view method);

// Whether the method may be called without an identity in the metadata: health and reflection,
// which tools call that are not ours. Over TLS the certificate says who calls, here as everywhere.
bool IsGeneralMethod(absl::string_view method);

// kPermissionDenied says who may, and who asked; kUnimplemented: no such method.
absl::Status CheckCall(absl::string_view method, PeerRole caller);

// Who may send such a frame to a shard. CREDIT is the transport's own, in both directions.
RoleSet SendersOf(FrameType type);

// Of a frame that arrived at a shard: kPermissionDenied says who may send it, and who did. A client
// may only read: its pulls carry the reader's flag.
absl::Status CheckFrameSender(const FrameHeader& header, PeerRole sender);

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_ACCESS_H_
