// Transcripts of the partition core of a job in fp16: gradients that overflow are skipped, and the
// loss scale goes down.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/coordinator.pb.h"
#include "server/shard/core/testing/transcript.h"

namespace starling {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr uint16_t kSkipped = frame_flags::kSkipped;

TranscriptOptions Scaled(PolicyKind policy, uint32_t partition = 0, uint32_t partitions = 1) {
  return {.policy = {policy, 1},
          .slices = 2,
          .scales_loss = true,
          .reporters = partitions,
          .partition = partition};
}

// A verified push; its buffer.
uint64_t Push(Transcript& t, uint32_t slice, uint64_t first, uint32_t count, bool skipped,
              int log2 = 16, uint32_t replica = 1) {
  FrameHeader h = t.PushHeader(replica, slice, 0, first, count);
  h.flags = skipped ? kSkipped : 0;
  h.loss_scale_log2 = static_cast<uint8_t>(log2);
  const uint64_t buffer = t.Send(h);
  t.Verify(buffer);
  return buffer;
}

// What partition 0 says to this one.
void Decide(Transcript& t, Clock step, bool skipped, uint32_t by = 2) {
  FrameHeader h;
  h.type = FrameType::kDecision;
  h.answer = Answer::kCounted;
  h.key.run = t.partition().config().run;
  h.reporter = t.partition().config().partition;
  h.clock = step;
  h.scalar = 1;
  h.flags = skipped ? kSkipped : 0;
  if (skipped) h.origin = {ReplicaId(by), WorkerId(by), Incarnation(1), 1};
  t.Step(DecisionReceived{h, ""});
}

uint64_t Report(Transcript& t, uint32_t partition, Clock step, bool skipped) {
  FrameHeader h;
  h.type = FrameType::kDecision;
  h.key.run = t.partition().config().run;
  h.view = ViewNumber(1);
  h.reporter = PartitionId(partition);
  h.clock = step;
  h.flags = skipped ? kSkipped : 0;
  if (skipped) h.origin = {ReplicaId(3), WorkerId(3), Incarnation(1), 1};
  return t.Send(h, 20 + partition);
}

TEST(PartitionOverflowTest, AStepWithAnOverflowChangesNothingAndHalvesTheScale) {
  Transcript t(Scaled(PolicyKind::kBsp, 1, 2));
  t.Begin(1);
  Push(t, 0, 0, 2, false);
  Push(t, 0, 2, 2, true);
  Push(t, 1, 0, 4, false);
  Decide(t, 0, true, 1);
  t.Apply(3);
  t.Apply(4);
  t.Pull(1, 0, 0);
  t.Pull(1, 0, 1);
  t.Pull(1, 1, 1);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[0,2) b2
  verify s0 b2
verified b2
c1 r1.1 push s0 0:[2,4) skipped b3
  verify s0 b3
verified b3
  merge s0 b2 += b3
  release b3
c1 r1.1 push s1 0:[0,4) b4
  verify s1 b4
verified b4
  report step 0 norm2 0 skipped view 1
decided step 0 scale 1 skipped
  lsn 3 skip s0 0:[0,4) by r1 b2 version 0
  lsn 4 skip s1 0:[0,4) by r1 b4 version 0
applied lsn 3
  c1 ack #2 counted clock 0 lsn 3
  c1 ack #3 counted clock 0 lsn 3
  release b2
applied lsn 4
  c1 ack #4 counted clock 0 lsn 4
  release b4
c1 r1.1 pull s0 clock 0 min_lsn 0
  c1 value #5 s0 clock 0 lsn 0 version 0 loss scale 2^16
c1 r1.1 pull s0 clock 1 min_lsn 0
  c1 value #6 s0 clock 1 lsn 3 version 1 loss scale 2^15
c1 r1.1 pull s1 clock 1 min_lsn 0
  c1 value #7 s1 clock 1 lsn 4 version 1
)");
  EXPECT_EQ(t.partition().Status().skipped_steps(), 1u);
  EXPECT_EQ(t.partition().Status().loss_scale(), 32768);
}

// Somebody else's part overflowed; and what is not skipped goes on where it was: Adam's t counts
// updates.
TEST(PartitionOverflowTest, AdamsStepDoesNotCountWhatIsSkipped) {
  Transcript t(Scaled(PolicyKind::kBsp, 1, 2));
  t.Begin(1);
  const auto step = [&](Clock clock, bool skipped) {
    for (uint32_t slice : {0, 1})
      Push(t, slice, static_cast<uint64_t>(clock) * 4, 4, false, clock < 2 ? 16 : 15);
    Decide(t, clock, skipped);
    t.Apply(t.partition().log().ordered().value - 1);
    t.Apply(t.partition().log().ordered().value);
  };
  t.Quietly([&] { step(0, false); });
  step(1, true);
  EXPECT_THAT(t.Text(), HasSubstr("report step 1 norm2 0 view 1"));
  step(2, false);
  const std::string text = t.Text();
  EXPECT_THAT(text, HasSubstr("apply s0 0:[8,12) rate 0.166667 scale 1 t 2 lag 0"));
  EXPECT_THAT(text, HasSubstr("version 2"));
}

TEST(PartitionOverflowTest, OnePartitionsOverflowSkipsTheStepOfAll) {
  Transcript t(Scaled(PolicyKind::kBsp, 0, 2));
  t.Begin(1);
  Report(t, 0, 0, false);
  Report(t, 1, 0, true);
  Report(t, 1, 0, true);  // again: it is told again
  EXPECT_EQ(t.Text(), R"(
c20 r0.0 report of p0 step 0 norm2 0
c21 r3.1 report of p1 step 0 norm2 0 skipped
  c20 decision for p0 step 0 scale 1 skipped
  c21 decision for p1 step 0 scale 1 skipped
c21 r3.1 report of p1 step 0 norm2 0 skipped
  c21 decision for p1 step 0 scale 1 skipped
)");
}

TEST(PartitionOverflowTest, AnOverflowAtTheLeastScaleStopsTheJobAndNamesStepAndWorker) {
  TranscriptOptions options = Scaled(PolicyKind::kBsp, 1, 2);
  options.samples = 8 * 20;
  Transcript t(options);
  t.Begin(1);
  t.Quietly([&] {
    for (Clock step = 0; step <= LossScale::kFirstLog2; ++step) {
      for (uint32_t slice : {0, 1})
        Push(t, slice, static_cast<uint64_t>(step) * 4, 4, true,
             LossScale::kFirstLog2 - static_cast<int>(step));
      if (step == LossScale::kFirstLog2) break;
      Decide(t, step, true);
      t.Apply(t.partition().log().ordered().value - 1);
      t.Apply(t.partition().log().ordered().value);
    }
  });
  EXPECT_EQ(t.partition().Status().loss_scale(), 1);
  Decide(t, 16, true, 7);
  const std::string text = t.Text();
  EXPECT_THAT(text, HasSubstr("fault: fp16: the gradient of step 16, by worker 7, overflowed"));
  EXPECT_THAT(text, HasSubstr("error #"));
  EXPECT_THAT(text, Not(HasSubstr("skip s")));
  EXPECT_EQ(t.partition().Status().skipped_steps(), 16u);
}

TEST(PartitionOverflowTest, InSspAContributionIsSkippedByItself) {
  Transcript t(Scaled(PolicyKind::kSsp));
  t.Begin(2);
  t.Quietly([&] {
    Push(t, 0, 0, 4, false);
    t.Apply(4);
  });
  Push(t, 0, 4, 4, true);
  Push(t, 0, 8, 4, true, 16, 2);  // computed with the scale that overflowed: it is down already
  t.Apply(5);
  t.Apply(6);
  t.Pull(1, 0, 1);
  Push(t, 0, 12, 4, false, 15);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[4,8) skipped b4
  verify s0 b4
verified b4
  lsn 5 skip s0 0:[4,8) by r1 b4 version 0
c2 r2.1 push s0 0:[8,12) skipped b5
  verify s0 b5
verified b5
  lsn 6 skip s0 0:[8,12) by r2 b5 version 0
applied lsn 5
  c1 ack #4 counted clock 0 lsn 5
  release b4
applied lsn 6
  c2 ack #5 counted clock 0 lsn 6
  release b5
c1 r1.1 pull s0 clock 1 min_lsn 0
  c1 value #6 s0 clock 1 lsn 6 version 0 loss scale 2^15
c1 r1.1 push s0 0:[12,16) b7
  verify s0 b7
verified b7
  lsn 7 apply s0 0:[12,16) rate 0.125 scale 1 t 2 lag 3 b7 version 0
)");
  EXPECT_EQ(t.partition().Status().skipped_steps(), 2u);
}

TEST(PartitionOverflowTest, InSspAnOverflowAtTheLeastScaleStopsTheJob) {
  TranscriptOptions options = Scaled(PolicyKind::kAsync);
  options.samples = 8 * 20;
  Transcript t(options);
  t.Begin(1);
  t.Quietly([&] {
    for (int log2 = LossScale::kFirstLog2; log2 > 0; --log2) {
      Push(t, 0, static_cast<uint64_t>(16 - log2) * 4, 4, true, log2);
      t.Apply(t.partition().log().ordered().value);
    }
  });
  Push(t, 0, 64, 4, true, 0);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[64,68) skipped b18
  verify s0 b18
verified b18
  fault: fp16: the gradient of step 16, by worker 1, overflowed with the loss scaled by 1, the least: numbers beyond 65504 arise without any scaling. Use precision: bf16, which has the range of fp32, a lower learning rate, or clip
  c1 error #18 stopped clock 0 lsn 0: fp16: the gradient of step 16, by worker 1, overflowed with the loss scaled by 1, the least: numbers beyond 65504 arise without any scaling. Use precision: bf16, which has the range of fp32, a lower learning rate, or clip
  release b18
)");
}

// Whoever reads next reads both, however late the first one's end is told.
TEST(PartitionOverflowTest, TheScaleIsThatOfTheNewestUpdate) {
  Transcript t(Scaled(PolicyKind::kAsync));
  t.Begin(1);
  Push(t, 0, 0, 4, false);
  const uint64_t first = t.partition().log().ordered().value;
  Push(t, 0, 4, 4, true);
  t.Apply(t.partition().log().ordered().value);
  t.Apply(first);
  t.Pull(1, 0, 0);
  EXPECT_THAT(t.Text(), HasSubstr("loss scale 2^15"));
  EXPECT_THAT(t.Text(), Not(HasSubstr("loss scale 2^16")));
  EXPECT_EQ(t.partition().Status().loss_scale(), 32768);
}

// A worker zeroes what overflowed; what is not finite all the same is a fault of its own.
TEST(PartitionOverflowTest, ANonFiniteGradientIsStillRefused) {
  Transcript t(Scaled(PolicyKind::kBsp));
  t.Begin(1);
  FrameHeader h = t.PushHeader(1, 0, 0, 0, 4);
  h.flags = kSkipped;
  t.Verify(t.Send(h), Transcript::kDigest, 3);
  EXPECT_THAT(t.Text(),
              HasSubstr("non-finite clock 0 lsn 0: worker 1 sent a gradient that is not"));
}

TEST(PartitionOverflowTest, AJobOfAnotherPrecisionSkipsNothing) {
  TranscriptOptions options = Scaled(PolicyKind::kBsp);
  options.scales_loss = false;
  Transcript t(options);
  t.Begin(1);
  FrameHeader h = t.PushHeader(1, 0, 0, 0, 4);
  h.flags = kSkipped;
  t.Send(h);
  EXPECT_THAT(t.Text(), HasSubstr("the job's precision is not fp16"));
  h.flags = 0;
  h.loss_scale_log2 = 3;
  t.Send(h);
  EXPECT_THAT(t.Text(), HasSubstr("the job's precision is not fp16"));
}

// A decision round begins where the policy does that needs one.
TEST(PartitionOverflowTest, DecisionsBeginWithBsp) {
  TranscriptOptions options = Scaled(PolicyKind::kAsync);
  options.slices = 1;
  Transcript t(options);
  t.Begin(1);
  t.Quietly([&] { t.Contribute(1, 0, 0, 0, 4); });
  OrdersReceived orders = t.Base();
  orders.roster = {RosterNumber(1), {Transcript::Member(1)}};
  orders.policy = {PolicyNumber(1), {PolicyKind::kBsp, 0}, 1};
  t.Step(orders);
  t.Text();
  t.set_policy(1);
  Report(t, 0, 5, false);
  EXPECT_THAT(t.Text(), HasSubstr("step 5; step 1 is decided next"));
  Report(t, 0, 1, true);
  EXPECT_THAT(t.Text(), HasSubstr("decision for p0 step 1 scale 1 skipped"));
}

}  // namespace
}  // namespace starling
