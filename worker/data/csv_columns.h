// The role of each column of a CSV file.
#ifndef STARLING_WORKER_DATA_CSV_COLUMNS_H_
#define STARLING_WORKER_DATA_CSV_COLUMNS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace starling {

struct CsvColumns {
  enum class Kind { kFeature, kLabel, kIgnored };
  struct Column {
    std::string name;  // from the header; without one, its number from 1
    Kind kind = Kind::kFeature;
    size_t place = 0;  // index among the sample's values, or among its labels
  };
  std::vector<Column> columns;  // in the file's order
  size_t features = 0;
  size_t labels = 0;

  // `names` are the file's columns. Without `label`, the last column is the label; without
  // `features`, all columns that are neither label nor ignored are, in the file's order.
  // kInvalidArgument: a column that does not exist or is named twice, no features left, more than
  // one class label.
  static absl::StatusOr<CsvColumns> Resolve(const DataSource::Csv& csv,
                                            const std::vector<std::string>& names);
};

}  // namespace starling

#endif  // STARLING_WORKER_DATA_CSV_COLUMNS_H_
