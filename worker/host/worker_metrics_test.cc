#include "worker/host/worker_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace starling {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const WorkerMetrics& metrics) {
  admin::MetricsText text;
  metrics.AddMetrics(text);
  return text.Text();
}

TEST(WorkerMetrics, AreOfTheJobThatIsServed) {
  WorkerMetrics metrics;
  EXPECT_EQ(Text(metrics), "");
  metrics.Unit({}, 5);  // of nothing
  metrics.BeginJob("first");
  metrics.Unit({.total = 0.05, .data = 0.002, .held = 0.02}, 64);
  metrics.Unit({.total = 0.15, .data = 0.004, .held = 0.02}, 64);
  const std::string text = Text(metrics);
  EXPECT_THAT(text, HasSubstr("starling_worker_steps_total{job_name=\"first\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("starling_worker_samples_total{job_name=\"first\"} 128\n"));
  EXPECT_THAT(text, HasSubstr("starling_worker_unit_seconds_sum{job_name=\"first\"} 0.15\n"));
  EXPECT_THAT(text,
              HasSubstr("starling_worker_unit_seconds_bucket{job_name=\"first\",le=\"0.1\"} 2\n"));
  EXPECT_THAT(
      text,
      HasSubstr("starling_worker_step_seconds_sum{job_name=\"first\",phase=\"data\"} 0.004\n"));
  EXPECT_THAT(
      text,
      HasSubstr("starling_worker_step_seconds_sum{job_name=\"first\",phase=\"wait\"} 0.02\n"));
  EXPECT_THAT(
      text, HasSubstr("starling_worker_step_seconds_count{job_name=\"first\",phase=\"push\"} 2\n"));
  metrics.EndJob();
  EXPECT_EQ(Text(metrics), "");
  metrics.BeginJob("second");
  EXPECT_THAT(Text(metrics), Not(HasSubstr("\"first\"")));
  EXPECT_THAT(Text(metrics), HasSubstr("starling_worker_steps_total{job_name=\"second\"} 0\n"));
}

TEST(WorkerMetrics, ShowLinksMemoryAndOverlapAsReported) {
  WorkerMetrics metrics;
  metrics.BeginJob("j");
  WorkerReport report;
  report.set_hidden_share(0.75);
  report.mutable_times()->set_idle(2.5);
  report.mutable_memory()->set_planned_bytes(64 << 20);
  report.mutable_memory()->set_peak_bytes(96 << 20);
  report.mutable_memory()->set_device_peak_bytes(80 << 20);
  LinkStatus& link = *report.add_links();
  link.set_shard(3);
  link.set_connected(true);
  link.set_sent_bytes(1000);
  link.set_shared_bytes(600);
  link.set_sending_seconds(0.5);
  metrics.Publish(report);
  const std::string text = Text(metrics);
  EXPECT_THAT(text, HasSubstr("starling_worker_overlap_ratio{job_name=\"j\"} 0.75\n"));
  EXPECT_THAT(text, HasSubstr("starling_worker_idle_seconds_total{job_name=\"j\"} 2.5\n"));
  EXPECT_THAT(text, HasSubstr("starling_worker_memory_planned_bytes{job_name=\"j\"} 67108864\n"));
  EXPECT_THAT(text, HasSubstr("starling_worker_memory_peak_bytes{job_name=\"j\"} 100663296\n"));
  EXPECT_THAT(text,
              HasSubstr("starling_worker_memory_device_peak_bytes{job_name=\"j\"} 83886080\n"));
  EXPECT_THAT(text, HasSubstr("starling_worker_link_up{shard=\"3\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("starling_worker_link_sent_bytes_total{shard=\"3\"} 1000\n"));
  EXPECT_THAT(text, HasSubstr("starling_worker_link_shared_bytes_total{shard=\"3\"} 600\n"));
  EXPECT_THAT(text, HasSubstr("starling_worker_link_sending_seconds_total{shard=\"3\"} 0.5\n"));
}

}  // namespace
}  // namespace starling
