// Transcripts of the partition core where a job clips its whole gradient: an event a line, its
// actions indented.
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/coordinator.pb.h"
#include "server/shard/core/testing/transcript.h"

namespace starling {
namespace {

using testing::HasSubstr;

TranscriptOptions Clipped(uint32_t partition, uint32_t slices, uint32_t partitions) {
  return {.policy = {PolicyKind::kBsp, 0},
          .slices = slices,
          .clip_norm = 1,
          .reporters = partitions,
          .partition = partition};
}

FrameHeader Report(Transcript& t, uint32_t partition, Clock step, double norm2) {
  FrameHeader h;
  h.type = FrameType::kDecision;
  h.key.run = t.partition().config().run;
  h.view = ViewNumber(1);
  h.reporter = PartitionId(partition);
  h.clock = step;
  h.scalar = norm2;
  return h;
}

DecisionReceived Decision(Transcript& t, Clock step, double scale,
                          Answer answer = Answer::kCounted) {
  DecisionReceived decision{Report(t, t.partition().config().partition.value, step, scale), ""};
  decision.header.answer = answer;
  return decision;
}

TEST(PartitionDecisionTest, ASealedStepWaitsForTheWholeJob) {
  Transcript t(Clipped(3, 2, 4));
  t.Begin(1);
  t.Pull(1, 0, 1);
  const uint64_t first = t.Push(1, 0, 0, 0, 4);
  const uint64_t second = t.Push(1, 1, 0, 0, 4);
  t.Verify(second);
  t.Verify(first);
  t.Step(Measured{BufferId(second), 3});
  t.Push(1, 0, 0, 0, 4);  // a retry joins what is held
  t.Step(Measured{BufferId(first), 1});
  t.Step(Decision(t, 0, 0.5));
  t.Apply(3);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 pull s0 clock 1 min_lsn 0
c1 r1.1 push s0 0:[0,4) b3
  verify s0 b3
c1 r1.1 push s1 0:[0,4) b4
  verify s1 b4
verified b4
  measure s1 b4
verified b3
  measure s0 b3
measured b4 norm2 3
c1 r1.1 push s0 0:[0,4) b5
  release b5
measured b3 norm2 1
  report step 0 norm2 4 view 1
decided step 0 scale 0.5
  lsn 3 apply s0 0:[0,4) rate 0.5 scale 0.5 t 1 lag 0 b3 version 0
  lsn 4 apply s1 0:[0,4) rate 0.5 scale 0.5 t 1 lag 0 b4 version 0
applied lsn 3
  c1 ack #3 counted clock 0 lsn 3
  c1 ack #5 counted clock 0 lsn 3
  release b3
  c1 value #2 s0 clock 1 lsn 3 version 1
)");
}

// The previous primary died when its backup had the first slice's record of a decided step alone.
TEST(PartitionDecisionTest, AStepOfWhichTheBackupHadAPartIsReportedAgain) {
  Transcript before(Clipped(3, 2, 4));
  before.Begin(1);
  for (const uint32_t slice : {0, 1}) {
    const uint64_t push = before.Push(1, slice, 0, 0, 4);
    before.Verify(push);
    before.Step(Measured{BufferId(push), 1});
  }
  before.Step(Decision(before, 0, 0.5));
  before.Apply(3);
  Transcript t(Clipped(3, 2, 4));
  OrdersReceived orders = t.Base();
  orders.view = ViewNumber(2);
  orders.primary = ShardId(2);
  orders.backup = ShardId(1);
  t.Step(orders);
  ASSERT_EQ(before.records().size(), 3u);
  CopyDigests digests;
  std::string encoded;
  for (const Record& record : before.records()) {
    EncodeRecord(record, &encoded);
    digests.log = LogDigest(digests.log, encoded);
    FrameHeader h = t.Header(FrameType::kReplicate, 0);
    h.view = ViewNumber(2);
    h.base_lsn = record.lsn;
    const BufferId payload(record.kind == RecordKind::kApply ? 99 : 0);
    t.Step(RecordReceived{{ConnectionId(9), h, payload}, record, digests});
  }
  t.Apply(3);
  orders.view = ViewNumber(3);
  orders.primary = ShardId(1);
  orders.backup = ShardId();
  orders.roster = {RosterNumber(1), {Transcript::Member(1)}};
  t.Step(orders);
  t.Text();
  t.set_view(3);
  t.Push(1, 0, 0, 0, 4);
  const uint64_t again = t.Push(1, 1, 0, 0, 4);
  t.Verify(again);
  t.Step(Measured{BufferId(again), 1});
  t.Step(Decision(t, 0, 0.5));
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[0,4) b1
  c1 ack #1 already-counted clock 0 lsn 3
  release b1
c1 r1.1 push s1 0:[0,4) b2
  verify s1 b2
verified b2
  measure s1 b2
measured b2 norm2 1
  report step 0 norm2 1 view 1
decided step 0 scale 0.5
  lsn 4 apply s1 0:[0,4) rate 0.5 scale 0.5 t 1 lag 0 b2 version 0
)");
}

// A short last batch is stretched to a whole one first, then clipped.
TEST(PartitionDecisionTest, TheScaleMultipliesThatOfAShortBatch) {
  TranscriptOptions options = Clipped(1, 1, 2);
  options.samples = 4;
  Transcript t(options);
  t.Begin(1);
  t.Quietly([&] {
    const uint64_t push = t.Push(1, 0, 0, 0, 4);
    t.Verify(push);
    t.Step(Measured{BufferId(push), 9});
  });
  t.Step(Decision(t, 0, 0.25));
  EXPECT_THAT(t.Text(), HasSubstr("rate 0.5 scale 0.5 t 1"));
}

TEST(PartitionDecisionTest, ReportsAreRepeatedAndOtherDecisionsChangeNothing) {
  Transcript t(Clipped(1, 1, 2));
  t.Begin(1);
  t.Step(Decision(t, 0, 1));  // nothing is held yet
  const uint64_t push = t.Push(1, 0, 0, 0, 4);
  t.Verify(push);
  t.Step(Decision(t, 0, 1));  // nothing is reported yet
  t.Step(Measured{BufferId(push), 9});
  t.Step(Decision(t, 1, 1));
  DecisionReceived other = Decision(t, 0, 1);
  other.header.reporter = PartitionId(0);
  t.Step(other);
  other = Decision(t, 0, 1);
  other.header.key.run.era = 1;
  t.Step(other);
  t.Step(Decision(t, 0, 1.5));
  t.Step(Decision(t, 0, std::nan("")));
  t.Step(ShardTick{});
  t.Advance(kReportPeriod);
  t.Step(ShardTick{});
  t.Step(Decision(t, 0, 0, Answer::kNone));
  t.Step(Decision(t, 0, 0.5));
  t.Step(Decision(t, 0, 0.5));  // once more
  EXPECT_EQ(t.Text(), R"(
decided step 0 scale 1
c1 r1.1 push s0 0:[0,4) b2
  verify s0 b2
verified b2
  measure s0 b2
decided step 0 scale 1
measured b2 norm2 9
  report step 0 norm2 9 view 1
decided step 1 scale 1
decided step 0 scale 1
decided step 0 scale 1
decided step 0 scale 1.5
decided step 0 scale nan
tick
tick
  report step 0 norm2 9 view 1
undecided step 0
decided step 0 scale 0.5
  lsn 3 apply s0 0:[0,4) rate 0.5 scale 0.5 t 1 lag 0 b2 version 0
decided step 0 scale 0.5
)");
  EXPECT_EQ(t.partition().counters().repeated_reports, 1u);
  EXPECT_EQ(t.partition().counters().stale_decisions, 6u);
}

// However long it takes: a dead decider's other copy may lead only when the coordinator is back.
TEST(PartitionDecisionTest, ASilentDeciderIsNamedAndAskedAgainAndAgain) {
  Transcript t(Clipped(1, 1, 2));
  t.Begin(1);
  const uint64_t push = t.Push(1, 0, 0, 0, 4);
  t.Verify(push);
  t.Step(Measured{BufferId(push), 9});
  const auto wait = [&](absl::Duration duration) {
    for (absl::Duration waited; waited < duration; waited += kReportPeriod) {
      t.Advance(kReportPeriod);
      t.Step(ShardTick{});
    }
  };
  const absl::Duration silence = kUnansweredReports * kReportPeriod;
  t.Step(ShardTick{});
  wait(silence - absl::Seconds(1));
  EXPECT_EQ(t.partition().Status().undecided(), "");
  wait(absl::Seconds(1));
  EXPECT_EQ(t.partition().Status().undecided(),
            "step 0 waits for the decision by partition 0 (view 1): no answer");
  t.Step(Decision(t, 0, 0, Answer::kNone));  // it lives: others are missing
  EXPECT_EQ(t.partition().Status().undecided(), "");
  DecisionReceived refused = Decision(t, 0, 0);
  refused.header.type = FrameType::kError;
  refused.text = "view 1; here is 2";
  t.Step(refused);
  wait(absl::Hours(1));
  EXPECT_EQ(t.partition().Status().undecided(),
            "step 0 waits for the decision by partition 0 (view 1): view 1; here is 2");
  EXPECT_EQ(t.partition().Status().fault(), "");
  t.Step(Decision(t, 0, 1));
  EXPECT_EQ(t.partition().Status().undecided(), "");
  EXPECT_THAT(t.Text(), ::testing::EndsWith(R"(
decided step 0 scale 1
  lsn 3 apply s0 0:[0,4) rate 0.5 scale 1 t 1 lag 0 b2 version 0
)"));
}

TEST(PartitionDecisionTest, NobodyComputesAStepBeforeTheHeldOne) {
  Transcript t(Clipped(1, 1, 2));
  t.Begin(1);
  t.Quietly([&] { t.Verify(t.Push(1, 0, 0, 0, 4)); });
  t.Push(1, 0, 0, 4, 4);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[4,8) b3
  c1 error #3 stale-clock clock 0 lsn 0: step 1; slice 0 has sealed 0
  release b3
)");
}

// Each worker's part is finite, their sum is not.
TEST(PartitionDecisionTest, AnOverflownSumStopsTheJobAndNamesTheParameter) {
  Transcript t(Clipped(1, 2, 2));
  t.Begin(1);
  const uint64_t first = t.Push(1, 0, 0, 0, 4);
  const uint64_t second = t.Push(1, 1, 0, 0, 4);
  t.Quietly([&] {
    t.Verify(first);
    t.Verify(second);
  });
  t.Quietly([&] { t.Step(Measured{BufferId(first), 1}); });
  t.Text();
  t.Step(Measured{BufferId(second), HUGE_VAL, 7});
  const std::string fault =
      "the sum of the workers' gradients is not finite for w1[7] in step 0, although each worker's "
      "own was: it overflowed";
  EXPECT_EQ(t.Text(), absl::StrCat("\nmeasured b3 non-finite at 7\n  fault: ", fault,
                                   "\n  c1 error #2 stopped clock 0 lsn 0: ", fault,
                                   "\n  release b2"
                                   "\n  c1 error #3 stopped clock 0 lsn 0: ",
                                   fault, "\n  release b3\n"));
  t.Step(Decision(t, 0, 1));
  t.Advance(kReportPeriod);
  t.Step(ShardTick{});
  EXPECT_EQ(t.Text(), "\ndecided step 0 scale 1\ntick\n");
}

// Partition 0 has no slices here: it only decides.
TEST(PartitionDecisionTest, PartitionZeroDecidesOnceForAll) {
  Transcript t(Clipped(0, 0, 3));
  t.Begin(1);
  t.Send(Report(t, 1, 0, 9), 11);
  t.Send(Report(t, 0, 0, 7), 10);
  t.Send(Report(t, 1, 0, 9), 11);  // repeated
  t.Send(Report(t, 1, 0, 8), 11);  // another norm
  t.Send(Report(t, 3, 0, 8), 13);  // no such partition
  t.Send(Report(t, 2, 1, 8), 12);  // another step
  t.Send(Report(t, 2, 0, -1), 12);
  t.Send(Report(t, 2, 0, 9), 12);
  t.Send(Report(t, 2, 0, 9), 12);  // the answer got lost
  EXPECT_EQ(t.Text(), R"(
c11 r0.0 report of p1 step 0 norm2 9
c10 r0.0 report of p0 step 0 norm2 7
c11 r0.0 report of p1 step 0 norm2 9
  c11 decision for p1 step 0 waits
c11 r0.0 report of p1 step 0 norm2 8
  c11 error #5 bad-frame clock 0 lsn 0: partition 1 reported something else about step 0 before: run the same release everywhere
c13 r0.0 report of p3 step 0 norm2 8
  c13 error #6 bad-frame clock 0 lsn 0: partition 3 has nothing to report
c12 r0.0 report of p2 step 1 norm2 8
  c12 error #7 stale-clock clock 1 lsn 0: step 1; step 0 is decided next
c12 r0.0 report of p2 step 0 norm2 -1
  c12 error #8 bad-frame clock 0 lsn 0: a squared norm of -1; expected a finite number, at least 0
c12 r0.0 report of p2 step 0 norm2 9
  c10 decision for p0 step 0 scale 0.2
  c11 decision for p1 step 0 scale 0.2
  c12 decision for p2 step 0 scale 0.2
c12 r0.0 report of p2 step 0 norm2 9
  c12 decision for p2 step 0 scale 0.2
)");
  EXPECT_EQ(t.records().back().kind, RecordKind::kDecision);
  EXPECT_EQ(t.records().back().clock, 0);
}

TEST(PartitionDecisionTest, WhatTheJobHasNotIsNeitherReportedNorDecided) {
  Transcript decider(Clipped(0, 0, 3));
  decider.Begin(1);
  FrameHeader skipped = Report(decider, 1, 0, 9);
  skipped.flags = frame_flags::kSkipped;
  decider.Send(skipped, 11);
  EXPECT_THAT(decider.Text(), HasSubstr("bad-frame clock 0 lsn 0: a skipped step; the job's "
                                        "precision is not fp16"));
  decider.Send(Report(decider, 1, 8, 9), 11);
  EXPECT_THAT(decider.Text(), HasSubstr("bad-frame clock 8 lsn 0: step 8; the job has 8 steps"));

  Transcript reporter(Clipped(1, 1, 2));
  reporter.Begin(1);
  const uint64_t push = reporter.Push(1, 0, 0, 0, 4);
  reporter.Verify(push);
  reporter.Step(Measured{BufferId(push), 9});
  DecisionReceived decision = Decision(reporter, 0, 1);
  decision.header.flags = frame_flags::kSkipped;
  reporter.Text();
  reporter.Step(decision);
  EXPECT_EQ(reporter.Text(), "\ndecided step 0 scale 1 skipped\n");
  reporter.Step(Decision(reporter, 0, 1));
  EXPECT_THAT(reporter.Text(), HasSubstr("apply s0"));
}

// What is held, and who waits for a decision, hears when no record takes effect any more.
TEST(PartitionDecisionTest, ASumThatOverflowedInMergingRefusesWhatIsBehindIt) {
  Transcript t(Clipped(0, 1, 2));
  t.Begin(1);
  const auto report = [&](Clock step) {
    t.Send(Report(t, 0, step, 1), 10);
    t.Send(Report(t, 1, step, 1), 11);
  };
  const uint64_t first = t.Push(1, 0, 0, 0, 4);
  t.Verify(first);
  t.Step(Measured{BufferId(first), 1});
  report(0);
  t.Step(Decision(t, 0, 1));
  const Lsn sum = t.partition().log().ordered();
  const uint64_t second = t.Push(1, 0, 0, 4, 4);
  t.Verify(second);  // is held
  t.Send(Report(t, 1, 1, 1), 11);
  t.Text();
  t.Step(Applied{sum, 3});
  const std::string text = t.Text();
  EXPECT_THAT(text, HasSubstr(absl::StrCat("c1 error #", first, " stopped")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("c1 error #", second, " stopped")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("release b", second)));
  EXPECT_THAT(text, HasSubstr("c11 error #"));
  report(1);
  EXPECT_THAT(t.Text(), HasSubstr("c10 error #"));
}

TEST(PartitionDecisionTest, AReportIsFenced) {
  Transcript t(Clipped(0, 0, 3));
  t.Send(Report(t, 1, 0, 9), 11);  // no orders yet
  t.Begin(1);
  FrameHeader h = Report(t, 1, 0, 9);
  h.view = ViewNumber(2);
  t.Send(h, 11);
  h = Report(t, 1, 0, 9);
  h.key.run.era = 1;
  t.Send(h, 11);
  EXPECT_EQ(t.Text(), R"(
c11 r0.0 report of p1 step 0 norm2 9
  c11 error #1 not-hosted clock 0 lsn 0: partition 0 decides nothing here (yet): try again
c11 r0.0 report of p1 step 0 norm2 9
  c11 error #3 stale-view clock 0 lsn 0: view 2; partition 0 is in view 1 on shard 1
c11 r0.0 report of p1 step 0 norm2 9
  c11 error #4 stale-run clock 0 lsn 0: this is another run
)");
  Transcript other(Clipped(1, 1, 3));
  other.Begin(1);
  other.Send(Report(other, 1, 0, 9), 11);
  EXPECT_THAT(other.Text(), HasSubstr("decides nothing here"));
}

// Nothing is answered before the decision is on both copies.
TEST(PartitionDecisionTest, ADecisionIsAnsweredWhenItIsCommitted) {
  Transcript t(Clipped(0, 0, 2));
  OrdersReceived orders = t.Base();
  orders.backup = ShardId(2);
  t.Quietly([&] { t.Step(orders); });
  t.Follow();
  t.Send(Report(t, 0, 0, 1), 10);
  t.Send(Report(t, 1, 0, 3), 11);
  t.Send(Report(t, 0, 0, 1), 10);  // repeated meanwhile
  t.BackupHas(2);
  EXPECT_EQ(t.Text(), R"(
c10 r0.0 report of p0 step 0 norm2 1
c11 r0.0 report of p1 step 0 norm2 3
  replicate lsn 2 decision step 0 scale 0.5
c10 r0.0 report of p0 step 0 norm2 1
  c10 decision for p0 step 0 waits
backup has lsn 2
  c10 decision for p0 step 0 scale 0.5
  c11 decision for p1 step 0 scale 0.5
)");
}

}  // namespace
}  // namespace starling
