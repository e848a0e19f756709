#include "common/admin/health.h"

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/event_loop/threaded_loop.h"

namespace starling::admin {
namespace {

// Whether all watched loops beat within a minute, judged as if it were `time`.
bool BecomesWell(const Health& health, absl::Time time) {
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (!health.WhyNot(time).empty()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

TEST(Health, ALoopThatTurnsIsWell) {
  Health health;
  EXPECT_EQ(health.WhyNot(absl::Now()), "");
  ThreadedLoop loop("turning");
  health.Watch(&loop, "turning");
  EXPECT_EQ(health.WhyNot(absl::Now()), "");
  // The loop beats without further calls.
  const absl::Time later = absl::Now() + kSilenceMax + absl::Milliseconds(1);
  EXPECT_TRUE(BecomesWell(health, later)) << health.WhyNot(later);
}

TEST(Health, ALoopThatIsStuckIsNamed) {
  Health health;
  ThreadedLoop good("good"), stuck("stuck");
  absl::Notification go_on;
  stuck.Post([&] { go_on.WaitForNotification(); });
  health.Watch(&stuck, "owner-3");
  const absl::Time then = absl::Now() + absl::Seconds(20);
  const std::string why = health.WhyNot(then);
  EXPECT_NE(why.find("\"owner-3\" has not answered for "), std::string::npos) << why;
  go_on.Notify();
  EXPECT_TRUE(BecomesWell(health, then - absl::Seconds(5)));
}

TEST(Health, MayGoBeforeTheLoop) {
  ThreadedLoop loop("left");
  {
    Health health;
    health.Watch(&loop, "left");
  }
  loop.Stop();
}

}  // namespace
}  // namespace starling::admin
