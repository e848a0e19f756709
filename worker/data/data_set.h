// A data source: samples by their index, made ready for the model.
#ifndef STARLING_WORKER_DATA_DATA_SET_H_
#define STARLING_WORKER_DATA_DATA_SET_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/coordinator.pb.h"
#include "proto/job.pb.h"
#include "worker/data/pixels.h"
#include "worker/data/samples.h"

namespace starling {

// Told once of each sample that was found corrupt where it was needed. On any thread; quick.
using DataWarning = std::function<void(const std::string& text)>;

struct DataSetOptions {
  std::vector<int64_t> sample_shape = {};  // JobSpec.sample_shape; empty: as read
  int64_t classes = 0;                     // labels must be below; 0: not checked
  Augment augment = {};                    // what Gather does where it is given a draw
  DataLimits limits = {};
  DataWarning warn = nullptr;
};

// What a data set's samples are. Elements of samples and of labels have 4 bytes each.
struct SampleFormat {
  std::vector<int64_t> shape;        // of one sample, without the batch
  ElementType type = FLOAT32;        // INT32: tokens
  std::vector<int64_t> label_shape;  // of one sample's labels; empty: a scalar
  ElementType label_type = INT32;    // INT32: classes, or the tokens to be predicted
  // INT32 labels are below: greatest + 1, or the vocabulary; 0: a counter's.
  int64_t classes = 0;
  int64_t vocabulary = 0;  // INT32 samples: tokens are below
};

// Safe from any number of threads. The samples never change, except that a file may.
class DataSet {
 public:
  // Opens the files: blocks for as long as that takes. Errors name the file (and line or member)
  // and say what was expected: kNotFound, kInvalidArgument, kResourceExhausted, kUnavailable.
  static absl::StatusOr<std::shared_ptr<const DataSet>> Open(const DataSource& source,
                                                             const Normalize& normalize,
                                                             const DataSetOptions& options);
  virtual ~DataSet() = default;
  DataSet(const DataSet&) = delete;
  DataSet& operator=(const DataSet&) = delete;

  int64_t samples() const { return samples_; }  // at least 1
  const SampleFormat& format() const { return format_; }
  const std::vector<int64_t>& sample_shape() const { return format_.shape; }
  int64_t sample_elements() const { return elements_; }
  int64_t label_elements() const { return label_elements_; }
  int64_t classes() const { return format_.classes; }
  // XXH3-64 of what is known of all samples since the source was opened: labels, places and lengths
  // in files; of samples in memory also the bytes. Not of where the files lie.
  virtual uint64_t index_digest() const = 0;
  // Names of the classes, where the source has them.
  virtual absl::Span<const std::string> class_names() const { return {}; }

  // The class labels that occur, each with the first sample that has it. Empty: labels are numbers,
  // or tokens.
  virtual std::map<int32_t, int64_t> FirstOfLabels() const { return {}; }
  // Where a sample lies, for people: "t10k-labels: sample 17".
  virtual std::string PlaceOf(int64_t id) const;

  // Writes the samples `ids`, in that order, to `inputs` (ids.size() x sample_elements()) and
  // `labels` (ids.size() x label_elements()), of the types that format() says. Every id is in
  // [0, samples()). A value x becomes (x - mean) / std of its channel (the first dimension), bytes
  // having been scaled to [0, 1]. With a `draw`, images are augmented. The same bits on every
  // machine. Blocks on the disk where samples are read as they are needed; an error (the file is
  // gone, changed, or too much of it is corrupt) names the file.
  virtual absl::Status Gather(absl::Span<const int64_t> ids, const AugmentDraw* draw, void* inputs,
                              void* labels) const = 0;

  // Looks at samples that are read as they are needed, from the first on until `bytes_max` of the
  // files were read, so that corrupt() knows of them. Errors as Gather.
  virtual absl::Status Probe(uint64_t bytes_max) const {
    (void)bytes_max;
    return absl::OkStatus();
  }

  // What was found corrupt so far, for people; grows as samples are read.
  virtual CorruptSamples corrupt() const { return {}; }

 protected:
  DataSet() = default;
  void SetFormat(int64_t samples, SampleFormat format);

 private:
  int64_t samples_ = 0;
  int64_t elements_ = 0;
  int64_t label_elements_ = 0;
  SampleFormat format_;
};

// `shape` where it has as many elements as `from`; empty: `from`. kInvalidArgument otherwise.
absl::StatusOr<std::vector<int64_t>> Reshaped(const std::vector<int64_t>& from,
                                              const std::vector<int64_t>& shape);

// What the coordinator asks a worker before it accepts a job: opens spec.train and spec.test as a
// worker of the job would, checks that they agree with each other and with spec.model where that is
// set. `request` is left to the caller. Blocks as DataSet::Open does.
Inspection InspectData(const JobSpec& spec, const DataLimits& limits = {});

}  // namespace starling

#endif  // STARLING_WORKER_DATA_DATA_SET_H_
