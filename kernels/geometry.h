// The operators: inputs, parameters, attributes, shapes, formulas. N is the micro-batch.
//
// conv2d           [N,C,H,W]; weight [O, C/groups, kh, kw], bias [O] (optional) -> [N,O,oh,ow]
//                  stride=1, padding=0, dilation=1 (int or pair), groups=1 (int)
//                  oh = (H + 2*padding - dilation*(kh-1) - 1) / stride + 1, rounded down
// maxpool2d        [N,C,H,W] -> [N,C,oh,ow]; kernel, stride=kernel, padding=0 (int or pair; padding
//                  at most kernel/2). The first maximum of a window, row by row, gets its gradient.
//                  avgpool2d        as maxpool2d; padding counts as zeros in the mean
//                  global_avgpool2d [N,C,H,W] -> [N,C] linear           [N,...,I]; weight [O,I],
//                  bias [O] (optional) -> [N,...,O]; gelu=0: 1: then GELU in
//                  GPT-2's form, as gelu has it
// batchnorm        [N,C] or [N,C,H,W], and perhaps a second one of this shape; weight, bias, mean,
//                  variance, each [C] -> the same; epsilon=1e-5 (double). The second input is added
//                  to what is normalised; relu=0: 1: then max(0, .). Training normalises with the
//                  micro-batch's mean and
//                  biased variance (Ioffe and Szegedy 2015); the gradients of `mean` and `variance`
//                  are these two times n/global_batch: contributions to a moving average, no
//                  gradients. Inference normalises with the parameters `mean` and `variance`.
//                  layernorm        [N,...,D]; weight, bias, each [D] -> the same; epsilon=1e-5.
//                  Every row has its own
//                  mean and biased variance (Ba et al. 2016).
// relu             any -> the same
// gelu             any -> the same; approximate=0 (int): x * Phi(x); 1: GPT-2's form,
//                  x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016)
// sigmoid, tanh    any -> the same
// clip             any -> the same; minimum < maximum (doubles). The gradient is 1 strictly between
//                  them, else 0. ReLU6 is clip between 0 and 6.
// dropout          any -> the same; rate (double, in [0,1)). Training: an element is 0 where its
//                  random number says so (kernels/random.h), else times 1/(1-rate). add, mul
//                  two of one shape -> the same concat           two or more -> one; axis (int, of
//                  a sample: 0 is the first after N) slice            any -> the same but for axis
//                  (int), of which [begin, begin + length) remains reshape          any -> [N,
//                  shape...]; shape (ints; one of them may be -1: what remains) transpose
//                  any -> its sample's axes in another order: axis i of the output is axis axes[i]
//                  of
//                  the input (ints, a permutation of 0, 1, ...; N stays in front) flatten
//                  [N,...] -> [N, product] embedding        indices int32 [N,...]; weight [R,D] ->
//                  [N,...,D]; the gradient is dense, [R,D]. An
//                  index out of range: Forward gives kOutOfRange. rows=R, features=D (ints), if
//                  given, must agree.
// position_embedding  [N,T,D]; weight [R,D], T <= R -> input + weight[0..T) for each sample; rows=R
// matmul           [N,...,M,K], [N,...,K,L] -> scale times the products [N,...,M,L]; transpose_b=0:
//                  1: the second is [N,...,L,K]; scale=1 (double) attention        query, key,
//                  value, each [N,T,D], or one [N,T,3D] with each position's three side by
//                  side -> [N,T,D]: for each of heads=1 (int; divides D)
//                  parts of D, softmax(Q K^T / sqrt(D/heads)) V; causal=0: 1: row t sees keys 0..t
//                  (Vaswani et al. 2017) softmax_cross_entropy  logits [N,K], labels int32 [N] in
//                  [0,K); or [N,T,K] and [N,T] -> losses [N],
//                  each the mean over T; reduction="mean" (1/global_batch) or "sum" (1): the scale
//                  of
//                  the gradient, never of the losses. A label out of range: loss NaN, gradient NaN,
//                  no crash. mean_squared_error  x, labels float of the same shape [N,...] ->
//                  losses [N]: the mean of a sample's
//                  (x - label)^2; reduction as above binary_cross_entropy  logits, labels float in
//                  [0,1] of the same shape [N,...] -> losses [N]: the mean
//                  of log(1 + exp(logit)) - label * logit; reduction as above
// gather_rows      indices int32 [N]; weight [R,D] -> [N,D]; the gradient is dense, [R,D]. An index
//                  out of range: a row of NaN, no gradient.
// negative_sum     [N,...] -> losses [N]: minus the sum of a sample's elements; reduction="sum" or
//                  "mean", as above
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

// What an operator needs to know of its spec, whichever device runs it.
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
  int64_t batch = 0;  // all
  // linear: I. batchnorm, global_avgpool2d: C. gather_rows, embedding, position_embedding: R.
  // layernorm, attention: D. matmul: K. Else elements of a sample.
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
  std::vector<int64_t> axes;    // transpose: the input's axis of each of the output's; N is axis 0
  bool transpose_b = false;     // matmul
  double scale = 1;             // matmul
  int64_t heads = 1;            // attention
  bool causal = false;          // attention
  bool packed = false;          // attention: one input
  bool mean_reduction = false;  // losses
  bool labels_input = false;    // the last input holds labels or indices: plain, no gradient
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
