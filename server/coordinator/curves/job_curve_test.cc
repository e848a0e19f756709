#include "server/coordinator/curves/job_curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace starling::coordinator {
namespace {

using ::testing::ElementsAre;

JobCurve::Moment At(uint64_t step, double seconds) {
  JobCurve::Moment moment;
  moment.step = step;
  moment.seconds = seconds;
  moment.unix_seconds = 1000 + seconds;
  moment.samples_per_step = 32;
  moment.learning_rate = 0.5;
  moment.hidden_share = 0.25;
  moment.labels_per_sample = 1;
  return moment;
}

std::vector<uint64_t> Steps(const JobCurve& curve) {
  std::vector<uint64_t> steps;
  for (const CurvePoint& point : curve.points()) steps.push_back(point.step());
  return steps;
}

std::vector<uint64_t> Histogram(const CurvePoint& point) {
  return {point.staleness_histogram().begin(), point.staleness_histogram().end()};
}

TEST(JobCurve, APointSaysWhatWasSoSinceTheOneBefore) {
  JobCurve curve;
  curve.Observe(60, 20, 5);
  curve.Observe(20, 20, 15);
  const CurvePoint first = curve.Add(At(4, 2));
  EXPECT_EQ(first.steps(), 4u);
  EXPECT_EQ(first.samples(), 40u);
  EXPECT_DOUBLE_EQ(first.train_loss(), 2);
  EXPECT_DOUBLE_EQ(first.train_accuracy(), 0.5);
  EXPECT_DOUBLE_EQ(first.samples_per_second(), 64);
  EXPECT_DOUBLE_EQ(first.learning_rate(), 0.5);
  EXPECT_DOUBLE_EQ(first.hidden_share(), 0.25);
  EXPECT_DOUBLE_EQ(first.unix_seconds(), 1002);
  curve.Observe(10, 10, 10);
  const CurvePoint second = curve.Add(At(6, 3));
  EXPECT_EQ(second.steps(), 2u);
  EXPECT_DOUBLE_EQ(second.train_loss(), 1);
  EXPECT_DOUBLE_EQ(second.samples_per_second(), 64);
}

TEST(JobCurve, IsDueWithNewStepsALossAndTimePassed) {
  JobCurve curve;
  EXPECT_FALSE(curve.Due(1, 1, false)) << "no loss yet";
  EXPECT_TRUE(curve.Due(1, 1, true)) << "none will come";
  curve.Observe(1, 1, 1);
  EXPECT_TRUE(curve.Due(1, 0.5, false));
  EXPECT_FALSE(curve.Due(1, 0.4, false));
  EXPECT_FALSE(curve.Due(0, 9, false));
  EXPECT_FALSE(curve.Due(0, 9, true));
  curve.Add(At(1, 0.5));
  curve.Observe(1, 1, 1);
  EXPECT_FALSE(curve.Due(2, 0.9, false));
  EXPECT_TRUE(curve.Due(2, 1.0, false));
  EXPECT_FALSE(curve.Due(1, 5.0, false));
}

TEST(JobCurve, WithoutALossOrLabelsTheFieldsAreUnset) {
  JobCurve curve;
  EXPECT_FALSE(curve.Add(At(1, 1)).has_train_loss());
  curve.Observe(4, 2, 0);
  JobCurve::Moment moment = At(2, 2);
  moment.labels_per_sample = 0;
  const CurvePoint point = curve.Add(moment);
  EXPECT_TRUE(point.has_train_loss());
  EXPECT_FALSE(point.has_train_accuracy());
}

TEST(JobCurve, StalenessIsWhatIsNewOfTheCounts) {
  JobCurve curve;
  JobCurve::Moment moment = At(1, 1);
  moment.staleness = {5, 2, 0, 0};
  moment.staleness_max = 1;
  EXPECT_THAT(Histogram(curve.Add(moment)), ElementsAre(5, 2));
  EXPECT_EQ(curve.points().back().staleness_max(), 1u);
  moment = At(2, 2);
  moment.staleness = {9, 2, 0, 3};
  moment.staleness_max = 17;
  EXPECT_THAT(Histogram(curve.Add(moment)), ElementsAre(4, 0, 0, 3));
  EXPECT_EQ(curve.points().back().staleness_max(), 17u) << "the last bucket is that, or more";
  moment = At(3, 3);
  moment.staleness = {12, 2, 0, 3};
  moment.staleness_max = 17;
  EXPECT_THAT(Histogram(curve.Add(moment)), ElementsAre(3));
  EXPECT_EQ(curve.points().back().staleness_max(), 0u);
}

TEST(JobCurve, ALeadOfLongAgoIsNoLaterPointsGreatest) {
  JobCurve curve;
  JobCurve::Moment moment = At(1, 1);
  moment.staleness = {5, 0, 0, 1};
  moment.staleness_max = 17;
  EXPECT_EQ(curve.Add(moment).staleness_max(), 17u);
  moment = At(2, 2);
  moment.staleness = {5, 0, 0, 4};
  moment.staleness_max = 17;
  EXPECT_EQ(curve.Add(moment).staleness_max(), 3u) << "that, or more, but not known to be 17";
  JobCurve restored;
  restored.Restore(curve.points(), 0);
  moment = At(3, 3);
  moment.staleness = {5, 0, 0, 6};
  moment.staleness_max = 17;
  EXPECT_EQ(restored.Add(moment).staleness_max(), 3u);
  moment = At(4, 4);
  moment.staleness = {5, 0, 0, 7};
  moment.staleness_max = 19;
  EXPECT_EQ(restored.Add(moment).staleness_max(), 19u);
}

TEST(JobCurve, NeighboursAreMergedWhenItIsFull) {
  JobCurve curve(4);
  for (int i = 1; i <= 4; ++i) {
    // Losses 1, 2, 3, 4 over 1, 3, 1, 3 samples, alternately 1 s and 3 s apart.
    const uint64_t samples = i % 2 == 1 ? 1 : 3;
    curve.Observe(i * static_cast<double>(samples), samples, i % 2 == 1 ? 1 : 0);
    JobCurve::Moment moment = At(i, i % 2 == 1 ? 2 * (i - 1) + 1 : 2 * i);
    moment.hidden_share = i % 2 == 1 ? 1 : 0;
    moment.staleness = {static_cast<uint64_t>(i), i >= 3 ? 1u : 0u};
    curve.Add(moment);
  }
  EXPECT_THAT(Steps(curve), ElementsAre(2, 4));
  const CurvePoint& first = curve.points()[0];
  EXPECT_EQ(first.steps(), 2u);
  EXPECT_EQ(first.samples(), 4u);
  EXPECT_DOUBLE_EQ(first.train_loss(), (1 * 1 + 3 * 2) / 4.0);
  EXPECT_DOUBLE_EQ(first.train_accuracy(), 0.25);
  EXPECT_DOUBLE_EQ(first.samples_per_second(), 64 / 4.0);
  EXPECT_DOUBLE_EQ(first.hidden_share(), 0.25);
  EXPECT_DOUBLE_EQ(first.seconds(), 4);
  EXPECT_THAT(Histogram(first), ElementsAre(2));
  EXPECT_THAT(Histogram(curve.points()[1]), ElementsAre(2, 1));
  EXPECT_EQ(curve.points()[1].staleness_max(), 1u);
  // From now on points are half as frequent.
  curve.Observe(1, 1, 1);
  EXPECT_FALSE(curve.Due(5, 100, false));
  EXPECT_FALSE(curve.Due(6, 8.9, false));
  EXPECT_TRUE(curve.Due(6, 9, false));
}

TEST(JobCurve, StaysBoundedAndEvenOverALongJob) {
  JobCurve curve(64);
  for (uint64_t step = 1; step <= 100'000; ++step) {
    curve.Observe(1, 1, 1);
    const double seconds = 0.01 * static_cast<double>(step);
    if (curve.Due(step, seconds, false)) curve.Add(At(step, seconds));
  }
  EXPECT_GE(curve.points().size(), 32u);
  EXPECT_LT(curve.points().size(), 64u);
  uint64_t before = 0;
  uint64_t least = 100'000, most = 0;
  for (const CurvePoint& point : curve.points()) {
    EXPECT_EQ(point.step(), before + point.steps());
    EXPECT_EQ(point.samples(), point.steps());
    EXPECT_NEAR(point.samples_per_second(), 3200, 1);
    before = point.step();
    least = std::min<uint64_t>(least, point.steps());
    most = std::max<uint64_t>(most, point.steps());
  }
  EXPECT_LE(most, 2 * least);
}

TEST(JobCurve, GoesOnFromWhatWasStored) {
  JobCurve curve(4);
  for (uint64_t i = 1; i <= 5; ++i) {
    curve.Observe(1, 1, 1);
    JobCurve::Moment moment = At(10 * i, static_cast<double>(i));
    moment.staleness = {10 * i};
    curve.Add(moment);
    if (i == 3) {
      EXPECT_EQ(curve.first_unsaved(), 0u);
      curve.MarkSaved();
      EXPECT_EQ(curve.first_unsaved(), 3u);
    }
  }
  EXPECT_THAT(Steps(curve), ElementsAre(20, 40, 50));
  EXPECT_EQ(curve.first_unsaved(), 0u) << "merging changed them all";
  JobCurve other(4);
  other.Restore(curve.points(), curve.merges());
  EXPECT_EQ(other.first_unsaved(), 3u);
  EXPECT_EQ(other.merges(), 1u);
  JobCurve::Moment moment = At(70, 9);
  moment.staleness = {65};
  other.Observe(2, 1, 0);
  const CurvePoint point = other.Add(moment);
  EXPECT_EQ(point.steps(), 20u);
  EXPECT_THAT(Histogram(point), ElementsAre(15)) << "what the points before do not have";
}

TEST(JobCurve, CountersOfAnEarlierRunDoNotGoOn) {
  JobCurve before(8);
  JobCurve::Moment moment = At(10, 1);
  moment.staleness = {100, 0, 7};
  moment.staleness_max = 2;
  before.Add(moment);
  JobCurve curve(8);
  curve.Restore(before.points(), 0, 10);
  curve.MarkUnsaved();
  EXPECT_EQ(curve.first_unsaved(), 0u);
  moment = At(12, 2);
  moment.staleness = {4, 1};
  moment.staleness_max = 1;
  EXPECT_THAT(Histogram(curve.Add(moment)), ElementsAre(4, 1));
  moment = At(13, 3);
  moment.staleness = {6, 1};
  moment.staleness_max = 1;
  EXPECT_THAT(Histogram(curve.Add(moment)), ElementsAre(2));
}

TEST(JobCurve, WhatWasStoredIsTakenOnlyWhereItMakesSense) {
  std::vector<CurvePoint> points(5);
  points[0].set_step(3);
  points[1].set_step(3);
  points[2].set_step(2);
  points[3].set_step(9);
  JobCurve curve(4);
  curve.Restore(points, 1000);
  EXPECT_THAT(Steps(curve), ElementsAre(3, 9));
  curve.Observe(1, 1, 1);
  EXPECT_FALSE(curve.Due(10, 1e6, false));
}

TEST(JobCurve, OneThatWasStoredFullIsMergedWithTheNextPoint) {
  std::vector<CurvePoint> points(4);
  for (uint64_t i = 0; i < 4; ++i) points[i].set_step(i + 1);
  JobCurve curve(4);
  curve.Restore(points, 0);
  curve.Add(At(5, 9));
  EXPECT_THAT(Steps(curve), ElementsAre(2, 4, 5));
}

TEST(JobCurve, AClockThatWasSetBackMakesNoNegativeTimes) {
  JobCurve curve;
  curve.Add(At(1, 10));
  const CurvePoint point = curve.Add(At(2, 4));
  EXPECT_DOUBLE_EQ(point.seconds(), 10);
  EXPECT_DOUBLE_EQ(point.samples_per_second(), 0);
}

}  // namespace
}  // namespace starling::coordinator
