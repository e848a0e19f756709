// Mutex, MutexLock and CondVar: the standard library's, with thread-safety annotations.
// ThreadSanitizer sees into them (not into Debian's Abseil, which is not instrumented), and waits
// with a deadline use the monotonic clock (Abseil's use the wall clock). Use these, not Abseil's,
// for waits with a deadline and in code that is tested under ThreadSanitizer.
#ifndef STARLING_COMMON_SYNC_MUTEX_H_
#define STARLING_COMMON_SYNC_MUTEX_H_

#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace starling {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }

 private:
  Mutex* const mutex_;
};

class CondVar {
 public:
  // The caller holds `mutex`. May wake spuriously: call it in a loop over the condition.
  void Wait(Mutex* mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // As Wait. True: `deadline` (a MonotonicNow time) has passed.
  bool WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
    if (deadline == absl::InfiniteFuture()) {
      Wait(mutex);
      return false;
    }
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait_until(lock, ToSteady(deadline));
    lock.release();
    return MonotonicNow() >= deadline;
  }
  void Signal() { condition_.notify_one(); }
  void SignalAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace starling

#endif  // STARLING_COMMON_SYNC_MUTEX_H_
