// What readers of data files return: samples in the file's form, and labels.
#ifndef STARLING_WORKER_DATA_SAMPLES_H_
#define STARLING_WORKER_DATA_SAMPLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"

namespace starling {

// Limits on what one data source may use, checked before memory is allocated.
struct DataLimits {
  uint64_t decoded_bytes_max = uint64_t{16} << 30;
  uint64_t csv_line_bytes_max = 1 << 20;
  // Image files kept in memory; others are read each time.
  uint64_t kept_bytes_max = 512 << 20;
  uint64_t probe_bytes_max = 32 << 20;        // images decoded when a job is submitted
  uint64_t token_scan_bytes_max = 256 << 20;  // scanned when a token file is opened
};

// Samples that could not be read and were left out or replaced.
struct CorruptSamples {
  uint64_t count = 0;
  std::vector<std::string> names;  // the first ones, each with its reason
};

struct Samples {
  std::vector<int64_t> shape;  // one sample's
  std::vector<uint8_t> bytes;  // contiguous samples: either bytes or floats
  std::vector<float> floats;
  std::vector<int32_t> labels;  // one per sample, never negative; or
  std::vector<float> targets;   // label_shape of them per sample
  std::vector<int64_t> label_shape;
  std::vector<std::string> class_names;  // of labels, if the source has names
  std::vector<int64_t> rows;             // the file's row numbers, if some rows were left out
  int64_t first_line = 0;                // the line of the first row, if the file's rows are lines

  int64_t count() const;  // number of samples
};

// MNIST's format: big-endian magic 0x00000803 and three sizes, then bytes; labels 0x00000801 and
// one size. A sample's shape is [1, rows, columns]. Refuses another magic, truncation, trailing
// bytes, no images, and a number of labels other than that of images. Errors name the file; see
// ByteStream. kResourceExhausted: beyond `limits`.
absl::StatusOr<Samples> ReadIdx(const std::string& images, const std::string& labels,
                                const DataLimits& limits);

// CIFAR's binary edition, optionally .gz: records of a label (CIFAR-100: coarse, then fine) and
// 1,024 bytes each of red, green, blue. A sample's shape is [3, 32, 32]. Errors name the file and
// record. Files whose size rules out this format or exceeds `limits` are not read.
absl::StatusOr<Samples> ReadCifar(const DataSource::Cifar& cifar, const DataLimits& limits);

// Rows of separated values, all of one length, with columns as in CsvColumns::Resolve. A sample is
// its features [n], fp32; its label is a class (an integer >= 0, or one of csv.classes) or, with
// LABEL_NUMBER, the label columns as fp32 [m]. Ignored columns may hold anything but the separator.
// Quotes are stripped from names only. Errors name the line and column.
absl::StatusOr<Samples> ReadCsv(const DataSource::Csv& csv, const DataLimits& limits);

// The rows that are held out, ascending. Of each class with c rows these are
// floor(fraction * c + 0.5) rows, those with the smallest h(seed, row) (ties to the lower row),
// where h is the first two words (low, then high) of Philox4x32-10 of counter (row low, row high,
// 0, 0x484F4C44) and key (seed low, seed high).
std::vector<int64_t> HeldOutRows(absl::Span<const int32_t> labels, double fraction, uint64_t seed);

}  // namespace starling

#endif  // STARLING_WORKER_DATA_SAMPLES_H_
