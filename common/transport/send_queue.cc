#include "common/transport/send_queue.h"

#include "absl/strings/str_cat.h"
#include "common/base/reserve_nodes.h"

namespace starling {

SendQueue::SendQueue(const Options& options) : options_(options) {
  ReserveNodes(
      kFramesAtFirst, [](uint64_t i) { return std::pair(int64_t{0}, i); }, &ordered_);
}

absl::Status SendQueue::Push(OutgoingFrame frame, int64_t urgency) {
  const size_t bytes = frame.payload.size();
  if (frames() >= options_.frames_max || payload_bytes_ + bytes > options_.payload_bytes_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the peer does not keep up: ", frames(), " frames with ", payload_bytes_,
                     " payload bytes wait to be sent (limits: ", options_.frames_max, " and ",
                     options_.payload_bytes_max, ")"));
  }
  payload_bytes_ += bytes;
  if (urgency < 0 && !NeedsCredit(frame.header)) {
    first_.push_back(std::move(frame));
  } else {
    ordered_.emplace(std::pair(urgency, next_++), std::move(frame));
  }
  return absl::OkStatus();
}

std::optional<OutgoingFrame> SendQueue::Pop(size_t credit) {
  std::optional<OutgoingFrame> frame;
  if (!first_.empty()) {
    frame = std::move(first_.front());
    first_.pop_front();
  } else {
    const auto next = ordered_.begin();
    if (next == ordered_.end()) return frame;
    if (NeedsCredit(next->second.header) && next->second.payload.size() > credit) return frame;
    frame = std::move(next->second);
    ordered_.erase(next);
  }
  payload_bytes_ -= frame->payload.size();
  return frame;
}

}  // namespace starling
