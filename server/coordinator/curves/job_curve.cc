#include "server/coordinator/curves/job_curve.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"

namespace starling::coordinator {
namespace {

double Weighted(double a, double weight_a, double b, double weight_b) {
  const double weight = weight_a + weight_b;
  return weight > 0 ? (a * weight_a + b * weight_b) / weight : b;
}

// `begin`: the start of `a`, in seconds.
CurvePoint Merged(const CurvePoint& a, const CurvePoint& b, double begin) {
  const double seconds_a = a.seconds() - begin;
  const double seconds_b = b.seconds() - a.seconds();
  const auto samples_a = static_cast<double>(a.samples());
  const auto samples_b = static_cast<double>(b.samples());
  CurvePoint merged = b;
  merged.set_steps(a.steps() + b.steps());
  merged.set_samples(a.samples() + b.samples());
  merged.set_samples_per_second(
      Weighted(a.samples_per_second(), seconds_a, b.samples_per_second(), seconds_b));
  merged.set_hidden_share(Weighted(a.hidden_share(), seconds_a, b.hidden_share(), seconds_b));
  if (a.has_train_loss()) {
    merged.set_train_loss(b.has_train_loss()
                              ? Weighted(a.train_loss(), samples_a, b.train_loss(), samples_b)
                              : a.train_loss());
  }
  if (a.has_train_accuracy()) {
    merged.set_train_accuracy(b.has_train_accuracy() ? Weighted(a.train_accuracy(), samples_a,
                                                                b.train_accuracy(), samples_b)
                                                     : a.train_accuracy());
  }
  merged.set_staleness_max(std::max(a.staleness_max(), b.staleness_max()));
  for (int i = 0; i < a.staleness_histogram_size(); ++i) {
    if (i == merged.staleness_histogram_size()) merged.add_staleness_histogram(0);
    merged.set_staleness_histogram(i, merged.staleness_histogram(i) + a.staleness_histogram(i));
  }
  return merged;
}

}  // namespace

JobCurve::JobCurve(size_t points_max) : points_max_(points_max) {
  STARLING_CHECK(points_max >= 2 && points_max % 2 == 0, "points_max must be even");
}

void JobCurve::Restore(std::vector<CurvePoint> points, uint32_t merges, uint64_t earlier) {
  points_.clear();
  for (CurvePoint& point : points) {
    const uint64_t last = points_.empty() ? 0 : points_.back().step();
    if (point.step() > last && points_.size() < points_max_) points_.push_back(std::move(point));
  }
  earlier_ = earlier;
  seen_max_ = 0;
  for (const CurvePoint& point : points_) {
    if (point.step() > earlier_) seen_max_ = std::max(seen_max_, point.staleness_max());
  }
  merges_ = std::min(merges, 62u);
  loss_sum_ = 0;
  samples_ = correct_ = 0;
  MarkSaved();
}

void JobCurve::Observe(double loss_sum, uint64_t samples, uint64_t correct) {
  loss_sum_ += loss_sum;
  samples_ += samples;
  correct_ += correct;
}

bool JobCurve::Due(uint64_t step, double seconds, bool last) const {
  const uint64_t last_step = points_.empty() ? 0 : points_.back().step();
  if (step <= last_step) return false;
  if (last) return true;
  const double last_seconds = points_.empty() ? 0 : points_.back().seconds();
  return samples_ > 0 && step - last_step >= uint64_t{1} << merges_ &&
         seconds - last_seconds >= std::ldexp(kPeriodSeconds, static_cast<int>(merges_));
}

CurvePoint JobCurve::Add(const Moment& moment) {
  const CurvePoint before = points_.empty() ? CurvePoint() : points_.back();
  STARLING_CHECK(moment.step > before.step(), "a point without a step");
  CurvePoint point;
  point.set_step(moment.step);
  point.set_steps(moment.step - before.step());
  point.set_seconds(std::max(moment.seconds, before.seconds()));  // a clock may be set back
  point.set_unix_seconds(moment.unix_seconds);
  point.set_learning_rate(moment.learning_rate);
  point.set_hidden_share(moment.hidden_share);
  const double seconds = point.seconds() - before.seconds();
  if (seconds > 0) {
    point.set_samples_per_second(static_cast<double>(point.steps()) * moment.samples_per_step /
                                 seconds);
  }
  point.set_samples(samples_);
  if (samples_ > 0) {
    const auto samples = static_cast<double>(samples_);
    point.set_train_loss(loss_sum_ / samples);
    if (moment.labels_per_sample > 0) {
      point.set_train_accuracy(static_cast<double>(correct_) /
                               (samples * static_cast<double>(moment.labels_per_sample)));
    }
  }
  SetStaleness(moment, point);
  loss_sum_ = 0;
  samples_ = correct_ = 0;
  points_.push_back(point);
  if (points_.size() >= points_max_) MergeNeighbours();
  return point;
}

// The histogram counts from the job's start, so the counts in earlier points are subtracted. Counts
// since the last stored point thus survive a killed coordinator.
void JobCurve::SetStaleness(const Moment& moment, CurvePoint& point) {
  std::vector<uint64_t> fresh = moment.staleness;
  for (const CurvePoint& old : points_) {
    if (old.step() <= earlier_) continue;
    for (size_t i = 0; i < fresh.size() && i < static_cast<size_t>(old.staleness_histogram_size());
         ++i) {
      fresh[i] -= std::min(fresh[i], old.staleness_histogram(static_cast<int>(i)));
    }
  }
  const size_t buckets = fresh.size();
  while (!fresh.empty() && fresh.back() == 0) fresh.pop_back();
  for (const uint64_t count : fresh) point.add_staleness_histogram(count);
  const bool grew = moment.staleness_max > seen_max_;
  seen_max_ = std::max(seen_max_, moment.staleness_max);
  if (fresh.empty()) return;
  // The last bucket holds that lead or more. How much more is known only of a lead that is the
  // greatest so far.
  point.set_staleness_max(fresh.size() == buckets && grew
                              ? std::max<uint64_t>(buckets - 1, moment.staleness_max)
                              : fresh.size() - 1);
}

void JobCurve::MergeNeighbours() {
  std::vector<CurvePoint> merged;
  double begin = 0;
  for (size_t i = 0; i + 1 < points_.size(); i += 2) {
    merged.push_back(Merged(points_[i], points_[i + 1], begin));
    begin = points_[i + 1].seconds();
  }
  if (points_.size() % 2 == 1) merged.push_back(points_.back());
  points_ = std::move(merged);
  merges_ = std::min(merges_ + 1, 62u);
  saved_ = 0;
}

}  // namespace starling::coordinator
