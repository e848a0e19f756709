#include "worker/executor/slower_operators.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DescribeSlowerTest, ALineForEachReason) {
  EXPECT_THAT(DescribeSlower({{"fc0", "no epilogue"},
                              {"relu", ""},
                              {"attn", "an old library"},
                              {"fc1", "no epilogue"},
                              {"fc2", "no epilogue"}}),
              ElementsAre("fc0 and 2 more: no epilogue", "attn: an old library"));
}

TEST(DescribeSlowerTest, NothingIsSaidOfTheFast) {
  EXPECT_THAT(DescribeSlower({{"fc0", ""}, {"relu", ""}}), IsEmpty());
}

}  // namespace
}  // namespace starling
