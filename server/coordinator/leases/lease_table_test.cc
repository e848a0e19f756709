#include "server/coordinator/leases/lease_table.h"

#include <map>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/leases/lease_id.h"

namespace starling::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kStart = absl::FromUnixSeconds(1000);

LeaseTableOptions Items(uint64_t items) {
  LeaseTableOptions options;
  options.items = items;
  options.micro_batches = 4;
  options.epoch = 3;
  return options;
}

std::vector<uint64_t> HeldItems(const LeaseTable& table, uint32_t worker) {
  std::vector<uint64_t> items;
  for (const Lease& lease : table.Held(worker)) items.push_back(lease.work().first() / 4);
  return items;
}

uint64_t FirstLease(const LeaseTable& table, uint32_t worker) {
  return table.Held(worker).front().id();
}

TEST(LeaseId, SaysWhatItCovers) {
  const uint64_t id = MakeLeaseId(EVALUATE, 70'000, 12'345'678'901, 5);
  EXPECT_EQ(LeaseItem(id), 12'345'678'901u);
  EXPECT_EQ(LeaseAttempt(id), 5u);
  EXPECT_TRUE(LeaseIsOf(id, EVALUATE, 70'000));
  EXPECT_FALSE(LeaseIsOf(id, TRAIN, 70'000));
  EXPECT_FALSE(LeaseIsOf(id, EVALUATE, 70'001));
  EXPECT_FALSE(LeaseIsOf(0, TRAIN, 0));
  EXPECT_NE(MakeLeaseId(TRAIN, 0, 0, kLeaseAttemptsMax + 1), 0u);
}

TEST(LeaseTable, GrantsInOrderAlternatelyWhileSpeedIsUnknown) {
  LeaseTable table(Items(100));
  table.AddWorker(1, kStart, std::nullopt);
  table.AddWorker(2, kStart, std::nullopt);
  EXPECT_TRUE(table.Grant());
  EXPECT_THAT(HeldItems(table, 1), ElementsAre(0, 2));
  EXPECT_THAT(HeldItems(table, 2), ElementsAre(1, 3));
  EXPECT_FALSE(table.Grant());
  const Lease lease = table.Held(2)[1];
  EXPECT_EQ(lease.work().purpose(), TRAIN);
  EXPECT_EQ(lease.work().epoch(), 3u);
  EXPECT_EQ(lease.work().first(), 12u);
  EXPECT_EQ(lease.work().count(), 4u);
  EXPECT_EQ(lease.attempt(), 1u);
}

TEST(LeaseTable, HoldsThirtySecondsOfMeasuredWork) {
  LeaseTable table(Items(100'000));
  table.AddWorker(1, kStart, std::nullopt);
  table.Grant();
  table.Done(1, {FirstLease(table, 1)}, kStart + absl::Seconds(1));  // 1 s an item
  table.Grant();
  EXPECT_EQ(table.held_count(1), 30u);
}

TEST(LeaseTable, HoldsTwiceWhatItHasDoneWhileAnotherIsNotMeasured) {
  LeaseTable table(Items(1000));
  table.AddWorker(1, kStart, std::nullopt);
  table.AddWorker(2, kStart, std::nullopt);
  table.Grant();
  const absl::Time later = kStart + absl::Milliseconds(100);
  table.Done(1, {table.Held(1)[0].id(), table.Held(1)[1].id()}, later);
  table.Grant();
  EXPECT_THAT(HeldItems(table, 1), ElementsAre(4, 5, 6, 7));
  // All are measured: both get their 30 s of work, alternately.
  table.Done(2, {table.Held(2)[0].id(), table.Held(2)[1].id()}, later);
  table.Grant();
  const std::vector<uint64_t> first = HeldItems(table, 1);
  const std::vector<uint64_t> second = HeldItems(table, 2);
  ASSERT_EQ(first.size(), 256u);
  ASSERT_EQ(second.size(), 256u);
  EXPECT_NEAR(static_cast<double>(first.back()), static_cast<double>(second.back()), 4);
}

TEST(LeaseTable, SlowStartDoesNotWaitForOneThatGetsNothing) {
  LeaseTable table(Items(1000));
  table.AddWorker(1, kStart, 1.0);
  table.AddWorker(2, kStart, std::nullopt);
  table.StopGranting(2);
  table.Grant();
  EXPECT_EQ(table.held_count(1), 30u);
}

TEST(LeaseTable, GivesBackWhatIsBeyondTheEndAndGrantsNothingThere) {
  LeaseTable table(Items(100));
  table.AddWorker(1, kStart, std::nullopt);
  table.AddWorker(2, kStart, std::nullopt);
  table.Grant();
  EXPECT_EQ(table.DoneEnd(), 0u);
  table.SetEnd(3);  // 3 is held by the second
  EXPECT_THAT(HeldItems(table, 1), ElementsAre(0, 2));
  EXPECT_THAT(HeldItems(table, 2), ElementsAre(1));
  EXPECT_FALSE(table.Grant());
  const std::vector<Lease> held = table.Held(1);
  table.Done(1, {held[0].id(), held[1].id()}, kStart);
  EXPECT_EQ(table.DoneEnd(), 3u);
  EXPECT_FALSE(table.Grant());
  table.RemoveWorker(2);
  EXPECT_TRUE(table.Grant());
  EXPECT_THAT(HeldItems(table, 1), ElementsAre(1));
  table.SetEnd(0);
  EXPECT_THAT(HeldItems(table, 1), IsEmpty());
}

TEST(LeaseTable, NeverMoreThanTheMaximumNorLessThanTheMinimum) {
  LeaseTable table(Items(10'000'000));
  table.AddWorker(1, kStart, 0.001);
  table.AddWorker(2, kStart, 100.0);
  table.Grant();
  EXPECT_EQ(table.held_count(1), 256u);
  EXPECT_EQ(table.held_count(2), 2u);
}

TEST(LeaseTable, HoldsNoMoreThanItsShareOfWhatIsLeft) {
  LeaseTable table(Items(40));
  table.AddWorker(1, kStart, 0.1);  // could hold 256
  table.AddWorker(2, kStart, 0.3);
  table.Grant();
  EXPECT_EQ(table.held_count(1), 30u);
  EXPECT_EQ(table.held_count(2), 10u);
}

TEST(LeaseTable, AWorkerThatLeavesGivesBackWithTheNextAttempt) {
  LeaseTable table(Items(100));
  table.AddWorker(1, kStart, std::nullopt);
  table.AddWorker(2, kStart, std::nullopt);
  table.Grant();
  const uint64_t lost = FirstLease(table, 1);
  EXPECT_EQ(table.RemoveWorker(1), 2u);
  EXPECT_EQ(table.RemoveWorker(1), 0u);
  EXPECT_TRUE(table.Held(1).empty());
  table.Done(2, {FirstLease(table, 2)}, kStart + absl::Seconds(20));
  table.Grant();
  EXPECT_THAT(HeldItems(table, 2), ElementsAre(3, 0));
  EXPECT_EQ(table.Held(2)[1].attempt(), 2u);
  EXPECT_NE(table.Held(2)[1].id(), lost);
}

TEST(LeaseTable, DoneCountsOnceAndOnlyForItsPass) {
  LeaseTable table(Items(10));
  table.AddWorker(1, kStart, std::nullopt);
  table.Grant();
  const uint64_t lease = FirstLease(table, 1);
  EXPECT_EQ(table.Done(1, {lease}, kStart), 1u);
  EXPECT_EQ(table.Done(1, {lease}, kStart), 0u);
  EXPECT_EQ(table.Done(1, {MakeLeaseId(TRAIN, 2, 1, 1)}, kStart), 0u);
  EXPECT_EQ(table.Done(1, {MakeLeaseId(TRAIN, 3, 10, 1)}, kStart), 0u);
  EXPECT_EQ(table.done_count(), 1u);
}

TEST(LeaseTable, DoneByTheFormerHolderSparesTheNewOne) {
  LeaseTable table(Items(4));
  table.AddWorker(1, kStart, 10.0);
  table.Grant();
  const std::vector<Lease> former = table.Held(1);
  ASSERT_THAT(HeldItems(table, 1), ElementsAre(0, 1, 2));
  table.AddWorker(2, kStart, 0.01);
  table.Grant();
  EXPECT_THAT(HeldItems(table, 2), ElementsAre(3, 2));
  EXPECT_EQ(table.Done(1, {former[2].id()}, kStart), 1u);
  EXPECT_THAT(HeldItems(table, 2), ElementsAre(3));
}

TEST(LeaseTable, AWorkerEndsItsOwnLeasesAlone) {
  LeaseTable table(Items(10));
  table.AddWorker(1, kStart, std::nullopt);
  table.AddWorker(2, kStart, std::nullopt);
  table.Grant();  // 0 and 2, 1 and 3
  const uint64_t others = FirstLease(table, 2);
  const uint64_t nobodys = MakeLeaseId(TRAIN, 3, 7, 1);
  EXPECT_EQ(table.Done(1, {others, nobodys}, kStart), 0u);
  EXPECT_EQ(table.Done(3, {others}, kStart), 0u) << "it takes no part";
  EXPECT_THAT(HeldItems(table, 2), ElementsAre(1, 3));
  EXPECT_EQ(table.done_count(), 0u);
  // Also ignored: what the worker held before it left the roster.
  const uint64_t lost = FirstLease(table, 1);
  table.RemoveWorker(1);
  table.AddWorker(1, kStart, std::nullopt);
  EXPECT_EQ(table.Done(1, {lost}, kStart), 0u);
}

// The worker reports items 0 and 1 as done; shards cover only item 1.
TEST(LeaseTable, WhatIsReportedDoneAndNotCoveredIsGrantedAgain) {
  LeaseTable table(Items(4));
  table.AddWorker(1, kStart, std::nullopt);
  table.Grant();
  const std::vector<Lease> held = table.Held(1);
  EXPECT_EQ(table.Done(1, {held[0].id(), held[1].id()}, kStart), 2u);
  EXPECT_EQ(table.unconfirmed(), 2u);
  table.Covered(1, 2);
  EXPECT_EQ(table.unconfirmed(), 1u);
  EXPECT_EQ(table.done_count(), 2u);
  EXPECT_EQ(table.TakeBack(4, kStart + absl::Seconds(9)), 0u) << "too early";
  EXPECT_EQ(table.TakeBack(0, kStart + absl::Seconds(10)), 0u) << "its coverage is not known";
  EXPECT_EQ(table.TakeBack(4, kStart + absl::Seconds(10)), 1u);
  EXPECT_EQ(table.done_count(), 1u);
  table.Grant();
  EXPECT_EQ(HeldItems(table, 1).front(), 0u);
  EXPECT_EQ(table.Held(1)[0].attempt(), 2u);
  EXPECT_EQ(table.Done(1, {held[0].id()}, kStart), 0u) << "the same report once more";
  EXPECT_EQ(table.Done(1, {FirstLease(table, 1)}, kStart), 1u);
}

TEST(LeaseTable, WhoIsNeverConfirmedGetsNoMore) {
  LeaseTable table(Items(uint64_t{1} << 32));
  table.AddWorker(1, kStart, 0.001);
  for (int i = 0; i < 1000; ++i) {
    table.Grant();
    std::vector<uint64_t> leases;
    for (const Lease& lease : table.Held(1)) leases.push_back(lease.id());
    table.Done(1, leases, kStart);
  }
  EXPECT_LE(table.unconfirmed(), 65u * 256u);
  table.Covered(0, 20'000);
  EXPECT_TRUE(table.Grant());
}

// After a coordinator's restart in an epoch of four billion items: the cost depends on the open
// items only.
TEST(LeaseTable, ALongPassIsNotWalkedThrough) {
  constexpr uint64_t kItems = uint64_t{1} << 32;
  LeaseTable table(Items(kItems));
  table.AddWorker(1, kStart, 10.0);
  table.AddWorker(2, kStart, 10.0);
  table.Covered(0, kItems / 2);
  table.Adopt(1, MakeLeaseId(TRAIN, 3, kItems / 2 + 2, 1));
  table.Adopt(2, MakeLeaseId(TRAIN, 3, kItems - 1, 1));
  table.Grant();
  EXPECT_THAT(HeldItems(table, 1), ElementsAre(kItems / 2 + 2, kItems / 2, kItems / 2 + 3));
  EXPECT_THAT(HeldItems(table, 2), ElementsAre(kItems - 1, kItems / 2 + 1, kItems / 2 + 4));
  EXPECT_EQ(table.done_count(), kItems / 2);
}

TEST(LeaseTable, ADrainingWorkerKeepsWhatItHasAndGetsNoMore) {
  LeaseTable table(Items(10));
  table.AddWorker(1, kStart, std::nullopt);
  table.AddWorker(2, kStart, std::nullopt);
  table.Grant();
  table.StopGranting(1);
  table.Done(1, {FirstLease(table, 1)}, kStart + absl::Seconds(1));
  table.Grant();
  EXPECT_EQ(table.held_count(1), 1u);
}

TEST(LeaseTable, AfterARestartOnlyWhatIsNeitherHeldNorCoveredIsGranted) {
  LeaseTable table(Items(6));
  table.AddWorker(1, kStart, 10.0);
  table.AddWorker(2, kStart, 10.0);
  table.Covered(0, 1);
  table.Covered(2, 3);
  table.Adopt(1, MakeLeaseId(TRAIN, 3, 3, 7));
  table.Adopt(2, MakeLeaseId(TRAIN, 3, 3, 8));  // another worker holds it
  table.Adopt(2, MakeLeaseId(TRAIN, 3, 2, 1));  // covered
  table.Adopt(2, MakeLeaseId(TRAIN, 2, 4, 1));  // another epoch
  table.Grant();
  EXPECT_THAT(HeldItems(table, 1), ElementsAre(3, 4));
  EXPECT_THAT(HeldItems(table, 2), ElementsAre(1, 5));
  EXPECT_EQ(table.Held(1)[0].attempt(), 7u);
}

TEST(LeaseTable, ALeaseWithoutResultIsGrantedAgainUnderAnotherId) {
  LeaseTable table(Items(1));
  table.AddWorker(1, kStart, std::nullopt);
  table.Grant();
  const uint64_t lease = FirstLease(table, 1);
  table.Return(2, lease);
  table.Return(1, lease + 1);
  EXPECT_EQ(table.held_count(1), 1u);
  table.Return(1, lease);
  EXPECT_EQ(table.held_count(1), 0u);
  table.Grant();
  EXPECT_EQ(table.Held(1)[0].attempt(), 2u);
  table.Return(1, lease);  // the old one again
  EXPECT_EQ(table.held_count(1), 1u);
}

TEST(LeaseTable, CoveredItemsOfAHolderStayUntilItSaysDone) {
  LeaseTable table(Items(2));
  table.AddWorker(1, kStart, std::nullopt);
  table.Grant();
  table.Covered(0, 1);
  EXPECT_EQ(table.held_count(1), 2u);
  EXPECT_EQ(table.done_count(), 0u);
}

TEST(LeaseTable, AFastWorkerTakesFromASlowOneAtTheEnd) {
  LeaseTable table(Items(12));
  table.AddWorker(1, kStart, std::nullopt);
  table.AddWorker(2, kStart, std::nullopt);
  // Both looked alike when worker 1 got half of what was left.
  table.Adopt(1, MakeLeaseId(TRAIN, 3, 0, 1));
  for (uint64_t item = 1; item < 12; ++item) table.Adopt(1, MakeLeaseId(TRAIN, 3, item, 1));
  table.Grant();
  EXPECT_EQ(table.held_count(1), 10u);
  EXPECT_THAT(HeldItems(table, 2), ElementsAre(11, 10));
  EXPECT_EQ(table.Held(2)[0].attempt(), 2u);
}

TEST(LeaseTable, TheSlowKeepsTwo) {
  LeaseTable table(Items(2));
  table.AddWorker(1, kStart, 10.0);
  table.Grant();
  table.AddWorker(2, kStart, 0.01);
  table.Grant();
  EXPECT_EQ(table.held_count(1), 2u);
  EXPECT_EQ(table.held_count(2), 0u);
}

// Plays a whole epoch in simulated time: workers of different speeds do what they hold, in order,
// and report at once. Returns how long each was without work before the last item was done.
std::map<uint32_t, double> IdleSeconds(uint64_t items, const std::map<uint32_t, double>& seconds) {
  LeaseTable table(Items(items));
  std::map<uint32_t, double> free_at, idle;
  for (const auto& [id, s] : seconds) {
    table.AddWorker(id, kStart, std::nullopt);
    idle[id] = free_at[id] = 0;
  }
  table.Grant();
  std::map<uint32_t, uint64_t> doing;  // lease
  double now = 0;
  std::set<uint64_t> finished;
  while (!table.AllDone()) {
    for (const auto& [id, s] : seconds) {
      if (doing.contains(id) || table.Held(id).empty()) continue;
      doing[id] = FirstLease(table, id);
      idle[id] += now - free_at[id];
      free_at[id] = now + s;
    }
    if (doing.empty()) {
      ADD_FAILURE() << "nobody has work, " << table.done_count() << " of " << items << " done";
      break;
    }
    uint32_t next = doing.begin()->first;
    for (const auto& [id, lease] : doing) {
      if (free_at[id] < free_at[next]) next = id;
    }
    now = free_at[next];
    EXPECT_TRUE(finished.insert(LeaseItem(doing[next])).second) << "an item was done twice";
    table.Done(next, {doing[next]}, kStart + absl::Seconds(now));
    doing.erase(next);
    table.Grant();
  }
  for (const auto& [id, s] : seconds) {
    if (!doing.contains(id)) idle[id] += now - free_at[id];
  }
  return idle;
}

TEST(LeaseTable, NobodyRunsDryBeforeTheEndWhoeverIsSlow) {
  for (const uint64_t items : {7u, 50u, 400u, 3000u}) {
    for (const double slow : {0.1, 0.35, 1.0}) {
      const auto idle = IdleSeconds(items, {{1, 0.1}, {2, 0.1}, {3, slow}});
      // At most what the slow worker needs for the two items that it keeps.
      for (const auto& [id, seconds] : idle) {
        EXPECT_LE(seconds, 2 * slow + 0.1) << items << " items, worker " << id << ", slow " << slow;
      }
    }
  }
}

}  // namespace
}  // namespace starling::coordinator
