#include "worker/data/memory_data_set.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/data/gather.h"
#include "xxhash.h"

namespace starling {
namespace {

// For integer labels: the greatest + 1.
absl::StatusOr<int64_t> Classes(const Samples& samples, const std::string& file, int64_t most) {
  const auto greatest = std::max_element(samples.labels.begin(), samples.labels.end());
  const int64_t classes = std::max<int64_t>(*greatest + int64_t{1}, samples.class_names.size());
  if (most == 0 || *greatest < most) return classes;
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": sample ", greatest - samples.labels.begin(), " has label ", *greatest,
                   ", expected less than ", most, ", the model's number of classes"));
}

}  // namespace

int64_t Samples::count() const {
  if (!labels.empty()) return static_cast<int64_t>(labels.size());
  int64_t width = 1;
  for (int64_t dim : label_shape) width *= dim;
  return static_cast<int64_t>(targets.size()) / width;
}

absl::StatusOr<std::shared_ptr<const DataSet>> MemoryDataSet::Make(Samples samples,
                                                                   const std::string& file,
                                                                   const Normalize& normalize,
                                                                   const DataSetOptions& options) {
  SampleFormat format;
  auto shape = Reshaped(samples.shape, options.sample_shape);
  if (!shape.ok()) return Prefixed(file, shape.status());
  format.shape = *std::move(shape);
  format.label_shape = samples.label_shape;
  if (samples.labels.empty()) {
    format.label_type = FLOAT32;
  } else {
    STARLING_ASSIGN_OR_RETURN(format.classes, Classes(samples, file, options.classes));
  }
  auto scale = PixelScale::Make(normalize, samples.bytes.empty() ? 1.0 : 1.0 / 255.0, format.shape);
  if (!scale.ok()) return Prefixed(file, scale.status());
  STARLING_ASSIGN_OR_RETURN(Augmenter augmenter, Augmenter::Make(options.augment, format.shape));
  std::shared_ptr<MemoryDataSet> out(new MemoryDataSet(std::move(samples), file));
  out->scale_ = *std::move(scale);
  out->augmenter_ = augmenter;
  out->SetFormat(out->samples_.count(), std::move(format));
  if (options.probabilities) STARLING_RETURN_IF_ERROR(out->CheckProbabilities());
  return out;
}

absl::Status MemoryDataSet::CheckProbabilities() const {
  const auto bad = std::find_if(samples_.targets.begin(), samples_.targets.end(),
                                [](float label) { return !(label >= 0 && label <= 1); });
  if (bad == samples_.targets.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(PlaceOf((bad - samples_.targets.begin()) / label_elements()), " has label ",
                   *bad, ", expected a number from 0 to 1, as loss: binaryCrossEntropy wants it"));
}

std::map<int32_t, int64_t> MemoryDataSet::FirstOfLabels() const {
  std::map<int32_t, int64_t> first;
  for (int64_t id = 0; id < static_cast<int64_t>(samples_.labels.size()); ++id)
    first.try_emplace(samples_.labels[id], id);
  return first;
}

std::string MemoryDataSet::PlaceOf(int64_t id) const {
  const int64_t row = samples_.rows.empty() ? id : samples_.rows[id];
  const bool lines = samples_.first_line > 0;
  return absl::StrCat(file_, ": ", lines ? "line " : "sample ", row + samples_.first_line);
}

template <typename T>
void MemoryDataSet::GatherRows(const T* values, absl::Span<const int64_t> ids,
                               const AugmentDraw* draw, float* inputs) const {
  const int64_t elements = sample_elements();
  const bool placed = draw != nullptr && augmenter_.active();
  const int64_t planes = placed ? sample_shape()[0] : static_cast<int64_t>(scale_.scale.size());
  const int64_t plane = elements / planes;
  const PlaneLayout layout{augmenter_.height(), augmenter_.width(), 1, augmenter_.width()};
  const bool one_scale = scale_.scale.size() == 1;
  for (size_t i = 0; i < ids.size(); ++i) {
    const T* row = values + ids[i] * elements;
    if (i + 1 < ids.size()) PrefetchRow(values + ids[i + 1] * elements, elements);
    const Placement placement = placed ? augmenter_.Draw(*draw, ids[i]) : Placement();
    for (int64_t c = 0; c < planes; ++c, row += plane, inputs += plane) {
      const float scale = scale_.scale[one_scale ? 0 : c];
      const float shift = scale_.shift[one_scale ? 0 : c];
      if (placed) {
        PlacePlane(row, layout, placement, scale, shift, inputs);
      } else {
        ScaleShift(row, plane, scale, shift, inputs);
      }
    }
  }
}

uint64_t MemoryDataSet::index_digest() const {
  const auto digest = [](const auto& values) {
    return XXH3_64bits(values.data(), values.size() * sizeof(values[0]));
  };
  const uint64_t digests[] = {digest(samples_.bytes), digest(samples_.floats),
                              digest(samples_.labels), digest(samples_.targets)};
  return XXH3_64bits(digests, sizeof(digests));
}

absl::Status MemoryDataSet::Gather(absl::Span<const int64_t> ids, const AugmentDraw* draw,
                                   void* inputs, void* labels) const {
  if (samples_.bytes.empty()) {
    GatherRows(samples_.floats.data(), ids, draw, static_cast<float*>(inputs));
  } else {
    GatherRows(samples_.bytes.data(), ids, draw, static_cast<float*>(inputs));
  }
  if (format().label_type == INT32) {
    auto* out = static_cast<int32_t*>(labels);
    for (size_t i = 0; i < ids.size(); ++i) out[i] = samples_.labels[ids[i]];
    return absl::OkStatus();
  }
  auto* out = static_cast<float*>(labels);
  for (int64_t id : ids) {
    out = std::copy_n(samples_.targets.data() + id * label_elements(), label_elements(), out);
  }
  return absl::OkStatus();
}

}  // namespace starling
