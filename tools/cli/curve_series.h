// A job's curves (proto/coordinator.proto, CurvesReply) as plain series of numbers over steps.
// Pure.
#ifndef STARLING_TOOLS_CLI_CURVE_SERIES_H_
#define STARLING_TOOLS_CLI_CURVE_SERIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/coordinator.pb.h"

namespace starling::cli {

struct SeriesPoint {
  uint64_t step = 0;
  double value = 0;
};

struct Series {
  std::string name;                 // "train loss"
  std::vector<SeriesPoint> points;  // ascending steps, finite values
};

// All series of a job; a series without points is one that the job lacks (so far).
struct CurveSeries {
  Series train_loss, test_loss, train_accuracy, test_accuracy, learning_rate, samples_per_second,
      staleness, hidden_share;
};

CurveSeries MakeSeries(const CurvesReply& curves);

// `width` characters over the steps up to `last_step`, each as high as the mean of its points,
// between the series' lowest and highest value ("▁" to "█"). A column without a point repeats the
// previous one; before the first point columns are spaces.
std::string Sparkline(const Series& series, uint64_t last_step, int width);

// At most 5 significant digits: "0.13121", "1,533", "1.2e-07".
std::string NumberText(double value);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_CURVE_SERIES_H_
