#include "worker/runtime/push_sink.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "xxhash.h"

namespace starling {
namespace {

using ::testing::ElementsAre;

// Two trainable slices and one of statistics, of two elements each.
Layout ThreeSlices() {
  Layout layout;
  for (const ParameterKind kind : {TRAINABLE, TRAINABLE, STATISTIC}) {
    Slice slice;
    slice.id = SliceId(static_cast<uint32_t>(layout.slices.size()));
    slice.kind = kind;
    slice.elements = 2;
    layout.slices.push_back(slice);
  }
  return layout;
}

class PushSinkTest : public testing::Test {
 protected:
  void Make(double clip_norm) {
    sink_ = std::make_unique<PushSink>(
        layout_, pool_, PushSink::Options{.most = 2, .clip_norm = clip_norm, .batch = 8},
        [this](PushedGradient gradient) { pushed_.push_back(std::move(gradient)); });
  }
  void Compute(uint32_t slice, float a, float b, uint32_t samples = 8) {
    float* const data = sink_->Acquire(0, SliceId(slice));
    ASSERT_NE(data, nullptr);
    data[0] = a;
    data[1] = b;
    sink_->Ready(0, SliceId(slice), samples);
  }
  std::vector<float> Values(size_t index) const {
    const GradientBuffer& buffer = *pushed_.at(index).buffer;
    EXPECT_EQ(pushed_.at(index).digest, XXH3_64bits(buffer.data, 2 * sizeof(float)));
    return {buffer.data, buffer.data + 2};
  }

  const std::unique_ptr<Device> device_ = CreateCpuDevice().value();
  const Layout layout_ = ThreeSlices();
  const std::shared_ptr<GradientPool> pool_ =
      std::make_shared<GradientPool>(layout_, device_.get());
  std::vector<PushedGradient> pushed_;
  std::unique_ptr<PushSink> sink_;
};

TEST_F(PushSinkTest, WithoutClippingEachGradientLeavesAtOnce) {
  Make(0);
  Compute(1, 30, 40);
  ASSERT_EQ(pushed_.size(), 1u);
  EXPECT_EQ(pushed_[0].slice, SliceId(1));
  EXPECT_EQ(pushed_[0].samples, 8u);
  EXPECT_THAT(Values(0), ElementsAre(30, 40));
  sink_->Finish();
  EXPECT_EQ(pushed_.size(), 1u);
}

TEST_F(PushSinkTest, ClippingWaitsForTheWholeContribution) {
  Make(6.5);
  Compute(2, 100, 0);
  Compute(1, 3, 4);
  Compute(0, 12, 0);
  EXPECT_TRUE(pushed_.empty());
  sink_->Finish();
  ASSERT_EQ(pushed_.size(), 3u);
  EXPECT_THAT(Values(0), ElementsAre(100, 0));  // a statistic: neither counted nor clipped
  EXPECT_THAT(Values(1), ElementsAre(1.5, 2));  // |3, 4, 12| is 13
  EXPECT_THAT(Values(2), ElementsAre(6, 0));
}

TEST_F(PushSinkTest, ShortOnesStay) {
  Make(13.1);
  Compute(1, 3, 4);
  Compute(0, 12, 0);
  sink_->Finish();
  EXPECT_THAT(Values(0), ElementsAre(3, 4));
  EXPECT_THAT(Values(1), ElementsAre(12, 0));
}

TEST_F(PushSinkTest, AShortBatchCountsAsTheShardRescalesIt) {
  Make(10);
  Compute(0, 3, 4, /*samples=*/2);  // 20 long when the shard applies it
  sink_->Finish();
  EXPECT_THAT(Values(0), ElementsAre(1.5, 2));
}

TEST_F(PushSinkTest, WhatIsNotFiniteIsLeftToTheShard) {
  Make(1);
  Compute(1, 3, 4);
  Compute(0, std::numeric_limits<float>::infinity(), 0);
  sink_->Finish();
  EXPECT_THAT(Values(0), ElementsAre(3, 4));
  EXPECT_TRUE(std::isinf(Values(1)[0]));
}

TEST_F(PushSinkTest, WhatIsNotFinishedIsDropped) {
  Make(1);
  Compute(1, 3, 4);
  sink_.reset();
  EXPECT_TRUE(pushed_.empty());
}

}  // namespace
}  // namespace starling
