// The policy changes while the job runs: docs/protocol.md, section 8.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/coordinator.pb.h"
#include "server/shard/core/testing/transcript.h"

namespace starling {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr ConsistencyPolicy kBsp{PolicyKind::kBsp, 0};
constexpr ConsistencyPolicy kSsp{PolicyKind::kSsp, 1};
constexpr ConsistencyPolicy kAsync{PolicyKind::kAsync, 0};

void Change(Transcript& t, uint32_t number, ConsistencyPolicy policy, uint64_t step,
            uint32_t members = 2, bool in_force = true) {
  OrdersReceived orders = t.Base();
  orders.roster.number = RosterNumber(1);
  for (uint32_t r = 1; r <= members; ++r) orders.roster.members.push_back(Transcript::Member(r));
  const PolicyAt at{PolicyNumber(number), policy, step};
  in_force ? void(orders.policy = at) : void(orders.next_policy = at);
  t.Step(orders);
}

void WholeStep(Transcript& t, uint32_t replica, uint64_t step) {
  t.Contribute(replica, 0, 0, 4 * step, 4);
}

TEST(PartitionPolicyTest, SaysWhenAllBeforeTheStepIsAppliedAndSwitchesWhenItIsInForce) {
  Transcript t({.policy = kBsp});
  t.Begin(2);
  WholeStep(t, 1, 0);
  Change(t, 1, kSsp, 2, 2, /*in_force=*/false);
  EXPECT_EQ(t.partition().Status().policy(), 0u);
  const uint64_t push = t.Push(1, 0, 0, 4, 4);
  t.Verify(push);
  EXPECT_EQ(t.partition().Status().policy(), 0u);
  t.Text();
  t.Apply(t.partition().log().ordered().value);
  EXPECT_THAT(t.Text(), Not(HasSubstr("switch")));
  EXPECT_EQ(t.partition().Status().policy(), 1u);
  // Step 1 may have to be done again for another partition, from the values before it.
  t.Pull(2, 0, 1);
  EXPECT_THAT(t.Text(), HasSubstr("value #"));
  Change(t, 1, kSsp, 2);
  EXPECT_THAT(t.Text(), HasSubstr("  switch to policy 1: one version, newest 2\n"));
  EXPECT_EQ(t.records().back().kind, RecordKind::kPolicy);
  // Everybody stands at the policy's clock, and enters there.
  EXPECT_EQ(t.partition().applied().clocks().min(), 2);
  EXPECT_FALSE(t.partition().applied().clocks().any_active());
  t.set_policy(1);
  t.Mark(1, frame_flags::kEnter);
  EXPECT_THAT(t.Text(), HasSubstr("counted clock 2"));
}

TEST(PartitionPolicyTest, UpdatesGoOnCountingAcrossTheSwitch) {
  Transcript t({.policy = kSsp});
  t.Begin(1);
  WholeStep(t, 1, 1);
  WholeStep(t, 1, 0);
  Change(t, 1, kBsp, 2, 1);
  EXPECT_THAT(t.Text(), HasSubstr("  switch to policy 1: two versions, newest 2\n"));
  t.set_policy(1);
  t.Mark(1, frame_flags::kEnter);
  t.Verify(t.Push(1, 0, 0, 8, 2));
  t.Text();
  t.Verify(t.Push(1, 0, 0, 10, 2));
  // Adam's t and the learning rate of job step 2, out of version 2.
  EXPECT_THAT(t.Text(), HasSubstr("apply s0 0:[8,12) rate 0.166667 scale 1 t 3 lag 0 b"));
}

TEST(PartitionPolicyTest, BspIsExactRightAfterTheSwitch) {
  Transcript t({.policy = kAsync});
  t.Begin(2);
  WholeStep(t, 2, 0);
  Change(t, 1, kBsp, 1);
  t.set_policy(1);
  for (uint32_t r : {1, 2}) t.Mark(r, frame_flags::kEnter);
  t.Text();
  t.Pull(1, 0, 1);
  EXPECT_THAT(t.Text(), HasSubstr("value #"));
  t.Pull(1, 0, 2);
  EXPECT_THAT(t.Text(), Not(HasSubstr("value #")));  // step 1 is not sealed
  t.Pull(2, 0, 0);
  EXPECT_THAT(t.Text(), HasSubstr("version 0 is gone"));  // there never was one
}

TEST(PartitionPolicyTest, RequestsOfTheEarlierPolicyChangeNothing) {
  Transcript t({.policy = kSsp});
  t.Begin(2);
  WholeStep(t, 1, 0);
  t.Pull(2, 0, 5);  // waits at the gate
  Change(t, 1, kBsp, 1);
  EXPECT_THAT(t.Text(), Not(HasSubstr("value #")));
  const Lsn before = t.partition().log().ordered();
  t.Close(1, 0, 0, 0, 4);
  EXPECT_THAT(t.Text(), HasSubstr("already-counted"));
  t.Push(1, 0, 0, 0, 4);
  EXPECT_THAT(t.Text(), HasSubstr("already-counted"));
  t.Mark(2, frame_flags::kPark);
  t.Mark(2, frame_flags::kEnter, 3);
  EXPECT_THAT(t.Text(), HasSubstr("already-counted clock 3"));
  t.Pull(2, 0, 1);
  EXPECT_THAT(t.Text(), Not(HasSubstr("value #")));
  t.Push(2, 0, 0, 4, 4);  // a step of the new policy: nobody begins that under the old one
  EXPECT_THAT(t.Text(), HasSubstr("policy 0 ended at step 1"));
  EXPECT_EQ(t.partition().log().ordered(), before);
  EXPECT_FALSE(t.partition().applied().clocks().any_active());
}

TEST(PartitionPolicyTest, NothingBeyondTheStepIsTakenBeforeTheSwitch) {
  for (const ConsistencyPolicy before : {kSsp, kBsp}) {
    Transcript t({.policy = before});
    t.Begin(2);
    Change(t, 1, kAsync, 1, 2, /*in_force=*/false);
    t.Text();
    t.Push(1, 0, 0, 4, 4);  // by one that has not held
    EXPECT_THAT(t.Text(), Not(HasSubstr("verify")));
    WholeStep(t, 2, 0);
    EXPECT_THAT(t.Text(), Not(HasSubstr("verify")));
    EXPECT_EQ(t.partition().Status().policy(), 1u);
    EXPECT_EQ(t.partition().Status().begun_steps(), 1u);
    t.Text();
    Change(t, 1, kAsync, 1);
    EXPECT_THAT(t.Text(), HasSubstr("policy 0 ended at step 1"));
    EXPECT_EQ(t.partition().applied().clocks().min(), 1);
  }
}

TEST(PartitionPolicyTest, RequestsOfALaterPolicyWait) {
  Transcript t({.policy = kSsp});
  t.Begin(2);
  t.set_policy(1);
  t.Mark(1, frame_flags::kEnter);
  EXPECT_THAT(t.Text(), Not(HasSubstr("ack")));
  Change(t, 1, kAsync, 0);
  EXPECT_THAT(t.Text(), HasSubstr("ack"));
}

TEST(PartitionPolicyTest, AStepThatWasBegunIsNotSwitchedBehind) {
  Transcript t({.policy = kSsp});
  t.Begin(2);
  WholeStep(t, 1, 2);
  EXPECT_EQ(t.partition().Status().begun_steps(), 3u);
  Change(t, 1, kBsp, 2);
  EXPECT_THAT(t.Text(),
              HasSubstr("fault: policy 1 was ordered to take effect at step 2; expected 3 to 8"));
}

TEST(PartitionPolicyTest, OldOrdersChangeNothingAndTwoSwitchesFollowEachOther) {
  Transcript t({.policy = kSsp});
  t.Begin(2);
  Change(t, 1, kAsync, 0);
  Change(t, 2, kBsp, 0);
  Change(t, 1, kAsync, 0);
  EXPECT_EQ(t.partition().Status().policy(), 2u);
  EXPECT_EQ(t.partition().counters().policies, 2u);
}

// Orders are the newest ones: what lies between may never be seen.
TEST(PartitionPolicyTest, APolicyThatCameIntoForceUnseenIsFollowedBeforeTheNext) {
  Transcript t({.policy = kSsp});
  t.Begin(1);
  WholeStep(t, 1, 0);
  Change(t, 1, kAsync, 1, 1, /*in_force=*/false);
  OrdersReceived orders = t.Base();
  orders.roster = {RosterNumber(1), {Transcript::Member(1)}};
  orders.policy = {PolicyNumber(1), kAsync, 1};
  orders.next_policy = {PolicyNumber(2), kBsp, 2};
  t.Step(orders);
  EXPECT_EQ(t.partition().applied().policy().number, PolicyNumber(1));
  EXPECT_EQ(t.partition().Status().policy(), 1u);
  t.set_policy(1);
  t.Mark(1, frame_flags::kEnter);
  WholeStep(t, 1, 1);
  EXPECT_EQ(t.partition().Status().policy(), 2u);
  Change(t, 2, kBsp, 2, 1);
  EXPECT_EQ(t.partition().counters().policies, 2u);
}

// A policy that is ordered and not committed is not replaced by the one behind it.
TEST(PartitionPolicyTest, AnOrderedPolicyTakesEffectAheadOfTheNext) {
  Transcript t({.policy = kSsp});
  OrdersReceived orders = t.Base();
  orders.backup = ShardId(2);
  t.Step(orders);
  t.Follow();
  orders.roster = {RosterNumber(1), {Transcript::Member(1)}};
  orders.policy = {PolicyNumber(1), kAsync, 0};
  t.Step(orders);
  orders.next_policy = {PolicyNumber(2), kBsp, 0};
  t.Step(orders);
  EXPECT_EQ(t.partition().counters().policies, 0u);
  t.BackupHas(t.partition().log().ordered().value);
  EXPECT_EQ(t.partition().applied().policy().number, PolicyNumber(1));
  EXPECT_EQ(t.partition().Status().policy(), 2u);
  orders.policy = *std::exchange(orders.next_policy, std::nullopt);
  t.Step(orders);
  t.BackupHas(t.partition().log().ordered().value);
  EXPECT_EQ(t.partition().counters().policies, 2u);
}

TEST(PartitionPolicyTest, OnlyAPrimaryOrdersThePolicy) {
  Transcript t({.policy = kSsp});
  t.Begin(1);
  t.Verify(t.Push(1, 0, 0, 0, 4));
  Change(t, 1, kAsync, 1, 1);  // once the step is applied
  OrdersReceived elsewhere = t.Base();
  elsewhere.view = ViewNumber(2);
  elsewhere.primary = ShardId(2);
  t.Step(elsewhere);
  const Lsn last = t.partition().log().ordered();
  t.Apply(last.value);
  EXPECT_EQ(t.partition().log().applied(), last);
  EXPECT_EQ(t.partition().log().ordered(), last);
}

TEST(PartitionPolicyTest, ReadersAndEvaluationAreOfNoPolicy) {
  Transcript t({.policy = kSsp, .samples = 8, .epochs = 2, .evaluate_every = 1});
  t.Begin(1);
  WholeStep(t, 1, 0);
  Change(t, 1, kBsp, 1, 1);
  t.Text();
  t.PullCut(1, 0, 0);
  EXPECT_THAT(t.Text(), HasSubstr("copy 0"));
}

// A job that is stopped in mid-epoch is evaluated as it is then.
TEST(PartitionPolicyTest, WhereTrainingEndsTheEpochIsEvaluatedWithWhatIsThere) {
  for (const ConsistencyPolicy policy : {kBsp, kSsp}) {
    Transcript t({.policy = policy, .samples = 32, .epochs = 2, .evaluate_every = 1});
    t.Begin(1);
    WholeStep(t, 1, 0);
    WholeStep(t, 1, 1);
    t.PullCut(1, 0, 0);
    EXPECT_THAT(t.Text(), Not(HasSubstr("value #"))) << "the epoch may go on";
    OrdersReceived orders = t.Base();
    orders.roster.number = RosterNumber(1);
    orders.roster.members.push_back(Transcript::Member(1));
    orders.policy = {PolicyNumber(1), policy, 2};
    orders.training_end = 2;
    t.Step(orders);
    EXPECT_THAT(t.Text(), HasSubstr("value #"));
    t.PullCut(1, 0, 0);
    EXPECT_THAT(t.Text(), HasSubstr("value #"));
    t.PullCut(1, 0, 1);
    EXPECT_THAT(t.Text(), Not(HasSubstr("value #"))) << "that epoch was never begun";
  }
}

TEST(PartitionPolicyTest, TheLagOfTheLastUpdatesIsReported) {
  Transcript t({.policy = kAsync});
  t.Begin(2);
  WholeStep(t, 1, 0);
  WholeStep(t, 1, 1);
  EXPECT_EQ(t.partition().Status().recent_lag(), 1u);
  Change(t, 1, kSsp, 2);
  EXPECT_EQ(t.partition().Status().recent_lag(), 0u);
}

}  // namespace
}  // namespace starling
