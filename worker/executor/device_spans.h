// When a lane's work ran on an asynchronous device: spans measured by the device's clock, converted
// to the host's. Private to the executor.
#ifndef STARLING_WORKER_EXECUTOR_DEVICE_SPANS_H_
#define STARLING_WORKER_EXECUTOR_DEVICE_SPANS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/protocol/types.h"
#include "common/trace/span_ring.h"
#include "kernels/device.h"

namespace starling {

// Marks are set around work as it is ordered, and read when the stream is waited for anyway, so
// nothing waits for a span. The clocks are compared whenever the stream is idle: a mark is set then
// and assumed to be passed at once. It is passed a few microseconds later, so spans appear that
// much too early, but none starts before it was ordered.
//
// For one stream; used by one thread at a time. If the host can access the device's memory, work
// has run when it was ordered: nothing is recorded, and all calls are no-ops.
class DeviceSpans {
 public:
  // `device`, `spans` and `stream` outlive this.
  DeviceSpans(Device* device, SpanRing* spans, Stream* stream)
      : device_(device), spans_(spans), stream_(stream) {}

  // The stream must be idle. Discards unreported spans.
  absl::Status Begin(Clock clock);
  // Work ordered from here to Close is one span. `name` outlives the next Report.
  absl::Status Open(absl::string_view name);
  absl::Status Close();
  // The stream must be idle. Records all spans that were closed since the last call.
  absl::Status Report();

 private:
  struct Piece {
    std::unique_ptr<Event> begin, end;
    absl::string_view name;
    uint64_t ordered_us = 0;
  };

  bool on() const { return !failed_ && !device_->host_reaches_memory(); }
  absl::Status SetAnchor();
  absl::Status Record(const Piece& piece);

  Device* const device_;
  SpanRing* const spans_;
  Stream* const stream_;
  bool failed_ = false;  // the device returns no times
  Clock clock_ = 0;
  std::unique_ptr<Event> anchor_;
  uint64_t anchor_us_ = 0;     // just before its mark was set
  std::vector<Piece> pieces_;  // as many as were ever needed
  size_t closed_ = 0;          // how many are in use
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_DEVICE_SPANS_H_
