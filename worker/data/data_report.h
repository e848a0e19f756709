// What a data set holds, for people.
#ifndef STARLING_WORKER_DATA_DATA_REPORT_H_
#define STARLING_WORKER_DATA_DATA_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/data_set.h"

namespace starling {

// Of values: fp32 samples or labels. Mean and standard deviation of the population.
struct ValueRange {
  double least = 0;
  double greatest = 0;
  double mean = 0;
  double deviation = 0;
};

struct DataReport {
  int64_t samples = 0;
  int64_t looked_at = 0;  // the first ones
  SampleFormat format;
  std::vector<ValueRange> channels;  // per channel where samples are images, else one; fp32 only
  std::vector<ValueRange> labels;    // per element; fp32 labels only
  // One class per sample: samples of each. Tokens: how often each occurs among the inputs.
  std::vector<int64_t> histogram;
  std::vector<std::string> class_names;
  std::vector<std::string> rows;  // the first samples in short
  CorruptSamples corrupt;
};

// Looks at the first `samples_max` samples (0: at all), as training would without augmentation.
absl::StatusOr<DataReport> MakeDataReport(const DataSet& data, int64_t samples_max, int64_t rows);

// The report as text, a line for each fact.
std::string ReportText(const DataReport& report);

}  // namespace starling

#endif  // STARLING_WORKER_DATA_DATA_REPORT_H_
