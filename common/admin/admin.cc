#include "common/admin/admin.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/admin/process_metrics.h"
#include "common/base/clock.h"
#include "common/base/descriptors.h"
#include "common/base/status_macros.h"
#include "common/version/version.h"

namespace starling::admin {
namespace {

HttpResponse Text(int status, std::string text) {
  HttpResponse response;
  response.status = status;
  response.body = std::move(text);
  return response;
}

// "ok", or 503 and why not.
HttpResponse Verdict(const std::string& why_not) {
  return why_not.empty() ? Text(200, "ok\n") : Text(503, absl::StrCat(why_not, "\n"));
}

void AddServerMetrics(const HttpServer::Counts& counts, MetricsText& metrics) {
  const auto add = [&](absl::string_view outcome, uint64_t value) {
    metrics.Counter("starling_admin_connections_total",
                    "Connections to the admin port, by how they ended.", {{"outcome", outcome}},
                    static_cast<double>(value));
  };
  add("answered", counts.answered);
  add("refused", counts.refused);
  add("timed_out", counts.timed_out);
  add("evicted", counts.evicted);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Admin>> Admin::Start(const std::string& listen,
                                                    const Identity& self) {
  std::unique_ptr<Admin> admin(new Admin(self));
  HttpServer::Options options;
  options.listen = listen;
  auto server = HttpServer::Start(
      options, [raw = admin.get()](const HttpRequest& request) { return raw->Serve(request); });
  STARLING_RETURN_IF_ERROR(Prefixed("--admin-address", server.status()));
  // If a scrape runs while this line executes, it needs the server's counts, too.
  MutexLock lock(&admin->mutex_);
  admin->server_ = *std::move(server);
  return admin;
}

Admin::Admin(const Identity& self)
    : self_(self), why_not_ready_([] { return std::string("starting"); }) {}

Admin::~Admin() { BeginShutdown(); }

void Admin::SetReadiness(WhyNotReady why_not) {
  MutexLock lock(&mutex_);
  why_not_ready_ = std::move(why_not);
}

void Admin::AddMetricsOf(AddMetrics add) {
  MutexLock lock(&mutex_);
  metrics_.push_back(std::move(add));
}

void Admin::SetPage(const std::string& path, Page page) {
  MutexLock lock(&mutex_);
  pages_[path] = std::move(page);
}

void Admin::BeginShutdown() {
  MutexLock lock(&mutex_);
  why_not_ready_ = [] { return std::string("shutting down"); };
  metrics_.clear();
  pages_.clear();
}

HttpResponse Admin::Metrics() {
  MetricsText metrics;
  metrics.Gauge("starling_build_info", "What this process is; always 1.",
                {{"version", std::string(ReleaseVersion())},
                 {"protocol", absl::StrCat(ProtocolVersion())},
                 {"role", PeerRoleName(self_.role)},
                 {"name", self_.name}},
                1);
  AddProcessMetrics(metrics);
  if (server_ != nullptr) AddServerMetrics(server_->counts(), metrics);
  for (const AddMetrics& add : metrics_) add(metrics);
  if (!metrics.missing().empty()) return Verdict(metrics.missing());
  HttpResponse response = Text(200, metrics.Text());
  response.content_type = kMetricsContentType;
  return response;
}

HttpResponse Admin::Serve(const HttpRequest& request) {
  if (request.path == "/healthz") return Verdict(health_.WhyNot(MonotonicNow()));
  MutexLock lock(&mutex_);
  if (request.path == "/readyz") {
    const std::string why = WhyNoDescriptors();
    return Verdict(why.empty() ? why_not_ready_() : why);
  }
  if (request.path == "/metrics") return Metrics();
  const auto page = pages_.find(request.path);
  if (page != pages_.end()) return page->second(request);
  if (request.path != "/") {
    return Text(404, "there are /metrics, /healthz and /readyz here\n");
  }
  return Text(200, absl::StrCat("Starling's ", PeerRoleName(self_.role), " ", self_.name, " ",
                                std::string(ReleaseVersion()), "\n/metrics /healthz /readyz\n"));
}

}  // namespace starling::admin
