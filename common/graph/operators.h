// The operators of a graph in one table (operators.cc): attributes, parameters, shapes. An executor
// describes work to its device in the terms of kernels/operator.h.
//
// Layouts: images are [channels, height, width] (the batch in front makes NCHW), convolution
// weights [out, in, height, width], linear weights [out, in]. Shapes here never include the batch.
//
//   op                    inputs        parameters                                  output
//   conv2d                CHW           weight [O,C/groups,kh,kw], bias [O]         [O,H',W']
//   maxpool2d, avgpool2d  CHW                                                       [C,H',W']
//   global_avgpool2d      CHW                                                       [C]
//   linear                [..., in]     weight [out,in], bias [out]                 [..., out]
//   batchnorm             CHW or C      weight, bias, running_mean, running_var [C] the input's
//   layernorm             [..., D]      weight [D], bias [D]                        the input's
//   relu, gelu, sigmoid, tanh, clip, dropout any                                    the input's
//   add, mul              two of one shape                                          the inputs'
//   concat                2 or more                                                 axis: summed
//   slice                 any                                                       axis: length
//   reshape               any                                                       shape
//   transpose             any                                                       permuted
//   flatten               any                                                       [elements]
//   embedding             int32 [T...]  weight [V,D]                                [T..., D]
//   position_embedding    [T, D]        weight [rows,D]                             the input's
//   matmul                [...,M,K], [...,K,N] (transpose_b: [...,N,K])             [..., M, N]
//   attention             q, k, v: [T,D]                                            [T, D]
//   softmax_cross_entropy [..., K], int32 labels [...]                              scalar: loss
//   mean_squared_error    any, fp32 labels of its shape                             scalar: loss
//   binary_cross_entropy  any, fp32 labels of its shape                             scalar: loss
//   gather_rows           int32 labels  weight [R]                                  [1]
//   negative_sum          any                                                       scalar: loss
//
// H' = floor((H + 2*padding - dilation*(kernel-1) - 1) / stride) + 1. Average pooling counts the
// padding. Axes count from 0 without the batch. clip is max(minimum, min(x, maximum)), so ReLU6 is
// clip 0..6. gelu is x * Phi(x) or, with approximate, its tanh form (Hendrycks and Gimpel 2016).
// attention is softmax(q k^T / sqrt(D/heads)) v per head; with causal, position t attends to
// positions up to t (Vaswani et al. 2017). "labels" is a value that every graph has; gather_rows
// reads its row from it.
//
// Pure functions, thread-safe. Bad input gives kInvalidArgument with what was expected and what
// came; arithmetic on external sizes is checked.
#ifndef STARLING_COMMON_GRAPH_OPERATORS_H_
#define STARLING_COMMON_GRAPH_OPERATORS_H_

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/model.pb.h"

namespace starling {

using Dims = std::vector<int64_t>;

enum class OpKind : uint8_t {
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
  kAdd,
  kMul,
  kConcat,
  kSlice,
  kReshape,
  kTranspose,
  kGlobalAvgPool2d,
  kLayerNorm,
  kGelu,
  kSigmoid,
  kTanh,
  kClip,
  kEmbedding,
  kPositionEmbedding,
  kMatmul,
  kAttention,
  kMeanSquaredError,
  kBinaryCrossEntropy,
};

inline constexpr char kLabelsValue[] = "labels";
inline constexpr int64_t kGatherRowsMax = (int64_t{1} << 31) - 1;  // labels are int32
inline constexpr double kStatisticMomentum = 0.1;                  // PyTorch's default

// A node's checked attributes with defaults. Fields that the operator does not have keep their
// defaults.
struct OperatorAttributes {
  int64_t out_channels = 0;            // conv2d
  std::array<int64_t, 2> kernel = {};  // conv2d, pools: height, width
  std::array<int64_t, 2> stride = {1, 1};
  std::array<int64_t, 2> padding = {0, 0};
  std::array<int64_t, 2> dilation = {1, 1};  // conv2d
  int64_t groups = 1;                        // conv2d: divides the input channels and out_channels
  bool bias = true;                          // conv2d, linear
  int64_t out_features = 0;                  // linear
  double epsilon = 1e-5;                     // batchnorm, layernorm
  double momentum = kStatisticMomentum;  // batchnorm: becomes the statistics' statistic_momentum
  double rate = 0.5;                     // dropout: share of elements set to 0, in [0, 1)
  int64_t rows = 0;                      // gather_rows, embedding, position_embedding
  int64_t features = 0;                  // embedding
  int64_t axis = 0;                      // concat, slice
  int64_t begin = 0;                     // slice
  int64_t length = 0;                    // slice
  std::vector<int64_t> shape = {};       // reshape: as written, with at most one -1
  std::vector<int64_t> axes = {};        // transpose: output axis i is input axis axes[i]
  bool approximate = false;              // gelu
  double minimum = 0;                    // clip
  double maximum = 6;                    // clip
  bool transpose_b = false;              // matmul
  double scale = 1;                      // matmul: multiplies the product
  int64_t heads = 1;                     // attention: divides D
  bool causal = false;                   // attention
  bool relu = false;  // batchnorm: never in a graph; worker/executor/fuse.h sets it
  bool gelu = false;  // linear: likewise

  friend bool operator==(const OperatorAttributes&, const OperatorAttributes&) = default;
};

// How an attribute is written. kPair: two integers, or one for both; kBool: 0 or 1; kInts: one or
// more integers.
enum class AttributeType : uint8_t { kInt, kFloat, kPair, kBool, kInts };

// Where an attribute is stored; the alternatives are in AttributeType's order.
using AttributeField =
    std::variant<int64_t OperatorAttributes::*, double OperatorAttributes::*,
                 std::array<int64_t, 2> OperatorAttributes::*, bool OperatorAttributes::*,
                 std::vector<int64_t> OperatorAttributes::*>;
static_assert(std::variant_size_v<AttributeField> == static_cast<size_t>(AttributeType::kInts) + 1);

// An attribute that is not required defaults to OperatorAttributes' value (a pool's stride: its
// kernel).
struct AttributeSpec {
  const char* name;
  AttributeField field;
  bool required;
  double minimum;
  double maximum;       // inclusive
  const char* meaning;  // for documentation and messages

  AttributeType type() const { return static_cast<AttributeType>(field.index()); }
};

enum class InputKind : uint8_t {
  kTensor,   // fp32: the graph's input or a node's output
  kTokens,   // int32: the graph's input
  kClasses,  // int32: the labels
  kTargets,  // fp32: the labels
};

struct OperatorRule {
  OpKind kind;
  const char* name;
  bool loss;                      // must be the graph's last node, and only that
  std::vector<InputKind> inputs;  // concat: the first two; more may follow
  std::vector<AttributeSpec> attributes;

  bool variadic() const { return kind == OpKind::kConcat; }
  // Whether the operator reads the labels, as its last input.
  bool reads_labels() const {
    return inputs.back() == InputKind::kClasses || inputs.back() == InputKind::kTargets;
  }
};

// A parameter of an operator with given attributes and input shapes, with PyTorch's default
// initialization: uniform with bound 1/sqrt(fan-in) for conv2d and linear, weight and bias alike;
// standard normal for embeddings.
struct ParameterSpec {
  const char* role;  // "weight": a builder names the parameter NODE.ROLE
  Dims shape;
  ParameterKind kind = TRAINABLE;
  Initializer init;
};

Initializer MakeInitializer(Initializer::Kind kind, double value);

// All operators, in the order of OpKind.
absl::Span<const OperatorRule> Operators();

const OperatorRule& Rule(OpKind kind);

// nullptr: no operator of that name.
const OperatorRule* FindOperator(absl::string_view name);

// "conv2d, maxpool2d, ...", for messages.
std::string KnownOperators();

// Checks names, types and ranges, and fills in defaults.
absl::StatusOr<OperatorAttributes> ResolveAttributes(const Node& node, const OperatorRule& rule);

// The output's shape. `inputs` has one shape per input of the operator. A loss gives {}: one scalar
// per sample.
absl::StatusOr<Dims> InferShape(OpKind kind, const OperatorAttributes& attributes,
                                absl::Span<const Dims> inputs);

// In the operator's order. `inputs` must have passed InferShape.
absl::StatusOr<std::vector<ParameterSpec>> InferParameters(OpKind kind,
                                                           const OperatorAttributes& attributes,
                                                           absl::Span<const Dims> inputs);

// The product of the dimensions. Rejects dimensions < 1, more than limits::kTensorDimsMax of them,
// and products beyond limits::kTensorElementsMax. {} has one element.
absl::StatusOr<int64_t> CheckedElements(absl::Span<const int64_t> dims);

// "[32, 26, 26]"
std::string DimsToString(absl::Span<const int64_t> dims);

}  // namespace starling

#endif  // STARLING_COMMON_GRAPH_OPERATORS_H_
