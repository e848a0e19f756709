// What the readers of data files make: samples as they lie in the file, and labels.
#ifndef STARLING_WORKER_DATA_SAMPLES_H_
#define STARLING_WORKER_DATA_SAMPLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"

namespace starling {

// Caps on what one data source may take, checked before memory is asked for.
struct DataLimits {
  uint64_t decoded_bytes_max = uint64_t{16} << 30;
  uint64_t csv_line_bytes_max = 1 << 20;
  // Of image files that stay in memory; others are read again and again.
  uint64_t kept_bytes_max = 512 << 20;
  uint64_t probe_bytes_max = 32 << 20;        // of images decoded when a job is submitted
  uint64_t token_scan_bytes_max = 256 << 20;  // looked through when a token file is opened
};

// Samples that could not be read and were left out or replaced.
struct CorruptSamples {
  uint64_t count = 0;
  std::vector<std::string> names;  // the first ones, with the reason of each
};

struct Samples {
  std::vector<int64_t> shape;  // of one sample
  std::vector<uint8_t> bytes;  // samples one after the other: either bytes or floats
  std::vector<float> floats;
  std::vector<int32_t> labels;  // one per sample, never negative; or
  std::vector<float> targets;   // label_shape of them per sample
  std::vector<int64_t> label_shape;
  std::vector<std::string> class_names;  // of labels, where the source has names
  std::vector<int64_t> rows;             // of the file, where not all of them were kept
  int64_t first_line = 0;                // of the file's rows, where they are lines

  int64_t count() const;  // of samples
};

// MNIST's format: big-endian magic 0x00000803 and three sizes, then bytes; labels 0x00000801 and
// one size. A sample's shape is [1, rows, columns]. Refuses another magic, truncation, trailing
// bytes, no images, and labels that are not as many as the images. Errors name the file; see
// ByteStream. kResourceExhausted: beyond `limits`.
absl::StatusOr<Samples> ReadIdx(const std::string& images, const std::string& labels,
                                const DataLimits& limits);

// CIFAR's binary edition, also .gz: records of a label (CIFAR-100: coarse, then fine) and 1,024
// bytes each of red, green, blue. A sample's shape is [3, 32, 32]. Errors name the file and record.
// Files whose size shows that they are no such files, or beyond `limits`, are not read.
absl::StatusOr<Samples> ReadCifar(const DataSource::Cifar& cifar, const DataLimits& limits);

// Rows of values between separators, all of one length, their columns as CsvColumns::Resolve says.
// A sample is its features [n], fp32; its label a class (an integer >= 0, or one of csv.classes),
// or with LABEL_NUMBER the label columns as fp32 [m]. Ignored columns may hold anything but the
// separator. Quotes are taken off names alone. Errors name the line and column.
absl::StatusOr<Samples> ReadCsv(const DataSource::Csv& csv, const DataLimits& limits);

// The rows that are held out, ascending: of each class with c rows, floor(fraction * c + 0.5) of
// them, those with the least h(seed, row) (ties to the lower row), where h is the first two words
// (low, then high) of Philox4x32-10 of counter (row low, row high, 0, 0x484F4C44) and key (seed
// low, seed high).
std::vector<int64_t> HeldOutRows(absl::Span<const int32_t> labels, double fraction, uint64_t seed);

}  // namespace starling

#endif  // STARLING_WORKER_DATA_SAMPLES_H_
