// Whether a daemon can do its work, as its owner last reported.
#ifndef STARLING_COMMON_ADMIN_READINESS_H_
#define STARLING_COMMON_ADMIN_READINESS_H_

#include <string>
#include <utility>

#include "common/sync/mutex.h"

namespace starling::admin {

// Thread-safe.
class Readiness {
 public:
  explicit Readiness(std::string why_not) : why_not_(std::move(why_not)) {}

  // Empty: ready.
  void Set(std::string why_not) {
    MutexLock lock(&mutex_);
    why_not_ = std::move(why_not);
  }
  std::string WhyNot() const {
    MutexLock lock(&mutex_);
    return why_not_;
  }

 private:
  mutable Mutex mutex_;
  std::string why_not_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace starling::admin

#endif  // STARLING_COMMON_ADMIN_READINESS_H_
