// Received bytes in place: pieces whose boundaries need not be aligned to elements.
#ifndef STARLING_SERVER_SHARD_APPLY_PAYLOAD_H_
#define STARLING_SERVER_SHARD_APPLY_PAYLOAD_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"

namespace starling {

using PayloadPiece = absl::Span<const uint8_t>;
using Payload = absl::Span<const PayloadPiece>;  // consecutive little-endian fp32 elements

// A float at any address.
typedef float UnalignedFloat __attribute__((aligned(1), may_alias));

size_t PayloadBytes(Payload payload);

// Calls run(const UnalignedFloat* values, size_t first_element, size_t count) over the payload's
// elements in order, in runs of at most `max_run`. An element that spans two pieces is a run of its
// own. Bytes after the last whole element are ignored.
template <typename Run>
void ForEachRun(Payload payload, size_t max_run, const Run& run) {
  uint8_t carry[sizeof(float)];
  size_t carried = 0;
  size_t element = 0;
  for (const PayloadPiece piece : payload) {
    const uint8_t* bytes = piece.data();
    size_t left = piece.size();
    if (carried > 0) {
      while (carried < sizeof(float) && left > 0) {
        carry[carried++] = *bytes++;
        --left;
      }
      if (carried < sizeof(float)) continue;
      run(reinterpret_cast<const UnalignedFloat*>(carry), element++, size_t{1});
      carried = 0;
    }
    for (size_t whole = left / sizeof(float); whole > 0;) {
      const size_t count = whole < max_run ? whole : max_run;
      run(reinterpret_cast<const UnalignedFloat*>(bytes), element, count);
      element += count;
      bytes += count * sizeof(float);
      whole -= count;
    }
    carried = left % sizeof(float);
    if (carried > 0) std::memcpy(carry, bytes, carried);
  }
}

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_APPLY_PAYLOAD_H_
