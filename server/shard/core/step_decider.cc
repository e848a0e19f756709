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

StepDecider::Outcome StepDecider::Report(PartitionId from, Clock step, double norm2) {
  if (!std::isfinite(norm2) || norm2 < 0) return Outcome::kBadNorm;
  if (!std::binary_search(reporters_.begin(), reporters_.end(), from)) return Outcome::kStranger;
  const bool any_step = DefenceMasked(Defence::kReportStep);
  if (step != step_ && !any_step) {
    return step >= 0 && step + 1 == step_ ? Outcome::kDecided : Outcome::kOtherStep;
  }
  const auto [it, fresh] = norms_.try_emplace(from, norm2);
  if (!fresh && it->second != norm2 && !any_step) return Outcome::kOtherNorm;
  if (!fresh && !DefenceMasked(Defence::kReportOnce)) return Outcome::kRepeated;
  return ++reports_ == reporters_.size() ? Outcome::kComplete : Outcome::kWaits;
}

double StepDecider::Decide() {
  double norm2 = 0;
  for (const auto& [partition, of_partition] : norms_) norm2 += of_partition;
  norms_.clear();
  reports_ = 0;
  ++step_;
  return norm2;
}

std::vector<PartitionId> StepDecider::Missing() const {
  std::vector<PartitionId> missing;
  for (const PartitionId partition : reporters_) {
    if (!norms_.contains(partition)) missing.push_back(partition);
  }
  return missing;
}

}  // namespace starling
