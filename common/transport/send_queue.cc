#include "common/transport/send_queue.h"

#include "absl/strings/str_cat.h"

namespace starling {

absl::Status SendQueue::Push(OutgoingFrame frame, int64_t urgency) {
  const size_t bytes = frame.payload.bytes.size();
  if (frames() >= options_.frames_max || payload_bytes_ + bytes > options_.payload_bytes_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the peer does not keep up: ", frames(), " frames with ", payload_bytes_,
                     " payload bytes wait to be sent (limits: ", options_.frames_max, " and ",
                     options_.payload_bytes_max, ")"));
  }
  payload_bytes_ += bytes;
  if (NeedsCredit(frame.header)) {
    bulk_.emplace(std::pair(urgency, next_++), std::move(frame));
  } else {
    control_.push_back(std::move(frame));
  }
  return absl::OkStatus();
}

std::optional<OutgoingFrame> SendQueue::Pop(size_t credit) {
  std::optional<OutgoingFrame> frame;
  if (!control_.empty()) {
    frame = std::move(control_.front());
    control_.pop_front();
  } else if (!bulk_.empty() && bulk_.begin()->second.payload.bytes.size() <= credit) {
    frame = std::move(bulk_.begin()->second);
    bulk_.erase(bulk_.begin());
  } else {
    return frame;
  }
  payload_bytes_ -= frame->payload.bytes.size();
  return frame;
}

}  // namespace starling
