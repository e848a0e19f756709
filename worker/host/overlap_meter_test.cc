#include "worker/host/overlap_meter.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

absl::Time Second(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(OverlapMeter, CountsOnlyWhatIsUnderWayWhileComputing) {
  OverlapMeter meter(absl::Seconds(10));
  meter.InFlight(true, Second(0));  // before the unit: not counted
  meter.UnitBegan(Second(1));
  meter.InFlight(false, Second(2));  // one second under way
  meter.InFlight(true, Second(3));
  meter.InFlight(true, Second(4));
  meter.InFlight(false, Second(6));  // three more
  meter.UnitEnded(absl::Seconds(1), 100, Second(7));
  EXPECT_DOUBLE_EQ(meter.hidden_share(Second(7)), 0.75);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(Second(6)), 20);
}

TEST(OverlapMeter, ForgetsOldUnits) {
  OverlapMeter meter(absl::Seconds(1));
  meter.UnitBegan(Second(0));
  meter.InFlight(true, Second(0));
  meter.InFlight(false, Second(1));
  // Waits longer than anything was under way: clipped.
  meter.UnitEnded(absl::Seconds(5), 10, Second(3));
  EXPECT_DOUBLE_EQ(meter.hidden_share(Second(3)), 0);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(Second(3)), 10);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(Second(9)), 0);
}

TEST(OverlapMeter, ManyShortUnitsCountAsFewLongOnes) {
  OverlapMeter meter(absl::Seconds(1));
  for (int i = 0; i < 4000; ++i) {  // a millisecond each, a quarter of it waiting
    meter.UnitBegan(Second(0.001 * i));
    meter.InFlight(true, Second(0.001 * i));
    meter.InFlight(false, Second(0.001 * (i + 1)));
    meter.UnitEnded(absl::Microseconds(250), 3, Second(0.001 * (i + 1)));
  }
  EXPECT_NEAR(meter.hidden_share(Second(4)), 0.75, 1e-6);
  EXPECT_NEAR(meter.samples_per_second(Second(4)), 3000, 3000 / 64 + 3);
}

TEST(OverlapMeter, NothingUnderWayHidesNothing) {
  OverlapMeter meter(absl::Seconds(1));
  EXPECT_DOUBLE_EQ(meter.hidden_share(Second(1)), 0);
  EXPECT_DOUBLE_EQ(meter.samples_per_second(Second(1)), 0);
}

}  // namespace
}  // namespace starling
