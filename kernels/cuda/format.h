// How values lie in GPU memory, and which formats each operator wants. Pure functions.
//
// A value's elements are float, bfloat16 or half. A four-dimensional value is [N, C, H, W] in that
// order, or channels last, [N, H, W, C], which tensor cores prefer. Others are row-major. The rows
// of logits may be padded with zeros to a multiple of 16 bytes, which matrix products need to be
// fast.
#ifndef STARLING_KERNELS_CUDA_FORMAT_H_
#define STARLING_KERNELS_CUDA_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/element.h"
#include "kernels/geometry.h"
#include "kernels/operator.h"

namespace starling::cuda {

struct Format {
  Element element = Element::kFloat;
  bool channels_last = false;  // four-dimensional values only
  bool padded = false;         // along the last axis, to kRowUnit elements of two bytes each

  bool plain() const { return *this == Format{}; }
  friend bool operator==(const Format&, const Format&) = default;
};

// Elements to a multiple of which the rows of a padded value are filled up.
inline constexpr int64_t kRowUnit = 8;

// Elements from one row of `columns` to the next.
inline int64_t RowStride(int64_t columns, const Format& format) {
  return format.padded ? (columns + kRowUnit - 1) / kRowUnit * kRowUnit : columns;
}

Element ElementOf(DataType type);
// `format` must be one of this device's.
Element ElementOf(ValueFormat format);

ValueFormat ToValueFormat(const Format& format);
// kInvalidArgument: not a format of this device, channels last without four dimensions, or padded
// without any.
absl::StatusOr<Format> FromValueFormat(const Shape& shape, ValueFormat format);

size_t ValueBytes(const Shape& shape, const Format& format);

// Sizes of the axes in memory order, slowest first; and the position of the shape's axis `axis`
// among them.
Shape MemoryShape(const Shape& shape, const Format& format);
int64_t MemoryAxis(int64_t axis, const Format& format);

// What an operator's kernel takes and returns. Labels and indices are plain.
struct FormatPlan {
  std::vector<Format> inputs;
  Format output;
};

// `given`: the inputs' formats as they come. Operators that work in any layout use the first
// input's.
FormatPlan PlanFormats(const OperatorSpec& spec, const OperatorGeometry& geometry,
                       const std::vector<Format>& given);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_FORMAT_H_
