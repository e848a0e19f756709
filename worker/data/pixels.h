// Converts values from their form in a file to the model's input: normalisation, augmentation.
#ifndef STARLING_WORKER_DATA_PIXELS_H_
#define STARLING_WORKER_DATA_PIXELS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"

namespace starling {

// Together with a sample's index, determines its augmentation.
struct AugmentDraw {
  uint64_t seed = 0;
  uint32_t epoch = 0;
};

// "[1, 28, 28]"
std::string ShapeText(absl::Span<const int64_t> shape);

// (x * unit - mean) / std as one multiplication and one addition per channel.
struct PixelScale {
  std::vector<float> scale;  // one per channel, or one for all
  std::vector<float> shift;

  // `unit` is the value of one raw step: 1/255 for bytes. kInvalidArgument: neither one value nor
  // one per channel of `shape` (its first dimension), or not finite.
  static absl::StatusOr<PixelScale> Make(const Normalize& normalize, double unit,
                                         const std::vector<int64_t>& shape);
};

// Where a sample's window lies in the padded image, and whether it is mirrored.
struct Placement {
  int64_t down = 0;   // in [-padding, padding]: row y of the sample is row y + down of the image
  int64_t right = 0;  // the same for columns, before mirroring
  bool mirrored = false;
};

// Draws placements. Immutable; safe from any thread.
class Augmenter {
 public:
  Augmenter() = default;  // no-op
  // kInvalidArgument: `augment` is not empty and `shape` is not an image [channels, height, width];
  // or the padding is not below both sides.
  static absl::StatusOr<Augmenter> Make(const Augment& augment, const std::vector<int64_t>& shape);

  bool active() const { return padding_ > 0 || flip_; }

  // Pure: Philox4x32-10 of counter (sample low, sample high, epoch, 0x4155474D) and key (seed low,
  // seed high). Its words determine, in order, down, right (each word * (2 * padding + 1) / 2^32)
  // and mirrored (the top bit).
  Placement Draw(const AugmentDraw& draw, int64_t sample) const;

  int64_t height() const { return height_; }
  int64_t width() const { return width_; }

 private:
  int64_t padding_ = 0;
  bool flip_ = false;
  int64_t height_ = 0;
  int64_t width_ = 0;
};

// The memory layout of an image's values.
struct PlaneLayout {
  int64_t height = 0;
  int64_t width = 0;
  int64_t pixel_stride = 1;  // from one value of a plane to the next
  int64_t row_stride = 0;    // from one row to the next
};

// Places, scales and writes one plane of an image densely. Outside of the image is a raw 0: black.
template <typename T>
void PlacePlane(const T* plane, const PlaneLayout& layout, const Placement& placement, float scale,
                float shift, float* out);

}  // namespace starling

#endif  // STARLING_WORKER_DATA_PIXELS_H_
