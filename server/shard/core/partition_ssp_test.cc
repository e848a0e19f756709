// Transcripts of the partition core under SSP and async: an event a line, its actions indented.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/coordinator.pb.h"
#include "server/shard/core/testing/transcript.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

constexpr auto Member = Transcript::Member;

TranscriptOptions Ssp(uint32_t staleness, uint32_t slices = 1) {
  return {.policy = {PolicyKind::kSsp, staleness}, .slices = slices};
}

TEST(PartitionSspTest, AUnitOfWork) {
  Transcript t(Ssp(0));
  t.Orders(1, {Member(1, 1, 0)});
  t.Mark(1, frame_flags::kEnter);
  t.Pull(1, 0, 0);
  const uint64_t push = t.Push(1, 0, 0, 0, 4);
  t.Pull(1, 0, 1);
  t.Close(1, 0, 0, 0, 4);
  t.Verify(push);
  t.Apply(3);
  EXPECT_EQ(t.Text(), R"(
orders generation 1 view 1 roster 1: r1.1 epoch 0
c1 r1.1 enter clock 0
  c1 ack #1 counted clock 0 lsn 2
c1 r1.1 pull s0 clock 0 min_lsn 0
  c1 value #2 s0 clock 0 lsn 2 version 0
c1 r1.1 push s0 0:[0,4) b3
  verify s0 b3
c1 r1.1 pull s0 clock 1 min_lsn 0
c1 r1.1 close clock 0 0:[0,4)
verified b3
  lsn 3 apply s0 0:[0,4) rate 0.5 scale 1 t 1 lag 0 b3 version 0
applied lsn 3
  c1 ack #3 counted clock 0 lsn 3
  release b3
  c1 ack #5 counted clock 1 lsn 4
  c1 value #4 s0 clock 1 lsn 4 version 0
)");
}

TEST(PartitionSspTest, TheRecordHasTheGroupsRateAndDecay) {
  TranscriptOptions options = Ssp(1);
  options.rate_scale = 4;
  options.decay = 0.25;
  Transcript t(options);
  t.Begin(1);
  const uint64_t push = t.Push(1, 0, 0, 0, 4);
  t.Text();
  t.Verify(push);
  EXPECT_EQ(t.Text(), R"(
verified b2
  lsn 3 apply s0 0:[0,4) rate 2 scale 1 decay 0.25 t 1 lag 0 b2 version 0
)");
}

TEST(PartitionSspTest, ARetryJoinsWhatRunsAndIsAckedWhatIsCovered) {
  Transcript t(Ssp(1));
  t.Begin(2);
  const uint64_t push = t.Push(1, 0, 0, 0, 4);
  t.Push(2, 0, 0, 0, 4);  // another worker's attempt at the same batch
  t.Verify(push);
  t.Push(1, 0, 0, 0, 4);  // the bytes are verified, not applied
  t.Apply(4);
  t.Push(2, 0, 0, 0, 4);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[0,4) b3
  verify s0 b3
c2 r2.1 push s0 0:[0,4) b4
  release b4
verified b3
  lsn 4 apply s0 0:[0,4) rate 0.5 scale 1 t 1 lag 0 b3 version 0
c1 r1.1 push s0 0:[0,4) b5
  release b5
applied lsn 4
  c1 ack #3 counted clock 0 lsn 4
  c2 ack #4 counted clock 0 lsn 4
  c1 ack #5 counted clock 0 lsn 4
  release b3
c2 r2.1 push s0 0:[0,4) b6
  c2 ack #6 already-counted clock 0 lsn 4
  release b6
)");
  EXPECT_EQ(t.partition().counters().joined, 2u);
}

TEST(PartitionSspTest, APullWaitsUntilTheSlowestIsCloseEnough) {
  Transcript t(Ssp(1));
  t.Begin(2);
  t.Quietly([&] {  // replica 1 does units 0 and 1, replica 2 nothing
    t.Contribute(1, 0, 0, 0, 4);
    t.Close(1, 0, 0, 0, 4);
    t.Contribute(1, 0, 0, 4, 4);
    t.Close(1, 1, 0, 4, 4);
  });
  t.Pull(1, 0, 1);
  t.Pull(1, 0, 2);
  const uint64_t push = t.Push(2, 0, 0, 8, 4);
  t.Close(2, 0, 0, 8, 4);
  t.Verify(push);
  t.Apply(8);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 pull s0 clock 1 min_lsn 0
  c1 value #7 s0 clock 1 lsn 7 version 0
c1 r1.1 pull s0 clock 2 min_lsn 0
c2 r2.1 push s0 0:[8,12) b9
  verify s0 b9
c2 r2.1 close clock 0 0:[8,12)
verified b9
  lsn 8 apply s0 0:[8,12) rate 0.166667 scale 1 t 3 lag 2 b9 version 0
applied lsn 8
  c2 ack #9 counted clock 0 lsn 8
  release b9
  c2 ack #10 counted clock 1 lsn 9
  c1 value #8 s0 clock 2 lsn 9 version 0
)");
  EXPECT_EQ(t.partition().counters().blocked_pulls, 1u);
  EXPECT_EQ(t.partition().Status().lag_max(), 1u);
}

// Of three pulls one is answered after 30 ms, one is superseded after 20 ms, and one waits for 10
// ms so far.
TEST(PartitionSspTest, TheStatusSaysForHowLongPullsWereHeld) {
  Transcript t(Ssp(0));
  t.Begin(2);
  t.Contribute(1, 0, 0, 0, 4);
  t.Close(1, 0, 0, 0, 4);
  t.Pull(1, 0, 1);
  EXPECT_TRUE(t.partition().HoldsTrainingPulls());
  t.Advance(absl::Milliseconds(20));
  t.Pull(1, 0, 1);
  t.Advance(absl::Milliseconds(30));
  t.Text();
  t.Contribute(2, 0, 0, 4, 4);
  t.Close(2, 0, 0, 4, 4);
  EXPECT_THAT(t.Text(), HasSubstr("c1 value #6 s0 clock 1 lsn 7 version 0 held 30ms"));
  EXPECT_FALSE(t.partition().HoldsTrainingPulls());
  EXPECT_EQ(t.partition().Status().times().pulls(), 1u);
  EXPECT_DOUBLE_EQ(t.partition().Status().times().gate(), 0.05);

  t.Pull(1, 0, 2);
  t.Advance(absl::Milliseconds(10));
  t.Step(ShardTick{});
  EXPECT_DOUBLE_EQ(t.partition().Status().times().gate(), 0.06);
  t.Step(ConnectionDown{ConnectionId(1)});
  t.Advance(absl::Milliseconds(10));
  t.Step(ShardTick{});
  EXPECT_DOUBLE_EQ(t.partition().Status().times().gate(), 0.06);
}

TEST(PartitionSspTest, APullIsNeverAnsweredWithLessThanThePullerSaw) {
  Transcript t(Ssp(5));
  t.Begin(1);
  const uint64_t push = t.Push(1, 0, 0, 0, 4);
  t.Verify(push);
  t.Pull(1, 0, 0, /*min_lsn=*/3);
  t.Apply(3);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[0,4) b2
  verify s0 b2
verified b2
  lsn 3 apply s0 0:[0,4) rate 0.5 scale 1 t 1 lag 0 b2 version 0
c1 r1.1 pull s0 clock 0 min_lsn 3
applied lsn 3
  c1 ack #2 counted clock 0 lsn 3
  release b2
  c1 value #3 s0 clock 0 lsn 3 version 0
)");
}

TEST(PartitionSspTest, ANewerPullSupersedesAndADeadConnectionIsForgotten) {
  Transcript t(Ssp(0));
  t.Begin(1);
  t.Pull(1, 0, 1);
  t.Pull(1, 0, 1);
  const uint64_t push = t.Push(1, 0, 0, 0, 4);
  t.Step(ConnectionDown{ConnectionId(1)});
  t.Verify(push);  // the contribution goes on
  t.Apply(3);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 pull s0 clock 1 min_lsn 0
c1 r1.1 pull s0 clock 1 min_lsn 0
c1 r1.1 push s0 0:[0,4) b4
  verify s0 b4
down c1
verified b4
  lsn 3 apply s0 0:[0,4) rate 0.5 scale 1 t 1 lag 0 b4 version 0
applied lsn 3
  release b4
)");
  EXPECT_EQ(t.partition().counters().superseded_pulls, 1u);
}

// The worker's stream broke; what was under way on it comes after the retry on the next stream.
TEST(PartitionSspTest, AnOldStreamDoesNotUndoWhatCameOnANewer) {
  Transcript t(Ssp(0));
  t.Begin(1);
  FrameHeader pull = t.Header(FrameType::kPull, 1);
  pull.key.slice = SliceId(0);
  pull.clock = 1;  // waits
  t.Send(pull, 8);
  t.Send(pull, 7);
  FrameHeader park = t.Header(FrameType::kClose, 1);
  park.flags = frame_flags::kPark;
  t.Send(park, 7);
  t.Step(ConnectionDown{ConnectionId(7)});
  EXPECT_TRUE(t.partition().applied().clocks().any_active());
  EXPECT_EQ(t.partition().counters().superseded_pulls, 0u);
}

TEST(PartitionSspTest, JoinersEnterAtTheMinimumOfTheActive) {
  Transcript t(Ssp(2));
  t.Begin(1);
  t.Quietly([&] {
    for (uint64_t unit = 0; unit < 3; ++unit) {
      t.Contribute(1, 0, 0, unit * 4, 4);
      t.Close(1, static_cast<Clock>(unit), 0, unit * 4, 4);
    }
  });
  t.Orders(2, {Member(1, 1, 0), Member(2, 1, 1)});
  t.Pull(2, 0, 3);  // parked: not yet
  t.Mark(2, frame_flags::kEnter);
  t.Mark(2, frame_flags::kEnter);  // sent again
  t.Mark(2, frame_flags::kSkip, 4);
  t.Mark(1, frame_flags::kPark);
  EXPECT_EQ(t.Text(), R"(
orders generation 1 view 1 roster 2: r1.1 r2.1 epoch 0
c2 r2.1 pull s0 clock 3 min_lsn 0
c2 r2.1 enter clock 0
  c2 ack #9 counted clock 3 lsn 10
  c2 value #8 s0 clock 3 lsn 10 version 0
c2 r2.1 enter clock 0
  c2 ack #10 already-counted clock 3 lsn 10
c2 r2.1 skip clock 4
  c2 ack #11 counted clock 4 lsn 11
c1 r1.1 park clock 0
  c1 ack #12 counted clock 3 lsn 12
)");
  EXPECT_EQ(t.partition().applied().clocks().min(), 4);
}

TEST(PartitionSspTest, ParkingWaitsForTheUnitsClosedBefore) {
  Transcript t(Ssp(0));
  t.Begin(1);
  const uint64_t push = t.Push(1, 0, 0, 0, 4);
  t.Close(1, 0, 0, 0, 4);
  t.Mark(1, frame_flags::kPark);
  t.Verify(push);
  t.Apply(3);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[0,4) b2
  verify s0 b2
c1 r1.1 close clock 0 0:[0,4)
c1 r1.1 park clock 0
verified b2
  lsn 3 apply s0 0:[0,4) rate 0.5 scale 1 t 1 lag 0 b2 version 0
applied lsn 3
  c1 ack #2 counted clock 0 lsn 3
  release b2
  c1 ack #3 counted clock 1 lsn 4
  c1 ack #4 counted clock 1 lsn 5
)");
}

TEST(PartitionSspTest, AMemberThatIsTakenOffUnblocksTheOthersAndIsRefused) {
  Transcript t(Ssp(0));
  t.Begin(2);
  t.Quietly([&] {
    t.Contribute(1, 0, 0, 0, 4);
    t.Close(1, 0, 0, 0, 4);
    t.Pull(1, 0, 1);
    t.Pull(2, 0, 1);
  });
  t.Orders(2, {Member(1, 1, 0)});
  t.Push(2, 0, 0, 4, 4);
  EXPECT_EQ(t.Text(), R"(
orders generation 1 view 1 roster 2: r1.1 epoch 0
  c2 error #6 stale-incarnation clock 1 lsn 0: not in roster 2: register again
  c1 value #5 s0 clock 1 lsn 6 version 0
c2 r2.1 push s0 0:[4,8) b7
  c2 error #7 stale-incarnation clock 0 lsn 0: worker 2 incarnation 1 is not in roster 2: register again
  release b7
)");
}

TEST(PartitionSspTest, ANewIncarnationIsParkedAndTheOldOneFenced) {
  Transcript t(Ssp(0));
  t.Begin(1);
  t.Orders(2, {Member(1, 2, 0)});
  t.Push(1, 0, 0, 0, 4);
  t.set_incarnation(2);
  t.Mark(1, frame_flags::kEnter);
  EXPECT_EQ(t.Text(), R"(
orders generation 1 view 1 roster 2: r1.2 epoch 0
c1 r1.1 push s0 0:[0,4) b2
  c1 error #2 stale-incarnation clock 0 lsn 0: worker 1 incarnation 1 is not in roster 2: register again
  release b2
c1 r1.2 enter clock 0
  c1 ack #3 counted clock 0 lsn 4
)");
}

TEST(PartitionSspTest, AFrameOfALaterRosterWaitsForIt) {
  Transcript t(Ssp(0));
  t.Begin(1);
  t.set_roster(2);
  t.Push(3, 0, 0, 0, 4);
  t.Orders(2, {Member(1, 1, 0), Member(3, 1, 0)});
  EXPECT_EQ(t.Text(), R"(
c3 r3.1 push s0 0:[0,4) b2
orders generation 1 view 1 roster 2: r1.1 r3.1 epoch 0
  verify s0 b2
)");
  t.set_roster(3);
  t.Push(4, 0, 0, 4, 4);
  t.Advance(absl::Seconds(9));
  t.Step(ShardTick());
  t.Advance(absl::Seconds(1));
  t.Step(ShardTick());
  EXPECT_EQ(t.Text(), R"(
c4 r4.1 push s0 0:[4,8) b3
tick
tick
  c4 error #3 not-hosted clock 0 lsn 0: waited 10s for view 1, roster 3, policy 0, epoch 0; this shard is at 1, 2, 0, 0: try again
  release b3
)");
}

TEST(PartitionSspTest, WhatWaitsIsBudgeted) {
  Transcript t(Ssp(0));
  t.Begin(1);
  t.set_roster(2);
  for (size_t i = 0; i < limits::kParkedFramesPerConnectionMax; ++i) t.Pull(3, 0, 0);
  EXPECT_THAT(t.Text(), ::testing::Not(HasSubstr("error")));
  t.Pull(3, 0, 0);
  EXPECT_THAT(t.Text(), HasSubstr("over-budget"));
  t.Step(ConnectionDown{ConnectionId(3)});
  t.Pull(3, 0, 0);
  EXPECT_THAT(t.Text(), ::testing::Not(HasSubstr("error")));
}

// One member, in a view with a backup. Returns the orders that said so.
OrdersReceived BeginWithBackup(Transcript& t) {
  t.Begin(1);
  OrdersReceived orders = t.Base();
  orders.view = ViewNumber(2);
  orders.backup = ShardId(2);
  orders.roster = {RosterNumber(1), {Member(1, 1, 0)}};
  t.Quietly([&] { t.Step(orders); });
  t.Follow();
  t.set_view(2);
  return orders;
}

// With a backup in the view a record is applied when the backup has it.
TEST(PartitionSspTest, NothingIsAppliedBeforeTheBackupHasIt) {
  Transcript t(Ssp(0));
  BeginWithBackup(t);
  const uint64_t push = t.Push(1, 0, 0, 0, 4);
  t.Verify(push);
  t.Close(1, 0, 0, 0, 4);
  t.BackupHas(3);
  t.Apply(3);
  t.BackupHas(4);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[0,4) b2
  verify s0 b2
verified b2
  replicate lsn 3 apply s0 0:[0,4) rate 0.5 scale 1 t 1 lag 0
c1 r1.1 close clock 0 0:[0,4)
  replicate lsn 4 close r1 clock 1
backup has lsn 3
  lsn 3 apply s0 0:[0,4) rate 0.5 scale 1 t 1 lag 0 b2 version 0
applied lsn 3
  c1 ack #2 counted clock 0 lsn 3
  release b2
backup has lsn 4
  c1 ack #3 counted clock 1 lsn 4
)");
}

// It acks nothing that its backup has not; the backup, if it leads now, may have it.
TEST(PartitionSspTest, APrimaryThatLosesItsViewAcksNothingMore) {
  Transcript t(Ssp(0));
  OrdersReceived orders = BeginWithBackup(t);
  t.Verify(t.Push(1, 0, 0, 0, 4));
  t.Close(1, 0, 0, 0, 4);
  t.Text();
  orders.view = ViewNumber(3);
  orders.primary = ShardId(2);
  orders.backup = ShardId(1);
  t.Step(orders);
  t.BackupHas(4);
  t.Push(1, 0, 0, 4, 4);
  EXPECT_EQ(t.Text(), R"(
orders generation 1 view 3 roster 1: r1.1 epoch 0
backup has lsn 4
c1 r1.1 push s0 0:[4,8) b4
  c1 error #4 stale-view clock 0 lsn 0: view 2; partition 0 is in view 3 on shard 2
  release b4
)");
  EXPECT_EQ(t.partition().applied().lsn(), Lsn(2));
}

// The policy was BSP when it asked the coordinator what to read, and another partition may have
// given it that version.
TEST(PartitionSspTest, AReaderOfAVersionIsToldThatThereAreNone) {
  Transcript t(Ssp(0));
  t.Begin(1);
  t.Quietly([&] { t.Verify(t.Push(1, 0, 0, 0, 4)); });
  FrameHeader reader = t.Header(FrameType::kPull, 0);
  reader.origin = Origin();
  reader.flags = frame_flags::kReader | frame_flags::kVersion;
  t.Send(reader, /*connection=*/50);
  EXPECT_THAT(t.Text(), HasSubstr("version 0 is not here: the policy is no longer BSP"));
}

}  // namespace
}  // namespace starling
