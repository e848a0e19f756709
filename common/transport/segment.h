// A segment of shared memory: one direction of a stream between processes of one host
// (docs/decisions/0015-shared-memory.md).
#ifndef STARLING_COMMON_TRANSPORT_SEGMENT_H_
#define STARLING_COMMON_TRANSPORT_SEGMENT_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/base/owned_fd.h"
#include "common/protocol/limits.h"
#include "common/transport/payload.h"

namespace starling {

// kSegmentBytes that are mapped until this is destroyed. Thread-compatible.
class Segment {
 public:
  // One that this process writes. `fd`: to be passed to the peer, and then closed. An error says
  // what the system does not do.
  static absl::StatusOr<std::shared_ptr<Segment>> Create(OwnedFd* fd);

  // A peer's, to be read. kInvalidArgument: reading it would not be safe, or it has not the size
  // of a segment.
  static absl::StatusOr<std::shared_ptr<const Segment>> Open(int fd);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // `blocks` is not 0: where the first of them begins.
  const uint8_t* At(uint64_t blocks) const;
  // Of one from Create: copies the payload there. It fits.
  void Write(uint64_t blocks, const OutgoingPayload& payload);

 private:
  explicit Segment(uint8_t* data) : data_(data) {}

  uint8_t* const data_;
};

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_SEGMENT_H_
