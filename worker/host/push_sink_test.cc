#include "worker/host/push_sink.h"

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

constexpr session::UnitId kUnit(7);

struct Pushed {
  session::event::SliceGradient gradient;
  std::shared_ptr<GradientBuffer> buffer;
};

class PushSinkTest : public testing::Test {
 protected:
  void Make(double clip_norm) {
    sink_ = std::make_unique<PushSink>(
        layout_, pool_,
        PushSink::Options{.unit = kUnit, .most = 2, .clip_norm = clip_norm, .batch = 8}, Deliver());
  }
  // fp16, with the loss scaled by 8.
  void MakeScaled(bool whole, double clip_norm = 0) {
    PushSink::Options options{.unit = kUnit, .most = 2, .clip_norm = clip_norm, .batch = 8};
    options.loss_scale_log2 = [] { return 3; };
    options.whole = whole;
    sink_ = std::make_unique<PushSink>(layout_, pool_, options, Deliver());
  }
  PushSink::Deliver Deliver() {
    return [this](const session::event::SliceGradient& gradient,
                  std::shared_ptr<GradientBuffer> buffer) {
      EXPECT_EQ(gradient.unit, kUnit);
      pushed_.push_back({gradient, std::move(buffer)});
    };
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
    EXPECT_EQ(buffer.digest, XXH3_64bits(buffer.data, 2 * sizeof(float)));
    return {buffer.data, buffer.data + 2};
  }

  const std::unique_ptr<Device> device_ = CreateCpuDevice().value();
  const Layout layout_ = ThreeSlices();
  const std::shared_ptr<GradientPool> pool_ =
      std::make_shared<GradientPool>(layout_, device_.get());
  std::vector<Pushed> pushed_;
  std::unique_ptr<PushSink> sink_;
};

TEST_F(PushSinkTest, WithoutClippingEachGradientLeavesAtOnce) {
  Make(0);
  Compute(1, 30, 40);
  ASSERT_EQ(pushed_.size(), 1u);
  EXPECT_EQ(pushed_[0].gradient.slice, SliceId(1));
  EXPECT_EQ(pushed_[0].gradient.samples, 8u);
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

TEST_F(PushSinkTest, SpoilsGradientsOnRequest) {
  sink_ = std::make_unique<PushSink>(
      layout_, pool_, PushSink::Options{.unit = kUnit, .most = 2, .batch = 8, .spoiled = true},
      Deliver());
  Compute(1, 3, 4);
  EXPECT_TRUE(std::isnan(Values(0)[0])) << "under a digest that is right";
  EXPECT_EQ(Values(0)[1], 4);
}

TEST_F(PushSinkTest, WhatIsNotFinishedIsDropped) {
  Make(1);
  Compute(1, 3, 4);
  sink_.reset();
  EXPECT_TRUE(pushed_.empty());
}

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST_F(PushSinkTest, Fp16IsDividedByTheLossScaleButForStatistics) {
  MakeScaled(/*whole=*/false);
  Compute(0, 8, -3);
  Compute(2, 8, 1);
  ASSERT_EQ(pushed_.size(), 2u);
  EXPECT_THAT(Values(0), ElementsAre(1, -0.375));
  EXPECT_THAT(Values(1), ElementsAre(8, 1));
  EXPECT_EQ(pushed_[0].gradient.loss_scale_log2, 3);
  EXPECT_FALSE(pushed_[0].gradient.skipped);
}

TEST_F(PushSinkTest, AnOverflowIsAZeroThatSaysSo) {
  for (const float bad : {kInf, -kInf, std::nanf("")}) {
    pushed_.clear();
    MakeScaled(/*whole=*/false);
    Compute(1, 16, 8);
    Compute(0, 1, bad);
    Compute(2, 1, 1);  // whatever comes later of the unit
    ASSERT_EQ(pushed_.size(), 3u);
    EXPECT_THAT(Values(0), ElementsAre(2, 1));
    EXPECT_FALSE(pushed_[0].gradient.skipped) << "it had left already";
    for (size_t i : {1, 2}) {
      EXPECT_TRUE(pushed_[i].gradient.skipped);
      EXPECT_THAT(Values(i), ElementsAre(0, 0));
    }
  }
}

TEST_F(PushSinkTest, AWholeContributionIsSkippedOrIsNot) {
  for (const bool overflows : {false, true}) {
    pushed_.clear();
    MakeScaled(/*whole=*/true);
    Compute(2, 1, 1);
    Compute(1, 16, 8);
    Compute(0, overflows ? kInf : 8, 0);
    EXPECT_TRUE(pushed_.empty());
    sink_->Finish();
    ASSERT_EQ(pushed_.size(), 3u);
    for (const Pushed& pushed : pushed_) EXPECT_EQ(pushed.gradient.skipped, overflows);
    const std::vector<float> expected =
        overflows ? std::vector<float>{0, 0} : std::vector<float>{2, 1};
    EXPECT_EQ(Values(1), expected);
  }
}

TEST_F(PushSinkTest, ANonFiniteLossSkipsToo) {
  MakeScaled(/*whole=*/true);
  Compute(1, 16, 8);
  sink_->Overflowed();
  Compute(0, 0, 0);
  sink_->Finish();
  ASSERT_EQ(pushed_.size(), 2u);
  for (const Pushed& pushed : pushed_) EXPECT_TRUE(pushed.gradient.skipped);
}

TEST_F(PushSinkTest, Fp16IsClippedAsItIsPushed) {
  MakeScaled(/*whole=*/true, 6.5);
  Compute(1, 24, 32);
  Compute(0, 96, 0);
  sink_->Finish();
  EXPECT_THAT(Values(0), ElementsAre(1.5, 2));  // |3, 4, 12| is 13
  EXPECT_THAT(Values(1), ElementsAre(6, 0));
}

}  // namespace
}  // namespace starling
