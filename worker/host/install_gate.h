// Values that arrive while an abandoned unit may still be reading the ones before them.
#ifndef STARLING_WORKER_HOST_INSTALL_GATE_H_
#define STARLING_WORKER_HOST_INSTALL_GATE_H_

#include <map>
#include <memory_resource>
#include <utility>
#include <vector>

#include "worker/core/events.h"

namespace starling {

// The session installs a value only where no unit that it wants reads the older one; an abandoned
// unit stops soon, but not at once. Until then values for its copy of the parameters wait here, in
// order. Used by one thread.
class InstallGate {
 public:
  using Install = session::action::InstallValue;

  // The unit may read `params` from now on, until Stopped.
  void Started(session::UnitId unit, session::Params params) { running_[unit] = {params, false}; }

  // Nobody wants the unit. One that has stopped, or never started, changes nothing.
  void Abandoned(session::UnitId unit) {
    if (const auto it = running_.find(unit); it != running_.end()) it->second.abandoned = true;
  }

  // True: install it now. False: it is kept for later.
  bool Admit(const Install& install) {
    if (!Closed(install.params)) return true;
    waiting_.push_back(install);
    return false;
  }

  // The unit reads no values any more. Returns what may be installed now, in the order of Admit.
  std::vector<Install> Stopped(session::UnitId unit) {
    running_.erase(unit);
    std::vector<Install> ready, later;
    for (const Install& install : waiting_) {
      (Closed(install.params) ? later : ready).push_back(install);
    }
    waiting_ = std::move(later);
    return ready;
  }

  // What waits for the live copy, or for either, is void; returns it, so that its buffers can be
  // let go.
  std::vector<Install> Forget(bool snapshot_too) {
    std::vector<Install> forgotten, kept;
    for (const Install& install : std::exchange(waiting_, {})) {
      const bool keep = install.params == session::Params::kSnapshot && !snapshot_too;
      (keep ? kept : forgotten).push_back(install);
    }
    waiting_ = std::move(kept);
    return forgotten;
  }

 private:
  struct Running {
    session::Params params = session::Params::kLive;
    bool abandoned = false;
  };

  bool Closed(session::Params params) const {
    for (const auto& [unit, running] : running_) {
      if (running.abandoned && running.params == params) return true;
    }
    return false;
  }

  std::pmr::unsynchronized_pool_resource memory_;  // used again
  std::pmr::map<session::UnitId, Running> running_{&memory_};
  std::vector<Install> waiting_;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_INSTALL_GATE_H_
