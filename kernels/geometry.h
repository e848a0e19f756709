// The operators: inputs, parameters, attributes, shapes, formulas. N is the micro-batch.
//
// conv2d           [N,C,H,W]; weight [O, C/groups, kh, kw], bias [O] (optional) -> [N,O,oh,ow]
//                  stride=1, padding=0, dilation=1 (int or pair), groups=1 (int)
//                  oh = (H + 2*padding - dilation*(kh-1) - 1) / stride + 1, rounded down
// maxpool2d        [N,C,H,W] -> [N,C,oh,ow]; kernel, stride=kernel, padding=0 (int or pair; padding
//                  at most kernel/2). The first maximum of a window, row by row, gets its gradient.
// avgpool2d        as maxpool2d; padding counts as zeros in the mean
// global_avgpool2d [N,C,H,W] -> [N,C]
// linear           [N,...,I]; weight [O,I], bias [O] (optional) -> [N,...,O]
//                  gelu=0 (int): 1 applies GPT-2's form of gelu to the result
// batchnorm        [N,C] or [N,C,H,W], optionally a second input of the same shape; weight, bias,
//                  mean, variance, each [C] -> the same shape; epsilon=1e-5 (double). The second
//                  input is added to the normalised value. relu=0 (int): 1 applies max(0, .).
//                  Training normalises with the micro-batch's mean and biased variance (Ioffe and
//                  Szegedy 2015). The gradients of `mean` and `variance` are these two times
//                  n/global_batch: contributions to a moving average, not gradients. Inference
//                  normalises with the parameters `mean` and `variance`.
// layernorm        [N,...,D]; weight, bias, each [D] -> the same shape; epsilon=1e-5. Each row has
//                  its own mean and biased variance (Ba et al. 2016).
// relu             any -> the same shape
// gelu             any -> the same shape; approximate=0 (int): x * Phi(x); 1: GPT-2's form,
//                  x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016)
// sigmoid, tanh    any -> the same shape
// clip             any -> the same shape; minimum < maximum (doubles). The gradient is 1 strictly
//                  between them, else 0. ReLU6 is clip between 0 and 6.
// dropout          any -> the same shape; rate (double, in [0,1)). Training: an element is 0 if its
//                  random number says so (kernels/random.h), else it is scaled by 1/(1-rate).
// add, mul         two of one shape -> the same shape
// concat           two or more -> one; axis (int, of a sample: 0 is the first after N)
// slice            any -> [begin, begin + length) of axis (int), all of the other axes
// reshape          any -> [N, shape...]; shape (ints; at most one may be -1, which is inferred)
// transpose        any -> its sample's axes permuted: axis i of the output is axis axes[i] of the
//                  input (ints, a permutation of 0, 1, ...; N stays first)
// flatten          [N,...] -> [N, product]
// embedding        indices int32 [N,...]; weight [R,D] -> [N,...,D]; the gradient is dense, [R,D].
//                  An index out of range: Forward returns kOutOfRange. rows=R, features=D (ints)
//                  must agree if given.
// position_embedding  [N,T,D]; weight [R,D], T <= R -> input + weight[0..T) for each sample; rows=R
// matmul           [N,...,M,K], [N,...,K,L] -> scale times the products [N,...,M,L]
//                  transpose_b=0 (int): with 1 the second input is [N,...,L,K]; scale=1 (double)
// attention        query, key, value, each [N,T,D], or one [N,T,3D] with each position's three side
//                  by side -> [N,T,D]: softmax(Q K^T / sqrt(D/heads)) V for each of heads=1 (int;
//                  divides D) parts of D; causal=0 (int): with 1 row t sees keys 0..t (Vaswani et
//                  al. 2017)
// softmax_cross_entropy  logits [N,K], labels int32 [N] in [0,K); or [N,T,K] and [N,T] -> losses
//                  [N], each the mean over T; reduction="mean" (1/global_batch) or "sum" (1) scales
//                  the gradient, never the losses. A label out of range: loss NaN, gradient NaN, no
//                  crash.
// mean_squared_error  x, labels float of the same shape [N,...] -> losses [N]: the mean of a
//                  sample's (x - label)^2; reduction as above
// binary_cross_entropy  logits, labels float in [0,1] of the same shape [N,...] -> losses [N]: the
//                  mean of log(1 + exp(logit)) - label * logit; reduction as above
// gather_rows      indices int32 [N]; weight [R,D] -> [N,D]; the gradient is dense, [R,D]. An index
//                  out of range: a row of NaN, no gradient.
// negative_sum     [N,...] -> losses [N]: minus the sum of a sample's elements; reduction as above,
//                  "sum" or "mean"
#ifndef STARLING_KERNELS_GEOMETRY_H_
#define STARLING_KERNELS_GEOMETRY_H_

#include <cstdint>
#include <string>
#include <vector>

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

// What an operator needs to know about its spec, on any device.
struct OperatorGeometry {
  enum class Op {
    kConv2d,
    kMaxPool2d,
    kAvgPool2d,
    kGlobalAvgPool2d,
    kLinear,
    kBatchNorm,
    kLayerNorm,
    kRelu,
    kGelu,
    kSigmoid,
    kTanh,
    kClip,
    kDropout,
    kAdd,
    kMul,
    kConcat,
    kSlice,
    kReshape,
    kTranspose,
    kFlatten,
    kEmbedding,
    kPositionEmbedding,
    kGatherRows,
    kMatMul,
    kAttention,
    kSoftmaxCrossEntropy,
    kMeanSquaredError,
    kBinaryCrossEntropy,
    kNegativeSum,
  };
  Op op = Op::kRelu;
  Geometry2d plane;   // conv2d, maxpool2d, avgpool2d
  int64_t batch = 0;  // all operators
  // linear: I. batchnorm, global_avgpool2d: C. gather_rows, embedding, position_embedding: R.
  // layernorm, attention: D. matmul: K. Others: elements of a sample.
  int64_t inputs = 0;
  // linear: O. softmax_cross_entropy: K. gather_rows, embedding, position_embedding: D. matmul: L.
  // global_avgpool2d: C.
  int64_t outputs = 0;
  // linear, layernorm, softmax_cross_entropy, embedding: rows in the micro-batch. matmul: M.
  // position_embedding, attention: T.
  int64_t rows = 0;
  int64_t spatial = 1;          // batchnorm, global_avgpool2d: H*W
  bool bias = false;            // linear
  bool gelu = false;            // linear
  double epsilon = 0;           // batchnorm, layernorm
  bool relu = false;            // batchnorm
  double rate = 0;              // dropout
  double minimum = 0;           // clip
  double maximum = 0;           // clip
  bool approximate = false;     // gelu
  int64_t axis = 0;             // concat, slice: N is axis 0
  int64_t begin = 0;            // slice
  int64_t length = 0;           // slice
  std::vector<int64_t> axes;    // transpose: the input axis for each output axis; N is axis 0
  bool transpose_b = false;     // matmul
  double scale = 1;             // matmul
  int64_t heads = 1;            // attention
  bool causal = false;          // attention
  bool packed = false;          // attention: one input
  bool mean_reduction = false;  // losses
  bool labels_input = false;    // the last input holds labels or indices: plain, without a gradient
};

// Checks all of `spec` except `type` and the formats, and computes the geometry. Unknown attributes
// are refused. kInvalidArgument (names the node, what was expected and what came), or
// kUnimplemented for an unknown operator.
absl::StatusOr<OperatorGeometry> ResolveGeometry(const OperatorSpec& spec);

// The names of all operators, for messages: "conv2d, maxpool2d, ...".
std::string OperatorNames();

// Elements of a shape; -1 if a dimension is below 1 or there are more than 2^40 elements.
int64_t ElementCount(const Shape& shape);

}  // namespace starling

#endif  // STARLING_KERNELS_GEOMETRY_H_
