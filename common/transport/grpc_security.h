// gRPC's credentials for our links, and the gate that every call to a server of ours goes through.
// Internal to common/transport; includes gRPC.
#ifndef STARLING_COMMON_TRANSPORT_GRPC_SECURITY_H_
#define STARLING_COMMON_TRANSPORT_GRPC_SECURITY_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/transport/access.h"
#include "common/transport/identity.h"
#include "common/transport/link_security.h"

namespace starling {

// For a channel to a process of one of the roles `servers`: over TLS, one with another certificate
// is not talked to.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(
    std::shared_ptr<const LinkSecurity> security, RoleSet servers);

// For a port. Every call to it, of any service, is judged by JudgeCall before anything else sees
// it.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    std::shared_ptr<const LinkSecurity> security);

// What is known of a call before it is looked at.
struct CallFacts {
  absl::string_view method;
  std::vector<absl::string_view> certificate_uris;  // of its connection
  absl::string_view identity;                       // metadata; empty: none
  absl::string_view version;
  absl::string_view protocol;
  absl::string_view repeated;  // one of these keys that came more than once; empty: none did
};

// kPermissionDenied: over TLS, a certificate of another cluster or of no role, or one of another
// role than the call's identity; a role that may not call the method; an identity, version or
// protocol that is given twice, whatever it says: who reads one and who reads the other would
// disagree. kUnauthenticated, kFailedPrecondition: as CheckPeer. kUnimplemented: no such method.
absl::Status JudgeCall(const CallFacts& call, const LinkSecurity* security);

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_GRPC_SECURITY_H_
