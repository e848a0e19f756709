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

}  // namespace
}  // namespace starling
