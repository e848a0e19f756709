#include "common/tensorboard/curve_events.h"

#include <limits>

#include "absl/strings/string_view.h"

namespace starling::tensorboard {
namespace {

void AddScalar(absl::string_view tag, double value, Event* event) {
  Summary::Value* added = event->mutable_summary()->add_value();
  added->set_tag(std::string(tag));
  added->set_simple_value(static_cast<float>(value));
}

// Leads are integers: lead i has the bucket that ends at i + 0.5. The last bucket is "or more".
void AddStaleness(const CurvePoint& point, Event* event) {
  HistogramProto histogram;
  for (int lead = 0; lead < point.staleness_histogram_size(); ++lead) {
    const auto count = static_cast<double>(point.staleness_histogram(lead));
    histogram.add_bucket_limit(lead + 0.5);
    histogram.add_bucket(count);
    if (count == 0) continue;
    if (histogram.num() == 0) histogram.set_min(lead);
    histogram.set_num(histogram.num() + count);
    histogram.set_sum(histogram.sum() + lead * count);
    histogram.set_sum_squares(histogram.sum_squares() + static_cast<double>(lead) * lead * count);
  }
  if (histogram.num() == 0) return;
  histogram.set_max(static_cast<double>(point.staleness_max()));
  if (point.staleness_max() + 1 > static_cast<uint64_t>(histogram.bucket_limit_size())) {
    histogram.set_bucket_limit(histogram.bucket_limit_size() - 1,
                               std::numeric_limits<double>::max());
  }
  Summary::Value* added = event->mutable_summary()->add_value();
  added->set_tag("staleness");
  *added->mutable_histo() = std::move(histogram);
}

}  // namespace

Event PointEvent(const CurvePoint& point) {
  Event event;
  event.set_wall_time(point.unix_seconds());
  event.set_step(static_cast<int64_t>(point.step()));
  if (point.has_train_loss()) AddScalar("loss/train", point.train_loss(), &event);
  if (point.has_train_accuracy()) AddScalar("accuracy/train", point.train_accuracy(), &event);
  AddScalar("learning_rate", point.learning_rate(), &event);
  AddScalar("throughput/samples_per_second", point.samples_per_second(), &event);
  AddScalar("throughput/hidden_share", point.hidden_share(), &event);
  AddScalar("staleness/max", static_cast<double>(point.staleness_max()), &event);
  AddStaleness(point, &event);
  return event;
}

std::optional<Event> EpochEvent(const EpochResult& result) {
  if (!result.evaluated()) return std::nullopt;
  Event event;
  event.set_wall_time(result.unix_seconds());
  event.set_step(static_cast<int64_t>(result.step()));
  AddScalar("loss/test", result.test_loss(), &event);
  if (result.has_test_accuracy()) AddScalar("accuracy/test", result.test_accuracy(), &event);
  return event;
}

}  // namespace starling::tensorboard
