#include "server/shard/host/shard_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace starling {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const ShardMetrics& metrics) {
  admin::MetricsText text;
  metrics.AddMetrics(text);
  return text.Text();
}

TEST(ShardMetrics, SeriesLiveAsLongAsTheJob) {
  ShardMetrics metrics;
  auto kept = std::make_shared<ShardJobMetrics>();
  auto dropped = std::make_shared<ShardJobMetrics>();
  kept->push.Observe(0.002);
  kept->received_bytes = 400;
  kept->queue_us = 1'500'000;
  metrics.Show("kept", kept);
  metrics.Show("dropped", dropped);
  EXPECT_THAT(Text(metrics), HasSubstr("starling_ps_push_seconds_count{job_name=\"kept\"} 1\n"));
  EXPECT_THAT(Text(metrics),
              HasSubstr("starling_ps_received_bytes_total{job_name=\"kept\"} 400\n"));
  EXPECT_THAT(Text(metrics), HasSubstr("starling_ps_queue_seconds_total{job_name=\"kept\"} 1.5\n"));
  EXPECT_THAT(Text(metrics), HasSubstr("{job_name=\"dropped\"}"));
  dropped.reset();
  EXPECT_THAT(Text(metrics), Not(HasSubstr("dropped")));
  kept.reset();
  EXPECT_EQ(Text(metrics), "");
}

struct CountedDelete {
  std::shared_ptr<int> copies;  // each entry of the table keeps one
  void operator()(const ShardJobMetrics* gone) const { delete gone; }
};

TEST(ShardMetrics, WithoutAScrapeNothingStaysOfJobsThatAreGone) {
  ShardMetrics metrics;
  const auto copies = std::make_shared<int>();
  for (int i = 0; i < 3; ++i) {
    const std::string job(1, static_cast<char>('a' + i));
    metrics.Show(
        job, std::shared_ptr<const ShardJobMetrics>(new ShardJobMetrics, CountedDelete{copies}));
    EXPECT_EQ(copies.use_count(), 2) << "ours and the last job's";
  }
}

TEST(ShardMetrics, ANewJobOfAnOldNameStartsAnew) {
  ShardMetrics metrics;
  const auto old = std::make_shared<ShardJobMetrics>();
  old->sent_bytes = 7;
  metrics.Show("j", old);
  const auto anew = std::make_shared<ShardJobMetrics>();
  metrics.Show("j", anew);
  EXPECT_THAT(Text(metrics), HasSubstr("starling_ps_sent_bytes_total{job_name=\"j\"} 0\n"));
}

}  // namespace
}  // namespace starling
