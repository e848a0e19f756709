// Transcripts of the partition core at the end of an epoch: an event a line, its actions indented.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/coordinator.pb.h"
#include "server/shard/core/testing/transcript.h"

namespace starling {
namespace {

constexpr auto Member = Transcript::Member;

// The epoch has 3 steps, the last of 4 samples: rescaled by two.
TEST(PartitionCutTest, AnEpochEndsWithACutAndTheNextOneWaitsForOrders) {
  Transcript t({.policy = {PolicyKind::kAsync, 0},
                .slices = 2,
                .samples = 20,
                .epochs = 3,
                .evaluate_every = 1});
  t.Begin(1);
  t.Quietly([&] {
    for (uint32_t slice = 0; slice < 2; ++slice) {
      for (uint64_t unit = 0; unit < 3; ++unit) {
        if (slice != 1 || unit != 2) t.Contribute(1, slice, 0, unit * 4, 4);
      }
    }
    t.PullCut(1, 1, 0);
  });
  EXPECT_EQ(t.partition().Status().covered_floor(), 2u);
  const uint64_t last = t.Push(1, 1, 0, 8, 4);
  const uint64_t next = t.Push(1, 0, 1, 0, 4);
  t.Verify(last);
  t.Apply(8);
  t.Orders(1, {Member(1, 1, 0)}, /*epoch=*/1);
  t.Verify(next);
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s1 0:[8,12) b8
  verify s1 b8
c1 r1.1 push s0 1:[0,4) b9
verified b8
  lsn 8 apply s1 0:[8,12) rate 0.166667 scale 2 t 3 lag 2 b8 version 0
applied lsn 8
  c1 ack #8 counted clock 0 lsn 8
  release b8
  copy for cut 0
  c1 value #7 s1 clock 0 lsn 9 copy 0
orders generation 1 view 1 roster 1: r1.1 epoch 1
  verify s0 b9
verified b9
  lsn 10 apply s0 1:[0,4) rate 0.125 scale 1 t 4 lag 3 b9 version 0
)");
  const PartitionStatus status = t.partition().Status();
  EXPECT_EQ(status.cut_epochs(), 1u);
  EXPECT_EQ(status.applied_min(), 3u);
  EXPECT_EQ(status.applied_max(), 3u);
  EXPECT_EQ(status.covered_floor(), 0u);
}

TEST(PartitionCutTest, ACutWaitsWhileTheLastCopyIsEvaluated) {
  Transcript t({.policy = {PolicyKind::kAsync, 0}, .samples = 8, .epochs = 3, .evaluate_every = 1});
  t.Begin(1);
  t.Quietly([&] {
    t.Contribute(1, 0, 0, 0, 4);
    t.Orders(1, {Member(1, 1, 0)}, /*epoch=*/1);
    t.Contribute(1, 0, 1, 0, 4);
  });
  EXPECT_EQ(t.partition().Status().cut_epochs(), 1u);
  OrdersReceived orders = t.Base();
  orders.roster = {RosterNumber(1), {Member(1, 1, 0)}};
  orders.epoch = 1;
  orders.discard_cuts_before = 1;
  t.Step(orders);
  t.PullCut(1, 0, 0);
  EXPECT_EQ(t.Text(), R"(
orders generation 1 view 1 roster 1: r1.1 epoch 1
  drop copy 0
  copy for cut 1
c1 r1.1 pull s0 cut 0
  c1 error #4 stale-clock clock 2 lsn 0: there is no copy of epoch 0; epochs cut: 2, copy held: 1
)");
}

TEST(PartitionCutTest, ACopyIsReadUntilAnotherNeedsItsMemoryAndReadersNeverWait) {
  Transcript t({.policy = {PolicyKind::kAsync, 0}, .samples = 8, .epochs = 3, .evaluate_every = 1});
  t.Begin(1);
  t.Contribute(1, 0, 0, 0, 4);
  OrdersReceived orders = t.Base();
  orders.roster = {RosterNumber(1), {Member(1, 1, 0)}};
  orders.epoch = 1;
  orders.discard_cuts_before = 1;
  t.Quietly([&] { t.Step(orders); });
  FrameHeader reader = t.Header(FrameType::kPull, 0);
  reader.flags = frame_flags::kReader;
  reader.key.work.purpose = WorkPurpose::kEvaluate;
  t.Send(reader, /*connection=*/50);
  reader.key.work.epoch = 1;
  t.Send(reader, /*connection=*/50);
  EXPECT_EQ(t.Text(), R"(
c50 r0.1 pull s0 cut 0
  c50 value #3 s0 clock 0 lsn 4 copy 0
c50 r0.1 pull s0 cut 1
  c50 error #4 stale-clock clock 1 lsn 0: there is no copy of epoch 1; epochs cut: 1, copy held: 0
)");
}

// Ten thousand million steps an epoch: what a partition keeps and says goes with what is open.
TEST(PartitionCutTest, ALongEpochCostsWhatIsOpen) {
  constexpr uint64_t kSteps = 10'000'000'000;
  Transcript t(
      {.policy = {PolicyKind::kAsync, 0}, .slices = 2, .samples = 8 * kSteps, .epochs = 1});
  t.Begin(2);
  const uint64_t last = kSteps - 1;
  for (const uint64_t step : {uint64_t{0}, uint64_t{1}, uint64_t{7}, last}) {
    for (uint32_t slice = 0; slice < 2; ++slice) t.Contribute(1, slice, 0, step * 4, 4);
  }
  t.Contribute(1, 0, 0, 5 * 4, 4);  // on one slice of two
  const PartitionStatus status = t.partition().Status();
  EXPECT_EQ(status.covered_floor(), 2u);
  EXPECT_THAT(status.covered_ranges(), ::testing::ElementsAre(7, 8, last, last + 1));
  EXPECT_LT(status.ByteSizeLong(), 1000u);
  t.Text();
  t.Push(2, 0, 0, 5 * 4, 4);
  EXPECT_THAT(t.Text(), ::testing::HasSubstr("already-counted"));
  t.Push(2, 1, 0, 5 * 4, 4);
  EXPECT_THAT(t.Text(), ::testing::HasSubstr("verify s1"));
}

// A member that pushes what it has no leases for cannot make a partition keep more than was
// planned.
TEST(PartitionCutTest, OnlySoManyStepsAreOpenAtATime) {
  Transcript t({.policy = {PolicyKind::kAsync, 0},
                .slices = 2,
                .samples = 8 * 1000,
                .epochs = 1,
                .open_items_max = 3});
  t.Begin(1);
  t.Contribute(1, 0, 0, 10 * 4, 4);
  t.Contribute(1, 0, 0, 20 * 4, 4);
  for (uint32_t slice = 0; slice < 2; ++slice) t.Contribute(1, slice, 0, 30 * 4, 4);
  t.Text();
  t.Push(1, 0, 0, 40 * 4, 4);
  EXPECT_THAT(t.Text(),
              ::testing::HasSubstr("over-budget clock 0 lsn 0: 3 steps of epoch 0 are open"));
  // What is open may be finished, and the lowest step may always come.
  t.Push(1, 1, 0, 20 * 4, 4);
  EXPECT_THAT(t.Text(), ::testing::HasSubstr("verify s1"));
  for (uint32_t slice = 0; slice < 2; ++slice) t.Contribute(1, slice, 0, 0, 4);
  t.Contribute(1, 1, 0, 10 * 4, 4);
  EXPECT_EQ(t.partition().Status().covered_floor(), 1u);
}

}  // namespace
}  // namespace starling
