// Which part of a step came late, as seen by one slice of a partition (docs/decisions/0014).
//
//   lateness.Arrived(worker, part, now);  // for each contribution that enters the step's tree
//   lateness.Sealed(version, now);        // the tree is complete
//   const Lateness::Late late = lateness.Of(version);
#ifndef STARLING_SERVER_SHARD_CORE_LATENESS_H_
#define STARLING_SERVER_SHARD_CORE_LATENESS_H_

#include <cstdint>

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
    if (worker != last_) others_at_ = last_at_;
    last_ = worker;
    last_part_ = part;
    last_at_ = now;
  }

  // The tree is complete; the slice's value becomes this version.
  void Sealed(uint64_t version, absl::Time now) {
    version_ = version;
    late_ = {};
    const bool known = others_at_ != absl::InfinitePast() && sealed_at_ != absl::InfinitePast();
    if (known && kPartOfStep * (now - others_at_) > now - sealed_at_)
      late_ = {now - others_at_, last_part_};
    sealed_at_ = now;
    last_ = WorkerId();
    last_at_ = others_at_ = absl::InfinitePast();
  }

  // In the step that made this version: known of the newest one alone.
  Late Of(uint64_t version) const { return version == version_ ? late_ : Late(); }

 private:
  WorkerId last_;  // the sender of the newest contribution to the tree; 0: there is none
  uint32_t last_part_ = 0;
  absl::Time last_at_ = absl::InfinitePast();
  absl::Time others_at_ = absl::InfinitePast();  // when the newest one of another worker came
  absl::Time sealed_at_ = absl::InfinitePast();  // the step before
  uint64_t version_ = 0;
  Late late_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_LATENESS_H_
