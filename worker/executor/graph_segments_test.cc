#include "worker/executor/graph_segments.h"

#include <vector>

#include "gtest/gtest.h"

namespace starling {
namespace {

constexpr uint64_t kMin = kSegmentBytesMin;

TEST(GraphSegmentsTest, WhatIsSmallIsOneSegment) {
  const std::vector<uint64_t> bytes = {100, 0, 0, 2000, 300, 0};
  const std::vector<GraphSegment> whole = {{0, 6}};
  EXPECT_EQ(CutBeforeReads(bytes), whole);
  EXPECT_EQ(CutBehindGradients(bytes), whole);
  EXPECT_TRUE(CutBeforeReads({}).empty());
  EXPECT_TRUE(CutBehindGradients({}).empty());
}

// In forward, a segment ends before the next step that waits, and not before steps that do not.
TEST(GraphSegmentsTest, ForwardEndsInFrontOfWhatItWouldWaitFor) {
  EXPECT_EQ(CutBeforeReads({kMin, 0, 0, kMin / 2, kMin / 2, 0, kMin}),
            (std::vector<GraphSegment>{{0, 3}, {3, 6}, {6, 7}}));
  EXPECT_EQ(CutBeforeReads({0, 0, 3 * kMin, 0, 0}), (std::vector<GraphSegment>{{0, 5}}));
}

// In backward, a segment ends right after the step that completes enough; the rest always forms
// one.
TEST(GraphSegmentsTest, BackwardEndsBehindWhatMayLeave) {
  EXPECT_EQ(CutBehindGradients({0, kMin, 0, 0, kMin / 2, kMin / 2, 0, 0}),
            (std::vector<GraphSegment>{{0, 2}, {2, 6}, {6, 8}}));
  EXPECT_EQ(CutBehindGradients({kMin, kMin}), (std::vector<GraphSegment>{{0, 1}, {1, 2}}));
}

TEST(GraphSegmentsTest, LargeNetsHaveNotManyMore) {
  const std::vector<uint64_t> bytes(1000, kMin);
  for (const std::vector<GraphSegment>& segments :
       {CutBeforeReads(bytes), CutBehindGradients(bytes)}) {
    EXPECT_GE(segments.size(), kSegmentsMax - 1);
    EXPECT_LE(segments.size(), kSegmentsMax + 1);
    int end = 0;
    for (const GraphSegment& segment : segments) {
      EXPECT_EQ(segment.begin, end);
      EXPECT_LT(segment.begin, segment.end);
      end = segment.end;
    }
    EXPECT_EQ(end, 1000);
  }
}

}  // namespace
}  // namespace starling
