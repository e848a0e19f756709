// What every daemon answers about itself (proto/daemon.proto).
#ifndef STARLING_COMMON_DAEMON_DAEMON_SERVICE_H_
#define STARLING_COMMON_DAEMON_DAEMON_SERVICE_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/trace/span_ring.h"
#include "common/transport/identity.h"

namespace grpc {
class Service;
}

namespace starling {

struct DaemonInfo {
  Identity self;
  std::string instruction_set;  // "avx512": which kernels it runs; empty where it runs none
  std::string admin_address = {};
  absl::Duration clock_offset = {};  // for tests: its clocks are shown to be ahead by so much
};

// For RpcServer::Options::services. `spans` may be null and must outlive the service.
std::shared_ptr<grpc::Service> MakeDaemonService(const DaemonInfo& info, const SpanRing* spans);

}  // namespace starling

#endif  // STARLING_COMMON_DAEMON_DAEMON_SERVICE_H_
