#include "worker/data/data_set.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/limits.h"
#include "worker/data/image_data_set.h"
#include "worker/data/memory_data_set.h"
#include "worker/data/token_data_set.h"

namespace starling {
namespace {

constexpr int64_t kCounterSamplesMax = int64_t{1} << 24;  // fp32 holds every index up to here

// Sample i is the number i, and so is its label.
class CounterDataSet : public DataSet {
 public:
  static absl::StatusOr<std::shared_ptr<const DataSet>> Make(int64_t samples,
                                                             const Normalize& normalize,
                                                             const DataSetOptions& options) {
    if (samples < 1 || samples > kCounterSamplesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("counter: expected 1 to ", kCounterSamplesMax, " samples, got ", samples));
    }
    if (normalize.mean_size() != 0 || normalize.std_size() != 0) {
      return absl::InvalidArgumentError(
          "counter: its samples are indices and cannot be normalised");
    }
    SampleFormat format;
    STARLING_ASSIGN_OR_RETURN(format.shape, Reshaped({1}, options.sample_shape));
    std::shared_ptr<CounterDataSet> out(new CounterDataSet());
    out->SetFormat(samples, std::move(format));
    return out;
  }

  uint64_t index_digest() const override { return static_cast<uint64_t>(samples()); }
  absl::Status Gather(absl::Span<const int64_t> ids, const AugmentDraw*, void* inputs,
                      void* labels) const override {
    for (size_t i = 0; i < ids.size(); ++i) {
      static_cast<float*>(inputs)[i] = static_cast<float>(ids[i]);
      static_cast<int32_t*>(labels)[i] = static_cast<int32_t>(ids[i]);
    }
    return absl::OkStatus();
  }
};

// The rows that `part` selects; empty: all.
absl::StatusOr<std::vector<int64_t>> RowsOfPart(const DataSource::Csv& csv,
                                                const Samples& samples) {
  const double fraction = csv.holdout_fraction();
  if (!(fraction >= 0 && fraction < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        csv.path(), ": holdout fraction: expected at least 0 and less than 1, got ", fraction));
  }
  if (csv.part() == DataSource::Csv::PART_ALL) return std::vector<int64_t>();
  // Rows without a class form one stratum.
  std::vector<int32_t> strata = samples.labels;
  strata.resize(samples.count());
  const std::vector<int64_t> held_out = HeldOutRows(strata, fraction, csv.holdout_seed());
  std::vector<int64_t> rows = held_out;
  if (csv.part() == DataSource::Csv::PART_TRAIN) {
    rows.clear();
    auto next = held_out.begin();
    for (int64_t row = 0; row < samples.count(); ++row) {
      if (next != held_out.end() && *next == row) {
        ++next;
      } else {
        rows.push_back(row);
      }
    }
  }
  if (!rows.empty()) return rows;
  return absl::InvalidArgumentError(absl::StrCat(csv.path(), ": a holdout fraction of ", fraction,
                                                 " of ", samples.count(),
                                                 " rows leaves this part empty"));
}

template <typename T>
void KeepRows(absl::Span<const int64_t> rows, int64_t count, std::vector<T>* values) {
  const int64_t width = static_cast<int64_t>(values->size()) / count;
  std::vector<T> kept;
  kept.reserve(rows.size() * width);
  for (int64_t row : rows) {
    const auto begin = values->begin() + row * width;
    kept.insert(kept.end(), begin, begin + width);
  }
  *values = std::move(kept);
}

absl::StatusOr<Samples> ReadCsvPart(const DataSource::Csv& csv, const DataLimits& limits) {
  STARLING_ASSIGN_OR_RETURN(Samples samples, ReadCsv(csv, limits));
  STARLING_ASSIGN_OR_RETURN(const std::vector<int64_t> rows, RowsOfPart(csv, samples));
  if (rows.empty()) return samples;
  const int64_t count = samples.count();
  KeepRows(rows, count, &samples.floats);
  KeepRows(rows, count, &samples.labels);
  KeepRows(rows, count, &samples.targets);
  samples.rows = rows;
  return samples;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> Reshaped(const std::vector<int64_t>& from,
                                              const std::vector<int64_t>& shape) {
  if (shape.empty()) return from;
  int64_t wanted = 1;
  for (int64_t dim : from) wanted *= dim;  // cannot overflow: the reader holds that many elements
  int64_t elements = 1;
  for (int64_t dim : shape) {
    if (dim < 1 || __builtin_mul_overflow(elements, dim, &elements)) elements = -1;
    if (elements < 0) break;
  }
  if (elements == wanted && shape.size() <= limits::kTensorDimsMax) return shape;
  return absl::InvalidArgumentError(absl::StrCat(
      "sample shape ", ShapeText(shape), ": expected ", wanted, " elements in at most ",
      limits::kTensorDimsMax, " dimensions, as a sample is ", ShapeText(from)));
}

std::string DataSet::PlaceOf(int64_t id) const { return absl::StrCat("sample ", id); }

void DataSet::SetFormat(int64_t samples, SampleFormat format) {
  samples_ = samples;
  format_ = std::move(format);
  elements_ = 1;
  for (int64_t dim : format_.shape) elements_ *= dim;
  label_elements_ = 1;
  for (int64_t dim : format_.label_shape) label_elements_ *= dim;
}

absl::StatusOr<std::shared_ptr<const DataSet>> DataSet::Open(const DataSource& source,
                                                             const Normalize& normalize,
                                                             const DataSetOptions& options) {
  const bool tokens = source.has_text() || source.has_tokens();
  if (tokens && (normalize.mean_size() != 0 || normalize.std_size() != 0)) {
    return absl::InvalidArgumentError("normalize: tokens cannot be normalised; remove it");
  }
  switch (source.source_case()) {
    case DataSource::kIdx: {
      STARLING_ASSIGN_OR_RETURN(
          Samples samples, ReadIdx(source.idx().images(), source.idx().labels(), options.limits));
      return MemoryDataSet::Make(std::move(samples), source.idx().labels(), normalize, options);
    }
    case DataSource::kCsv: {
      STARLING_ASSIGN_OR_RETURN(Samples samples, ReadCsvPart(source.csv(), options.limits));
      return MemoryDataSet::Make(std::move(samples), source.csv().path(), normalize, options);
    }
    case DataSource::kCounter:
      return CounterDataSet::Make(source.counter().samples(), normalize, options);
    case DataSource::kText: return TokenDataSet::OpenText(source.text(), options);
    case DataSource::kTokens: return TokenDataSet::OpenTokens(source.tokens(), options);
    case DataSource::kCifar: {
      STARLING_ASSIGN_OR_RETURN(Samples samples, ReadCifar(source.cifar(), options.limits));
      return MemoryDataSet::Make(std::move(samples), source.cifar().files(0), normalize, options);
    }
    case DataSource::kWebdataset:
      return ImageDataSet::Open(source.webdataset(), normalize, options);
    case DataSource::SOURCE_NOT_SET: break;
  }
  return absl::InvalidArgumentError(
      "no data source: expected idx, cifar, webdataset, csv, text, tokens or counter");
}

}  // namespace starling
