#include "server/shard/core/lateness.h"

#include <vector>

#include "gtest/gtest.h"

namespace starling {
namespace {

constexpr WorkerId kOne(1), kTwo(2), kThree(3);

absl::Time At(int ms) { return absl::UnixEpoch() + absl::Milliseconds(ms); }

struct Part {
  WorkerId worker;
  int ms;
  uint32_t part = 0;
};
// In a step of 100 ms in which these parts come, the last one of which completes it.
Lateness::Late LateIn(const std::vector<Part>& parts, uint32_t backup = 1) {
  Lateness lateness(backup);
  lateness.Arrived(kOne, 0, At(-1));
  lateness.Sealed(1, At(0));
  for (const Part& part : parts) lateness.Arrived(part.worker, part.part, At(part.ms));
  lateness.Sealed(2, At(parts.back().ms));
  return lateness.Of(2);
}

TEST(LatenessTest, TheLastOneIsLateByWhatOthersWaited) {
  EXPECT_EQ(LateIn({{kOne, 40, 0}, {kTwo, 50, 2}, {kThree, 100, 3}}),
            (Lateness::Late{absl::Milliseconds(50), 3}));
  // One worker's may come in pieces, and it may send another one's part, too.
  EXPECT_EQ(LateIn({{kOne, 40}, {kThree, 60, 8}, {kTwo, 70}, {kThree, 99, 10}, {kThree, 100, 4}}),
            (Lateness::Late{absl::Milliseconds(30), 4}));
}

TEST(LatenessTest, AsManyAsThereAreBackupWorkersDoNotHideEachOther) {
  EXPECT_EQ(LateIn({{kOne, 10}, {kTwo, 99, 2}, {kThree, 100, 3}}), Lateness::Late());
  EXPECT_EQ(LateIn({{kOne, 10}, {kTwo, 99, 2}, {kThree, 100, 3}}, 2),
            (Lateness::Late{absl::Milliseconds(90), 3}));
  EXPECT_EQ(LateIn({{kTwo, 99, 2}, {kThree, 100, 3}}, 2), Lateness::Late()) << "of whom?";
}

TEST(LatenessTest, WhatAnotherRosterBeganIsNotKnown) {
  Lateness lateness(1);
  lateness.Sealed(1, At(0));
  lateness.Arrived(kOne, 0, At(10));
  lateness.Forget();
  lateness.Arrived(kTwo, 2, At(100));
  lateness.Sealed(2, At(100));
  EXPECT_EQ(lateness.Of(2), Lateness::Late());
  lateness.Arrived(kOne, 0, At(110));
  lateness.Arrived(kTwo, 2, At(200));
  lateness.Sealed(3, At(200));
  EXPECT_EQ(lateness.Of(3), (Lateness::Late{absl::Milliseconds(90), 2}));
}

TEST(LatenessTest, AShortWaitSaysNothing) {
  EXPECT_EQ(LateIn({{kOne, 88}, {kTwo, 100, 5}}), Lateness::Late());
  EXPECT_EQ(LateIn({{kOne, 87}, {kTwo, 100, 5}}), (Lateness::Late{absl::Milliseconds(13), 5}));
}

TEST(LatenessTest, WhoComputesAStepAloneIsNotLate) {
  EXPECT_EQ(LateIn({{kOne, 20}, {kOne, 100, 5}}), Lateness::Late());
}

TEST(LatenessTest, OfTheNewestVersionAlone) {
  Lateness lateness(1);
  EXPECT_EQ(lateness.Of(0), Lateness::Late());
  lateness.Arrived(kOne, 0, At(0));
  lateness.Arrived(kTwo, 4, At(50));
  lateness.Sealed(1, At(50));
  EXPECT_EQ(lateness.Of(1), Lateness::Late()) << "how long the first step took is not known";
  lateness.Arrived(kOne, 0, At(60));
  lateness.Arrived(kTwo, 4, At(100));
  lateness.Sealed(2, At(100));
  EXPECT_EQ(lateness.Of(2), (Lateness::Late{absl::Milliseconds(40), 4}));
  EXPECT_EQ(lateness.Of(1), Lateness::Late());
  lateness.Arrived(kTwo, 4, At(140));
  lateness.Arrived(kOne, 0, At(141));
  lateness.Sealed(3, At(141));
  EXPECT_EQ(lateness.Of(3), Lateness::Late());
  EXPECT_EQ(lateness.Of(2), Lateness::Late());
}

}  // namespace
}  // namespace starling
