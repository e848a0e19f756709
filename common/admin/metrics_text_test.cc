#include "common/admin/metrics_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace starling::admin {
namespace {

TEST(MetricsText, FamiliesComeTogetherWithHelpAndType) {
  MetricsText metrics;
  metrics.Gauge("starling_b", "Second.", {{"job", "x"}}, 1);
  metrics.Counter("starling_a_total", "First.", {}, 12345678901.0);
  metrics.Gauge("starling_b", "Second.", {{"job", "y"}, {"state", "z"}}, 0.25);
  EXPECT_EQ(metrics.Text(), R"(# HELP starling_a_total First.
# TYPE starling_a_total counter
starling_a_total 12345678901
# HELP starling_b Second.
# TYPE starling_b gauge
starling_b{job="x"} 1
starling_b{job="y",state="z"} 0.25
)");
}

TEST(MetricsText, AnothersSamplesJoinTheirFamilies) {
  MetricsText one, two;
  one.Gauge("starling_b", "Second.", {{"job", "x"}}, 1);
  two.Gauge("starling_b", "Second.", {{"job", "y"}}, 2);
  two.Counter("starling_a_total", "First.", {}, 3);
  one.Add(two);
  EXPECT_EQ(one.Text(), R"(# HELP starling_a_total First.
# TYPE starling_a_total counter
starling_a_total 3
# HELP starling_b Second.
# TYPE starling_b gauge
starling_b{job="x"} 1
starling_b{job="y"} 2
)");
}

TEST(MetricsText, NamesOfPeopleAreEscaped) {
  MetricsText metrics;
  metrics.Gauge("starling_b", "A \\ and a\nbreak.", {{"job", "a\"b\\c\nd"}}, 1);
  EXPECT_EQ(metrics.Text(),
            "# HELP starling_b A \\\\ and a\\nbreak.\n# TYPE starling_b gauge\n"
            "starling_b{job=\"a\\\"b\\\\c\\nd\"} 1\n");
}

TEST(MetricsText, NumbersThatAreNone) {
  MetricsText metrics;
  metrics.Gauge("starling_n", "N.", {{"i", "1"}}, std::nan(""));
  metrics.Gauge("starling_n", "N.", {{"i", "2"}}, std::numeric_limits<double>::infinity());
  metrics.Gauge("starling_n", "N.", {{"i", "3"}}, 18446744073709551615.0);
  EXPECT_EQ(metrics.Text(),
            "# HELP starling_n N.\n# TYPE starling_n gauge\nstarling_n{i=\"1\"} NaN\n"
            "starling_n{i=\"2\"} +Inf\nstarling_n{i=\"3\"} 1.84467441e+19\n");
}

TEST(MetricsText, AHistogramIsCumulative) {
  SecondsHistogram histogram;
  histogram.Observe(0);
  histogram.Observe(0.0001);  // upper bounds are inclusive
  histogram.Observe(0.02);
  histogram.ObserveMicros(2'000'000'000);
  MetricsText metrics;
  metrics.Histogram("starling_ps_push_seconds", "H.", {{"job", "j"}}, histogram.counts());
  EXPECT_EQ(metrics.Text(), R"(# HELP starling_ps_push_seconds H.
# TYPE starling_ps_push_seconds histogram
starling_ps_push_seconds_bucket{job="j",le="0.0001"} 2
starling_ps_push_seconds_bucket{job="j",le="0.0003"} 2
starling_ps_push_seconds_bucket{job="j",le="0.001"} 2
starling_ps_push_seconds_bucket{job="j",le="0.003"} 2
starling_ps_push_seconds_bucket{job="j",le="0.01"} 2
starling_ps_push_seconds_bucket{job="j",le="0.03"} 3
starling_ps_push_seconds_bucket{job="j",le="0.1"} 3
starling_ps_push_seconds_bucket{job="j",le="0.3"} 3
starling_ps_push_seconds_bucket{job="j",le="1"} 3
starling_ps_push_seconds_bucket{job="j",le="3"} 3
starling_ps_push_seconds_bucket{job="j",le="10"} 3
starling_ps_push_seconds_bucket{job="j",le="30"} 3
starling_ps_push_seconds_bucket{job="j",le="+Inf"} 4
starling_ps_push_seconds_sum{job="j"} 2000.0201
starling_ps_push_seconds_count{job="j"} 4
)");
}

}  // namespace
}  // namespace starling::admin
