#include "worker/data/pixels.h"

#include <Random123/philox.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace starling {
namespace {

constexpr uint32_t kPurpose = 0x4155474D;  // "AUGM": separates these draws from all others

}  // namespace

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<PixelScale> PixelScale::Make(const Normalize& normalize, double unit,
                                            const std::vector<int64_t>& shape) {
  PixelScale out;
  out.scale = {static_cast<float>(unit)};
  out.shift = {0};
  if (normalize.mean_size() == 0 && normalize.std_size() == 0) return out;
  const int64_t channels = shape[0];
  if (normalize.mean_size() != normalize.std_size() ||
      (normalize.mean_size() != 1 && normalize.mean_size() != channels)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "normalize: expected 1 or ", channels, " values of mean and as many of std (samples are ",
        ShapeText(shape), "), got ", normalize.mean_size(), " and ", normalize.std_size()));
  }
  out.scale.resize(normalize.mean_size());
  out.shift.resize(normalize.mean_size());
  for (int c = 0; c < normalize.mean_size(); ++c) {
    const double mean = normalize.mean(c);
    const double std = normalize.std(c);
    out.scale[c] = static_cast<float>(unit / std);
    out.shift[c] = static_cast<float>(-mean / std);
    if (!(std > 0) || !std::isfinite(out.scale[c]) || !std::isfinite(out.shift[c])) {
      return absl::InvalidArgumentError(
          absl::StrCat("normalize: expected a finite mean and a std above 0, got mean ", mean,
                       " and std ", std));
    }
  }
  return out;
}

absl::StatusOr<Augmenter> Augmenter::Make(const Augment& augment,
                                          const std::vector<int64_t>& shape) {
  Augmenter out;
  if (augment.crop_padding() == 0 && !augment.horizontal_flip()) return out;
  if (shape.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("augment: expected samples that are images, [channels, height, width], got ",
                     ShapeText(shape), "; remove augment or set data.shape"));
  }
  out.height_ = shape[1];
  out.width_ = shape[2];
  out.padding_ = augment.crop_padding();
  out.flip_ = augment.horizontal_flip();
  if (out.padding_ >= std::min(out.height_, out.width_)) {
    return absl::InvalidArgumentError(absl::StrCat("augment: expected a crop padding below ",
                                                   std::min(out.height_, out.width_),
                                                   ", the image's side, got ", out.padding_));
  }
  return out;
}

Placement Augmenter::Draw(const AugmentDraw& draw, int64_t sample) const {
  const r123::Philox4x32::key_type key = {
      {static_cast<uint32_t>(draw.seed), static_cast<uint32_t>(draw.seed >> 32)}};
  const r123::Philox4x32::ctr_type counter = {
      {static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32), draw.epoch, kPurpose}};
  const auto random = r123::Philox4x32()(counter, key);
  const uint64_t places = 2 * padding_ + 1;
  Placement out;
  out.down = static_cast<int64_t>(random[0] * places >> 32) - padding_;
  out.right = static_cast<int64_t>(random[1] * places >> 32) - padding_;
  out.mirrored = flip_ && (random[2] >> 31) != 0;
  return out;
}

template <typename T>
void PlacePlane(const T* plane, const PlaneLayout& layout, const Placement& placement, float scale,
                float shift, float* out) {
  const int64_t width = layout.width;
  // Columns [begin, end) of the output, before mirroring, lie in the image.
  const int64_t begin = std::clamp<int64_t>(-placement.right, 0, width);
  const int64_t end = std::clamp<int64_t>(width - placement.right, begin, width);
  for (int64_t y = 0; y < layout.height; ++y, out += width) {
    const int64_t row = y + placement.down;
    if (row < 0 || row >= layout.height) {
      std::fill(out, out + width, shift);
      continue;
    }
    const T* in = plane + row * layout.row_stride;
    std::fill(out, out + begin, shift);
    for (int64_t x = begin; x < end; ++x) {
      out[x] = static_cast<float>(in[(x + placement.right) * layout.pixel_stride]) * scale + shift;
    }
    std::fill(out + end, out + width, shift);
    if (placement.mirrored) std::reverse(out, out + width);
  }
}

template void PlacePlane<uint8_t>(const uint8_t*, const PlaneLayout&, const Placement&, float,
                                  float, float*);
template void PlacePlane<float>(const float*, const PlaneLayout&, const Placement&, float, float,
                                float*);

}  // namespace starling
