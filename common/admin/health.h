// Whether the process's event loops still run.
#ifndef STARLING_COMMON_ADMIN_HEALTH_H_
#define STARLING_COMMON_ADMIN_HEALTH_H_

#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/event_loop/event_loop.h"
#include "common/sync/mutex.h"

namespace starling::admin {

inline constexpr absl::Duration kBeatPeriod = absl::Seconds(1);
// A loop that has not run a beat for this long is stuck: no task may block for long.
inline constexpr absl::Duration kSilenceMax = absl::Seconds(15);

// Thread-safe.
class Health {
 public:
  // Watches `loop` from now on: posts a beat to it every kBeatPeriod until it stops.
  void Watch(EventLoop* loop, const std::string& name);

  // Which loop is stuck, and for how long; empty: none.
  std::string WhyNot(absl::Time now) const;

 private:
  struct Beats {
    Mutex mutex;
    std::map<std::string, absl::Time> last ABSL_GUARDED_BY(mutex);
  };
  static void Beat(EventLoop* loop, const std::string& name, const std::shared_ptr<Beats>& beats);

  const std::shared_ptr<Beats> beats_ = std::make_shared<Beats>();
};

}  // namespace starling::admin

#endif  // STARLING_COMMON_ADMIN_HEALTH_H_
