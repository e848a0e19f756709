// Shapes and parameters of the operators: InferShape, InferParameters and their checks.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/graph/operators.h"
#include "common/protocol/limits.h"

namespace starling {
namespace {

absl::Status Expected(absl::string_view what, absl::string_view came) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", got ", came));
}

absl::StatusOr<int64_t> CheckedProduct(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product > limits::kTensorElementsMax) {
    return Expected(absl::StrCat("at most ", limits::kTensorElementsMax, " elements"),
                    absl::StrCat(a, " * ", b));
  }
  return product;
}

absl::Status ExpectImage(const Dims& input) {
  if (input.size() == 3) return absl::OkStatus();
  return Expected("an input [channels, height, width]", DimsToString(input));
}

absl::Status ExpectRank(const Dims& input, size_t least, absl::string_view what) {
  if (input.size() >= least) return absl::OkStatus();
  return Expected(what, DimsToString(input));
}

absl::Status ExpectAxis(const Dims& input, int64_t axis) {
  if (axis < static_cast<int64_t>(input.size())) return absl::OkStatus();
  return Expected(absl::StrCat("an axis below ", input.size(), ", as the input is ",
                               DimsToString(input), " (axes leave the batch out)"),
                  absl::StrCat(axis));
}

absl::StatusOr<Dims> WindowedShape(OpKind kind, const OperatorAttributes& attributes,
                                   const Dims& input) {
  STARLING_RETURN_IF_ERROR(ExpectImage(input));
  const bool conv = kind == OpKind::kConv2d;
  if (conv &&
      (input[0] % attributes.groups != 0 || attributes.out_channels % attributes.groups != 0)) {
    return Expected("groups to divide the input's channels and out_channels",
                    absl::StrCat("groups ", attributes.groups, " for ", input[0],
                                 " channels and out_channels ", attributes.out_channels));
  }
  Dims output = {conv ? attributes.out_channels : input[0], 0, 0};
  for (int axis = 0; axis < 2; ++axis) {
    // Sizes are at most 2^16 here: no overflow.
    const int64_t kernel = attributes.dilation[axis] * (attributes.kernel[axis] - 1) + 1;
    const int64_t padding = attributes.padding[axis];
    if (!conv && 2 * padding > kernel) {
      return Expected("a padding of at most half the kernel",
                      absl::StrCat("padding ", padding, " for kernel ", kernel));
    }
    const int64_t padded = input[axis + 1] + 2 * padding;
    if (padded < kernel) {
      return Expected(absl::StrCat("an input of at least ", kernel, " in ",
                                   axis == 0 ? "height" : "width", " with its padding"),
                      absl::StrCat(padded, " (input ", DimsToString(input), ")"));
    }
    output[axis + 1] = (padded - kernel) / attributes.stride[axis] + 1;
  }
  return output;
}

absl::StatusOr<Dims> ElementwiseShape(absl::Span<const Dims> inputs) {
  for (const Dims& input : inputs) {
    if (input == inputs[0]) continue;
    return Expected("inputs of one shape",
                    absl::StrCat(DimsToString(inputs[0]), " and ", DimsToString(input)));
  }
  return inputs[0];
}

absl::StatusOr<Dims> ConcatShape(const OperatorAttributes& attributes,
                                 absl::Span<const Dims> inputs) {
  Dims output = inputs[0];
  STARLING_RETURN_IF_ERROR(ExpectAxis(output, attributes.axis));
  for (const Dims& input : inputs.subspan(1)) {
    Dims other = input;
    if (other.size() == output.size()) other[attributes.axis] = output[attributes.axis];
    if (other != output) {
      return Expected(absl::StrCat("inputs that differ in axis ", attributes.axis, " only"),
                      absl::StrCat(DimsToString(inputs[0]), " and ", DimsToString(input)));
    }
    output[attributes.axis] += input[attributes.axis];  // dimensions are checked: no overflow
  }
  return output;
}

absl::StatusOr<Dims> SliceShape(const OperatorAttributes& attributes, const Dims& input) {
  STARLING_RETURN_IF_ERROR(ExpectAxis(input, attributes.axis));
  Dims output = input;
  const int64_t size = input[attributes.axis];
  if (attributes.begin + attributes.length > size) {
    return Expected(
        absl::StrCat("begin + length of at most ", size, ", the input's axis ", attributes.axis),
        absl::StrCat(attributes.begin, " + ", attributes.length));
  }
  output[attributes.axis] = attributes.length;
  return output;
}

absl::StatusOr<Dims> ReshapedShape(const OperatorAttributes& attributes, const Dims& input) {
  STARLING_ASSIGN_OR_RETURN(const int64_t elements, CheckedElements(input));
  Dims output = attributes.shape;
  const auto open = std::find(output.begin(), output.end(), -1);
  if (open != output.end()) {
    *open = 1;
    STARLING_ASSIGN_OR_RETURN(const int64_t others, CheckedElements(output));
    if (elements % others == 0) *open = elements / others;
  }
  STARLING_ASSIGN_OR_RETURN(const int64_t reshaped, CheckedElements(output));
  if (reshaped == elements) return output;
  return Expected(absl::StrCat("a shape of ", elements, " elements, as the input ",
                               DimsToString(input), " has"),
                  DimsToString(attributes.shape));
}

absl::StatusOr<Dims> TransposedShape(const OperatorAttributes& attributes, const Dims& input) {
  Dims sorted = attributes.axes;
  std::sort(sorted.begin(), sorted.end());
  bool good = sorted.size() == input.size();
  for (size_t i = 0; good && i < sorted.size(); ++i) good = sorted[i] == static_cast<int64_t>(i);
  if (!good) {
    return Expected(
        absl::StrCat("axes to be a permutation of 0 to ", static_cast<int64_t>(input.size()) - 1,
                     ", as the input is ", DimsToString(input)),
        DimsToString(attributes.axes));
  }
  Dims output;
  for (int64_t axis : attributes.axes) output.push_back(input[axis]);
  return output;
}

absl::StatusOr<Dims> MatmulShape(const OperatorAttributes& attributes, const Dims& a,
                                 const Dims& b) {
  if (static_cast<float>(attributes.scale) == 0) {
    return Expected("a scale that is not 0 as a float", absl::StrCat(attributes.scale));
  }
  const size_t rank = a.size();
  const auto wrong = [&] {
    return Expected(attributes.transpose_b ? "inputs [..., M, K] and [..., N, K]"
                                           : "inputs [..., M, K] and [..., K, N]",
                    absl::StrCat(DimsToString(a), " and ", DimsToString(b)));
  };
  if (rank < 2 || b.size() != rank || !std::equal(a.begin(), a.end() - 2, b.begin())) {
    return wrong();
  }
  const int64_t k = attributes.transpose_b ? b[rank - 1] : b[rank - 2];
  if (a[rank - 1] != k) return wrong();
  Dims output = a;
  output[rank - 1] = attributes.transpose_b ? b[rank - 2] : b[rank - 1];
  return output;
}

absl::StatusOr<Dims> AttentionShape(const OperatorAttributes& attributes,
                                    absl::Span<const Dims> inputs) {
  STARLING_ASSIGN_OR_RETURN(const Dims output, ElementwiseShape(inputs));
  if (output.size() != 2) {
    return Expected("inputs [positions, features]", DimsToString(output));
  }
  if (output[1] % attributes.heads == 0) return output;
  return Expected("heads to divide the features",
                  absl::StrCat(attributes.heads, " heads for ", output[1], " features"));
}

absl::StatusOr<Dims> CrossEntropyShape(const Dims& logits, const Dims& labels) {
  if (labels.size() > 1) return Expected("labels [] or [positions]", DimsToString(labels));
  if (logits.empty() || logits.back() < 2) {
    return Expected("an input [classes] with at least 2 classes", DimsToString(logits));
  }
  if (Dims(logits.begin(), logits.end() - 1) == labels) return Dims{};
  return Expected(labels.empty()
                      ? absl::StrCat("an input [classes], as a sample has one label")
                      : absl::StrCat("an input with one row of classes for each of the labels ",
                                     DimsToString(labels)),
                  DimsToString(logits));
}

absl::StatusOr<Dims> RegressionShape(const Dims& input, const Dims& labels) {
  if (input == labels) return Dims{};
  return Expected(absl::StrCat("an input of the labels' shape ", DimsToString(labels)),
                  DimsToString(input));
}

absl::StatusOr<Dims> EmbeddingShape(const OperatorAttributes& attributes, const Dims& input) {
  Dims output = input;
  output.push_back(attributes.features);
  return output;
}

absl::StatusOr<Dims> PositionShape(const OperatorAttributes& attributes, const Dims& input) {
  if (input.size() != 2) return Expected("an input [positions, features]", DimsToString(input));
  if (input[0] <= attributes.rows) return input;
  return Expected(absl::StrCat("at most ", attributes.rows, " positions, the table's rows"),
                  DimsToString(input));
}

absl::StatusOr<Dims> LinearShape(const OperatorAttributes& attributes, const Dims& input) {
  STARLING_RETURN_IF_ERROR(ExpectRank(input, 1, "an input [..., features]"));
  Dims output = input;
  output.back() = attributes.out_features;
  return output;
}

absl::StatusOr<Dims> ShapeOf(OpKind kind, const OperatorAttributes& attributes,
                             absl::Span<const Dims> inputs) {
  const Dims& input = inputs[0];
  switch (kind) {
    case OpKind::kConv2d:
    case OpKind::kMaxPool2d:
    case OpKind::kAvgPool2d: return WindowedShape(kind, attributes, input);
    case OpKind::kGlobalAvgPool2d:
      STARLING_RETURN_IF_ERROR(ExpectImage(input));
      return Dims{input[0]};
    case OpKind::kLinear: return LinearShape(attributes, input);
    case OpKind::kBatchNorm:
      if (input.size() != 1) STARLING_RETURN_IF_ERROR(ExpectImage(input));
      return input;
    case OpKind::kLayerNorm:
      STARLING_RETURN_IF_ERROR(ExpectRank(input, 1, "an input [..., features]"));
      return input;
    case OpKind::kClip:
      if (attributes.minimum < attributes.maximum) return input;
      return Expected("minimum to be below maximum",
                      absl::StrCat(attributes.minimum, " and ", attributes.maximum));
    case OpKind::kRelu:
    case OpKind::kDropout:
    case OpKind::kGelu:
    case OpKind::kSigmoid:
    case OpKind::kTanh: return input;
    case OpKind::kFlatten: {
      STARLING_ASSIGN_OR_RETURN(const int64_t elements, CheckedElements(input));
      return Dims{elements};
    }
    case OpKind::kAdd:
    case OpKind::kMul: return ElementwiseShape(inputs);
    case OpKind::kConcat: return ConcatShape(attributes, inputs);
    case OpKind::kSlice: return SliceShape(attributes, input);
    case OpKind::kReshape: return ReshapedShape(attributes, input);
    case OpKind::kTranspose: return TransposedShape(attributes, input);
    case OpKind::kEmbedding: return EmbeddingShape(attributes, input);
    case OpKind::kPositionEmbedding: return PositionShape(attributes, input);
    case OpKind::kMatmul: return MatmulShape(attributes, input, inputs[1]);
    case OpKind::kAttention: return AttentionShape(attributes, inputs);
    case OpKind::kSoftmaxCrossEntropy: return CrossEntropyShape(input, inputs[1]);
    case OpKind::kMeanSquaredError:
    case OpKind::kBinaryCrossEntropy: return RegressionShape(input, inputs[1]);
    case OpKind::kGatherRows:
      if (!input.empty()) return Expected("one label per sample", DimsToString(input));
      return Dims{1};
    case OpKind::kNegativeSum: return Dims{};
  }
  return absl::InternalError("an operator without a shape rule");
}

// Kaiming-uniform with a = sqrt(5), as PyTorch initializes weights; its biases use the same bound.
Initializer UniformByFanIn(int64_t fan_in) {
  return MakeInitializer(Initializer::UNIFORM, 1.0 / std::sqrt(static_cast<double>(fan_in)));
}

std::vector<ParameterSpec> WeightAndBias(Dims weight, int64_t fan_in, bool bias) {
  const int64_t outputs = weight[0];
  std::vector<ParameterSpec> specs;
  specs.push_back({"weight", std::move(weight), TRAINABLE, UniformByFanIn(fan_in)});
  if (bias) specs.push_back({"bias", {outputs}, TRAINABLE, UniformByFanIn(fan_in)});
  return specs;
}

absl::StatusOr<std::vector<ParameterSpec>> SpecsOf(OpKind kind,
                                                   const OperatorAttributes& attributes,
                                                   const Dims& input) {
  const Initializer zero = MakeInitializer(Initializer::CONSTANT, 0),
                    one = MakeInitializer(Initializer::CONSTANT, 1);
  const Initializer normal = MakeInitializer(Initializer::NORMAL, 1);
  switch (kind) {
    case OpKind::kConv2d: {
      const int64_t channels = input[0] / attributes.groups;
      STARLING_ASSIGN_OR_RETURN(const int64_t window,
                                CheckedProduct(attributes.kernel[0], attributes.kernel[1]));
      STARLING_ASSIGN_OR_RETURN(const int64_t fan_in, CheckedProduct(channels, window));
      return WeightAndBias(
          {attributes.out_channels, channels, attributes.kernel[0], attributes.kernel[1]}, fan_in,
          attributes.bias);
    }
    case OpKind::kLinear:
      return WeightAndBias({attributes.out_features, input.back()}, input.back(), attributes.bias);
    case OpKind::kBatchNorm:
      return std::vector<ParameterSpec>{{"weight", {input[0]}, TRAINABLE, one},
                                        {"bias", {input[0]}, TRAINABLE, zero},
                                        {"running_mean", {input[0]}, STATISTIC, zero},
                                        {"running_var", {input[0]}, STATISTIC, one}};
    case OpKind::kLayerNorm:
      return std::vector<ParameterSpec>{{"weight", {input.back()}, TRAINABLE, one},
                                        {"bias", {input.back()}, TRAINABLE, zero}};
    case OpKind::kEmbedding:
      return std::vector<ParameterSpec>{
          {"weight", {attributes.rows, attributes.features}, TRAINABLE, normal}};
    case OpKind::kPositionEmbedding:
      return std::vector<ParameterSpec>{
          {"weight", {attributes.rows, input.back()}, TRAINABLE, normal}};
    case OpKind::kGatherRows:
      return std::vector<ParameterSpec>{{"weight", {attributes.rows}, TRAINABLE, zero}};
    default: return std::vector<ParameterSpec>{};
  }
}

}  // namespace

Initializer MakeInitializer(Initializer::Kind kind, double value) {
  Initializer init;
  init.set_kind(kind);
  init.set_value(value);
  return init;
}

absl::StatusOr<Dims> InferShape(OpKind kind, const OperatorAttributes& attributes,
                                absl::Span<const Dims> inputs) {
  for (const Dims& input : inputs) STARLING_RETURN_IF_ERROR(CheckedElements(input).status());
  STARLING_ASSIGN_OR_RETURN(Dims output, ShapeOf(kind, attributes, inputs));
  STARLING_RETURN_IF_ERROR(CheckedElements(output).status());
  return output;
}

absl::StatusOr<std::vector<ParameterSpec>> InferParameters(OpKind kind,
                                                           const OperatorAttributes& attributes,
                                                           absl::Span<const Dims> inputs) {
  STARLING_ASSIGN_OR_RETURN(std::vector<ParameterSpec> specs, SpecsOf(kind, attributes, inputs[0]));
  for (const ParameterSpec& spec : specs) {
    STARLING_RETURN_IF_ERROR(CheckedElements(spec.shape).status());
  }
  return specs;
}

absl::StatusOr<int64_t> CheckedElements(absl::Span<const int64_t> dims) {
  if (dims.size() > limits::kTensorDimsMax) {
    return Expected(absl::StrCat("at most ", limits::kTensorDimsMax, " dimensions"),
                    absl::StrCat(dims.size()));
  }
  int64_t elements = 1;
  for (int64_t dim : dims) {
    if (dim < 1) return Expected("dimensions of at least 1", DimsToString(dims));
    if (__builtin_mul_overflow(elements, dim, &elements) || elements > limits::kTensorElementsMax) {
      return Expected(absl::StrCat("at most ", limits::kTensorElementsMax, " elements"),
                      DimsToString(dims));
    }
  }
  return elements;
}

std::string DimsToString(absl::Span<const int64_t> dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

}  // namespace starling
