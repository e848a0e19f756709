#include "worker/inference/preprocess.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

SampleKind KindOf(const SavedModel& model) {
  if (model.graph.input().type() == INT32) return SampleKind::kTokens;
  switch (model.preprocessing.train().source_case()) {
    case DataSource::kIdx:
    case DataSource::kCifar:
    case DataSource::kWebdataset: return SampleKind::kPixels;
    default: return SampleKind::kNumbers;
  }
}

Dims WithoutOnes(Dims dims) {
  dims.erase(std::remove(dims.begin(), dims.end(), 1), dims.end());
  return dims;
}

// "[n, 1, 28, 28]"
std::string BatchText(const Dims& sample) {
  std::string text = DimsToString(sample);
  return absl::StrCat("[n", sample.empty() ? "" : ", ", text.substr(1));
}

int64_t Integer(const npy::Array& array, int64_t index) {
  switch (array.dtype) {
    case npy::DType::kU8: return array.as<uint8_t>()[index];
    case npy::DType::kI32: return array.as<int32_t>()[index];
    default: return array.as<int64_t>()[index];
  }
}

bool IsFloat(npy::DType dtype) { return dtype == npy::DType::kF32 || dtype == npy::DType::kF64; }

// The least number of rows of a table that the input's tokens index.
int64_t Vocabulary(const SavedModel& model) {
  int64_t rows = 0;
  for (const ResolvedNode& node : model.resolved.nodes) {
    const bool reads =
        std::find(node.inputs.begin(), node.inputs.end(), kInputValue) != node.inputs.end();
    if (!reads || node.parameters.empty()) continue;
    const int64_t table = model.resolved.parameters[node.parameters[0]].shape[0];
    rows = rows == 0 ? table : std::min(rows, table);
  }
  return rows;
}

absl::Status ReadsNoLabels(const ResolvedGraph& graph) {
  for (size_t i = 0; i + 1 < graph.nodes.size(); ++i) {
    for (int input : graph.nodes[i].inputs) {
      if (input != kLabelValue) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", graph.nodes[i].name,
                       " reads labels: there is nothing to predict from inputs alone"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Preprocessor> Preprocessor::Create(const SavedModel& model) {
  STARLING_RETURN_IF_ERROR(ReadsNoLabels(model.resolved));
  Preprocessor out;
  out.kind_ = KindOf(model);
  out.shape_ = model.resolved.values[kInputValue].shape;
  out.elements_ = model.resolved.values[kInputValue].elements;
  out.reshaped_ = model.preprocessing.sample_shape_size() > 0;
  if (out.kind_ == SampleKind::kTokens) {
    out.vocabulary_ = Vocabulary(model);
  } else {
    STARLING_RETURN_IF_ERROR(out.SetNormalize(model.preprocessing.normalize()));
  }
  return out;
}

absl::Status Preprocessor::SetNormalize(const Normalize& normalize) {
  mean_.assign(normalize.mean().begin(), normalize.mean().end());
  std_.assign(normalize.std().begin(), normalize.std().end());
  const size_t channels = shape_.empty() ? 1 : static_cast<size_t>(shape_[0]);
  const bool sizes = mean_.size() == std_.size() && (mean_.size() <= 1 || mean_.size() == channels);
  const bool good = sizes && std::all_of(std_.begin(), std_.end(),
                                         [](double std) { return std > 0 && std::isfinite(std); });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("normalize: expected 1 or ", channels,
                                                 " values of mean and as many of std above 0, got ",
                                                 mean_.size(), " and ", std_.size()));
}

absl::Status Preprocessor::Check(const npy::Array& array) const {
  const Dims sample(array.shape.begin() + (array.shape.empty() ? 0 : 1), array.shape.end());
  const bool flat = reshaped_ && sample == Dims{elements_};
  if (array.shape.empty() || (!flat && WithoutOnes(sample) != WithoutOnes(shape_))) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected an array of shape ", BatchText(shape_), " for n samples",
                     reshaped_ ? absl::StrCat(", or ", BatchText({elements_})) : "", ", got ",
                     DimsToString(array.shape)));
  }
  const bool is_float = IsFloat(array.dtype);
  if (kind_ == SampleKind::kPixels && !is_float && array.dtype != npy::DType::kU8) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected uint8 pixels in 0..255, or floats in 0..1, as the model was trained "
                     "on images, got ",
                     npy::DTypeWords(array.dtype)));
  }
  if (kind_ == SampleKind::kTokens && is_float) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected integers, as the model reads tokens, got ", npy::DTypeWords(array.dtype)));
  }
  return absl::OkStatus();
}

absl::Status Preprocessor::TakeTokens(const npy::Array& array, int64_t first, int64_t count,
                                      int32_t* out) const {
  const int64_t end = vocabulary_ > 0 ? vocabulary_ : int64_t{1} << 31;
  for (int64_t i = first * elements_; i < (first + count) * elements_; ++i) {
    const int64_t token = Integer(array, i);
    if (token < 0 || token >= end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "sample ", i / elements_, ": expected tokens in [0, ", end, "), got ", token));
    }
    *out++ = static_cast<int32_t>(token);
  }
  return absl::OkStatus();
}

float Preprocessor::Number(const npy::Array& array, int64_t index) const {
  switch (array.dtype) {
    case npy::DType::kF32: return array.as<float>()[index];
    case npy::DType::kF64: return static_cast<float>(array.as<double>()[index]);
    default: return static_cast<float>(Integer(array, index));
  }
}

absl::Status Preprocessor::Apply(const npy::Array& array, int64_t first, int64_t count,
                                 void* out) const {
  if (kind_ == SampleKind::kTokens) {
    return TakeTokens(array, first, count, static_cast<int32_t*>(out));
  }
  // As in DataSet::Gather: one multiplication, rounded, and one addition.
  const bool bytes = kind_ == SampleKind::kPixels && array.dtype == npy::DType::kU8;
  const double unit = bytes ? 1.0 / 255.0 : 1.0;
  const int64_t channels = std::max<int64_t>(1, static_cast<int64_t>(mean_.size()));
  const int64_t plane = elements_ / channels;
  float* to = static_cast<float*>(out);
  int64_t from = first * elements_;
  for (int64_t sample = 0; sample < count; ++sample) {
    for (int64_t c = 0; c < channels; ++c) {
      const float scale = static_cast<float>(mean_.empty() ? unit : unit / std_[c]);
      const float shift = static_cast<float>(mean_.empty() ? 0 : -mean_[c] / std_[c]);
      for (int64_t i = 0; i < plane; ++i) *to++ = Number(array, from++) * scale + shift;
    }
  }
  return absl::OkStatus();
}

}  // namespace starling
