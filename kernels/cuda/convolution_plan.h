// What is requested from cuDNN for a convolution, and the keys under which plans are cached. Pure
// functions.
#ifndef STARLING_KERNELS_CUDA_CONVOLUTION_PLAN_H_
#define STARLING_KERNELS_CUDA_CONVOLUTION_PLAN_H_

#include <array>
#include <compare>
#include <cstdint>

#include "kernels/cuda/element.h"
#include "kernels/geometry.h"

namespace starling::cuda {

enum class Pass : int { kForward, kInputGradient, kWeightGradient };

// Convolutions with equal keys share a plan.
struct ConvolutionKey {
  Pass pass = Pass::kForward;
  Element element = Element::kFloat;
  bool channels_last = false;  // values and the weight
  bool tf32 = false;           // floats may be rounded to tf32 before multiplication
  // [N, C, H, W], [O, C / groups, kh, kw], [N, O, oh, ow]
  std::array<int64_t, 4> input = {}, weight = {}, output = {};
  std::array<int64_t, 2> stride = {}, padding = {}, dilation = {};
  bool tune = false;  // the plan may be chosen by timing several
  friend auto operator<=>(const ConvolutionKey&, const ConvolutionKey&) = default;
};

// As ConvolutionKey's fields of the same names.
struct PlanFreedom {
  bool tf32 = false, tune = false;
};

inline ConvolutionKey KeyOf(const Geometry2d& p, Pass pass, Element element, bool channels_last,
                            const PlanFreedom& freedom = {}) {
  return {.pass = pass,
          .element = element,
          .channels_last = channels_last,
          .tf32 = freedom.tf32 && element == Element::kFloat,
          .input = {p.batch, p.in_channels, p.in_height, p.in_width},
          .weight = {p.out_channels, p.in_channels / p.groups, p.kernel_height, p.kernel_width},
          .output = {p.batch, p.out_channels, p.out_height, p.out_width},
          .stride = {p.stride_height, p.stride_width},
          .padding = {p.padding_height, p.padding_width},
          .dilation = {p.dilation_height, p.dilation_width},
          .tune = freedom.tune};
}

// Strides along the axes [a, b, c, d]: row-major, or as [a, c, d, b].
inline std::array<int64_t, 4> StridesOf(const std::array<int64_t, 4>& size, bool channels_last) {
  const int64_t sample = size[1] * size[2] * size[3];
  if (channels_last) return {sample, 1, size[3] * size[1], size[1]};
  return {sample, size[2] * size[3], size[3], 1};
}

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_CONVOLUTION_PLAN_H_
