#include "worker/host/parameter_copy.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/trace/span_ring.h"

namespace starling {
namespace {

using session::Params;
using session::UnitId;

// Slices of one element, the last one frozen.
Layout FourSlices() {
  Layout layout;
  for (uint32_t i = 0; i < 4; ++i) {
    Slice slice;
    slice.id = SliceId(i);
    slice.kind = i < 3 ? TRAINABLE : FROZEN;
    slice.flat_begin = i;
    slice.elements = 1;
    layout.slices.push_back(slice);
  }
  return layout;
}

class ParameterCopyTest : public testing::Test {
 protected:
  struct Frame {
    float value = 0;
    ReceivedPayload::Piece piece{reinterpret_cast<const uint8_t*>(&value), sizeof(float)};
  };
  void Install(uint32_t slice, Clock version, float value = 0, const SliceArrival& arrival = {}) {
    auto frame = std::make_shared<Frame>();
    frame->value = value;
    frames_.push_back(frame);
    const absl::Span<const ReceivedPayload::Piece> pieces(&frame->piece, 1);
    copy_.Install({SliceId(slice), version, 0, ReceivedPayload(pieces, std::move(frame)), arrival});
  }
  // Frames that something still holds.
  size_t FramesHeld() const {
    size_t held = 0;
    for (const auto& frame : frames_) held += !frame.expired();
    return held;
  }

  const Layout layout_ = FourSlices();
  std::vector<float> values_ = std::vector<float>(4);
  std::vector<std::pair<SliceId, Clock>> installed_;
  std::vector<std::weak_ptr<Frame>> frames_;
  ParameterCopy copy_{layout_, Params::kLive, values_.data(),
                      [this](SliceId slice, Clock version, absl::Span<const float> value) {
                        EXPECT_EQ(value.data(), &values_[slice.value]);
                        installed_.emplace_back(slice, version);
                      }};
};

TEST_F(ParameterCopyTest, InstallsAtOnceWhileNoAbandonedUnitReads) {
  Install(1, 4, 0.5);
  EXPECT_EQ(values_[1], 0.5);
  EXPECT_TRUE(copy_.Has(SliceId(1), 4));
  EXPECT_FALSE(copy_.Has(SliceId(0), 4));
  copy_.BeginUnit(UnitId(1));
  Install(1, 5, 1.5);  // the session sees to it that the unit is through with the slice
  EXPECT_EQ(values_[1], 1.5);
  copy_.EndUnit(UnitId(1));
  copy_.AbandonUnit(UnitId(1));  // it had stopped already
  Install(1, 6, 2.5);
  EXPECT_EQ(values_[1], 2.5);
  EXPECT_EQ(FramesHeld(), 0u);
}

TEST_F(ParameterCopyTest, KeepsValuesInOrderUntilAbandonedUnitsHaveStopped) {
  copy_.BeginUnit(UnitId(1));
  copy_.AbandonUnit(UnitId(1));
  copy_.BeginUnit(UnitId(2));  // queued behind it
  Install(2, 7, 27);
  Install(0, 7, 7);
  Install(2, 8, 28);
  EXPECT_EQ(values_[2], 0);
  EXPECT_FALSE(copy_.Has(SliceId(2), 7));
  copy_.AbandonUnit(UnitId(2));
  copy_.EndUnit(UnitId(1));
  EXPECT_TRUE(installed_.empty());
  copy_.EndUnit(UnitId(2));
  const std::vector<std::pair<SliceId, Clock>> expected = {
      {SliceId(2), 7}, {SliceId(0), 7}, {SliceId(2), 8}};
  EXPECT_EQ(installed_, expected);
  EXPECT_EQ(values_, (std::vector<float>{7, 0, 28, 0}));
  EXPECT_EQ(FramesHeld(), 0u);
}

TEST_F(ParameterCopyTest, WhatIsForgottenIsNeverInstalled) {
  Install(1, 3);
  copy_.BeginUnit(UnitId(1));
  copy_.AbandonUnit(UnitId(1));
  Install(0, 4, 4);
  EXPECT_EQ(FramesHeld(), 1u);
  copy_.Forget();
  EXPECT_EQ(FramesHeld(), 0u);
  EXPECT_FALSE(copy_.Has(SliceId(1), 3));
  copy_.EndUnit(UnitId(1));
  EXPECT_EQ(values_[0], 0);
}

TEST_F(ParameterCopyTest, AFrozenSliceOfTheLiveCopyFitsEveryVersion) {
  uint64_t held_us = 0;
  Install(3, 0);
  EXPECT_TRUE(copy_.Wait(SliceId(3), 17, &held_us));
  ParameterCopy snapshot(layout_, Params::kSnapshot, values_.data());
  snapshot.Install({SliceId(3), 0, 0, {}, {}});
  EXPECT_FALSE(snapshot.Has(SliceId(3), 17));
}

TEST_F(ParameterCopyTest, TheLossScaleIsThatOfItsSlice) {
  copy_.Install({SliceId(1), 0, 5, {}, {}});
  EXPECT_EQ(copy_.LossScaleLog2(), 0);
  copy_.Install({kLossScaleSlice, 0, 9, {}, {}});
  EXPECT_EQ(copy_.LossScaleLog2(), 9);
}

TEST_F(ParameterCopyTest, WaitsForTheVersion) {
  Install(1, 6);
  bool got = false;
  std::thread waiter([&] {
    uint64_t held_us = 0;
    got = copy_.Wait(SliceId(1), 7, &held_us);
  });
  Install(0, 7);  // another slice
  Install(1, 7);
  waiter.join();
  EXPECT_TRUE(got);
}

TEST_F(ParameterCopyTest, CancelWakesWaitersUntilResumed) {
  bool got = true;
  uint64_t held_us = 0;
  std::thread waiter([&] { got = copy_.Wait(SliceId(0), 0, &held_us); });
  copy_.Cancel();
  waiter.join();
  EXPECT_FALSE(got);
  Install(0, 0);
  EXPECT_FALSE(copy_.Wait(SliceId(0), 0, &held_us));
  EXPECT_FALSE(copy_.Has(SliceId(0), 0));
  copy_.Resume();
  EXPECT_TRUE(copy_.Wait(SliceId(0), 0, &held_us));
}

TEST_F(ParameterCopyTest, AWaitSaysHowMuchOfItTheShardHeld) {
  uint64_t held_us = 0;
  std::thread waiter([&] { EXPECT_TRUE(copy_.Wait(SliceId(0), 3, &held_us)); });
  const uint64_t now = SpanRing::NowMicros();
  Install(0, 3, 0, {now, now + 60'000'000, 60'000'000});
  waiter.join();
  EXPECT_LE(held_us, SpanRing::NowMicros() - now);
  uint64_t again_us = UINT64_MAX;
  EXPECT_TRUE(copy_.Wait(SliceId(0), 3, &again_us));
  EXPECT_LT(again_us, 60'000'000u);
}

// Asked at 1000, there at 1100; 60 of the 100 it was held: [1020, 1080).
TEST(HeldShare, IsThePartOfTheWaitInWhichTheShardHeldThePull) {
  const SliceArrival arrival{1000, 1100, 60};
  EXPECT_EQ(HeldShare(990, 1101, arrival), 60u);   // from before it was asked for
  EXPECT_EQ(HeldShare(1050, 1101, arrival), 30u);  // came when half of it was over
  EXPECT_EQ(HeldShare(1085, 1101, arrival), 0u);   // came when it was on its way
  EXPECT_EQ(HeldShare(1200, 1210, arrival), 0u);   // it was there
  EXPECT_EQ(HeldShare(990, 1101, {1000, 1100, 0}), 0u);
  EXPECT_EQ(HeldShare(990, 1101, {1000, 1100, 500}), 100u);  // more than there was: clipped
  EXPECT_EQ(HeldShare(990, 1101, {}), 0u);
}

}  // namespace
}  // namespace starling
