#include "server/coordinator/core/range_sums.h"

#include <limits>

#include "gtest/gtest.h"

namespace starling::coordinator {
namespace {

StepMetrics Range(uint64_t first, uint32_t count, double loss, uint64_t samples = 10) {
  StepMetrics metrics;
  metrics.mutable_work()->set_first(first);
  metrics.mutable_work()->set_count(count);
  metrics.set_loss_sum(loss);
  metrics.set_samples(samples);
  metrics.set_correct(samples / 2);
  return metrics;
}

TEST(RangeSums, EachRangeCountsOnce) {
  RangeSums sums;
  EXPECT_TRUE(sums.Add(Range(4, 4, 2.0)));
  EXPECT_FALSE(sums.Add(Range(4, 4, 2.0)));
  EXPECT_FALSE(sums.Add(Range(6, 2, 1.0))) << "inside";
  EXPECT_TRUE(sums.Add(Range(0, 4, 1.0)));
  EXPECT_EQ(sums.ids(), 8u);
  EXPECT_EQ(sums.Sum().samples, 20u);
  EXPECT_EQ(sums.Sum().correct, 10u);
  EXPECT_DOUBLE_EQ(sums.Sum().loss(), 0.15);
  EXPECT_TRUE(sums.Has(7));
  EXPECT_FALSE(sums.Has(8));
}

TEST(RangeSums, AGreaterRangeReplacesItsParts) {
  RangeSums sums;
  sums.Add(Range(0, 1, 1.0, 1));
  sums.Add(Range(2, 2, 1.0, 2));
  sums.Add(Range(4, 1, 5.0, 1));
  EXPECT_TRUE(sums.Add(Range(0, 4, 2.5, 4)));
  EXPECT_EQ(sums.ids(), 5u);
  EXPECT_EQ(sums.Sum().samples, 5u);
  EXPECT_DOUBLE_EQ(sums.Sum().loss_sum, 7.5);
}

TEST(RangeSums, TheOrderOfArrivalDoesNotChangeABit) {
  RangeSums forward;
  RangeSums backward;
  for (uint64_t i = 0; i < 100; ++i) forward.Add(Range(i, 1, 1.0 / static_cast<double>(i + 3)));
  for (uint64_t i = 100; i-- > 0;) backward.Add(Range(i, 1, 1.0 / static_cast<double>(i + 3)));
  EXPECT_EQ(forward.Sum().loss_sum, backward.Sum().loss_sum);
}

TEST(RangeSums, TheDivisionOfAStepDoesNotChangeABit) {
  const auto loss = [](uint64_t id) { return 1.0 / static_cast<double>(id + 3); };
  RangeSums whole;
  RangeSums parts;
  for (uint64_t id = 0; id < 200; id += 2) {
    whole.Add(Range(id, 2, loss(id) + loss(id + 1)));
    parts.Add(Range(id + 1, 1, loss(id + 1)));
    parts.Add(Range(id, 1, loss(id)));
  }
  EXPECT_EQ(parts.ids(), whole.ids());
  EXPECT_EQ(parts.Sum().loss_sum, whole.Sum().loss_sum);
  EXPECT_EQ(parts.Ranges().size(), 3u) << "128, 64 and 8";
}

TEST(RangeSums, RangesThatAreNotAlignedAreIgnored) {
  RangeSums sums;
  EXPECT_FALSE(sums.Add(Range(0, 0, 1)));
  EXPECT_FALSE(sums.Add(Range(0, 3, 1)));
  EXPECT_FALSE(sums.Add(Range(2, 4, 1)));
  EXPECT_FALSE(sums.Add(Range(std::numeric_limits<uint64_t>::max(), 1, 1)))
      << "its end does not exist";
  EXPECT_EQ(sums.ids(), 0u);
}

// Of ranges with gaps. Folding changes nothing: no bit of the sum, and no range counts twice.
TEST(RangeSums, ALongPassIsSummedUpAsItGoes) {
  RangeSums all;
  RangeSums few(10);
  for (uint64_t i = 0; i < 1000; ++i) {
    const StepMetrics range = Range(i * 4, 2, 1.0 / static_cast<double>(i + 3));
    EXPECT_TRUE(all.Add(range));
    EXPECT_TRUE(few.Add(range));
  }
  EXPECT_EQ(few.Sum().loss_sum, all.Sum().loss_sum);
  EXPECT_EQ(few.Sum().samples, all.Sum().samples);
  EXPECT_EQ(few.ids(), 2000u);
  EXPECT_TRUE(few.Has(100));
  EXPECT_FALSE(few.Add(Range(100, 2, 1.0)));
  EXPECT_FALSE(few.Add(Range(128, 128, 1.0)));
  EXPECT_EQ(few.ids(), 2000u);
}

TEST(RangeSums, WhatComesLateStillCounts) {
  RangeSums sums(10);
  for (uint64_t i = 1; i < 100; ++i) sums.Add(Range(i * 2, 1, 1.0, 1));
  EXPECT_TRUE(sums.Add(Range(0, 1, 1.0, 1)));
  EXPECT_FALSE(sums.Add(Range(0, 1, 1.0, 1)));
  EXPECT_EQ(sums.Sum().samples, 100u);
}

TEST(RangeSums, NothingGivesZero) {
  EXPECT_EQ(RangeSums().Sum().loss(), 0);
  EXPECT_EQ(RangeSums().Sum().accuracy(), 0);
}

}  // namespace
}  // namespace starling::coordinator
