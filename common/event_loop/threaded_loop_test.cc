#include "common/event_loop/threaded_loop.h"

#include <gtest/gtest.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/testing/counting_memory.h"

namespace {
std::atomic<int64_t> wall_ahead_seconds = 0;
}  // namespace

// Replaces the C library's: a wall clock that can be set.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const long result = syscall(SYS_clock_gettime, clock, time);
  if (clock == CLOCK_REALTIME) time->tv_sec += wall_ahead_seconds;
  return static_cast<int>(result);
}

namespace starling {
namespace {

TEST(ThreadedLoop, RunsTasksInOrderOnOneThread) {
  std::vector<int> order;
  std::thread::id thread;
  {
    ThreadedLoop loop("test");
    for (int i = 0; i < 1000; ++i) {
      loop.Post([&, i] {
        order.push_back(i);
        thread = std::this_thread::get_id();
        EXPECT_TRUE(loop.InLoop());
      });
    }
    EXPECT_FALSE(loop.InLoop());
  }  // stops the loop, which runs what was posted
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[i], i);
  EXPECT_NE(thread, std::this_thread::get_id());
}

// The wall clock is set back by an hour.
TEST(ThreadedLoop, TimersDoNotFollowTheWallClock) {
  ThreadedLoop loop("test");
  std::atomic<int> ticks = 0;
  std::function<void()> tick = [&] {
    ++ticks;
    loop.PostAfter(absl::Milliseconds(20), tick);
  };
  loop.Post(tick);
  const absl::Time before = absl::Now();
  wall_ahead_seconds = -3600;
  while (absl::Now() > before) absl::SleepFor(absl::Milliseconds(10));  // Abseil looks rarely
  const int then = ticks;
  const absl::Time deadline = MonotonicNow() + absl::Seconds(30);
  while (ticks < then + 3 && MonotonicNow() < deadline) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_GE(ticks, then + 3);
  loop.Stop();
  wall_ahead_seconds = 0;
}

TEST(ThreadedLoop, HasRoomFromTheBegin) {
  CountingMemory memory;
  ThreadedLoop loop("test");
  std::promise<void> held, go, done;
  loop.Post([&] {
    held.set_value();
    go.get_future().wait();
  });
  held.get_future().wait();
  const int at_first = memory.allocations();
  for (size_t i = 1; i < ThreadedLoop::kTasksAtFirst; ++i) loop.Post([] {});
  loop.Post([&] { done.set_value(); });
  EXPECT_EQ(memory.allocations(), at_first);
  for (size_t i = 0; i < 4 * ThreadedLoop::kTasksAtFirst; ++i) loop.Post([] {});
  EXPECT_GT(memory.allocations(), at_first);
  go.set_value();
  done.get_future().wait();
}

TEST(ThreadedLoop, TimersRunByTimeNotBeforeIt) {
  ThreadedLoop loop("test");
  std::promise<std::vector<int>> done;
  std::vector<int> order;
  const absl::Time now = MonotonicNow();
  const absl::Time last = now + absl::Milliseconds(30);
  loop.PostAt(last, [&] {
    order.push_back(3);
    EXPECT_GE(MonotonicNow(), last);
    done.set_value(order);
  });
  loop.PostAt(now + absl::Milliseconds(10), [&] { order.push_back(1); });
  loop.PostAt(now + absl::Milliseconds(10), [&] { order.push_back(2); });
  EXPECT_EQ(done.get_future().get(), (std::vector<int>{1, 2, 3}));
}

TEST(ThreadedLoop, CancelledTimerNeverRuns) {
  ThreadedLoop loop("test");
  bool ran = false;
  std::promise<void> done;
  const absl::Time when = MonotonicNow() + absl::Milliseconds(20);
  const EventLoop::TimerId timer = loop.PostAt(when, [&] { ran = true; });
  loop.PostAt(when + absl::Milliseconds(1), [&] { done.set_value(); });
  EXPECT_TRUE(loop.Cancel(timer));
  EXPECT_FALSE(loop.Cancel(timer));
  done.get_future().get();
  EXPECT_FALSE(ran);
}

TEST(ThreadedLoop, StopDropsTimersAndRefusesMore) {
  ThreadedLoop loop("test");
  auto held = std::make_shared<int>(1);
  loop.PostAfter(absl::Hours(1), [held] { FAIL(); });
  loop.Stop();
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_FALSE(loop.Post([] {}));
  EXPECT_EQ(loop.PostAfter(absl::ZeroDuration(), [] {}), 0u);
  loop.Stop();
}

TEST(ThreadedLoop, StopsFromWithin) {
  ThreadedLoop loop("test");
  std::promise<void> stopped;
  loop.Post([&] {
    loop.Stop();
    stopped.set_value();
  });
  stopped.get_future().get();
  EXPECT_FALSE(loop.Post([] {}));
}

TEST(ThreadedLoop, ManyThreadsPost) {
  std::atomic<int> posted = 0;
  int run = 0;
  {
    ThreadedLoop loop("test");
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) {
          if (loop.Post([&] { ++run; })) ++posted;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(run, 2000);
  EXPECT_EQ(posted, 2000);
}

}  // namespace
}  // namespace starling
