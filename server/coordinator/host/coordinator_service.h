// The coordinator's gRPC service around its host.
#ifndef STARLING_SERVER_COORDINATOR_HOST_COORDINATOR_SERVICE_H_
#define STARLING_SERVER_COORDINATOR_HOST_COORDINATOR_SERVICE_H_

#include <memory>

#include "server/coordinator/host/coordinator_host.h"

namespace grpc {
class Service;
}

namespace starling::coordinator {

// The service of proto/coordinator_service.proto, for RpcServer::Options::services. Every call must
// carry an identity. A daemon must register under the name and role of its identity.
std::shared_ptr<grpc::Service> MakeCoordinatorService(CoordinatorHost* host);

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_HOST_COORDINATOR_SERVICE_H_
