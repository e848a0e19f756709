// The operators that a graph may use: attributes, parameters, shapes, in one table (operators.cc).
// An executor tells its device what to compute in the words of kernels/operator.h.
//
// Layouts: images are [channels, height, width] (the batch in front makes NCHW), convolution
// weights [out, in, height, width], linear weights [out, in]. Shapes here never include the batch.
//
//   op                     inputs       parameters                                  output
//   conv2d                 CHW          weight [O,C,kh,kw], bias [O]                [O,H',W']
//   maxpool2d, avgpool2d   CHW                                                      [C,H',W']
//   linear                 [in]         weight [out,in], bias [out]                 [out]
//   batchnorm              CHW or C     weight, bias, running_mean, running_var [C] as the input
//   relu, dropout          any                                                      as the input
//   flatten                any                                                      [elements]
//   softmax_cross_entropy  [K], labels                                              scalar: loss
//   gather_rows            labels       weight [R]                                  [1]
//   negative_sum           any                                                      scalar: loss
//
// H' = floor((H + 2*padding - kernel) / stride) + 1. Average pooling counts the padding. "labels"
// is the value of that name that every graph has: one int32 per sample (gather_rows: the row).
//
// Pure functions of their arguments; safe from any thread. Bad input gives kInvalidArgument with
// what was expected and what came; arithmetic on sizes from outside is checked.
#ifndef STARLING_COMMON_GRAPH_OPERATORS_H_
#define STARLING_COMMON_GRAPH_OPERATORS_H_

#include <array>
#include <cstdint>
#include <string>
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
};

inline constexpr char kLabelsValue[] = "labels";
inline constexpr int64_t kGatherRowsMax = (int64_t{1} << 31) - 1;  // labels are int32
inline constexpr double kStatisticMomentum = 0.1;                  // PyTorch's default

// A node's attributes after checks and defaults. Fields that the operator has not are left alone.
struct OperatorAttributes {
  int64_t out_channels = 0;            // conv2d
  std::array<int64_t, 2> kernel = {};  // conv2d, pools: height, width
  std::array<int64_t, 2> stride = {1, 1};
  std::array<int64_t, 2> padding = {0, 0};
  bool bias = true;                      // conv2d, linear
  int64_t out_features = 0;              // linear
  double epsilon = 1e-5;                 // batchnorm
  double momentum = kStatisticMomentum;  // batchnorm: becomes the statistics' statistic_momentum
  double rate = 0.5;                     // dropout: share of elements set to 0, in [0, 1)
  int64_t rows = 0;                      // gather_rows

  friend bool operator==(const OperatorAttributes&, const OperatorAttributes&) = default;
};

enum class AttributeType : uint8_t { kInt, kFloat, kPair, kBool };

// How an attribute is written. kPair: two integers, or one for both; kBool: 0 or 1. An attribute
// that is not required takes the default of OperatorAttributes (a pool's stride: its kernel).
struct AttributeSpec {
  const char* name;
  AttributeType type;
  bool required;
  double minimum;
  double maximum;       // inclusive
  const char* meaning;  // for documentation and messages
};

enum class InputKind : uint8_t { kTensor, kLabels };

struct OperatorRule {
  OpKind kind;
  const char* name;
  bool loss;  // the graph's last node, and only that
  std::vector<InputKind> inputs;
  std::vector<AttributeSpec> attributes;
};

// A parameter that an operator has for given attributes and input shape, with PyTorch's default
// initialisation: uniform with bound 1/sqrt(fan-in) for conv2d and linear, weight and bias alike.
struct ParameterSpec {
  const char* role;  // "weight": a builder names the parameter NODE.ROLE
  Dims shape;
  ParameterKind kind = TRAINABLE;
  Initializer init;
};

// All operators, in the order of OpKind.
absl::Span<const OperatorRule> Operators();

const OperatorRule& Rule(OpKind kind);

// nullptr when there is none of that name.
const OperatorRule* FindOperator(absl::string_view name);

// "conv2d, maxpool2d, ...": for messages.
std::string KnownOperators();

// Checks names, types and ranges, and fills in defaults.
absl::StatusOr<OperatorAttributes> ResolveAttributes(const Node& node, const OperatorRule& rule);

// The output's shape, from that of the first input ({} for labels). A loss gives {}: a scalar per
// sample.
absl::StatusOr<Dims> InferShape(OpKind kind, const OperatorAttributes& attributes,
                                const Dims& input);

// In the operator's order. `input` must have passed InferShape.
absl::StatusOr<std::vector<ParameterSpec>> InferParameters(OpKind kind,
                                                           const OperatorAttributes& attributes,
                                                           const Dims& input);

// The product of the dimensions; refuses dimensions < 1, more than limits::kTensorDimsMax of them,
// and products beyond limits::kTensorElementsMax. {} has one element.
absl::StatusOr<int64_t> CheckedElements(absl::Span<const int64_t> dims);

// "[32, 26, 26]"
std::string DimsToString(absl::Span<const int64_t> dims);

}  // namespace starling

#endif  // STARLING_COMMON_GRAPH_OPERATORS_H_
