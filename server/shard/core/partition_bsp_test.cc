// Transcripts of the partition core under BSP: an event a line, its actions indented.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/coordinator.pb.h"
#include "server/shard/core/testing/transcript.h"

namespace starling {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto Member = Transcript::Member;

TranscriptOptions Bsp(uint32_t slices = 1) {
  return {.policy = {PolicyKind::kBsp, 0}, .slices = slices};
}

TEST(PartitionBspTest, TwoWorkersSealAStep) {
  Transcript t(Bsp());
  t.Begin(2);
  t.Pull(1, 0, 0);
  const uint64_t left = t.Push(1, 0, 0, 0, 2);
  t.Pull(1, 0, 1);
  t.Close(1, 0, 0, 0, 2);
  const uint64_t right = t.Push(2, 0, 0, 2, 2);
  t.Verify(right);
  t.Verify(left);
  t.Apply(4);
  t.Close(2, 0, 0, 2, 2);
  t.Pull(2, 0, 0);  // the version before is still there
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 pull s0 clock 0 min_lsn 0
  c1 value #3 s0 clock 0 lsn 0 version 0
c1 r1.1 push s0 0:[0,2) b4
  verify s0 b4
c1 r1.1 pull s0 clock 1 min_lsn 0
c1 r1.1 close clock 0 0:[0,2)
c2 r2.1 push s0 0:[2,4) b7
  verify s0 b7
verified b7
verified b4
  merge s0 b7 += b4
  release b4
  lsn 4 apply s0 0:[0,4) rate 0.5 scale 1 t 1 lag 0 b7 version 0
applied lsn 4
  c2 ack #7 counted clock 0 lsn 4
  c1 ack #4 counted clock 0 lsn 4
  release b7
  c1 value #5 s0 clock 1 lsn 4 version 1
  c1 ack #6 counted clock 1 lsn 5
c2 r2.1 close clock 0 0:[2,4)
  c2 ack #8 counted clock 1 lsn 6
c2 r2.1 pull s0 clock 0 min_lsn 0
  c2 value #9 s0 clock 0 lsn 0 version 0
)");
}

TEST(PartitionBspTest, ContainedPartsJoinAndContainingOnesReplace) {
  Transcript t(Bsp());
  t.Begin(3);
  t.Verify(t.Push(1, 0, 0, 0, 1));
  t.Push(2, 0, 0, 0, 1);            // held
  t.Verify(t.Push(2, 0, 0, 0, 2));  // after a roster change: all of the left half
  t.Push(1, 0, 0, 1, 1);            // contained in what is held
  t.Verify(t.Push(3, 0, 0, 2, 2));
  t.Push(1, 0, 0, 1, 1);  // the seal is on its way
  t.Apply(5);
  t.Push(2, 0, 0, 0, 2);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[0,1) b4
  verify s0 b4
verified b4
c2 r2.1 push s0 0:[0,1) b5
  release b5
c2 r2.1 push s0 0:[0,2) b6
  verify s0 b6
verified b6
  release b4
c1 r1.1 push s0 0:[1,2) b7
  release b7
c3 r3.1 push s0 0:[2,4) b8
  verify s0 b8
verified b8
  merge s0 b6 += b8
  release b8
  lsn 5 apply s0 0:[0,4) rate 0.5 scale 1 t 1 lag 0 b6 version 0
c1 r1.1 push s0 0:[1,2) b9
  release b9
applied lsn 5
  c1 ack #4 counted clock 0 lsn 5
  c2 ack #5 counted clock 0 lsn 5
  c2 ack #6 counted clock 0 lsn 5
  c1 ack #7 counted clock 0 lsn 5
  c3 ack #8 counted clock 0 lsn 5
  c1 ack #9 counted clock 0 lsn 5
  release b6
c2 r2.1 push s0 0:[0,2) b10
  c2 ack #10 already-counted clock 0 lsn 5
  release b10
)");
  EXPECT_EQ(t.partition().counters().replaced_sums, 1u);
  EXPECT_EQ(t.partition().counters().duplicate_sums, 2u);
}

// Both are verified at once; the one that contains the other seals the step first.
TEST(PartitionBspTest, APartThatIsVerifiedAfterItsStepWasSealedCountsNothing) {
  Transcript t(Bsp());
  t.Begin(2);
  const uint64_t part = t.Push(1, 0, 0, 0, 2);
  const uint64_t whole = t.Push(2, 0, 0, 0, 4);
  t.Verify(whole);
  t.Verify(part);
  t.Apply(4);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[0,2) b3
  verify s0 b3
c2 r2.1 push s0 0:[0,4) b4
  verify s0 b4
verified b4
  lsn 4 apply s0 0:[0,4) rate 0.5 scale 1 t 1 lag 0 b4 version 0
verified b3
  release b3
applied lsn 4
  c2 ack #4 counted clock 0 lsn 4
  c1 ack #3 counted clock 0 lsn 4
  release b4
)");
}

TEST(PartitionBspTest, VersionsThatAreGoneAndStepsThatCannotBeYet) {
  Transcript t(Bsp());
  t.Begin(1);
  t.Contribute(1, 0, 0, 0, 4);
  const uint64_t push = t.Push(1, 0, 0, 4, 4);
  t.Verify(push);
  t.Pull(1, 0, 0);  // being overwritten
  t.Pull(1, 0, 1);
  t.Apply(4);
  t.Push(1, 0, 0, 12, 4);
  t.Pull(1, 0, 9);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[4,8) b3
  verify s0 b3
verified b3
  lsn 4 apply s0 0:[4,8) rate 0.25 scale 1 t 2 lag 0 b3 version 1
c1 r1.1 pull s0 clock 0 min_lsn 0
  c1 error #4 stale-clock clock 1 lsn 0: version 0 is gone: slice 0 has sealed 2
c1 r1.1 pull s0 clock 1 min_lsn 0
  c1 value #5 s0 clock 1 lsn 3 version 1
applied lsn 4
  c1 ack #3 counted clock 0 lsn 4
  release b3
c1 r1.1 push s0 0:[12,16) b6
  c1 error #6 stale-clock clock 2 lsn 0: step 3; slice 0 has sealed 2
  release b6
c1 r1.1 pull s0 clock 9 min_lsn 0
  c1 error #7 bad-frame clock 9 lsn 0: clock 9; the job has 8 steps
)");
}

TEST(PartitionBspTest, WhoEntersIsToldTheLeastSealedStep) {
  Transcript t(Bsp(/*slices=*/2));
  t.Begin(1);
  t.Contribute(1, 0, 0, 0, 4);
  t.Contribute(1, 1, 0, 0, 4);
  t.Contribute(1, 0, 0, 4, 4);
  t.Orders(2, {Member(2, 1, 0)});
  t.Mark(2, frame_flags::kEnter);
  t.Pull(2, 0, 1);
  t.Pull(2, 1, 1);
  t.Push(2, 0, 0, 4, 4);
  EXPECT_EQ(t.Text(), R"(
orders generation 1 view 1 roster 2: r2.1 epoch 0
c2 r2.1 enter clock 0
  c2 ack #5 counted clock 1 lsn 7
c2 r2.1 pull s0 clock 1 min_lsn 0
  c2 value #6 s0 clock 1 lsn 3 version 1
c2 r2.1 pull s1 clock 1 min_lsn 0
  c2 value #7 s1 clock 1 lsn 4 version 1
c2 r2.1 push s0 0:[4,8) b8
  c2 ack #8 already-counted clock 0 lsn 7
  release b8
)");
}

TEST(PartitionBspTest, TheLastStepOfAnEpochIsRescaledAndCut) {
  Transcript t({.policy = {PolicyKind::kBsp, 0}, .samples = 10, .epochs = 2, .evaluate_every = 1});
  t.Begin(1);
  t.Contribute(1, 0, 0, 0, 4);
  t.Verify(t.Push(1, 0, 0, 4, 2));  // two samples and an empty micro-batch
  t.Verify(t.Push(1, 0, 0, 6, 2));  // empty ones
  t.Apply(4);
  t.PullCut(1, 0, 0);
  t.PullCut(1, 0, 1);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[4,6) b3
  verify s0 b3
verified b3
c1 r1.1 push s0 0:[6,8) b4
  verify s0 b4
verified b4
  merge s0 b3 += b4
  release b4
  lsn 4 apply s0 0:[4,8) rate 0.25 scale 4 t 2 lag 0 b3 version 1
applied lsn 4
  c1 ack #3 counted clock 0 lsn 4
  c1 ack #4 counted clock 0 lsn 4
  release b3
  copy for cut 0
c1 r1.1 pull s0 cut 0
  c1 value #5 s0 clock 0 lsn 5 copy 0
c1 r1.1 pull s0 cut 1
)");
}

// After the last cut the values themselves are read, by clients too.
TEST(PartitionBspTest, TheLastCutIsTheValueItself) {
  Transcript t({.policy = {PolicyKind::kBsp, 0}, .samples = 8, .epochs = 1});
  t.Begin(1);
  t.Contribute(1, 0, 0, 0, 4);
  FrameHeader reader = t.Header(FrameType::kPull, 0);
  reader.flags = frame_flags::kReader;
  reader.key.work.purpose = WorkPurpose::kEvaluate;
  t.Send(reader, /*connection=*/50);
  reader.key.work.purpose = WorkPurpose::kNone;
  t.Send(reader, /*connection=*/50);
  EXPECT_EQ(t.Text(), R"(
c50 r0.1 pull s0 cut 0
  c50 value #3 s0 clock 0 lsn 4 version 1
c50 r0.1 pull s0 clock 0 min_lsn 0
  c50 value #4 s0 clock 0 lsn 4 version 1
)");
  EXPECT_EQ(t.partition().Status().cut_epochs(), 1u);
}

TEST(PartitionBspTest, APartThatIsNotFiniteIsAwaitedFromAnother) {
  Transcript t(Bsp());
  t.Begin(2);
  t.Verify(t.Push(1, 0, 0, 0, 2));
  t.Verify(t.Push(2, 0, 0, 2, 2), Transcript::kDigest, 0);
  const std::string text = t.Text();
  EXPECT_THAT(text, ::testing::Not(HasSubstr("apply")));
  EXPECT_THAT(text, HasSubstr("worker 2 sent a gradient that is not finite for w0[0]"));
  t.Verify(t.Push(1, 0, 0, 2, 2));
  EXPECT_THAT(t.Text(), HasSubstr("apply"));
}

// Each worker's part is finite, what they were merged to is not.
TEST(PartitionBspTest, ASumThatOverflowsIsNotAppliedAndStopsTheJob) {
  Transcript t(Bsp());
  t.Begin(2);
  t.Quietly([&] {
    for (uint32_t r : {1, 2}) t.Verify(t.Push(r, 0, 0, 2 * (r - 1), 2));
  });
  t.Step(Applied{t.partition().log().ordered(), 5});
  const std::string fault =
      "the sum of the workers' gradients is not finite for w0[5] in step 0, although each worker's "
      "own was: it overflowed";
  EXPECT_EQ(t.Text(),
            absl::StrCat("\nnot applied 4: non-finite at 5\n  fault: ", fault,
                         "\n  c1 error #3 stopped clock 0 lsn 0: ", fault,
                         "\n  c2 error #4 stopped clock 0 lsn 0: ", fault, "\n  release b3\n"));
  EXPECT_EQ(t.partition().Status().sealed_steps(), 0u);
  EXPECT_TRUE(t.partition().Status().diverged());
  t.Push(2, 0, 0, 2, 2);  // again: nothing will ever answer that seal
  EXPECT_THAT(t.Text(), HasSubstr("error #5 stopped"));
}

// The clock behind a sum that overflowed never ticks.
TEST(PartitionBspTest, ClosesBehindASumThatOverflowsAreRefused) {
  Transcript t(Bsp());
  t.Begin(2);
  t.Quietly([&] {
    for (uint32_t r : {1, 2}) t.Verify(t.Push(r, 0, 0, 2 * (r - 1), 2));
    t.Close(1, 0, 0, 0, 4);
    t.Close(1, 1, 0, 4, 4);  // of a step that is not sealed
  });
  EXPECT_EQ(t.partition().log().ordered(), Lsn(5));
  t.Step(Applied{Lsn(4), 5});
  const std::string text = t.Text();
  EXPECT_THAT(text, HasSubstr("c1 error #5 stopped"));
  EXPECT_THAT(text, HasSubstr("c1 error #6 stopped"));
  t.Close(2, 0, 0, 0, 4);
  EXPECT_THAT(t.Text(), HasSubstr("c2 error #7 stopped"));
}

// The gradient is finite, what its update leads to is not.
TEST(PartitionBspTest, AnUpdateToWhatIsNotFiniteStopsTheJob) {
  Transcript t(Bsp());
  t.Begin(1);
  t.Quietly([&] { t.Verify(t.Push(1, 0, 0, 0, 4)); });
  t.Step(Applied{t.partition().log().ordered(), -1, 0, 5});
  EXPECT_THAT(t.Text(),
              AllOf(HasSubstr("non-finite at 5\n  fault: the update of step 0, or one of the 15 of "
                              "these parameters before it, makes w0[5], or what the optimizer "
                              "keeps for it, not finite"),
                    HasSubstr(" stopped clock 0 lsn 0: the update of step 0")));
  EXPECT_TRUE(t.partition().Status().diverged());
  EXPECT_EQ(t.partition().Status().sealed_steps(), 0u) << "the version before is kept";
}

// A job that ends in the middle of a step: slice 0 has sealed it, slice 1 never will. What both
// have is the version before, and a reader gets exactly that.
TEST(PartitionBspTest, AReaderGetsTheVersionThatAllSlicesHave) {
  Transcript t(Bsp(/*slices=*/2));
  t.Begin(1);
  t.Contribute(1, 0, 0, 0, 4);
  t.Contribute(1, 1, 0, 0, 4);
  t.Contribute(1, 0, 0, 4, 4);
  t.Quietly([&] { t.Verify(t.Push(1, 1, 0, 4, 4), Transcript::kDigest, 0); });
  EXPECT_EQ(t.partition().Status().sealed_steps(), 1u);
  t.Quietly([&] { t.Orders(2, {}); });
  FrameHeader reader = t.Header(FrameType::kPull, 0);
  reader.origin = Origin();
  reader.flags = frame_flags::kReader | frame_flags::kVersion;
  for (const uint32_t slice : {0, 1}) {
    reader.key.slice = SliceId(slice);
    for (const Clock version : {0, 1, 2, 3}) {
      reader.clock = version;
      t.Send(reader, /*connection=*/50);
    }
  }
  EXPECT_EQ(t.Text(), R"(
c50 r0.0 pull s0 clock 0 min_lsn 0
  c50 error #6 stale-clock clock 2 lsn 0: version 0 is not here: slice 0 has sealed 2
c50 r0.0 pull s0 clock 1 min_lsn 0
  c50 value #7 s0 clock 1 lsn 3 version 1
c50 r0.0 pull s0 clock 2 min_lsn 0
  c50 value #8 s0 clock 2 lsn 5 version 2
c50 r0.0 pull s0 clock 3 min_lsn 0
  c50 error #9 stale-clock clock 2 lsn 0: version 3 is not here: slice 0 has sealed 2
c50 r0.0 pull s1 clock 0 min_lsn 0
  c50 value #10 s1 clock 0 lsn 0 version 0
c50 r0.0 pull s1 clock 1 min_lsn 0
  c50 value #11 s1 clock 1 lsn 4 version 1
c50 r0.0 pull s1 clock 2 min_lsn 0
  c50 error #12 stale-clock clock 1 lsn 0: version 2 is not here: slice 1 has sealed 1
c50 r0.0 pull s1 clock 3 min_lsn 0
  c50 error #13 stale-clock clock 1 lsn 0: version 3 is not here: slice 1 has sealed 1
)");
}

// Nothing of these may be kept, or counted on.
TEST(PartitionBspTest, FramesThatNoWorkerSendsAreRefused) {
  Transcript t(Bsp());
  t.Begin(1);
  FrameHeader loaded = t.Header(FrameType::kClose, 1);
  loaded.flags = frame_flags::kPark;
  loaded.kind = PayloadKind::kText;
  loaded.payload_bytes = 8;
  t.Send(loaded);
  t.Mark(1, frame_flags::kEnter | frame_flags::kPark);
  t.Mark(1, frame_flags::kReader);
  t.Mark(1, frame_flags::kSkip, limits::kClockMax + 1);
  t.Pull(1, 0, limits::kClockMax + 1);
  FrameHeader far = t.PushHeader(1, 0, 0, 0, 4);
  far.key.work.epoch = UINT32_MAX;
  t.Send(far);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 park clock 0 b2
  c1 error #2 bad-frame clock 0 lsn 0: payload kind 4 with 8 bytes; a close or a pull has no payload
  release b2
c1 r1.1 enter clock 0
  c1 error #3 bad-frame clock 0 lsn 0: a close with flags 3; expected none, or one of enter, skip, park
c1 r1.1 close clock 0
  c1 error #4 bad-frame clock 0 lsn 0: a close with flags 8; expected none, or one of enter, skip, park
c1 r1.1 skip clock 4611686018427387905
  c1 error #5 bad-frame clock 4611686018427387905 lsn 0: clock 4611686018427387905; expected 0 to 4611686018427387904
c1 r1.1 pull s0 clock 4611686018427387905 min_lsn 0
  c1 error #6 bad-frame clock 4611686018427387905 lsn 0: clock 4611686018427387905; expected 0 to 4611686018427387904
c1 r1.1 push s0 4294967295:[0,4) b7
  c1 error #7 bad-frame clock 0 lsn 0: epoch 4294967295 has 0 steps; got step 0
  release b7
)");
}

TEST(PartitionBspTest, ACloseMustNameItsStep) {
  Transcript t(Bsp());
  t.Begin(1);
  t.Close(1, 3, 0, 0, 4);
  EXPECT_THAT(t.Text(),
              HasSubstr("bad-frame clock 3 lsn 0: the clock of job step 0 is that number; got 3"));
}

// Worker 3 repeats the part of worker 2, which is late at first. Who comes first counts, and all
// are told what was late.
TEST(PartitionBspTest, TheFirstResultForASubtreeWinsAndValuesNameTheLatePart) {
  for (const uint32_t backup_workers : {1, 0}) {
    TranscriptOptions options = Bsp();
    options.backup_workers = backup_workers;
    Transcript t(options);
    t.Begin(3);
    const auto step = [&t](uint64_t first, uint32_t late, absl::Duration by) {
      t.Advance(absl::Milliseconds(100));
      t.Contribute(1, 0, 0, first, 2);
      t.Advance(by);
      t.Verify(t.Push(late, 0, 0, first + 2, 2));
      t.Apply(t.partition().log().ordered().value);
    };
    step(0, 2, absl::Milliseconds(100));
    step(4, 2, absl::Milliseconds(900));
    t.Text();
    t.Pull(1, 0, 2);
    t.Pull(3, 0, 1);
    EXPECT_EQ(t.Text(), absl::StrCat(R"(
c1 r1.1 pull s0 clock 2 min_lsn 0
  c1 value #8 s0 clock 2 lsn 6 version 2)",
                                     backup_workers > 0 ? " micro-batch 2 late by 900ms" : "", R"(
c3 r3.1 pull s0 clock 1 min_lsn 0
  c3 value #9 s0 clock 1 lsn 5 version 1
)"));
    step(8, 3, absl::Milliseconds(1));
    t.Text();
    t.Push(2, 0, 0, 10, 2);
    t.Pull(1, 0, 3);
    EXPECT_EQ(t.Text(), R"(
c2 r2.1 push s0 0:[10,12) b12
  c2 ack #12 already-counted clock 0 lsn 7
  release b12
c1 r1.1 pull s0 clock 3 min_lsn 0
  c1 value #13 s0 clock 3 lsn 7 version 3
)");
    EXPECT_EQ(t.partition().counters().late_steps, backup_workers);
  }
}

// The digest over the log sees every record, in order.
TEST(PartitionBspTest, TheStateDigestTellsLogsApart) {
  Transcript a(Bsp());
  Transcript b(Bsp());
  for (Transcript* t : {&a, &b}) t->Begin(2);
  EXPECT_EQ(a.partition().applied().digest(), b.partition().applied().digest());
  a.Contribute(1, 0, 0, 0, 4);
  b.Contribute(1, 0, 0, 0, 4);
  EXPECT_EQ(a.partition().applied().digest(), b.partition().applied().digest());
  a.Mark(1, frame_flags::kPark);
  b.Mark(2, frame_flags::kPark);
  EXPECT_NE(a.partition().applied().digest(), b.partition().applied().digest());
  EXPECT_EQ(a.records().back().lsn, Lsn(5));
}

}  // namespace
}  // namespace starling
