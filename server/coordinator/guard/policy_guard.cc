#include "server/coordinator/guard/policy_guard.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/loss_text.h"

namespace starling::coordinator {
namespace {

constexpr double kLevelWindows = 64;    // over which the level follows a rise
constexpr double kLeastLevel = 1. / 6;  // as a share of the first level
constexpr double kFalling = 0.8;        // ratio of the newer half's median to the older half's
// A shard reports the greatest lag of its last 64 updates: one late update is visible that long.
constexpr uint64_t kLagRemembered = 64;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::optional<Policy> Tighter(const Policy& now, uint32_t staleness) {
  Policy next;
  if (now.kind() == Policy::ASYNC) {
    next.set_kind(Policy::SSP);
    next.set_staleness(staleness);
  } else if (now.kind() == Policy::SSP && now.staleness() > staleness) {
    next.set_kind(Policy::SSP);
    next.set_staleness(staleness);
  } else if (now.kind() == Policy::SSP) {
    next.set_kind(Policy::BSP);
  } else {
    return std::nullopt;
  }
  return next;
}

}  // namespace

PolicyGuard::PolicyGuard(const Guard& options, uint64_t batch, LossTrend trend)
    : options_(options), batch_(batch), trend_(trend) {}

void PolicyGuard::Observe(double loss_sum, uint64_t samples) {
  loss_sum_ += loss_sum;
  samples_ += samples;
  if (samples_ == 0 || samples_ < batch_) return;
  AddBatch(loss_sum_ / static_cast<double>(samples_));
  loss_sum_ = 0;
  samples_ = 0;
}

void PolicyGuard::AddBatch(double loss) {
  ++batches_;
  late_batches_ = options_.lag() > 0 && lag_ > options_.lag() ? late_batches_ + 1 : 0;
  window_.push_back(loss);
  if (window_.size() > options_.window()) window_.pop_front();
  if (window_.size() < options_.window()) return;
  const double median = Median({window_.begin(), window_.end()});
  if (trend_.first == 0) trend_.first = trend_.level = median;
  // A median above the limit counts as the limit: an explosion must not become the norm.
  const double rise =
      (std::min(median, Limit()) - trend_.level) / (kLevelWindows * options_.window());
  trend_.level = std::min(median, trend_.level + rise);
}

void PolicyGuard::PolicyChanged() {
  window_.clear();
  loss_sum_ = 0;
  samples_ = 0;
  late_batches_ = 0;
}

std::optional<Tightening> PolicyGuard::Judge(const Policy& now) const {
  const std::optional<Policy> next = Tighter(now, options_.staleness());
  if (!next.has_value()) return std::nullopt;
  std::optional<std::string> why = WhyLoss();
  if (!why.has_value()) why = WhyLag();
  if (!why.has_value()) return std::nullopt;
  return Tightening{*next, *why};
}

double PolicyGuard::Limit() const {
  return options_.loss_factor() * std::max(trend_.level, kLeastLevel * trend_.first);
}

std::optional<std::string> PolicyGuard::WhyLoss() const {
  if (window_.empty() || window_.size() < options_.window()) return std::nullopt;
  const double median = Median({window_.begin(), window_.end()});
  if (median <= Limit()) return std::nullopt;
  const auto middle = window_.begin() + static_cast<ptrdiff_t>(window_.size() / 2);
  if (Median({middle, window_.end()}) < kFalling * Median({window_.begin(), middle}))
    return std::nullopt;
  return absl::StrFormat(
      "the median train loss of the last %d batches, %s, is above %s, %g times its level of %s",
      window_.size(), LossText(median), LossText(Limit()), options_.loss_factor(),
      LossText(Limit() / options_.loss_factor()));
}

std::optional<std::string> PolicyGuard::WhyLag() const {
  if (options_.lag() == 0 || late_batches_ < options_.window() + kLagRemembered)
    return std::nullopt;
  return absl::StrCat("updates came up to ", lag_, " updates late for ", late_batches_,
                      " batches on end; the limit is ", options_.lag());
}

}  // namespace starling::coordinator
