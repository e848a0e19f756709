#include "common/base/check.h"

#include "gtest/gtest.h"

namespace {

TEST(Check, GoesOnIfTrueAndEvaluatesOnce) {
  int calls = 0;
  STARLING_CHECK(++calls == 1, "counted twice");
  EXPECT_EQ(calls, 1);
}

TEST(CheckDeathTest, EndsTheProcessAndShowsWhatFailed) {
  const int sum = 5;
  EXPECT_DEATH(STARLING_CHECK(sum == 4, "the sum is wrong"),
               "check_test.cc:.*check failed: sum == 4: the sum is wrong");
}

}  // namespace
