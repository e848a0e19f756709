#include "worker/host/link_meter.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

class LinkMeterTest : public testing::Test {
 protected:
  LinkMeterTest() { meter_.Connecting(ShardId(3), "ps:1"); }

  void Answer(FrameType type, double took_ms, double held_ms, double at, uint32_t slice = 0) {
    meter_.Answered(ShardId(3), type, SliceId(slice), absl::Milliseconds(took_ms),
                    absl::Milliseconds(held_ms), At(at));
  }
  LinkStatus Status(double at, const FrameStream::Stats& open = {}) {
    WorkerReport report;
    meter_.Report([&](ShardId) { return open; }, At(at), &report);
    return report.links_size() == 1 ? report.links(0) : LinkStatus();
  }

  LinkMeter meter_;
};

TEST_F(LinkMeterTest, SumsUpWhatWasAnswered) {
  meter_.Up(ShardId(3));
  Answer(FrameType::kPush, 10, 0, 1);
  Answer(FrameType::kPush, 30, 0, 1);
  Answer(FrameType::kPull, 100, 60, 2);
  Answer(FrameType::kClose, 5, 0, 2);
  const LinkStatus status = Status(2, {.sent_payload_bytes = 7,
                                       .received_payload_bytes = 9,
                                       .shared_payload_bytes = 4,
                                       .sending_seconds = 0.5});
  EXPECT_EQ(status.shard(), 3u);
  EXPECT_EQ(status.address(), "ps:1");
  EXPECT_TRUE(status.connected());
  EXPECT_EQ(status.pushes(), 2u);
  EXPECT_DOUBLE_EQ(status.push_seconds(), 0.04);
  EXPECT_EQ(status.pulls(), 1u);
  EXPECT_DOUBLE_EQ(status.pull_seconds(), 0.04);
  EXPECT_DOUBLE_EQ(status.round_trip_seconds(), 0.005);
  EXPECT_EQ(status.sent_bytes(), 7u);
  EXPECT_EQ(status.received_bytes(), 9u);
  EXPECT_EQ(status.shared_bytes(), 4u);
  EXPECT_DOUBLE_EQ(status.sending_seconds(), 0.5);
}

TEST_F(LinkMeterTest, TimesInWhichValuesAreOnTheirWayCountOnce) {
  Answer(FrameType::kPull, 1000, 0, 10);     // 9 to 10
  Answer(FrameType::kPull, 500, 0, 10.2);    // 9.7 to 10.2: overlaps
  Answer(FrameType::kPush, 5000, 0, 11, 1);  // no value
  Answer(FrameType::kPull, 500, 400, 12);    // 11.9 to 12: was held until then
  EXPECT_NEAR(Status(12).receiving_seconds(), 1.3, 1e-6);
  Answer(FrameType::kPull, 3500, 0, 12.5);  // 9 to 12.5: closes the gap
  EXPECT_NEAR(Status(12.5).receiving_seconds(), 3.5, 1e-6);
}

// A full way to the shard holds up pulls, too: that is not the time of their values.
TEST_F(LinkMeterTest, AValueIsNotOnItsWayBeforeItsPushHasArrived) {
  Answer(FrameType::kPush, 900, 0, 10, 1);
  Answer(FrameType::kPush, 100, 0, 10.3, 2);
  Answer(FrameType::kPull, 1200, 0, 10.2, 1);   // asked for at 9: 10 to 10.2
  Answer(FrameType::kPull, 500, 300, 10.6, 3);  // no push of its own: 10.4 to 10.6
  Answer(FrameType::kPull, 1000, 900, 11, 1);   // held after its push had come: 10.9 to 11
  EXPECT_NEAR(Status(11).receiving_seconds(), 0.5, 1e-6);
}

TEST_F(LinkMeterTest, CountersGoOnOverStreams) {
  meter_.Up(ShardId(3));
  meter_.Down(ShardId(3), {.sent_payload_bytes = 100, .sending_seconds = 1}, "reset by peer");
  EXPECT_FALSE(Status(1).connected());
  EXPECT_EQ(Status(1).last_error(), "reset by peer");
  meter_.Connecting(ShardId(3), "ps:2");
  meter_.Up(ShardId(3));
  const LinkStatus status = Status(2, {.sent_payload_bytes = 11, .sending_seconds = 2});
  EXPECT_TRUE(status.connected());
  EXPECT_EQ(status.address(), "ps:2");
  EXPECT_EQ(status.last_error(), "reset by peer");
  EXPECT_EQ(status.sent_bytes(), 111u);
  EXPECT_DOUBLE_EQ(status.sending_seconds(), 3);
}

TEST_F(LinkMeterTest, TheLeastRoundTripIsOfLate) {
  Answer(FrameType::kPush, 1, 0, 0);
  Answer(FrameType::kPush, 9, 0, 4);
  EXPECT_DOUBLE_EQ(Status(4).round_trip_seconds(), 0.001);
  Answer(FrameType::kPush, 8, 0, 6);
  EXPECT_DOUBLE_EQ(Status(6).round_trip_seconds(), 0.001);
  Answer(FrameType::kPush, 7, 0, 11);
  EXPECT_DOUBLE_EQ(Status(11).round_trip_seconds(), 0.007);
  EXPECT_DOUBLE_EQ(Status(60).round_trip_seconds(), 0);
}

TEST_F(LinkMeterTest, WhatIsForgottenIsNotReported) {
  meter_.Forget(ShardId(3));
  Answer(FrameType::kPush, 1, 0, 0);
  meter_.Up(ShardId(3));
  meter_.Down(ShardId(3), {}, "late");
  EXPECT_EQ(Status(1).shard(), 0u);
}

}  // namespace
}  // namespace starling
