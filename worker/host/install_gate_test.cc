#include "worker/host/install_gate.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

using session::Params;
using session::UnitId;

InstallGate::Install Value(uint32_t slice, Clock clock, Params params = Params::kLive) {
  return {SliceId(slice), BufferId(100 * slice + clock), params, clock};
}

TEST(InstallGate, IsOpenUnlessAnAbandonedUnitRuns) {
  InstallGate gate;
  EXPECT_TRUE(gate.Admit(Value(0, 0)));
  gate.Started(UnitId(1), Params::kLive);
  // The session sees to it that the unit is through with the slice.
  EXPECT_TRUE(gate.Admit(Value(0, 1)));
  EXPECT_TRUE(gate.Stopped(UnitId(1)).empty());
  gate.Abandoned(UnitId(1));  // it had stopped already
  EXPECT_TRUE(gate.Admit(Value(0, 2)));
}

TEST(InstallGate, KeepsValuesInOrderUntilTheUnitHasStopped) {
  InstallGate gate;
  gate.Started(UnitId(1), Params::kLive);
  gate.Abandoned(UnitId(1));
  gate.Started(UnitId(2), Params::kLive);  // queued behind it
  EXPECT_FALSE(gate.Admit(Value(3, 7)));
  EXPECT_FALSE(gate.Admit(Value(0, 7)));
  EXPECT_FALSE(gate.Admit(Value(3, 8)));
  EXPECT_TRUE(gate.Admit(Value(0, 0, Params::kSnapshot)));  // it reads the other copy
  gate.Abandoned(UnitId(2));
  EXPECT_TRUE(gate.Stopped(UnitId(1)).empty());
  const auto ready = gate.Stopped(UnitId(2));
  ASSERT_EQ(ready.size(), 3u);
  EXPECT_EQ(ready[0].slice, SliceId(3));
  EXPECT_EQ(ready[1].slice, SliceId(0));
  EXPECT_EQ(ready[2].clock, 8);
  EXPECT_TRUE(gate.Admit(Value(0, 9)));
}

TEST(InstallGate, WhatWaitedCanBeVoid) {
  InstallGate gate;
  gate.Started(UnitId(1), Params::kSnapshot);
  gate.Abandoned(UnitId(1));
  EXPECT_FALSE(gate.Admit(Value(1, 4, Params::kSnapshot)));
  EXPECT_TRUE(gate.Forget(/*snapshot_too=*/false).empty());
  const auto forgotten = gate.Forget(/*snapshot_too=*/true);
  ASSERT_EQ(forgotten.size(), 1u);
  EXPECT_EQ(forgotten[0].buffer, BufferId(104));
  EXPECT_TRUE(gate.Stopped(UnitId(1)).empty());
}

}  // namespace
}  // namespace starling
