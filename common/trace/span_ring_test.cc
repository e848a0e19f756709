#include "common/trace/span_ring.h"

#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace starling {
namespace {

TEST(SpanRingTest, KeepsTheNewestAndCountsTheLost) {
  SpanRing ring(3);
  for (uint64_t i = 0; i < 5; ++i) {
    ring.Record("s" + std::to_string(i), SpanCategory::kForward, 10 * i, 10 * i + 4, {.clock = 7});
  }
  const SpanRing::Snapshot all = ring.Read(0);
  ASSERT_EQ(all.spans.size(), 3u);
  EXPECT_EQ(all.dropped, 2u);
  EXPECT_EQ(all.spans[0].name(), "s2");
  EXPECT_EQ(all.spans[2].begin_us, 40u);
  EXPECT_EQ(all.spans[2].duration_us, 4u);
  EXPECT_EQ(all.spans[2].clock, 7);
  EXPECT_EQ(ring.Read(34).spans.size(), 1u);
}

TEST(SpanRingTest, GoesOnFromWhereTheLastReadEnded) {
  SpanRing ring(3);
  const auto record = [&ring](uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; ++i) ring.Record("s", SpanCategory::kForward, i, i + 1);
  };
  record(0, 2);
  SpanRing::Snapshot read = ring.Read(0, 0);
  EXPECT_EQ(read.spans.size(), 2u);
  EXPECT_EQ(read.recorded, 2u);
  record(2, 4);
  read = ring.Read(0, read.recorded);
  ASSERT_EQ(read.spans.size(), 2u);
  EXPECT_EQ(read.spans[0].begin_us, 2u);
  EXPECT_EQ(read.dropped, 0u) << "what was overwritten had been read";
  record(4, 9);
  read = ring.Read(0, read.recorded);
  EXPECT_EQ(read.spans.size(), 3u);
  EXPECT_EQ(read.dropped, 2u);
  EXPECT_EQ(ring.Read(0, 9).spans.size(), 0u);
  EXPECT_EQ(ring.Read(0, 10).spans.size(), 3u) << "counted by a process before this one";
}

TEST(SpanRingTest, TruncatesLongNames) {
  SpanRing ring(1);
  ring.Record(std::string(100, 'x'), SpanCategory::kWait, 1, 2);
  EXPECT_EQ(ring.Read(0).spans[0].name(), std::string(TraceSpan::kNameBytes - 1, 'x'));
  EXPECT_EQ(SpanCategoryName(SpanCategory::kWait), "wait");
}

TEST(SpanRingTest, ManyThreadsRecordAndRead) {
  SpanRing ring(64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&ring] {
      for (int i = 0; i < 500; ++i) {
        const uint64_t now = SpanRing::NowMicros();
        ring.Record("span", SpanCategory::kPush, now, now + 1);
        if (i % 50 == 0) ring.Read(0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const SpanRing::Snapshot all = ring.Read(0);
  EXPECT_EQ(all.spans.size(), 64u);
  EXPECT_EQ(all.dropped, 4 * 500u - 64u);
}

}  // namespace
}  // namespace starling
