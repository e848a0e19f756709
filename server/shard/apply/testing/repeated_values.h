// The values and the optimizer state of a partition's slices, computed from the records of its log
// alone (docs/protocol.md, section 11): for tests that compare them with those of the primary.
#ifndef STARLING_SERVER_SHARD_APPLY_TESTING_REPEATED_VALUES_H_
#define STARLING_SERVER_SHARD_APPLY_TESTING_REPEATED_VALUES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/protocol/record.h"
#include "server/shard/apply/payload.h"
#include "server/shard/apply/update.h"

namespace starling {

// A digest over slices in the order in which they are added: of each its value, then the slots that
// its rule has. The same records give the same one, applied in place or out of place.
class ValuesDigest {
 public:
  void Add(absl::Span<const float> values);
  uint64_t digest() const { return digest_; }

 private:
  uint64_t digest_ = 0;
};

// Keeps the newest version alone. Not thread-safe.
class RepeatedValues {
 public:
  // A slice that is updated, as it is before the log's first record.
  void AddSlice(SliceId id, UpdateRule rule, std::vector<float> first);

  // The record's update, or nothing where it has none. kInvalidArgument: the slice is not here, or
  // the payload is not the record's; nothing is changed then.
  absl::Status Repeat(const Record& record, Payload payload);

  // Of a slice that was added. Valid until the next call of AddSlice; Repeat changes them in place.
  absl::Span<const float> Values(SliceId id) const { return slices_.at(id).values; }
  absl::Span<const float> Slot(SliceId id, size_t i) const { return slices_.at(id).slots[i]; }

  uint64_t Digest() const;  // of all slices, ascending

 private:
  struct Slice {
    UpdateRule rule;
    std::vector<float> values;
    std::array<std::vector<float>, 2> slots;  // those that the rule has
  };

  absl::btree_map<SliceId, Slice> slices_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_APPLY_TESTING_REPEATED_VALUES_H_
