// A data source, read whole, checked and kept as it was in the file (MNIST: 47 MB), from which
// batches are gathered and normalised.
#ifndef STARLING_WORKER_DATA_DATA_SET_H_
#define STARLING_WORKER_DATA_DATA_SET_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/coordinator.pb.h"
#include "proto/job.pb.h"
#include "worker/data/samples.h"

namespace starling {

struct DataSetOptions {
  std::vector<int64_t> sample_shape = {};  // JobSpec.sample_shape; empty: as read
  int64_t classes = 0;                     // labels must be below; 0: not checked
  DataLimits limits = {};
};

// Immutable; safe from any number of threads.
class DataSet {
 public:
  // Reads the files: blocks for as long as that takes. Errors name the file (and line) and say what
  // was expected: kNotFound, kInvalidArgument, kResourceExhausted, kUnavailable.
  static absl::StatusOr<std::shared_ptr<const DataSet>> Open(const DataSource& source,
                                                             const Normalize& normalize,
                                                             const DataSetOptions& options);

  int64_t samples() const { return samples_; }                         // at least 1
  const std::vector<int64_t>& sample_shape() const { return shape_; }  // without the batch
  int64_t sample_elements() const { return elements_; }
  int64_t classes() const {
    return classes_;
  }  // greatest label + 1; 0: a counter, whose labels are indices

  // Writes the samples `ids`, in that order, to `inputs` (ids.size() x sample_elements()) and
  // `labels` (ids.size()). Every id is in [0, samples()). A value x becomes (x - mean) / std of its
  // channel (the first dimension), bytes having been scaled to [0, 1]. The same bits on every
  // machine.
  void Gather(absl::Span<const int64_t> ids, float* inputs, int32_t* labels) const;

 private:
  DataSet() = default;
  absl::Status Take(Samples samples, const Normalize& normalize, const DataSetOptions& options);
  absl::Status Reshape(const std::vector<int64_t>& shape);
  absl::Status SetNormalize(const Normalize& normalize, double unit);
  absl::Status KeepPart(const DataSource::Csv& csv, Samples* samples) const;
  template <typename T>
  void GatherRows(const T* values, absl::Span<const int64_t> ids, float* inputs) const;

  int64_t samples_ = 0;
  int64_t elements_ = 0;
  int64_t classes_ = 0;
  std::vector<int64_t> shape_;
  std::vector<uint8_t> bytes_;  // one of the two, or none for a counter
  std::vector<float> floats_;
  std::vector<int32_t> labels_;
  std::vector<float> scale_;  // per channel; one: for all
  std::vector<float> shift_;
};

// What the coordinator asks a worker before it accepts a job: opens spec.train and spec.test as a
// worker of the job would, checks that they agree with each other and with spec.model where that is
// set. `request` is left to the caller. Blocks as DataSet::Open does.
Inspection InspectData(const JobSpec& spec, const DataLimits& limits = {});

}  // namespace starling

#endif  // STARLING_WORKER_DATA_DATA_SET_H_
