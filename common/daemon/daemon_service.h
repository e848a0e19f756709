// The service by which every daemon describes itself (proto/daemon.proto).
#ifndef STARLING_COMMON_DAEMON_DAEMON_SERVICE_H_
#define STARLING_COMMON_DAEMON_DAEMON_SERVICE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/sync/mutex.h"
#include "common/trace/span_ring.h"
#include "common/transport/identity.h"
#include "common/transport/link_security.h"

namespace grpc {
class Service;
}

namespace starling {

// The addresses of a daemon, known once it listens. Thread-safe.
class DaemonAddresses {
 public:
  struct All {
    std::string bound;
    std::string advertised;
    std::string coordinator;  // the one it reports to; empty: it is the coordinator
  };
  void Set(All all) {
    MutexLock lock(&mutex_);
    all_ = std::move(all);
  }
  All Get() const {
    MutexLock lock(&mutex_);
    return all_;
  }

 private:
  mutable Mutex mutex_;
  All all_ ABSL_GUARDED_BY(mutex_);
};

struct DaemonInfo {
  Identity self;
  std::string instruction_set;  // "avx512": the kernels in use; empty: none
  std::string admin_address = {};
  absl::Duration clock_offset = {};  // for tests: how far ahead its clocks appear
  std::shared_ptr<const DaemonAddresses> addresses = nullptr;  // may be null
  std::shared_ptr<const LinkSecurity> security = nullptr;      // for the paths that it measures
};

// For RpcServer::Options::services. `spans` may be null and must outlive the service.
std::shared_ptr<grpc::Service> MakeDaemonService(const DaemonInfo& info, const SpanRing* spans);

}  // namespace starling

#endif  // STARLING_COMMON_DAEMON_DAEMON_SERVICE_H_
