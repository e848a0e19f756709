#include "server/coordinator/explain/window.h"

#include "gtest/gtest.h"

namespace starling::explain {
namespace {

const absl::Time kBegin = absl::UnixEpoch() + absl::Hours(1);

WorkerCounters Counters(uint64_t units, double forward) {
  WorkerCounters counters;
  counters.times.set_units(units);
  counters.times.set_forward(forward);
  return counters;
}

class WindowTest : public testing::Test {
 protected:
  // One report a second, with `units` units of work and `forward` seconds in each.
  void Run(int seconds, uint64_t units, double forward) {
    for (int i = 0; i < seconds; ++i) {
      now_ += absl::Seconds(1);
      units_ += units;
      forward_ += forward;
      window_.Take(Counters(units_, forward_), now_);
    }
  }
  absl::Time now_ = kBegin;
  uint64_t units_ = 0;
  double forward_ = 0;
  Window<WorkerCounters> window_;
};

TEST_F(WindowTest, NothingAndOneSnapshotSayNothing) {
  EXPECT_EQ(window_.Span(now_), absl::ZeroDuration());
  EXPECT_EQ(window_.Growth(now_).times.units(), 0u);
  Run(1, 100, 1);
  EXPECT_EQ(window_.Span(now_), absl::ZeroDuration());
  EXPECT_EQ(window_.Growth(now_).times.units(), 0u);
}

TEST_F(WindowTest, IsOfLate) {
  Run(100, 10, 0.5);
  Run(40, 10, 0.9);  // slower now
  const WorkerCounters growth = window_.Growth(now_);
  EXPECT_GE(window_.Span(now_), kWindowMin);
  EXPECT_LE(window_.Span(now_), 2 * kWindowMin + absl::Seconds(2));
  EXPECT_EQ(growth.times.units(), 10u * absl::ToInt64Seconds(window_.Span(now_)));
  EXPECT_NEAR(growth.times.forward(), 0.9 * absl::ToDoubleSeconds(window_.Span(now_)), 1e-6);
}

TEST_F(WindowTest, IsWiderWhereStepsAreLong) {
  for (int step = 0; step < 12; ++step) {
    Run(19, 0, 0);
    Run(1, 1, 10);
  }
  EXPECT_GE(window_.Growth(now_).times.units(), kWindowUnits);
  for (int step = 0; step < 12; ++step) {
    Run(399, 0, 0);
    Run(1, 1, 200);
  }
  EXPECT_LE(window_.Span(now_), 2 * kWindowMax + absl::Seconds(400));
}

// Time in the middle of a unit is counted before the unit is.
TEST_F(WindowTest, HoldsWholeUnits) {
  for (int step = 0; step < 30; ++step) {
    Run(3, 0, 0.2);
    Run(1, 1, 0.1);
  }
  Run(2, 0, 0.2);
  const WorkerCounters growth = window_.Growth(now_);
  EXPECT_NEAR(growth.times.forward(), 0.7 * static_cast<double>(growth.times.units()), 1e-9);
}

TEST_F(WindowTest, WhatWasLongAgoSaysNothing) {
  Run(50, 10, 0.5);
  Run(29, 0, 0);
  EXPECT_GT(window_.Growth(now_).times.units(), 0u);
  Run(2, 0, 0);
  EXPECT_EQ(window_.Growth(now_).times.units(), 0u);
  EXPECT_EQ(window_.Span(now_), absl::ZeroDuration());
  Run(1, 10, 0.5);
  EXPECT_GT(window_.Growth(now_).times.units(), 0u);
}

TEST_F(WindowTest, BeginsAnewWithTheCounters) {
  Run(50, 10, 0.5);
  units_ = 0;
  forward_ = 0;
  Run(3, 10, 0.5);
  EXPECT_EQ(window_.Growth(now_).times.units(), 20u);
  EXPECT_EQ(window_.Span(now_), absl::Seconds(2));
  window_.Clear();
  EXPECT_EQ(window_.Span(now_), absl::ZeroDuration());
}

TEST(SinceTest, ALinkThatWasOpenedAnewCountsFromZero) {
  WorkerCounters before, now;
  before.links.resize(1);
  before.links[0].set_shard(7);
  before.links[0].set_sent_bytes(1000);
  before.links[0].set_pushes(10);
  before.links[0].set_push_seconds(3);
  now = before;
  now.links[0].set_sent_bytes(1500);
  now.links[0].set_pushes(15);
  now.links[0].set_push_seconds(4);
  now.links[0].set_round_trip_seconds(0.5);
  now.links[0].set_last_error("reset");
  now.links.push_back(LinkStatus());
  now.links[1].set_shard(8);
  now.links[1].set_sent_bytes(9);
  WorkerCounters grown = Since(now, before);
  EXPECT_EQ(grown.links[0].sent_bytes(), 500u);
  EXPECT_EQ(grown.links[0].pushes(), 5u);
  EXPECT_EQ(grown.links[0].push_seconds(), 1);
  EXPECT_EQ(grown.links[0].round_trip_seconds(), 0.5);
  EXPECT_EQ(grown.links[0].last_error(), "reset");
  EXPECT_EQ(grown.links[1].sent_bytes(), 9u);
  now.links[0].set_sent_bytes(40);
  grown = Since(now, before);
  EXPECT_EQ(grown.links[0].sent_bytes(), 40u);
  EXPECT_EQ(grown.links[0].pushes(), 15u);
}

TEST(SinceTest, EveryCounterOfAPartitionIsADifference) {
  PartitionTimes before, now;
  const auto* descriptor = PartitionTimes::descriptor();
  const auto* reflection = before.GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE) {
      reflection->SetDouble(&before, field, 10);
      reflection->SetDouble(&now, field, 17);
    } else {
      reflection->SetUInt64(&before, field, 10);
      reflection->SetUInt64(&now, field, 17);
    }
  }
  const PartitionTimes grown = Since(now, before);
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    const double value = field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE
                             ? reflection->GetDouble(grown, field)
                             : static_cast<double>(reflection->GetUInt64(grown, field));
    EXPECT_EQ(value, 7) << field->name();
  }
}

}  // namespace
}  // namespace starling::explain
