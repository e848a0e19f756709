// Which part of a step came late, as seen by one slice of a partition (docs/decisions/0014).
//
//   Lateness lateness(backup_workers);
//   lateness.Arrived(worker, part, now);  // for each contribution that enters the step's tree
//   lateness.Sealed(version, now);        // the tree is complete
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
  // With N backup workers, N late ones do not hide each other: each is compared with those that
  // came before them all.
  explicit Lateness(uint32_t backup_workers) : last_(std::max(backup_workers, 1u)) {}

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
    if (arrivals_.size() > last_ + 1) arrivals_.erase(arrivals_.begin());
  }

  // The tree is complete; the slice's value becomes this version.
  void Sealed(uint64_t version, absl::Time now) {
    version_ = version;
    late_ = {};
    if (known_ && arrivals_.size() > last_) {
      const absl::Duration waited = now - arrivals_.front().at;
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
  size_t last_;
  std::vector<Arrival> arrivals_;  // the newest one of each of the last workers, ascending
  absl::Time sealed_at_;           // the step before
  bool known_ = false;             // since then nothing was forgotten
  uint64_t version_ = 0;
  Late late_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_LATENESS_H_
