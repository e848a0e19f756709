// A daemon's admin port: plain HTTP for kubelets, scrapers and people. It is the only port without
// TLS; it exposes no secrets and changes nothing.
//
//   /metrics   Prometheus' text format (docs/metrics.md), or 503 and what is missing
//   /healthz   200 while the process's event loops run; else 503 and which one is stuck
//   /readyz    200 while the daemon can do its work; else 503 and what it waits for
//   /          lists the other paths, unless the daemon registers a page for it
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

// Thread-safe. All callbacks run on the server's thread, one at a time: they must be quick, read
// only what the owner threads publish, and wait for another thread for at most a second.
class Admin {
 public:
  // Returns why the daemon cannot do its work; empty: it can.
  using WhyNotReady = std::function<std::string()>;
  using AddMetrics = std::function<void(MetricsText&)>;
  using Page = std::function<HttpResponse(const HttpRequest&)>;

  // Serves at once, as not ready ("starting"). Errors as HttpServer::Start.
  static absl::StatusOr<std::unique_ptr<Admin>> Start(const std::string& listen,
                                                      const Identity& self);
  ~Admin();

  Health& health() { return health_; }
  void SetReadiness(WhyNotReady why_not);
  void AddMetricsOf(AddMetrics add);
  void SetPage(const std::string& path, Page page);  // "/status.json"

  // The daemon is not ready from now on. No callback runs after this returns; the process's own
  // metrics and health are still served.
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
