// A daemon's admin port: plain HTTP for kubelets, scrapers and people, the one port without TLS. It
// shows nothing secret and changes nothing.
//
//   /metrics   Prometheus' text format (docs/metrics.md), or 503 and what is missing
//   /healthz   200 while the process's loops turn; else 503 and which one is stuck
//   /readyz    200 while it can do its work; else 503 and what it waits for
//   /          what else there is, unless the daemon puts a page there
#ifndef STARLING_COMMON_ADMIN_ADMIN_H_
#define STARLING_COMMON_ADMIN_ADMIN_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/admin/health.h"
#include "common/admin/http_server.h"
#include "common/admin/metrics_text.h"
#include "common/sync/mutex.h"
#include "common/transport/identity.h"

namespace starling::admin {

// Thread-safe. Everything that is given to it is called on the server's thread, one call at a time:
// it must be quick, read what its owners publish, and wait for none of them for more than a second.
class Admin {
 public:
  // Says why the daemon cannot do its work; empty: it can.
  using WhyNotReady = std::function<std::string()>;
  using AddMetrics = std::function<void(MetricsText&)>;
  using Page = std::function<HttpResponse(const HttpRequest&)>;

  // Serves at once: not ready, "starting". Errors as HttpServer::Start.
  static absl::StatusOr<std::unique_ptr<Admin>> Start(const std::string& listen,
                                                      const Identity& self);
  ~Admin();

  Health& health() { return health_; }
  void SetReadiness(WhyNotReady why_not);
  void AddMetricsOf(AddMetrics add);
  void SetPage(const std::string& path, Page page);  // "/status.json"

  // Not ready from now on; nothing that was given is called any more, nor runs when this returns.
  // What is the process's own is still answered.
  void BeginShutdown();

  int port() const { return server_->port(); }
  std::string address() const { return server_->address(); }

 private:
  explicit Admin(const Identity& self);
  HttpResponse Serve(const HttpRequest& request);
  HttpResponse Metrics() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Identity self_;
  Health health_;
  Mutex mutex_;
  WhyNotReady why_not_ready_ ABSL_GUARDED_BY(mutex_);
  std::vector<AddMetrics> metrics_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Page> pages_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<HttpServer> server_;  // last: its thread calls Serve
};

}  // namespace starling::admin

#endif  // STARLING_COMMON_ADMIN_ADMIN_H_
