// What a partition refuses, and what it says then: frames of other runs, of strangers, damaged
// ones.
#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/coordinator.pb.h"
#include "server/shard/core/testing/transcript.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

constexpr auto Member = Transcript::Member;

TranscriptOptions Ssp(uint32_t staleness) { return {.policy = {PolicyKind::kSsp, staleness}}; }

TEST(PartitionRefusalsTest, TheSameAttemptWithOtherBytesIsRefused) {
  Transcript t(Ssp(1));
  t.Begin(1);
  t.Push(1, 0, 0, 0, 4);
  FrameHeader other = t.PushHeader(1, 0, 0, 0, 4);
  other.digest = 78;
  t.Send(other);
  EXPECT_THAT(t.Text(), HasSubstr("c1 error #3 bad-digest clock 0 lsn 0: the same attempt"));
}

TEST(PartitionRefusalsTest, StaleRunsAndViewsChangeNothing) {
  Transcript t(Ssp(0));
  t.Push(1, 0, 0, 0, 4);
  t.Begin(1);
  FrameHeader later_era = t.PushHeader(1, 0, 0, 0, 4);
  later_era.key.run.era = 1;
  t.Send(later_era);
  t.Quietly([&] {
    OrdersReceived orders = t.Base();
    orders.view = ViewNumber(2);
    orders.roster = {RosterNumber(1), {Member(1, 1, 0)}};
    t.Step(orders);
  });
  t.set_view(0);
  t.Push(1, 0, 0, 0, 4);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[0,4) b1
  c1 error #1 not-hosted clock 0 lsn 0: partition 0 has no orders yet: try again
  release b1
c1 r1.1 push s0 0:[0,4) b3
  c1 error #3 stale-run clock 0 lsn 0: run 7.1; this is 7.0
  release b3
c1 r1.1 push s0 0:[0,4) b4
  c1 error #4 stale-view clock 0 lsn 0: view 0; partition 0 is in view 2 on shard 1
  release b4
)");
  EXPECT_EQ(t.partition().log().applied(), Lsn(2));  // the roster and the entering
}

// The primary is the same one: only its backup changes.
TEST(PartitionRefusalsTest, ALaterViewOfTheSamePrimaryFencesNobody) {
  Transcript t(Ssp(0));
  t.Begin(1);
  const uint64_t push = t.Push(1, 0, 0, 0, 4);
  OrdersReceived orders = t.Base();
  orders.view = ViewNumber(2);
  orders.roster = {RosterNumber(1), {Member(1, 1, 0)}};
  t.Quietly([&] { t.Step(orders); });
  t.Verify(push);
  t.Push(1, 0, 0, 4, 4);
  EXPECT_THAT(t.Text(), ::testing::Not(HasSubstr("stale-view")));
}

TEST(PartitionRefusalsTest, WhatIsVerifiedUnderAnotherPrimaryChangesNothing) {
  Transcript t(Ssp(0));
  t.Begin(1);
  const uint64_t push = t.Push(1, 0, 0, 0, 4);
  OrdersReceived orders = t.Base();
  orders.view = ViewNumber(2);
  orders.primary = ShardId(2);
  orders.roster = {RosterNumber(1), {Member(1, 1, 0)}};
  t.Quietly([&] { t.Step(orders); });
  t.Text();
  t.Verify(push, Transcript::kDigest, /*first_non_finite=*/3);
  EXPECT_EQ(t.Text(), R"(
verified b2 non-finite at 3
  c1 error #2 stale-view clock 0 lsn 0: view 1; partition 0 is in view 2 on shard 2
  release b2
)");
}

TEST(PartitionRefusalsTest, AnOlderCoordinatorIsIgnored) {
  Transcript t(Ssp(0));
  t.Orders(1, {Member(1, 1, 0)}, 0, /*generation=*/5);
  t.Orders(9, {Member(2, 1, 0)}, 1, /*generation=*/4);
  EXPECT_EQ(t.partition().Status().roster(), 1u);
  EXPECT_EQ(t.partition().Status().epoch(), 0u);
}

TEST(PartitionRefusalsTest, BadBytesAreNotApplied) {
  Transcript t(Ssp(0));
  t.Begin(2);
  uint64_t push = t.Push(1, 0, 0, 0, 4);
  t.Verify(push, /*digest=*/78);
  push = t.Push(1, 0, 0, 0, 4);
  t.Push(2, 0, 0, 0, 4);
  t.Verify(push, Transcript::kDigest, /*first_non_finite=*/3);
  t.Push(2, 0, 0, 0, 4);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[0,4) b3
  verify s0 b3
verified b3
  c1 error #3 bad-digest clock 0 lsn 0: the payload has digest 78, its header says 77: send it again
  release b3
c1 r1.1 push s0 0:[0,4) b4
  verify s0 b4
c2 r2.1 push s0 0:[0,4) b5
  release b5
verified b4 non-finite at 3
  c1 error #4 non-finite clock 0 lsn 0: worker 1 sent a gradient that is not finite for w0[3] in step 0
  c2 error #5 over-budget clock 0 lsn 0: worker 1 sent a gradient that is not finite for w0[3] in step 0, for the same work: send yours again
  release b4
c2 r2.1 push s0 0:[0,4) b6
  verify s0 b6
)");
  EXPECT_EQ(t.partition().Status().fault(), "");
}

// Its own bytes may be whole.
TEST(PartitionRefusalsTest, DamagedBytesAreTheirSendersAlone) {
  Transcript t(Ssp(0));
  t.Begin(2);
  const uint64_t push = t.Push(1, 0, 0, 0, 4);
  t.Push(2, 0, 0, 0, 4);
  t.Text();
  t.Verify(push, /*digest=*/78);
  EXPECT_EQ(t.Text(), R"(
verified b3
  c1 error #3 bad-digest clock 0 lsn 0: the payload has digest 78, its header says 77: send it again
  c2 error #4 over-budget clock 0 lsn 0: the payload has digest 78, its header says 77, for the same work: send yours again
  release b3
)");
}

// It was started again, or has another lease: these are other bytes.
TEST(PartitionRefusalsTest, AnotherAttemptOfTheSameWorkerIsNotBlamed) {
  Transcript t(Ssp(0));
  t.Begin(1);
  const uint64_t first = t.Push(1, 0, 0, 0, 4);
  FrameHeader header = t.PushHeader(1, 0, 0, 0, 4);
  ++header.origin.attempt;
  const uint64_t second = t.Send(header);
  t.Text();
  t.Verify(first, Transcript::kDigest, /*first_non_finite=*/3);
  const std::string text = t.Text();
  EXPECT_THAT(text, HasSubstr(absl::StrCat("c1 error #", first, " non-finite")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("c1 error #", second, " over-budget")));
}

TEST(PartitionRefusalsTest, MalformedFramesAreRefusedWithWhatWasExpected) {
  Transcript t(Ssp(0));
  t.Begin(1);
  const auto refused = [&](const std::function<void(FrameHeader&)>& spoil) {
    FrameHeader header = t.PushHeader(1, 0, 0, 0, 4);
    spoil(header);
    t.Send(header);
    return t.Text();
  };
  EXPECT_THAT(refused([](FrameHeader& h) { h.key.slice = SliceId(9); }),
              HasSubstr("slice 9 is not in partition 0"));
  EXPECT_THAT(refused([](FrameHeader& h) { h.elements = 11; }),
              HasSubstr("slice 0 has 10 elements; got 11"));
  EXPECT_THAT(refused([](FrameHeader& h) { h.payload_bytes = 44; }),
              HasSubstr("got 10 in 44 bytes"));
  EXPECT_THAT(refused([](FrameHeader& h) { h.codec = Codec::kInt8; }),
              HasSubstr("expected a dense fp32 payload"));
  EXPECT_THAT(refused([](FrameHeader& h) { h.key.work.first = 2; }),
              HasSubstr("not an aligned subtree"));
  EXPECT_THAT(refused([](FrameHeader& h) { h.key.work.count = 3; }),
              HasSubstr("not an aligned subtree"));
  EXPECT_THAT(refused([](FrameHeader& h) { h.key.work.count = 0; }),
              HasSubstr("not an aligned subtree"));
  EXPECT_THAT(refused([](FrameHeader& h) { h.key.work.count = 2; }),
              HasSubstr("a whole step of 4 micro-batches"));
  EXPECT_THAT(refused([](FrameHeader& h) { h.key.work.first = 16; }),
              HasSubstr("epoch 0 has 4 steps; got step 4"));
  EXPECT_THAT(refused([](FrameHeader& h) { h.key.work.epoch = 2; }),
              HasSubstr("epoch 2 has 0 steps"));
  EXPECT_THAT(refused([](FrameHeader& h) { h.key.work.purpose = WorkPurpose::kEvaluate; }),
              HasSubstr("expected training work"));
  EXPECT_THAT(refused([](FrameHeader& h) { h.samples = 7; }),
              HasSubstr("the work has 8 samples; got 7"));
  EXPECT_THAT(refused([](FrameHeader& h) { h.clock = -1; }), HasSubstr("clock -1"));
  EXPECT_THAT(refused([](FrameHeader& h) { h.type = FrameType::kActivation; }),
              HasSubstr("frame type 9"));
  EXPECT_EQ(t.partition().counters().refused, 14u);
}

// A reader's pull is of no policy; nothing else becomes so by the same flag, or as evaluation.
TEST(PartitionRefusalsTest, FlagsOfOtherFramesAreRefused) {
  Transcript t(Ssp(0));
  t.Begin(1);
  FrameHeader push = t.PushHeader(1, 0, 0, 0, 4);
  push.flags = frame_flags::kReader;
  push.policy = PolicyNumber(1);  // which is not in force
  t.Send(push);
  EXPECT_THAT(t.Text(), HasSubstr("bad-frame clock 0 lsn 0: flags 8 of a push"));
  FrameHeader pull = t.Header(FrameType::kPull, 1);
  pull.flags = frame_flags::kEnter;
  t.Send(pull);
  EXPECT_THAT(t.Text(), HasSubstr("bad-frame clock 0 lsn 0: flags 1 of a pull"));
  FrameHeader park = t.Header(FrameType::kClose, 1);
  park.flags = frame_flags::kPark;
  park.policy = PolicyNumber(1);
  park.key.work.purpose = WorkPurpose::kEvaluate;
  t.Send(park);
  EXPECT_EQ(t.partition().counters().parked, 1u);
  EXPECT_TRUE(t.partition().applied().clocks().any_active());
}

TEST(PartitionRefusalsTest, ACloseOrAPullHasNoPayload) {
  Transcript t(Ssp(0));
  t.Begin(1);
  for (const FrameType type : {FrameType::kClose, FrameType::kPull}) {
    FrameHeader h = t.Header(type, 1);
    h.kind = PayloadKind::kText;
    h.payload_bytes = 12;
    h.key.work = {WorkPurpose::kTrain, 0, 0, 4};
    const uint64_t payload = t.Send(h);
    const std::string text = t.Text();
    EXPECT_THAT(text, HasSubstr("bad-frame"));
    EXPECT_THAT(text, HasSubstr("has no payload"));
    EXPECT_THAT(text, HasSubstr(absl::StrCat("release b", payload)));
  }
}

TEST(PartitionRefusalsTest, AClockThatNoUnitHasIsRefused) {
  Transcript t(Ssp(0));
  t.Begin(1);
  t.Mark(1, frame_flags::kSkip, std::numeric_limits<Clock>::max());
  EXPECT_THAT(t.Text(), HasSubstr("bad-frame"));
  t.Contribute(1, 0, 0, 0, 4);
  t.Close(1, limits::kClockMax + 1, 0, 0, 4);
  EXPECT_THAT(t.Text(), HasSubstr("bad-frame"));
  EXPECT_EQ(t.partition().applied().clocks().min(), 0);
}

// Readers are no members: what they ask for never stands in the place of a training pull.
TEST(PartitionRefusalsTest, AReadersPullDoesNotEraseATrainingPullWithTheSameIds) {
  Transcript t(Ssp(0));
  t.Begin(2);
  t.Contribute(1, 0, 0, 0, 4);
  t.Close(1, 0, 0, 0, 4);
  t.Text();
  const uint64_t training = t.Pull(1, 0, 1);  // waits: replica 2 has not closed its step
  t.PullAsReader(1, 0);
  t.Contribute(2, 0, 0, 4, 4);
  t.Text();
  t.Close(2, 0, 0, 4, 4);
  EXPECT_THAT(t.Text(), HasSubstr(absl::StrCat("c1 value #", training, " s0 clock 1")));
}

TEST(PartitionRefusalsTest, ASkipBeyondWhatCanBeReachedIsRefused) {
  Transcript t(Ssp(0));  // epochs of four steps
  t.Begin(1);
  t.Text();
  t.Mark(1, frame_flags::kSkip, limits::kClockMax);
  EXPECT_THAT(t.Text(), HasSubstr("c1 error #2 bad-frame clock 0 lsn 0: skip to clock "
                                  "4611686018427387904; the replica is at 0 here, and no partition "
                                  "can have it beyond 1028"));
  EXPECT_EQ(t.partition().Status().clock_max(), 0);
  t.Mark(1, frame_flags::kSkip, 4);
  EXPECT_THAT(t.Text(), HasSubstr("counted"));
  EXPECT_EQ(t.partition().Status().clock_max(), 4);
}

}  // namespace
}  // namespace starling
