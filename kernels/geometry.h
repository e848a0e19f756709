// The operators: inputs, parameters, attributes, shapes, formulas. N is the micro-batch.
//
// conv2d           [N,C,H,W]; weight [O, C/groups, kh, kw], bias [O] (optional) -> [N,O,oh,ow]
//                  stride=1, padding=0, dilation=1 (int or pair), groups=1 (int)
//                  oh = (H + 2*padding - dilation*(kh-1) - 1) / stride + 1, rounded down
// maxpool2d        [N,C,H,W] -> [N,C,oh,ow]; kernel, stride=kernel, padding=0 (int or pair; padding
//                  at most kernel/2). The first maximum of a window, row by row, gets its gradient.
// avgpool2d        as maxpool2d; padding counts as zeros in the mean
// linear           [N,I]; weight [O,I], bias [O] (optional) -> [N,O]
// batchnorm        [N,C] or [N,C,H,W]; weight, bias, mean, variance, each [C] -> the same;
//                  epsilon=1e-5 (double). Training normalises with the micro-batch's mean and
//                  biased variance (Ioffe and Szegedy 2015); the gradients of `mean` and `variance`
//                  are these two times n/global_batch: contributions to a moving average, no
//                  gradients. Inference normalises with the parameters `mean` and `variance`.
// relu             any -> the same
// dropout          any -> the same; rate (double, in [0,1)). Training: an element is 0 where its
//                  random number says so (kernels/random.h), else times 1/(1-rate).
// flatten          [N,...] -> [N, product]
// softmax_cross_entropy  logits [N,K], labels int32 [N] in [0,K) -> losses [N];
//                  reduction="mean" (1/global_batch) or "sum" (1): the scale of the gradient, never
//                  of the losses. A label out of range: loss NaN, gradient NaN, no crash.
// gather_rows      indices int32 [N]; weight [R,D] -> [N,D]; the gradient is dense, [R,D]. An index
//                  out of range: a row of NaN, no gradient.
// negative_sum     [N,...] -> losses [N]: minus the sum of a sample's elements; reduction="sum" or
//                  "mean", as above
#ifndef STARLING_KERNELS_GEOMETRY_H_
#define STARLING_KERNELS_GEOMETRY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/operator.h"

namespace starling {

// Convolution and pooling, checked: every field is in range and products do not overflow.
struct Geometry2d {
  int64_t batch = 0;
  int64_t in_channels = 0, in_height = 0, in_width = 0;
  int64_t out_channels = 0, out_height = 0, out_width = 0;
  int64_t kernel_height = 0, kernel_width = 0;
  int64_t stride_height = 1, stride_width = 1;
  int64_t padding_height = 0, padding_width = 0;
  int64_t dilation_height = 1, dilation_width = 1;
  int64_t groups = 1;
  bool bias = false;
};

// What an operator needs to know of its spec, whichever device runs it.
struct OperatorGeometry {
  enum class Op {
    kConv2d,
    kMaxPool2d,
    kAvgPool2d,
    kLinear,
    kBatchNorm,
    kRelu,
    kDropout,
    kFlatten,
    kSoftmaxCrossEntropy,
    kGatherRows,
    kNegativeSum,
  };
  Op op = Op::kRelu;
  Geometry2d plane;           // conv2d, maxpool2d, avgpool2d
  int64_t batch = 0;          // all
  int64_t inputs = 0;         // linear: I. batchnorm: C. gather_rows: R. Else elements of a sample
  int64_t outputs = 0;        // linear: O. softmax_cross_entropy: K. gather_rows: D
  int64_t spatial = 1;        // batchnorm: H*W
  bool bias = false;          // linear
  double epsilon = 0;         // batchnorm
  double rate = 0;            // dropout
  bool mean_reduction = false;  // losses
  bool labels_input = false;    // the last input is int32 (labels, indices)
};

// Checks all of `spec` but `type` and the formats, and works out the geometry. Unknown attributes
// are refused. kInvalidArgument (node, what was expected, what came), or kUnimplemented for an
// unknown operator.
absl::StatusOr<OperatorGeometry> ResolveGeometry(const OperatorSpec& spec);

// The names of all operators, for messages: "conv2d, maxpool2d, ...".
std::string OperatorNames();

// Elements of a shape; -1: a dimension below 1, or more than 2^40 elements.
int64_t ElementCount(const Shape& shape);

}  // namespace starling

#endif  // STARLING_KERNELS_GEOMETRY_H_
