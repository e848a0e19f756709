// A readable summary of a data set.
#ifndef STARLING_WORKER_DATA_DATA_REPORT_H_
#define STARLING_WORKER_DATA_DATA_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/data_set.h"

namespace starling {

// For fp32 samples or labels. Population mean and standard deviation.
struct ValueRange {
  double least = 0;
  double greatest = 0;
  double mean = 0;
  double deviation = 0;
};

struct DataReport {
  int64_t samples = 0;
  int64_t looked_at = 0;  // the first this many
  SampleFormat format;
  std::vector<ValueRange> channels;  // fp32 only; per channel if samples are images, else one
  std::vector<ValueRange> labels;    // fp32 labels only; per element
  // With one class per sample: samples per class. Tokens: occurrences of each among the inputs.
  std::vector<int64_t> histogram;
  std::vector<std::string> class_names;
  std::vector<std::string> rows;  // the first samples, abbreviated
  CorruptSamples corrupt;
};

// Examines the first `samples_max` samples (0: all), as training sees them without augmentation.
absl::StatusOr<DataReport> MakeDataReport(const DataSet& data, int64_t samples_max, int64_t rows);

// The report as text, one fact per line.
std::string ReportText(const DataReport& report);

}  // namespace starling

#endif  // STARLING_WORKER_DATA_DATA_REPORT_H_
