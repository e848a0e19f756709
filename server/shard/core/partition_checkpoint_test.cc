// Checkpoints at a partition: what is captured when, and how a run begins from one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/coordinator.pb.h"
#include "server/shard/core/testing/transcript.h"

namespace starling {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr ConsistencyPolicy kBsp{PolicyKind::kBsp, 0};
constexpr ConsistencyPolicy kSsp{PolicyKind::kSsp, 1};
constexpr ConsistencyPolicy kAsync{PolicyKind::kAsync, 0};

// The same orders as Begin(members) has given, with a checkpoint.
OrdersReceived OrdersFor(Transcript& t, uint64_t number, uint64_t step, uint32_t epoch = 0,
                         uint32_t members = 1) {
  OrdersReceived orders = t.Base();
  orders.roster.number = RosterNumber(1);
  for (uint32_t r = 1; r <= members; ++r) orders.roster.members.push_back(Transcript::Member(r));
  orders.epoch = epoch;
  orders.checkpoint = {number, step};
  return orders;
}

void WholeStep(Transcript& t, uint32_t slice, uint64_t step, uint32_t epoch = 0) {
  t.Contribute(1, slice, epoch, 4 * step, 4);
}

PartitionConfig::Start StartAt(uint64_t step, ConsistencyPolicy policy) {
  PartitionConfig::Start start;
  start.step = step;
  start.policy = {PolicyNumber(), policy, step};
  return start;
}

TEST(PartitionCheckpointTest, ValuesAreTakenBetweenTwoSteps) {
  Transcript t({.policy = kBsp, .slices = 2});
  t.Begin(1);
  t.Step(OrdersFor(t, 4, 1));
  WholeStep(t, 0, 0);
  t.Verify(t.Push(1, 1, 0, 0, 4));
  t.Apply(4);
  t.Verify(t.Push(1, 0, 0, 4, 4));
  EXPECT_EQ(t.Text(), R"(
orders generation 1 view 1 roster 1: r1.1 epoch 0 checkpoint 4 at step 1
c1 r1.1 push s1 0:[0,4) b3
  verify s1 b3
verified b3
  lsn 4 apply s1 0:[0,4) rate 0.5 scale 1 t 1 lag 0 b3 version 0
applied lsn 4
  c1 ack #3 counted clock 0 lsn 4
  release b3
  capture checkpoint 4 at step 1
c1 r1.1 push s0 0:[4,8) b4
  verify s0 b4
verified b4
  lsn 5 apply s0 0:[4,8) rate 0.25 scale 1 t 2 lag 0 b4 version 1
)");
  EXPECT_EQ(t.partition().counters().captures, 1u);
}

// An update of the step is ordered while one before it is being carried out.
TEST(PartitionCheckpointTest, AnUpdateOfTheStepWaitsForThoseBeforeIt) {
  Transcript t({.policy = kBsp});
  t.Begin(1);
  t.Step(OrdersFor(t, 4, 1));
  t.Verify(t.Push(1, 0, 0, 0, 4));
  t.Text();
  t.Verify(t.Push(1, 0, 0, 4, 4));
  EXPECT_EQ(t.partition().log().ordered(), Lsn(4));
  EXPECT_THAT(t.Text(), Not(HasSubstr("apply")));
  t.Apply(3);
  EXPECT_EQ(t.Text(), R"(
applied lsn 3
  c1 ack #2 counted clock 0 lsn 3
  release b2
  capture checkpoint 4 at step 1
  lsn 4 apply s0 0:[4,8) rate 0.25 scale 1 t 2 lag 0 b3 version 1
)");
}

// No worker does this. Were the update to wait for the other slice, training might stop.
TEST(PartitionCheckpointTest, AnUpdateDoesNotWaitForAnotherSlice) {
  Transcript t({.policy = kBsp, .slices = 2});
  t.Begin(1);
  t.Step(OrdersFor(t, 4, 1));
  WholeStep(t, 0, 0);
  t.Text();
  t.Verify(t.Push(1, 0, 0, 4, 4));
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 push s0 0:[4,8) b3
  verify s0 b3
verified b3
  miss checkpoint 4: partition 0 is not at step 1: slice 1 has 0 updates
  lsn 4 apply s0 0:[4,8) rate 0.25 scale 1 t 2 lag 0 b3 version 1
)");
  EXPECT_EQ(t.partition().counters().missed_captures, 1u);
  EXPECT_EQ(t.partition().counters().captures, 0u);
}

TEST(PartitionCheckpointTest, APartitionThatIsPastTheStepSaysSo) {
  for (const ConsistencyPolicy policy : {kBsp, kSsp}) {
    Transcript t({.policy = policy});
    t.Begin(1);
    WholeStep(t, 0, 0);
    WholeStep(t, 0, 1);
    t.Text();
    t.Step(OrdersFor(t, 4, 1));
    EXPECT_THAT(t.Text(), HasSubstr("miss checkpoint 4: partition 0 is not at step 1: slice 0 has "
                                    "2 updates\n"));
    t.Step(OrdersFor(t, 5, 2));
    EXPECT_THAT(t.Text(), HasSubstr("capture checkpoint 5 at step 2\n"));
  }
}

TEST(PartitionCheckpointTest, ACheckpointIsAnsweredOnceAndEndsWithItsOrders) {
  Transcript t({.policy = kBsp});
  t.Begin(1);
  const PartitionCounters& counters = t.partition().counters();
  t.Step(OrdersFor(t, 4, 0));
  EXPECT_THAT(t.Text(), HasSubstr("capture checkpoint 4 at step 0"));
  t.Step(OrdersFor(t, 4, 0));
  t.Step(OrdersFor(t, 5, 1));
  OrdersReceived without = OrdersFor(t, 0, 0);
  without.checkpoint.reset();
  t.Step(without);
  WholeStep(t, 0, 0);
  t.Step(OrdersFor(t, 5, 1));  // late
  EXPECT_EQ(counters.captures, 1u);
  EXPECT_EQ(counters.missed_captures, 0u);
  t.Step(OrdersFor(t, 6, 1));
  EXPECT_EQ(counters.captures, 2u);
}

TEST(PartitionCheckpointTest, ABackupKnowsOfNone) {
  Transcript t({.policy = kBsp});
  OrdersReceived orders = OrdersFor(t, 4, 0);
  orders.primary = ShardId(2);
  orders.backup = ShardId(1);
  t.Step(orders);
  EXPECT_THAT(t.Text(), Not(HasSubstr("  capture")));
}

TEST(PartitionCheckpointTest, AtAnEpochsEndItWaitsForTheCut) {
  Transcript t({.policy = kAsync, .samples = 8, .epochs = 3, .evaluate_every = 1});
  t.Begin(1);
  WholeStep(t, 0, 0);
  t.Step(OrdersFor(t, 4, 2, /*epoch=*/1));
  t.Text();
  t.Quietly([&] { t.Verify(t.Push(1, 0, 1, 0, 4)); });
  t.Apply(t.partition().log().ordered().value);
  EXPECT_THAT(t.Text(), Not(HasSubstr("capture")));  // the copy of epoch 0 is being evaluated
  OrdersReceived orders = OrdersFor(t, 4, 2, 1);
  orders.discard_cuts_before = 1;
  t.Step(orders);
  EXPECT_EQ(t.Text(), R"(
orders generation 1 view 1 roster 1: r1.1 epoch 1 checkpoint 4 at step 2
  drop copy 0
  copy for cut 1
  capture checkpoint 4 at step 2 copy 1
)");
}

TEST(PartitionCheckpointTest, ACopyWhoseEvaluationIsOverIsLeftOut) {
  for (const uint32_t discard_before : {0, 1}) {
    Transcript t({.policy = kBsp, .evaluate_every = 1});
    t.Begin(1);
    for (uint64_t step = 0; step < 4; ++step) WholeStep(t, 0, step);
    OrdersReceived orders = OrdersFor(t, 4, 5, /*epoch=*/1);
    orders.discard_cuts_before = discard_before;
    t.Step(orders);
    t.Verify(t.Push(1, 0, 1, 0, 4));
    t.Apply(t.partition().log().ordered().value);
    EXPECT_THAT(t.Text(), HasSubstr(discard_before == 0 ? "capture checkpoint 4 at step 5 copy 0\n"
                                                        : "capture checkpoint 4 at step 5\n"));
  }
}

// As a change of policy makes it: updates beyond wait until the policy is in force.
TEST(PartitionCheckpointTest, InSspAPolicysStepIsTheCut) {
  Transcript t({.policy = kSsp});
  t.Begin(1);
  WholeStep(t, 0, 1);
  OrdersReceived orders = OrdersFor(t, 4, 3);
  orders.next_policy = {PolicyNumber(1), kSsp, 3};
  t.Step(orders);
  const uint64_t beyond = t.Push(1, 0, 0, 12, 4);
  WholeStep(t, 0, 2);
  t.Text();
  t.Verify(t.Push(1, 0, 0, 0, 4));
  t.Apply(t.partition().log().ordered().value);
  EXPECT_THAT(t.Text(), HasSubstr("  capture checkpoint 4 at step 3\n"));
  EXPECT_EQ(t.partition().Status().policy(), 1u);
  EXPECT_EQ(t.partition().applied().policy().number, PolicyNumber(0)) << "it is drained";
  orders.policy = *std::exchange(orders.next_policy, std::nullopt);
  t.Step(orders);
  EXPECT_THAT(t.Text(), HasSubstr(absl::StrCat("error #", beyond, " stale-clock")));
  t.set_policy(1);
  t.Mark(1, frame_flags::kEnter);
  t.Push(1, 0, 0, 12, 4);
  EXPECT_THAT(t.Text(), HasSubstr("verify s0"));
}

TEST(PartitionCheckpointTest, InFp16ItHasWhatWasSkippedAndTheLossScale) {
  Transcript t({.policy = kSsp, .scales_loss = true});
  t.Begin(1);
  FrameHeader overflowed = t.PushHeader(1, 0, 0, 0, 4);
  overflowed.flags = frame_flags::kSkipped;
  overflowed.loss_scale_log2 = 16;
  t.Verify(t.Send(overflowed));
  t.Apply(3);
  WholeStep(t, 0, 1);
  t.Text();
  t.Step(OrdersFor(t, 4, 2));
  EXPECT_THAT(t.Text(), HasSubstr("capture checkpoint 4 at step 2 skipped 1 loss scale 2^15 "
                                  "clean 1\n"));
}

// ---- A run that begins with a checkpoint ----

TEST(PartitionCheckpointTest, InBspItGoesOnAtTheStep) {
  Transcript t({.policy = kBsp, .epochs = 3, .start = StartAt(5, kBsp)});
  t.Begin(1);
  const PartitionStatus status = t.partition().Status();
  EXPECT_EQ(status.sealed_steps(), 5u);
  EXPECT_EQ(status.begun_steps(), 5u);
  EXPECT_EQ(status.cut_epochs(), 1u);
  EXPECT_EQ(status.covered_floor(), 1u);
  EXPECT_EQ(status.applied_min(), 4u);
  EXPECT_EQ(status.applied_max(), 4u);
  EXPECT_EQ(status.clock_min(), 5);
  t.Pull(1, 0, 5);
  t.Pull(1, 0, 4);
  t.Push(1, 0, 0, 12, 4);
  t.Push(1, 0, 1, 0, 4);
  t.Verify(t.Push(1, 0, 1, 4, 4));
  EXPECT_EQ(t.Text(), R"(
c1 r1.1 pull s0 clock 5 min_lsn 0
  c1 value #2 s0 clock 5 lsn 0 version 5
c1 r1.1 pull s0 clock 4 min_lsn 0
  c1 error #3 stale-clock clock 5 lsn 0: version 4 is gone: slice 0 has sealed 5
c1 r1.1 push s0 0:[12,16) b4
  c1 ack #4 already-counted clock 0 lsn 2
  release b4
c1 r1.1 push s0 1:[0,4) b5
  c1 ack #5 already-counted clock 0 lsn 2
  release b5
c1 r1.1 push s0 1:[4,8) b6
  verify s0 b6
verified b6
  lsn 3 apply s0 1:[4,8) rate 0.0833333 scale 1 t 6 lag 0 b6 version 5
)");
}

TEST(PartitionCheckpointTest, InSspMembersEnterAtTheStep) {
  PartitionConfig::Start start = StartAt(5, kSsp);
  start.skipped = 2;
  start.updates_before = 10;
  Transcript t({.policy = kSsp, .epochs = 3, .start = start});
  t.Begin(1);
  EXPECT_EQ(t.partition().applied().clocks().Find(ReplicaId(1))->clock, 5);
  t.Pull(1, 0, 5);
  EXPECT_THAT(t.Text(), HasSubstr("value #2"));
  t.Verify(t.Push(1, 0, 1, 8, 4));
  EXPECT_THAT(t.Text(), HasSubstr(" t 14 "));
}

TEST(PartitionCheckpointTest, TheCopyForEvaluationIsThere) {
  PartitionConfig::Start start = StartAt(5, kBsp);
  start.copy = 0;
  Transcript t({.policy = kBsp, .epochs = 3, .evaluate_every = 1, .start = start});
  t.Begin(1);
  t.PullCut(1, 0, 0);
  EXPECT_THAT(t.Text(), HasSubstr("c1 value #2 s0 clock 0 lsn 0 copy 0\n"));
}

TEST(PartitionCheckpointTest, DecisionsGoOnAtTheStep) {
  Transcript t({.policy = kBsp, .epochs = 3, .clip_norm = 1, .start = StartAt(5, kBsp)});
  t.Begin(1);
  FrameHeader report;
  report.type = FrameType::kDecision;
  report.key.run = t.partition().config().run;
  report.view = ViewNumber(1);
  report.clock = 5;
  report.scalar = 4;
  t.Send(report, /*connection=*/9);
  EXPECT_THAT(t.Text(), HasSubstr("decision for p0 step 5 scale 0.5"));
}

// What is decided after a capture is decided again by the run that begins with it.
TEST(PartitionCheckpointTest, TheSameIsDecidedAsWithoutAnEnd) {
  for (const ConsistencyPolicy policy : {kBsp, kSsp}) {
    TranscriptOptions options{.policy = policy, .slices = 2, .epochs = 3};
    options.scales_loss = policy == kSsp;
    const auto run = [](Transcript& t, uint64_t from, uint64_t to) {
      for (uint64_t step = from; step < to; ++step) {
        const auto epoch = static_cast<uint32_t>(step / 4);
        t.Orders(1, {Transcript::Member(1)}, epoch);
        for (const uint32_t slice : {0, 1}) WholeStep(t, slice, step % 4, epoch);
      }
    };
    Transcript whole(options);
    whole.Begin(1);
    run(whole, 0, 6);
    const absl::StatusOr<CutState> cut = whole.partition().applied().AtCut(6);
    ASSERT_TRUE(cut.ok()) << cut.status();
    run(whole, 6, 9);

    PartitionConfig::Start start = StartAt(6, policy);
    start.loss_scale = cut->loss_scale;
    options.start = start;
    Transcript rest(options);
    rest.Begin(1);
    run(rest, 6, 9);
    const PartitionState& a = whole.partition().applied();
    const PartitionState& b = rest.partition().applied();
    EXPECT_TRUE(b.AtCut(9).ok());
    EXPECT_EQ(*a.AtCut(9), *b.AtCut(9));
    EXPECT_EQ(a.applied_min(), b.applied_min());
    const auto updates = [](const Transcript& t) {
      std::vector<std::pair<WorkRange, UpdateScalars>> all;
      for (const Record& record : t.records()) {
        if (record.kind == RecordKind::kApply && record.work.epoch * 16 + record.work.first >= 24) {
          all.emplace_back(record.work, record.scalars);
          all.back().second.lag = 0;  // by positions of a log
        }
      }
      return all;
    };
    EXPECT_EQ(updates(whole).size(), 6u);
    EXPECT_EQ(updates(whole), updates(rest));
  }
}

// ---- The state ----

TEST(PartitionCheckpointTest, SaysWhyAStateIsNotThatOfAStep) {
  Transcript t({.policy = kAsync, .slices = 2, .epochs = 2, .scales_loss = true});
  t.Begin(1);
  const auto why = [&](uint64_t step) {
    return std::string(t.partition().applied().AtCut(step).status().message());
  };
  EXPECT_EQ(why(0), "");
  EXPECT_FALSE(t.partition().applied().Passed(0));
  EXPECT_EQ(why(1), "partition 0 is not at step 1: slice 0 has 0 updates");
  WholeStep(t, 0, 0);
  EXPECT_TRUE(t.partition().applied().Passed(0)) << "on one slice";
  FrameHeader overflowed = t.PushHeader(1, 1, 0, 0, 4);
  overflowed.flags = frame_flags::kSkipped;
  t.Verify(t.Send(overflowed));
  t.Apply(t.partition().log().ordered().value);
  EXPECT_EQ(why(1), "partition 0 is not at step 1: slice 1 skipped 1 of them, slice 0 0");

  Transcript gap({.policy = kAsync, .slices = 1, .epochs = 2});
  gap.Begin(1);
  WholeStep(gap, 0, 2);
  EXPECT_TRUE(gap.partition().applied().Passed(2));
  EXPECT_FALSE(gap.partition().applied().Passed(3));
  EXPECT_EQ(gap.partition().applied().AtCut(1).status().message(),
            "partition 0 is not at step 1: 0 steps of epoch 0 are covered, and 1 beyond; expected "
            "1, and none");
  for (const uint64_t step : {0, 1, 3}) WholeStep(gap, 0, step);
  EXPECT_TRUE(gap.partition().applied().AtCut(4).ok()) << "the epoch is cut at once";
  EXPECT_EQ(gap.partition().applied().AtCut(5).status().message(),
            "partition 0 is not at step 5: slice 0 has 4 updates");
}

TEST(PartitionCheckpointTest, AFrozenPartitionIsAtEveryStep) {
  PartitionConfig config =
      Transcript::Config({.policy = kBsp, .evaluate_every = 1, .start = StartAt(5, kBsp)});
  config.slices[0].updated = false;
  Partition frozen(config);
  for (const uint64_t step : {0, 5, 7}) {
    EXPECT_EQ(frozen.applied().AtCut(step).value(), CutState{.step = step});
    EXPECT_FALSE(frozen.applied().Passed(step));
  }
  EXPECT_EQ(frozen.applied().cut_epochs(), 1u);
  config.start = StartAt(0, kBsp);
  Partition early(config);
  OrdersReceived orders;
  orders.view = ViewNumber(1);
  orders.primary = ShardId(1);
  PartitionActions actions;
  early.Step(orders, absl::UnixEpoch(), actions);
  EXPECT_EQ(early.applied().copy(), 0u) << "it cuts an epoch when it is opened";
  EXPECT_EQ(early.applied().AtCut(3)->copy, std::nullopt) << "which others still train";
  EXPECT_EQ(early.applied().AtCut(4)->copy, 0u);
}

// A learner begins with what its primary sends, not where the run began.
TEST(PartitionCheckpointTest, AStateThatBeganAtAStepIsReadAsItWasWritten) {
  Transcript t({.policy = kBsp, .epochs = 3, .start = StartAt(5, kBsp)});
  t.Begin(1);
  const PartitionConfig& config = t.partition().config();
  for (const uint64_t step : {1, 2, 3}) {
    const std::string bytes = t.partition().applied().Write();
    PartitionState read(&config);
    ASSERT_TRUE(read.Read(bytes).ok()) << read.Read(bytes);
    EXPECT_EQ(read.Write(), bytes);
    WholeStep(t, 0, step, 1);
  }
  EXPECT_EQ(t.partition().applied().cut_epochs(), 2u);
  PartitionState read(&config);
  EXPECT_TRUE(read.Read(t.partition().applied().Write()).ok());
  EXPECT_EQ(read.slice(SliceId(0)).updates, 8u);
}

}  // namespace
}  // namespace starling
