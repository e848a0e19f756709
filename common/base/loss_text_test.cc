#include "common/base/loss_text.h"

#include <limits>

#include "gtest/gtest.h"

namespace starling {
namespace {

TEST(LossTextTest, FourDecimalsWhereTheyShowIt) {
  EXPECT_EQ(LossText(0), "0.0000");
  EXPECT_EQ(LossText(0.15041), "0.1504");
  EXPECT_EQ(LossText(-2.5), "-2.5000");
  EXPECT_EQ(LossText(5e-5), "0.0001");
  EXPECT_EQ(LossText(999999.5), "999999.5000");
}

TEST(LossTextTest, OthersAreShort) {
  EXPECT_EQ(LossText(2.53e-7), "2.53e-07");
  EXPECT_EQ(LossText(1.23456e38), "1.235e+38");
  EXPECT_EQ(LossText(-1e6), "-1e+06");
  EXPECT_EQ(LossText(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(LossText(std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(LossTextTest, AnEpochsLossSaysWhatItIsOver) {
  EpochResult result;
  EXPECT_EQ(TrainLossText(result), "not reported");
  result.set_train_loss(0);
  EXPECT_EQ(TrainLossText(result), "0.0000");
  result.set_train_loss(0.1504);
  result.set_train_samples(320);
  result.set_samples(400);
  EXPECT_EQ(TrainLossText(result), "0.1504 (of 320 of 400 samples)");
}

}  // namespace
}  // namespace starling
