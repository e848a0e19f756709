#include "tools/cli/curve_series.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "tools/cli/output.h"

namespace starling::cli {
namespace {

void Add(uint64_t step, double value, Series* series) {
  if (std::isfinite(value)) series->points.push_back({step, value});
}

}  // namespace

CurveSeries MakeSeries(const CurvesReply& curves) {
  CurveSeries all = {{"train loss", {}},    {"test loss", {}},     {"train accuracy", {}},
                     {"test accuracy", {}}, {"learning rate", {}}, {"samples/s", {}},
                     {"staleness", {}},     {"hidden share", {}}};
  for (const CurvePoint& point : curves.points()) {
    if (point.has_train_loss()) Add(point.step(), point.train_loss(), &all.train_loss);
    if (point.has_train_accuracy()) Add(point.step(), point.train_accuracy(), &all.train_accuracy);
    Add(point.step(), point.learning_rate(), &all.learning_rate);
    Add(point.step(), point.samples_per_second(), &all.samples_per_second);
    Add(point.step(), static_cast<double>(point.staleness_max()), &all.staleness);
    Add(point.step(), point.hidden_share(), &all.hidden_share);
  }
  // Quick epochs end between two points of the curve and still have results.
  std::vector<SeriesPoint> losses;
  auto point = all.train_loss.points.begin();
  uint64_t begin = 0;
  for (const EpochResult& result : curves.status().epochs_done()) {
    bool has_point = false;
    for (; point != all.train_loss.points.end() && point->step <= result.step(); ++point) {
      has_point = has_point || point->step > begin;
      losses.push_back(*point);
    }
    const bool has_loss = result.has_train_loss() && std::isfinite(result.train_loss());
    if (!has_point && result.step() > begin && has_loss)
      losses.push_back({result.step(), result.train_loss()});
    begin = result.step();
  }
  losses.insert(losses.end(), point, all.train_loss.points.end());
  all.train_loss.points = std::move(losses);
  for (const EpochResult& result : curves.status().epochs_done()) {
    if (!result.evaluated()) continue;
    Add(result.step(), result.test_loss(), &all.test_loss);
    if (result.has_test_accuracy()) Add(result.step(), result.test_accuracy(), &all.test_accuracy);
  }
  return all;
}

std::string Sparkline(const Series& series, uint64_t last_step, int width) {
  static constexpr const char* kLevels[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  if (series.points.empty() || width < 1) return "";
  std::vector<double> sums(static_cast<size_t>(width)), counts(sums.size());
  for (const SeriesPoint& point : series.points) {
    const double share =
        static_cast<double>(point.step) / static_cast<double>(std::max<uint64_t>(last_step, 1));
    const auto column =
        static_cast<size_t>(std::clamp(std::ceil(share * width) - 1, 0.0, width - 1.0));
    sums[column] += point.value;
    counts[column] += 1;
  }
  const auto [low, high] = std::ranges::minmax_element(series.points, {}, &SeriesPoint::value);
  const double range = high->value - low->value;
  std::string line;
  const char* level = " ";
  for (size_t i = 0; i < sums.size(); ++i) {
    if (counts[i] > 0) {
      const double height = range > 0 ? (sums[i] / counts[i] - low->value) / range : 0;
      level = kLevels[std::clamp(static_cast<int>(height * 8), 0, 7)];
    }
    line += level;
  }
  return line;
}

std::string NumberText(double value) {
  if (value >= 1000 && value < 1e15) return CountText(static_cast<uint64_t>(std::llround(value)));
  return absl::StrFormat("%.5g", value);
}

}  // namespace starling::cli
