#include "tools/trace/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "nlohmann/json.hpp"
#include "tools/trace/perfetto.h"

namespace starling::trace {
namespace {

using ::testing::ElementsAre;

// Their clock is ours plus `offset`.
ProcessSpans Process(const std::string& name, bool worker, int64_t offset) {
  ProcessSpans process{.name = name, .worker = worker, .address = "127.0.0.1:1"};
  process.clock.Add(0, 20, 10 + offset);
  return process;
}

RecordedSpan Span(const std::string& name, const std::string& category, int64_t begin, int64_t end,
                  uint64_t thread = 1, uint64_t flow = 0) {
  return {.name = name,
          .category = category,
          .begin_us = begin,
          .duration_us = end - begin,
          .thread = thread,
          .clock = 7,
          .slice = 3,
          .flow = flow};
}

std::vector<std::string> RowNames(const Trace& trace) {
  std::vector<std::string> names;
  for (const Trace::Row& row : trace.rows) names.push_back(row.name);
  return names;
}

TEST(Merge, PutsProcessesOnOneClockAndJoinsPushesWithTheirApplies) {
  ProcessSpans worker = Process("w", true, 1'000'000);
  worker.spans = {Span("forward a", "forward", 1'000'100, 1'000'200),
                  Span("push slice 3", "push", 1'000'200, 1'000'500, 2, 99)};
  ProcessSpans shard = Process("s", false, -500'000);
  shard.spans = {Span("apply slice 3", "apply", -499'700, -499'600, 5, 99)};
  const Trace trace = Merge({worker, shard}, {0, 1000});
  EXPECT_THAT(RowNames(trace), ElementsAre("lane 0", "push under way", "owner 0"));
  ASSERT_EQ(trace.slices.size(), 3u);
  EXPECT_EQ(trace.slices[0].span.begin_us, 100);
  EXPECT_EQ(trace.slices[2].span.begin_us, 300);
  EXPECT_EQ(trace.slices[2].span.duration_us, 100);
  ASSERT_EQ(trace.arrows.size(), 1u);
  EXPECT_EQ(trace.slices[trace.arrows[0].push].span.name, "push slice 3");
  EXPECT_EQ(trace.slices[trace.arrows[0].apply].span.name, "apply slice 3");
}

TEST(Merge, PutsCopiesOnRowsOfTheirOwn) {
  ProcessSpans worker = Process("w", true, 0);
  worker.spans = {Span("backward a", "backward", 100, 200), Span("copy out", "copy", 150, 250, 2),
                  Span("copy in", "copy", 150, 250, 3)};
  EXPECT_THAT(RowNames(Merge({worker}, {0, 1000})), ElementsAre("copies 0", "copies 1", "lane 0"));
}

// One thread launches the forward pass while the device computes it.
TEST(Merge, PutsWhatRanOnADeviceOnARowOfItsOwn) {
  ProcessSpans worker = Process("w", true, 0);
  worker.spans = {Span("forward a", "forward", 100, 110), Span("forward a", "device", 105, 200),
                  Span("wait slices", "wait", 110, 300)};
  EXPECT_THAT(RowNames(Merge({worker}, {0, 1000})), ElementsAre("device 0", "lane 0"));
}

TEST(Merge, TakesWhatBeginsInTheWindowAndTheAppliesOfItsPushes) {
  ProcessSpans worker = Process("w", true, 0);
  worker.spans = {
      Span("early", "forward", 50, 150),         Span("inside", "forward", 150, 450),
      Span("late", "forward", 301, 310),         Span("push", "push", 290, 500, 1, 1),
      Span("push late", "push", 400, 500, 1, 2), Span("push early", "push", 90, 120, 1, 3)};
  ProcessSpans shard = Process("s", false, 0);
  shard.spans = {Span("apply 1", "apply", 450, 460, 1, 1), Span("apply 2", "apply", 470, 480, 1, 2),
                 Span("apply 3", "apply", 110, 115, 1, 3)};
  const Trace trace = Merge({worker, shard}, {100, 300});
  std::set<std::string> names;
  for (const Trace::Slice& slice : trace.slices) names.insert(slice.span.name);
  EXPECT_EQ(names, (std::set<std::string>{"inside", "push", "apply 1", "apply 3"}));
  EXPECT_EQ(trace.arrows.size(), 1u);
  EXPECT_EQ(PushesWithoutApply({worker, shard}, {100, 300}), 0u);
  EXPECT_EQ(PushesWithoutApply({worker}, {100, 300}), 1u);
}

TEST(Merge, AStepOfSeveralWorkersHasAnArrowForEach) {
  ProcessSpans a = Process("a", true, 0), b = Process("b", true, 0), shard = Process("s", false, 0);
  a.spans = {Span("push", "push", 10, 50, 1, 4)};
  b.spans = {Span("push", "push", 20, 50, 1, 4)};
  shard.spans = {Span("apply", "apply", 30, 40, 1, 4)};
  EXPECT_EQ(Merge({a, b, shard}, {0, 100}).arrows.size(), 2u);
}

// A shard's check of a push carries the same flow, but is no push.
TEST(Merge, WhatAShardDoesWithAPushIsNoPush) {
  ProcessSpans shard = Process("s", false, 0);
  shard.spans = {Span("push", "push", 10, 20, 1, 4), Span("apply", "apply", 30, 40, 1, 4)};
  EXPECT_TRUE(Merge({shard}, {0, 100}).arrows.empty());
  EXPECT_EQ(PushesWithoutApply({shard}, {0, 100}), 0u);
}

TEST(Merge, RowsAreAsManyAsItTakesForSpansToNest) {
  ProcessSpans worker = Process("w", true, 0);
  worker.spans = {Span("p1", "push", 0, 10), Span("p2", "push", 5, 15), Span("p3", "push", 6, 9),
                  Span("p4", "push", 10, 12), Span("p5", "push", 11, 20)};
  const Trace trace = Merge({worker}, {0, 100});
  EXPECT_THAT(RowNames(trace),
              ElementsAre("push under way", "push under way (2)", "push under way (3)"));
}

TEST(Merge, RandomSpansNestOnEveryRowAndNoneIsLost) {
  std::mt19937 random(3);
  ProcessSpans worker = Process("w", true, 123'456);
  for (int i = 0; i < 3000; ++i) {
    const auto begin = static_cast<int64_t>(123'456 + random() % 5000);
    worker.spans.push_back(
        Span("x", i % 2 == 0 ? "pull" : "forward", begin, begin + random() % 60, random() % 3));
  }
  const Trace trace = Merge({worker}, {0, 10'000});
  EXPECT_EQ(trace.slices.size(), 3000u);
  for (size_t i = 0; i < trace.slices.size(); ++i) {
    for (size_t j = i + 1; j < trace.slices.size() && trace.slices[j].row == trace.slices[i].row;
         ++j) {
      const RecordedSpan &a = trace.slices[i].span, &b = trace.slices[j].span;
      ASSERT_LE(a.begin_us, b.begin_us);
      const int64_t end = a.begin_us + a.duration_us;
      ASSERT_TRUE(b.begin_us >= end || b.begin_us + b.duration_us <= end);
    }
  }
}

TEST(PerfettoJson, NamesEscapesAndSaysWhereClocksStood) {
  ProcessSpans worker = Process("w\"<\xff", true, 700'000);
  worker.spans = {Span("forward \"a\"\n", "forward", 700'100, 700'200),
                  Span("push slice 3", "push", 700'110, 700'300, 2, 0xFFFFFFFFFFFFFFFF)};
  worker.dropped = 5;
  ProcessSpans shard = Process("s", false, 0);
  shard.spans = {Span("apply slice 3", "apply", 150, 160, 1, 0xFFFFFFFFFFFFFFFF)};
  const std::vector<ProcessSpans> processes = {worker, shard};
  const Window window = {50, 1050};
  const auto json =
      nlohmann::json::parse(PerfettoJson("job", processes, window, Merge(processes, window)));
  EXPECT_EQ(json["displayTimeUnit"], "ms");
  EXPECT_EQ(json["otherData"]["job"], "job");
  EXPECT_EQ(json["otherData"]["processes"][0]["clockOffsetMicros"], 700'000);
  EXPECT_EQ(json["otherData"]["processes"][0]["clockErrorMicros"], 10);
  EXPECT_EQ(json["otherData"]["processes"][0]["spansDropped"], 5);
  std::map<std::string, nlohmann::json> by_phase;
  for (const auto& event : json["traceEvents"]) by_phase[event["ph"]].push_back(event);
  EXPECT_EQ(by_phase["X"].size(), 3u);
  EXPECT_EQ(by_phase["X"][0]["name"], "forward \"a\"\n");
  EXPECT_EQ(by_phase["X"][0]["ts"], 50);
  EXPECT_EQ(by_phase["X"][0]["dur"], 100);
  EXPECT_EQ(by_phase["X"][1]["args"]["flow"], "ffffffffffffffff");
  ASSERT_EQ(by_phase["s"].size(), 1u);
  ASSERT_EQ(by_phase["f"].size(), 1u);
  EXPECT_EQ(by_phase["s"][0]["id"], by_phase["f"][0]["id"]);
  EXPECT_EQ(by_phase["s"][0]["ts"], 60);
  EXPECT_EQ(by_phase["f"][0]["ts"], 100);
  std::set<std::string> names;
  for (const auto& event : by_phase["M"]) {
    if (event["args"].contains("name")) names.insert(event["args"]["name"].get<std::string>());
  }
  EXPECT_TRUE(names.contains("shard s"));
  EXPECT_TRUE(names.contains("lane 0"));
}

}  // namespace
}  // namespace starling::trace
