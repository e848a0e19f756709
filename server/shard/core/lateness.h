// Which part of a step came late, as seen by one slice of a partition (docs/decisions/0014).
//
//   lateness.Arrived(worker, part, now);    // for each contribution that enters the step's tree
//   lateness.Sealed(version, backup, now);  // the tree is complete
//   const Lateness::Late late = lateness.Of(version);
#ifndef STARLING_SERVER_SHARD_CORE_LATENESS_H_
#define STARLING_SERVER_SHARD_CORE_LATENESS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/ids.h"

namespace starling {

// Pure. Not thread-safe.
class Lateness {
 public:
  struct Late {
    absl::Duration by;  // 0: nothing was late, or it is not known
    uint32_t part = 0;  // the first micro-batch of the contribution that came last
    friend bool operator==(const Late&, const Late&) = default;
  };
  // A shorter wait than this part of a step says nothing.
  static constexpr int kPartOfStep = 8;

  // A contribution of this worker, from this micro-batch of the step on, has entered the tree.
  void Arrived(WorkerId worker, uint32_t part, absl::Time now) {
    const auto same = [&](const Arrival& arrival) { return arrival.worker == worker; };
    arrivals_.erase(std::remove_if(arrivals_.begin(), arrivals_.end(), same), arrivals_.end());
    arrivals_.push_back({worker, part, now});
  }

  // The tree is complete; the slice's value becomes this version. With `backup` backup workers as
  // many late ones do not hide each other: each is compared with those before them all.
  void Sealed(uint64_t version, uint32_t backup, absl::Time now) {
    version_ = version;
    late_ = {};
    const size_t last = std::max<uint32_t>(backup, 1);
    if (known_ && arrivals_.size() > last) {
      const absl::Duration waited = now - arrivals_[arrivals_.size() - 1 - last].at;
      if (kPartOfStep * waited > now - sealed_at_) late_ = {waited, arrivals_.back().part};
    }
    sealed_at_ = now;
    known_ = true;
    arrivals_.clear();
  }

  // The step's parts have other owners: who kept it waiting is not known.
  void Forget() { known_ = false; }

  // In the step that made this version: known of the newest one alone.
  Late Of(uint64_t version) const { return version == version_ ? late_ : Late(); }

 private:
  struct Arrival {
    WorkerId worker;
    uint32_t part;
    absl::Time at;
  };
  std::vector<Arrival> arrivals_;  // the newest one of each worker, ascending
  absl::Time sealed_at_;           // the step before
  bool known_ = false;             // since then nothing was forgotten
  uint64_t version_ = 0;
  Late late_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_LATENESS_H_
