// gRPC credentials for our links, and the gate for every call to one of our servers. Internal to
// common/transport; includes gRPC.
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

// For a channel to a process with one of the roles `servers`. Over TLS, a peer with a certificate
// of another role is refused.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(
    std::shared_ptr<const LinkSecurity> security, RoleSet servers);

// For a port. JudgeCall checks every call to any of its services before anything else sees the
// call.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    std::shared_ptr<const LinkSecurity> security);

// What is known about a call before it is dispatched.
struct CallFacts {
  absl::string_view method;
  std::vector<absl::string_view> certificate_uris;  // of the connection
  absl::string_view identity;                       // from the metadata; empty: none
  absl::string_view version;
  absl::string_view protocol;
  absl::string_view repeated;  // the key among these that occurs more than once; empty: none
};

// kPermissionDenied: over TLS, a certificate of another cluster, without a role, or with another
// role than the call's identity; a role that may not call the method; an identity, version or
// protocol that is given twice, even with equal values (readers could pick different ones).
// kUnauthenticated, kFailedPrecondition: as CheckPeer. kUnimplemented: no such method.
absl::Status JudgeCall(const CallFacts& call, const LinkSecurity* security);

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_GRPC_SECURITY_H_
