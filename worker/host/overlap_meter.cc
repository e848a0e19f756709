#include "worker/host/overlap_meter.h"

#include <algorithm>

namespace starling {

OverlapMeter::OverlapMeter(absl::Duration window) : window_(window) {
  units_.reserve(kRecordsMax + 2);  // the window's records, including both ends
}

void OverlapMeter::Advance(absl::Time now) {
  if (computing_ && in_flight_) under_way_ += now - last_;
  last_ = now;
}

void OverlapMeter::InFlight(bool any, absl::Time now) {
  Advance(now);
  in_flight_ = any;
}

void OverlapMeter::UnitBegan(absl::Time now) {
  Advance(now);
  if (first_ == absl::InfinitePast()) first_ = now;
  computing_ = true;
  under_way_ = absl::ZeroDuration();
}

void OverlapMeter::UnitEnded(absl::Duration waited, uint64_t samples, absl::Time now) {
  Advance(now);
  computing_ = false;
  Expire(now);
  if (units_.empty() || units_.back().end + window_ / kRecordsMax <= now) units_.push_back({now});
  UnitRecord& record = units_.back();
  record.under_way += under_way_;
  record.waited += std::min(waited, under_way_);
  record.samples += samples;
}

void OverlapMeter::Expire(absl::Time now) {
  const auto first = std::find_if(units_.begin(), units_.end(), [&](const UnitRecord& record) {
    return record.end + window_ >= now;
  });
  units_.erase(units_.begin(), first);
}

double OverlapMeter::hidden_share(absl::Time now) {
  Expire(now);
  absl::Duration under_way, waited;
  for (const UnitRecord& unit : units_) {
    under_way += unit.under_way;
    waited += unit.waited;
  }
  if (under_way <= absl::ZeroDuration()) return 0;
  return std::clamp(1 - absl::FDivDuration(waited, under_way), 0.0, 1.0);
}

double OverlapMeter::samples_per_second(absl::Time now) {
  Expire(now);
  uint64_t samples = 0;
  for (const UnitRecord& unit : units_) samples += unit.samples;
  const absl::Duration span = std::min(window_, now - first_);
  return span > absl::ZeroDuration() ? samples / absl::ToDoubleSeconds(span) : 0;
}

}  // namespace starling
