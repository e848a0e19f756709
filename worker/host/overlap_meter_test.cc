#include "worker/host/overlap_meter.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(OverlapMeter, CountsOnlyWhatIsUnderWayWhileComputing) {
  OverlapMeter meter(absl::Seconds(10));
  meter.InFlight(true, At(0));  // before the unit: not counted
  meter.UnitBegan(At(1));
  meter.InFlight(false, At(2));  // one second under way
  meter.InFlight(true, At(3));
  meter.InFlight(true, At(4));
  meter.InFlight(false, At(6));  // three more
  meter.UnitEnded(absl::Seconds(1), 100, At(7));
  EXPECT_DOUBLE_EQ(meter.hidden_share(At(7)), 0.75);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(At(6)), 20);
}

TEST(OverlapMeter, ForgetsOldUnits) {
  OverlapMeter meter(absl::Seconds(1));
  meter.UnitBegan(At(0));
  meter.InFlight(true, At(0));
  meter.InFlight(false, At(1));
  // Waits longer than anything was under way: clipped.
  meter.UnitEnded(absl::Seconds(5), 10, At(3));
  EXPECT_DOUBLE_EQ(meter.hidden_share(At(3)), 0);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(At(3)), 10);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(At(9)), 0);
}

TEST(OverlapMeter, ManyShortUnitsCountAsFewLongOnes) {
  OverlapMeter meter(absl::Seconds(1));
  for (int i = 0; i < 4000; ++i) {  // a millisecond each, a quarter of it waiting
    meter.UnitBegan(At(0.001 * i));
    meter.InFlight(true, At(0.001 * i));
    meter.InFlight(false, At(0.001 * (i + 1)));
    meter.UnitEnded(absl::Microseconds(250), 3, At(0.001 * (i + 1)));
  }
  EXPECT_NEAR(meter.hidden_share(At(4)), 0.75, 1e-6);
  EXPECT_NEAR(meter.samples_per_second(At(4)), 3000, 3000 / 64 + 3);
}

TEST(OverlapMeter, NothingUnderWayHidesNothing) {
  OverlapMeter meter(absl::Seconds(1));
  EXPECT_DOUBLE_EQ(meter.hidden_share(At(1)), 0);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(At(1)), 0);
}

}  // namespace
}  // namespace starling
