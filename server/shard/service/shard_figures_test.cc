#include "server/shard/service/shard_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace starling {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const ShardFigures& figures) {
  admin::MetricsText metrics;
  figures.AddMetrics(metrics);
  return metrics.Text();
}

TEST(ShardFigures, SeriesLiveAsLongAsTheJob) {
  ShardFigures figures;
  auto kept = std::make_shared<ShardJobFigures>();
  auto dropped = std::make_shared<ShardJobFigures>();
  kept->push.Observe(0.002);
  kept->received_bytes = 400;
  kept->queue_us = 1'500'000;
  figures.Show("kept", kept);
  figures.Show("dropped", dropped);
  EXPECT_THAT(Text(figures), HasSubstr("starling_ps_push_seconds_count{job_name=\"kept\"} 1\n"));
  EXPECT_THAT(Text(figures),
              HasSubstr("starling_ps_received_bytes_total{job_name=\"kept\"} 400\n"));
  EXPECT_THAT(Text(figures), HasSubstr("starling_ps_queue_seconds_total{job_name=\"kept\"} 1.5\n"));
  EXPECT_THAT(Text(figures), HasSubstr("{job_name=\"dropped\"}"));
  dropped.reset();
  EXPECT_THAT(Text(figures), Not(HasSubstr("dropped")));
  kept.reset();
  EXPECT_EQ(Text(figures), "");
}

TEST(ShardFigures, ANewJobOfAnOldNameStartsAnew) {
  ShardFigures figures;
  const auto old = std::make_shared<ShardJobFigures>();
  old->sent_bytes = 7;
  figures.Show("j", old);
  const auto anew = std::make_shared<ShardJobFigures>();
  figures.Show("j", anew);
  EXPECT_THAT(Text(figures), HasSubstr("starling_ps_sent_bytes_total{job_name=\"j\"} 0\n"));
}

}  // namespace
}  // namespace starling
