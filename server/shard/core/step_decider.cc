#include "server/shard/core/step_decider.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/defences.h"

namespace starling {

float ClipScale(double clip_norm, double norm2, double rescale) {
  const double norm = std::sqrt(norm2) * rescale;
  return static_cast<float>(std::min(1.0, clip_norm / (norm + 1e-6)));
}

StepDecider::StepDecider(std::vector<PartitionId> reporters) : reporters_(std::move(reporters)) {}

StepDecider::Outcome StepDecider::Report(PartitionId from, Clock step, const StepReport& report) {
  if (!std::isfinite(report.norm2) || report.norm2 < 0) return Outcome::kBadNorm;
  if (!std::binary_search(reporters_.begin(), reporters_.end(), from)) return Outcome::kStranger;
  const bool any_step = DefenceMasked(Defence::kReportStep);
  if (step != step_ && !any_step) {
    return step >= 0 && step + 1 == step_ ? Outcome::kDecided : Outcome::kOtherStep;
  }
  const auto [it, fresh] = taken_.try_emplace(from, report);
  if (!fresh && it->second != report && !any_step) return Outcome::kOtherNorm;
  if (!fresh && !DefenceMasked(Defence::kReportOnce)) return Outcome::kRepeated;
  return ++reports_ == reporters_.size() ? Outcome::kComplete : Outcome::kWaits;
}

StepReport StepDecider::Decide() {
  StepReport whole;
  for (const auto& [partition, report] : taken_) {
    whole.norm2 += report.norm2;
    if (!whole.overflowed.has_value()) whole.overflowed = report.overflowed;
  }
  BeginAt(step_ + 1);
  return whole;
}

void StepDecider::BeginAt(Clock step) {
  taken_.clear();
  reports_ = 0;
  step_ = step;
}

std::vector<PartitionId> StepDecider::Missing() const {
  std::vector<PartitionId> missing;
  for (const PartitionId partition : reporters_) {
    if (!taken_.contains(partition)) missing.push_back(partition);
  }
  return missing;
}

}  // namespace starling
