#include "worker/executor/stretches.h"

#include <vector>

#include "gtest/gtest.h"

namespace starling {
namespace {

constexpr uint64_t kMin = kStretchBytesMin;

TEST(StretchesTest, WhatIsSmallIsOneStretch) {
  const std::vector<uint64_t> bytes = {100, 0, 0, 2000, 300, 0};
  const std::vector<Stretch> whole = {{0, 6}};
  EXPECT_EQ(CutBeforeReads(bytes), whole);
  EXPECT_EQ(CutBehindGradients(bytes), whole);
  EXPECT_TRUE(CutBeforeReads({}).empty());
  EXPECT_TRUE(CutBehindGradients({}).empty());
}

// Forward ends a stretch in front of the next step that waits, and not before those that do not.
TEST(StretchesTest, ForwardEndsInFrontOfWhatItWouldWaitFor) {
  EXPECT_EQ(CutBeforeReads({kMin, 0, 0, kMin / 2, kMin / 2, 0, kMin}),
            (std::vector<Stretch>{{0, 3}, {3, 6}, {6, 7}}));
  EXPECT_EQ(CutBeforeReads({0, 0, 3 * kMin, 0, 0}), (std::vector<Stretch>{{0, 5}}));
}

// Backward ends one right behind the step that completes enough; what comes last is one in any
// case.
TEST(StretchesTest, BackwardEndsBehindWhatMayLeave) {
  EXPECT_EQ(CutBehindGradients({0, kMin, 0, 0, kMin / 2, kMin / 2, 0, 0}),
            (std::vector<Stretch>{{0, 2}, {2, 6}, {6, 8}}));
  EXPECT_EQ(CutBehindGradients({kMin, kMin}), (std::vector<Stretch>{{0, 1}, {1, 2}}));
}

TEST(StretchesTest, LargeNetsHaveNotManyMore) {
  const std::vector<uint64_t> bytes(1000, kMin);
  for (const std::vector<Stretch>& stretches : {CutBeforeReads(bytes), CutBehindGradients(bytes)}) {
    EXPECT_GE(stretches.size(), kStretchesMax - 1);
    EXPECT_LE(stretches.size(), kStretchesMax + 1);
    int end = 0;
    for (const Stretch& stretch : stretches) {
      EXPECT_EQ(stretch.begin, end);
      EXPECT_LT(stretch.begin, stretch.end);
      end = stretch.end;
    }
    EXPECT_EQ(end, 1000);
  }
}

}  // namespace
}  // namespace starling
