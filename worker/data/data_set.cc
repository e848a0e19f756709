#include "worker/data/data_set.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/protocol/limits.h"
#include "worker/data/gather.h"

namespace starling {
namespace {

constexpr int64_t kCounterSamplesMax = int64_t{1} << 24;  // fp32 holds every index up to here

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Keeps the given rows, in that order.
void KeepRows(absl::Span<const int64_t> rows, Samples* samples) {
  const size_t width = samples->floats.size() / samples->labels.size();
  Samples kept;
  kept.shape = samples->shape;
  kept.floats.reserve(rows.size() * width);
  for (int64_t row : rows) {
    const auto begin = samples->floats.begin() + row * static_cast<int64_t>(width);
    kept.floats.insert(kept.floats.end(), begin, begin + static_cast<int64_t>(width));
    kept.labels.push_back(samples->labels[row]);
  }
  *samples = std::move(kept);
}

}  // namespace

absl::Status DataSet::KeepPart(const DataSource::Csv& csv, Samples* samples) const {
  const double fraction = csv.holdout_fraction();
  if (!(fraction >= 0 && fraction < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        csv.path(), ": holdout fraction: expected at least 0 and less than 1, got ", fraction));
  }
  if (csv.part() == DataSource::Csv::PART_ALL) return absl::OkStatus();
  const std::vector<int64_t> held_out = HeldOutRows(samples->labels, fraction, csv.holdout_seed());
  std::vector<int64_t> rows = held_out;
  if (csv.part() == DataSource::Csv::PART_TRAIN) {
    rows.clear();
    auto next = held_out.begin();
    for (int64_t row = 0; row < static_cast<int64_t>(samples->labels.size()); ++row) {
      if (next != held_out.end() && *next == row) {
        ++next;
      } else {
        rows.push_back(row);
      }
    }
  }
  if (rows.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(csv.path(), ": a holdout fraction of ", fraction,
                                                   " of ", samples->labels.size(),
                                                   " rows leaves this part empty"));
  }
  KeepRows(rows, samples);
  return absl::OkStatus();
}

absl::Status DataSet::Reshape(const std::vector<int64_t>& shape) {
  if (shape.empty()) return absl::OkStatus();
  int64_t elements = 1;
  for (int64_t dim : shape) {
    if (dim < 1 || __builtin_mul_overflow(elements, dim, &elements)) elements = -1;
    if (elements < 0) break;
  }
  if (elements != elements_ || shape.size() > limits::kTensorDimsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sample shape ", ShapeText(shape), ": expected ", elements_, " elements in at most ",
        limits::kTensorDimsMax, " dimensions, as a sample is ", ShapeText(shape_)));
  }
  shape_ = shape;
  return absl::OkStatus();
}

// x -> (x * unit - mean) / std as one multiplication and one addition.
absl::Status DataSet::SetNormalize(const Normalize& normalize, double unit) {
  scale_ = {static_cast<float>(unit)};
  shift_ = {0};
  if (normalize.mean_size() == 0 && normalize.std_size() == 0) return absl::OkStatus();
  const int64_t channels = shape_[0];
  if (normalize.mean_size() != normalize.std_size() ||
      (normalize.mean_size() != 1 && normalize.mean_size() != channels)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "normalize: expected 1 or ", channels, " values of mean and as many of std (samples are ",
        ShapeText(shape_), "), got ", normalize.mean_size(), " and ", normalize.std_size()));
  }
  scale_.resize(normalize.mean_size());
  shift_.resize(normalize.mean_size());
  for (int c = 0; c < normalize.mean_size(); ++c) {
    const double mean = normalize.mean(c);
    const double std = normalize.std(c);
    scale_[c] = static_cast<float>(unit / std);
    shift_[c] = static_cast<float>(-mean / std);
    if (!(std > 0) || !std::isfinite(scale_[c]) || !std::isfinite(shift_[c])) {
      return absl::InvalidArgumentError(
          absl::StrCat("normalize: expected a finite mean and a std above 0, got mean ", mean,
                       " and std ", std));
    }
  }
  return absl::OkStatus();
}

absl::Status DataSet::Take(Samples samples, const Normalize& normalize,
                           const DataSetOptions& options) {
  samples_ = static_cast<int64_t>(samples.labels.size());
  shape_ = std::move(samples.shape);
  elements_ = 1;
  for (int64_t dim : shape_) elements_ *= dim;  // checked by the reader, which holds as many
  bytes_ = std::move(samples.bytes);
  floats_ = std::move(samples.floats);
  labels_ = std::move(samples.labels);
  const auto greatest = std::max_element(labels_.begin(), labels_.end());
  classes_ = int64_t{*greatest} + 1;
  if (options.classes > 0 && classes_ > options.classes) {
    return absl::InvalidArgumentError(
        absl::StrCat("sample ", greatest - labels_.begin(), " has label ", *greatest,
                     ", expected less than ", options.classes, ", the model's number of classes"));
  }
  STARLING_RETURN_IF_ERROR(Reshape(options.sample_shape));
  return SetNormalize(normalize, bytes_.empty() ? 1.0 : 1.0 / 255.0);
}

absl::StatusOr<std::shared_ptr<const DataSet>> DataSet::Open(const DataSource& source,
                                                             const Normalize& normalize,
                                                             const DataSetOptions& options) {
  std::shared_ptr<DataSet> out(new DataSet());
  const auto in_file = [](const std::string& file, const absl::Status& status) {
    return status.ok() ? status
                       : absl::Status(status.code(), absl::StrCat(file, ": ", status.message()));
  };
  switch (source.source_case()) {
    case DataSource::kIdx: {
      STARLING_ASSIGN_OR_RETURN(
          Samples samples, ReadIdx(source.idx().images(), source.idx().labels(), options.limits));
      STARLING_RETURN_IF_ERROR(
          in_file(source.idx().labels(), out->Take(std::move(samples), normalize, options)));
      return out;
    }
    case DataSource::kCsv: {
      STARLING_ASSIGN_OR_RETURN(Samples samples, ReadCsv(source.csv().path(), options.limits));
      STARLING_RETURN_IF_ERROR(out->KeepPart(source.csv(), &samples));
      STARLING_RETURN_IF_ERROR(
          in_file(source.csv().path(), out->Take(std::move(samples), normalize, options)));
      return out;
    }
    case DataSource::kCounter: {
      const int64_t samples = source.counter().samples();
      if (samples < 1 || samples > kCounterSamplesMax) {
        return absl::InvalidArgumentError(
            absl::StrCat("counter: expected 1 to ", kCounterSamplesMax, " samples, got ", samples));
      }
      if (normalize.mean_size() != 0 || normalize.std_size() != 0) {
        return absl::InvalidArgumentError(
            "counter: its samples are indices and cannot be normalised");
      }
      out->samples_ = samples;
      out->shape_ = {1};
      out->elements_ = 1;
      STARLING_RETURN_IF_ERROR(out->Reshape(options.sample_shape));
      return out;
    }
    case DataSource::SOURCE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("no data source: expected idx, csv or counter");
}

template <typename T>
void DataSet::GatherRows(const T* values, absl::Span<const int64_t> ids, float* inputs) const {
  const int64_t channels = static_cast<int64_t>(scale_.size());
  const int64_t plane = elements_ / channels;
  for (size_t i = 0; i < ids.size(); ++i) {
    const T* row = values + ids[i] * elements_;
    if (i + 1 < ids.size()) PrefetchRow(values + ids[i + 1] * elements_, elements_);
    for (int64_t c = 0; c < channels; ++c) {
      ScaleShift(row + c * plane, plane, scale_[c], shift_[c], inputs);
      inputs += plane;
    }
  }
}

void DataSet::Gather(absl::Span<const int64_t> ids, float* inputs, int32_t* labels) const {
  if (labels_.empty()) {  // a counter
    for (size_t i = 0; i < ids.size(); ++i) {
      inputs[i] = static_cast<float>(ids[i]);
      labels[i] = static_cast<int32_t>(ids[i]);
    }
    return;
  }
  if (bytes_.empty()) {
    GatherRows(floats_.data(), ids, inputs);
  } else {
    GatherRows(bytes_.data(), ids, inputs);
  }
  for (size_t i = 0; i < ids.size(); ++i) labels[i] = labels_[ids[i]];
}

}  // namespace starling
