// How values lie in the GPU's memory, and which operator wants them how. Pure functions.
//
// A value's elements are float, bfloat16 or half. One of four dimensions is [N, C, H, W] in that
// order, or with channels last, [N, H, W, C]: what tensor cores like best. Others are row-major.
// Nothing is padded.
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
  bool channels_last = false;  // of four dimensions only

  bool plain() const { return element == Element::kFloat && !channels_last; }
  friend bool operator==(const Format&, const Format&) = default;
};

Element ElementOf(DataType type);
// `format` is one of this device's.
Element ElementOf(ValueFormat format);

ValueFormat ToValueFormat(const Format& format);
// kInvalidArgument: no format of this device, or channels last of a value without four dimensions.
absl::StatusOr<Format> FromValueFormat(const Shape& shape, ValueFormat format);

size_t ValueBytes(const Shape& shape, const Format& format);

// Sizes of the axes as they lie in memory, slowest first, and where axis `axis` of the shape is
// there.
Shape MemoryShape(const Shape& shape, const Format& format);
int64_t MemoryAxis(int64_t axis, const Format& format);

// What an operator's kernel takes and gives. Labels and indices are plain.
struct FormatPlan {
  std::vector<Format> inputs;
  Format output;
};

// `given`: of the inputs as they come. Operators that work in any layout take that of the first.
FormatPlan PlanFormats(const OperatorSpec& spec, const OperatorGeometry& geometry,
                       const std::vector<Format>& given);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_FORMAT_H_
