// Counts reports and orders between daemons and the coordinator (docs/metrics.md).
#ifndef STARLING_SERVER_COORDINATOR_HOST_CONTROL_TRAFFIC_H_
#define STARLING_SERVER_COORDINATOR_HOST_CONTROL_TRAFFIC_H_

#include <atomic>
#include <cstdint>

#include "common/admin/metrics_text.h"

namespace starling::coordinator {

// For workers or for shards. Thread-safe.
class ControlTraffic {
 public:
  void CountReport(uint64_t bytes) {
    ++reports_;
    report_bytes_ += bytes;
  }
  void CountOrders(uint64_t bytes) { order_bytes_ += bytes; }

  void AddMetrics(absl::string_view role, admin::MetricsText& metrics) const {
    const admin::MetricsText::Labels labels = {{"role", role}};
    metrics.Counter("starling_coordinator_reports_total",
                    "Reports of daemons, each of which is answered with orders.", labels,
                    static_cast<double>(reports_));
    metrics.Counter("starling_coordinator_report_bytes_total", "What the reports had.", labels,
                    static_cast<double>(report_bytes_));
    metrics.Counter("starling_coordinator_order_bytes_total", "What the orders had.", labels,
                    static_cast<double>(order_bytes_));
  }

 private:
  std::atomic<uint64_t> reports_ = 0;
  std::atomic<uint64_t> report_bytes_ = 0;
  std::atomic<uint64_t> order_bytes_ = 0;
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_HOST_CONTROL_TRAFFIC_H_
