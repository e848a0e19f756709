// A stream's outgoing frames and their order. Pure; not thread-safe.
#ifndef STARLING_COMMON_TRANSPORT_SEND_QUEUE_H_
#define STARLING_COMMON_TRANSPORT_SEND_QUEUE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory_resource>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "common/base/roomy_deque.h"
#include "common/protocol/frame.h"
#include "common/transport/payload.h"

namespace starling {

// Whether a frame's payload counts against the stream's credit: tensors do, short texts do not.
inline bool NeedsCredit(const FrameHeader& header) {
  return header.kind == PayloadKind::kDense || header.kind == PayloadKind::kTopK ||
         header.kind == PayloadKind::kRows || header.kind == PayloadKind::kRecord;
}

struct OutgoingFrame {
  FrameHeader header;
  OutgoingPayload payload;
};

// Two lanes. Negative urgency is for small frames that must never wait: acks, errors, closes. The
// other lane sends the lowest urgency first, and equal urgencies in order of age, so that a frame
// never overtakes an older one of the same urgency (a PULL the PUSH before it). A frame that needs
// credit and has none blocks its lane.
class SendQueue {
 public:
  struct Options {
    size_t payload_bytes_max = size_t{16} << 30;  // the caller's memory, but for heads
    size_t frames_max = 1 << 18;
  };

  // Preallocated in each lane, so that a peer that is slow for a moment, late in a job, causes no
  // allocation.
  static constexpr size_t kFramesAtFirst = 64;

  explicit SendQueue(const Options& options);

  // kResourceExhausted: the queue is full, and the frame is not taken.
  absl::Status Push(OutgoingFrame frame, int64_t urgency);

  // The next frame that may be sent with `credit` bytes left; nullopt: none.
  std::optional<OutgoingFrame> Pop(size_t credit);

  size_t payload_bytes() const { return payload_bytes_; }
  size_t frames() const { return first_.size() + ordered_.size(); }

 private:
  const Options options_;
  std::pmr::unsynchronized_pool_resource memory_;  // for queued frames; reused
  std::pmr::deque<OutgoingFrame> first_ = RoomyDeque<OutgoingFrame>(kFramesAtFirst, &memory_);
  std::pmr::map<std::pair<int64_t, uint64_t>, OutgoingFrame> ordered_{&memory_};  // by urgency, age
  uint64_t next_ = 0;
  size_t payload_bytes_ = 0;
};

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_SEND_QUEUE_H_
