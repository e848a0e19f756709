// A worker meets a change of its job's policy: docs/protocol.md, section 8.
#include <gtest/gtest.h>

#include "worker/core/testing/driver.h"

namespace starling::session {
namespace {

WorkRange Item(uint32_t epoch, uint64_t item) { return {WorkPurpose::kTrain, epoch, 4 * item, 4}; }

void Order(Driver& d, uint64_t number, Policy::Kind kind) {
  d.orders().mutable_policy()->set_number(number);
  d.orders().mutable_policy()->mutable_policy()->set_kind(kind);
  d.orders().mutable_policy()->mutable_policy()->set_staleness(kind == Policy::SSP ? 2 : 0);
}

TEST(SessionPolicy, WhoHoldsBeginsNothingAndSaysWhatIsBegun) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(0, 0));
  d.AddLease(12, Item(0, 1));
  d.GiveOrders();
  d.Ack();
  d.orders().set_hold(true);
  d.GiveOrders();
  d.Forget();
  d.Values();
  d.Compute(1);
  EXPECT_EQ(d.Count("  compute"), 0u);
  d.orders().set_hold(false);
  d.GiveOrders();
  EXPECT_EQ(d.Count("  compute"), 1u);
}

TEST(SessionPolicy, BspStepsEndWhereTheNextPolicyBegins) {
  Driver d(PolicyKind::kBsp);
  d.orders().set_training_open(true);
  d.orders().set_policy_end(1);
  d.Serve();
  d.Ack(0);
  d.Forget();
  d.Values();
  d.Compute(1);
  d.Ack(1);
  d.Values();
  EXPECT_EQ(d.Count("  compute"), 0u);
}

// From SSP to BSP: enters again, under the new number, with no value of before.
TEST(SessionPolicy, StartsAnewWhenTheNextPolicyIsInForce) {
  Driver d;
  d.orders().set_training_open(true);
  d.Serve();
  d.AddLease(11, Item(0, 0));
  d.GiveOrders();
  d.Ack();
  d.Values();
  d.Compute(1);
  d.Ack();
  d.sent().clear();
  d.Forget();
  d.orders().clear_leases();
  Order(d, 1, Policy::BSP);
  d.GiveOrders();
  EXPECT_EQ(d.Count("forget live values"), 1u);
  ASSERT_EQ(d.sent().size(), 2u);
  for (const FrameHeader& h : d.sent()) {
    EXPECT_EQ(h.flags, frame_flags::kEnter);
    EXPECT_EQ(h.policy, PolicyNumber(1));
  }
  d.Ack(1);
  EXPECT_EQ(d.Count("  compute"), 1u);  // step 1, whose values it pulls
  size_t pulls = 0;
  for (const FrameHeader& h : d.sent()) pulls += h.type == FrameType::kPull && h.clock == 1;
  EXPECT_EQ(pulls, 3u);
}

// All its gradients are sent: they count, and so shall its losses.
TEST(SessionPolicy, AUnitThatHasOnlyItsLossesToTellIsWaitedFor) {
  Driver d;
  d.Serve();
  d.AddLease(11, Item(0, 0));
  d.GiveOrders();
  d.Ack();
  d.Values();
  for (uint32_t slice : {2, 1, 0}) d.Gradient(1, slice);
  d.Forget();
  Order(d, 1, Policy::ASYNC);
  d.GiveOrders();
  EXPECT_EQ(d.Count("abandon"), 0u);
  EXPECT_EQ(d.Count("forget live values"), 0u);
  d.Step(event::UnitComputed{UnitId(1), decltype(event::UnitComputed::metrics)(1), true, ""});
  EXPECT_EQ(d.Count("forget live values"), 1u);
}

}  // namespace
}  // namespace starling::session
