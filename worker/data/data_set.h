// A data source: samples by index, prepared for the model.
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

// Called once for each sample that is found corrupt when it is needed. On any thread; must be
// quick.
using DataWarning = std::function<void(const std::string& text)>;

struct DataSetOptions {
  std::vector<int64_t> sample_shape = {};  // JobSpec.sample_shape; empty: as read
  int64_t classes = 0;                     // labels must be below this; 0: not checked
  bool probabilities = false;              // FLOAT32 labels must be from 0 to 1
  Augment augment = {};                    // what Gather applies if given a draw
  DataLimits limits = {};
  DataWarning warn = nullptr;
};

// The format of a data set's samples. Elements of samples and of labels have 4 bytes each.
struct SampleFormat {
  std::vector<int64_t> shape;        // one sample's, without the batch
  ElementType type = FLOAT32;        // INT32: tokens
  std::vector<int64_t> label_shape;  // one sample's labels'; empty: a scalar
  ElementType label_type = INT32;    // INT32: classes, or the tokens to predict
  // Exclusive upper bound of INT32 labels: the greatest label + 1, or the vocabulary; 0 for a
  // counter.
  int64_t classes = 0;
  int64_t vocabulary = 0;  // exclusive upper bound of tokens in INT32 samples
};

// Safe from any number of threads. Samples never change, unless a file does.
class DataSet {
 public:
  // Opens the files; blocks meanwhile. Errors name the file (and line or member) and what was
  // expected: kNotFound, kInvalidArgument, kResourceExhausted, kUnavailable.
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
  // XXH3-64 of what is known about all samples since opening: labels, offsets and lengths in files,
  // and for samples in memory their bytes. Does not include where the files lie.
  virtual uint64_t index_digest() const = 0;
  // Names of the classes, if the source has them.
  virtual absl::Span<const std::string> class_names() const { return {}; }

  // The class labels that occur, each with its first sample. Empty if labels are numbers or tokens.
  virtual std::map<int32_t, int64_t> FirstOfLabels() const { return {}; }
  // Where a sample lies, in readable form: "t10k-labels: sample 17".
  virtual std::string PlaceOf(int64_t id) const;

  // Writes the samples `ids`, in that order, to `inputs` (ids.size() x sample_elements()) and
  // `labels` (ids.size() x label_elements()), in the types of format(). Every id is in [0,
  // samples()). Bytes are scaled to [0, 1]; then a value x becomes (x - mean) / std of its channel
  // (the first dimension). With a `draw`, images are augmented. The same bits on every machine.
  // Blocks on the disk if samples are read on demand; an error (the file is missing, has changed,
  // or is too corrupt) names the file.
  virtual absl::Status Gather(absl::Span<const int64_t> ids, const AugmentDraw* draw, void* inputs,
                              void* labels) const = 0;

  // For samples that are read on demand: reads them from the first on until `bytes_max` of the
  // files were read, so that corrupt() includes them. Errors as Gather.
  virtual absl::Status Probe(uint64_t bytes_max) const {
    (void)bytes_max;
    return absl::OkStatus();
  }

  // The corruption found so far, for display; grows as samples are read.
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

// `shape` if it has as many elements as `from`; if empty, `from`. kInvalidArgument otherwise.
absl::StatusOr<std::vector<int64_t>> Reshaped(const std::vector<int64_t>& from,
                                              const std::vector<int64_t>& shape);

// What the coordinator asks a worker to check before it accepts a job: opens spec.train and
// spec.test as the job's workers would, and checks that they agree with each other and with
// spec.model if that is set. The caller fills in `request`. Blocks as DataSet::Open does.
Inspection InspectData(const JobSpec& spec, const DataLimits& limits = {});

}  // namespace starling

#endif  // STARLING_WORKER_DATA_DATA_SET_H_
