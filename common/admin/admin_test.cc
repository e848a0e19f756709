#include "common/admin/admin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/synchronization/notification.h"
#include "common/admin/testing/http_client.h"
#include "common/event_loop/threaded_loop.h"

namespace starling::admin {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class AdminTest : public testing::Test {
 protected:
  AdminTest() : admin_(Admin::Start("127.0.0.1:0", {PeerRole::kShard, "ps-0"}).value()) {}

  std::string Ask(absl::string_view target) { return Get(admin_->port(), target); }

  const std::unique_ptr<Admin> admin_;
};

TEST_F(AdminTest, IsWellAndNotReadyWhileItStarts) {
  EXPECT_THAT(Ask("/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Ask("/readyz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Ask("/readyz"), EndsWith("\r\n\r\nstarting\n"));
  EXPECT_THAT(Ask("/"), HasSubstr("Starling's shard ps-0"));
  EXPECT_THAT(Ask("/nothing"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(AdminTest, ReadinessHasAReason) {
  std::string why = "no coordinator at c:1";
  admin_->SetReadiness([&] { return why; });
  EXPECT_THAT(Ask("/readyz"), EndsWith("\r\n\r\nno coordinator at c:1\n"));
  why.clear();
  EXPECT_THAT(Ask("/readyz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(AdminTest, MetricsAreThoseOfAll) {
  admin_->AddMetricsOf([](MetricsText& metrics) { metrics.Gauge("starling_a", "A.", {}, 7); });
  admin_->AddMetricsOf([](MetricsText& metrics) { metrics.Gauge("starling_b", "B.", {}, 8); });
  const std::string reply = Ask("/metrics");
  EXPECT_THAT(reply, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(reply, HasSubstr("\nstarling_build_info{version=\""));
  EXPECT_THAT(reply, HasSubstr("role=\"shard\",name=\"ps-0\"} 1\n"));
  EXPECT_THAT(reply, HasSubstr("\nstarling_a 7\n"));
  EXPECT_THAT(reply, HasSubstr("\nstarling_b 8\n"));
  EXPECT_THAT(reply, HasSubstr("\nstarling_admin_connections_total{outcome=\"answered\"} "));
  EXPECT_THAT(reply, Not(HasSubstr("starling_process_resident_memory_bytes 0\n")));
  EXPECT_THAT(reply, Not(HasSubstr("starling_process_open_files 0\n")));
}

TEST_F(AdminTest, MetricsThatAreNotWholeAreNone) {
  admin_->AddMetricsOf([](MetricsText& metrics) { metrics.Gauge("starling_a", "A.", {}, 7); });
  bool missing = true;
  admin_->AddMetricsOf([&](MetricsText& metrics) {
    if (missing) metrics.Miss("no series of jobs");
    if (missing) metrics.Miss("another thing");
  });
  EXPECT_THAT(Ask("/metrics"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Ask("/metrics"), EndsWith("\r\n\r\nno series of jobs\n"));
  missing = false;
  EXPECT_THAT(Ask("/metrics"), HasSubstr("\nstarling_a 7\n"));
}

TEST_F(AdminTest, PagesAreServed) {
  admin_->SetPage("/status.json", [](const HttpRequest& request) {
    HttpResponse response;
    response.content_type = "application/json";
    response.body = "{\"job\":\"" + QueryValue(request.query, "job") + "\"}";
    return response;
  });
  EXPECT_THAT(Ask("/status.json?job=a"), EndsWith("{\"job\":\"a\"}"));
}

TEST_F(AdminTest, AStuckLoopIsSaid) {
  ThreadedLoop loop("owner");
  admin_->health().Watch(&loop, "owner");
  EXPECT_THAT(Ask("/healthz"), StartsWith("HTTP/1.1 200 "));
}

// A scrape during shutdown still gets the process's metrics; the daemon's callbacks are not called.
TEST_F(AdminTest, AfterBeginShutdownNothingIsCalled) {
  bool gone = false;
  admin_->AddMetricsOf([&](MetricsText& metrics) {
    EXPECT_FALSE(gone);
    metrics.Gauge("starling_a", "A.", {}, 7);
  });
  admin_->SetPage("/page", [&](const HttpRequest&) {
    EXPECT_FALSE(gone);
    return HttpResponse();
  });
  admin_->SetReadiness([&] {
    EXPECT_FALSE(gone);
    return std::string();
  });
  EXPECT_THAT(Ask("/metrics"), HasSubstr("starling_a 7"));
  admin_->BeginShutdown();
  gone = true;
  EXPECT_THAT(Ask("/metrics"), HasSubstr("starling_build_info"));
  EXPECT_THAT(Ask("/metrics"), Not(HasSubstr("starling_a 7")));
  EXPECT_THAT(Ask("/page"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("/readyz"), EndsWith("\r\n\r\nshutting down\n"));
  EXPECT_THAT(Ask("/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST(AdminStart, NamesTheFlag) {
  const auto admin = Admin::Start("nonsense", {PeerRole::kWorker, "w"});
  EXPECT_EQ(admin.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(admin.status().message()),
              StartsWith("--admin-address: expected host:port"));
}

}  // namespace
}  // namespace starling::admin
