#include "worker/executor/device_spans.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"

namespace starling {

absl::Status DeviceSpans::Begin(Clock clock) {
  clock_ = clock;
  closed_ = 0;
  return SetAnchor();
}

absl::Status DeviceSpans::SetAnchor() {
  if (!on()) return absl::OkStatus();
  if (anchor_ == nullptr) {
    STARLING_ASSIGN_OR_RETURN(anchor_, device_->CreateTimedEvent());
  }
  anchor_us_ = SpanRing::NowMicros();
  return stream_->Record(*anchor_);
}

absl::Status DeviceSpans::Open(absl::string_view name) {
  if (!on()) return absl::OkStatus();
  if (closed_ == pieces_.size()) {
    Piece piece;
    STARLING_ASSIGN_OR_RETURN(piece.begin, device_->CreateTimedEvent());
    STARLING_ASSIGN_OR_RETURN(piece.end, device_->CreateTimedEvent());
    pieces_.push_back(std::move(piece));
  }
  Piece& piece = pieces_[closed_];
  piece.name = name;
  piece.ordered_us = SpanRing::NowMicros();
  return stream_->Record(*piece.begin);
}

absl::Status DeviceSpans::Close() {
  if (!on()) return absl::OkStatus();
  STARLING_RETURN_IF_ERROR(stream_->Record(*pieces_[closed_].end));
  ++closed_;
  return absl::OkStatus();
}

absl::Status DeviceSpans::Report() {
  for (size_t i = 0; i < closed_; ++i) {
    const absl::Status status = Record(pieces_[i]);
    if (status.ok()) continue;
    if (absl::IsUnavailable(status)) return status;  // the device is lost
    spdlog::warn("no spans of what runs on {}: it does not say when ({})", device_->name(),
                 status.ToString());
    failed_ = true;
    break;
  }
  closed_ = 0;
  return SetAnchor();
}

absl::Status DeviceSpans::Record(const Piece& piece) {
  STARLING_ASSIGN_OR_RETURN(const double begin, device_->MicrosBetween(*anchor_, *piece.begin));
  STARLING_ASSIGN_OR_RETURN(const double end, device_->MicrosBetween(*anchor_, *piece.end));
  const auto on_our_clock = [&](double micros) {
    return std::max(anchor_us_ + static_cast<uint64_t>(std::max(micros, 0.0)), piece.ordered_us);
  };
  spans_->Record(piece.name, SpanCategory::kDevice, on_our_clock(begin), on_our_clock(end),
                 {.clock = clock_});
  return absl::OkStatus();
}

}  // namespace starling
