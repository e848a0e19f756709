#include "common/sync/mutex.h"
#include "common/base/clock.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace starling {
namespace {

TEST(Mutex, KeepsIncrementsApart) {
  Mutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        MutexLock lock(&mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 4000);
}

TEST(CondVar, WakesTheWaiter) {
  Mutex mutex;
  CondVar changed;
  bool ready = false;
  std::thread waker([&] {
    MutexLock lock(&mutex);
    ready = true;
    changed.SignalAll();
  });
  {
    MutexLock lock(&mutex);
    while (!ready) changed.Wait(&mutex);
  }
  waker.join();
}

TEST(CondVar, TellsThatTheDeadlinePassed) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(&mutex);
  const absl::Time deadline = MonotonicNow() + absl::Milliseconds(5);
  while (!never.WaitWithDeadline(&mutex, deadline)) {
  }
  EXPECT_GE(MonotonicNow(), deadline);
}

}  // namespace
}  // namespace starling
