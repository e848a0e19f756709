#include "common/graph/operators.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/protocol/limits.h"

namespace starling {
namespace {

constexpr double kSizeMax = 1 << 16;  // kernel, stride, padding
constexpr double kFeaturesMax = 1 << 24;

const AttributeSpec kKernel = {"kernel", AttributeType::kPair, true, 1, kSizeMax,
                               "height and width of the window"};
const AttributeSpec kStride = {"stride", AttributeType::kPair, false, 1, kSizeMax, "step"};
const AttributeSpec kPadding = {"padding", AttributeType::kPair, false, 0, kSizeMax,
                                "zeros on each side"};
const AttributeSpec kBias = {"bias", AttributeType::kBool, false, 0, 1, "whether to add a bias"};

const std::vector<OperatorRule>& Table() {
  static const auto* const table = new std::vector<OperatorRule>{
      {OpKind::kConv2d, "conv2d", false, {InputKind::kTensor},
       {{"out_channels", AttributeType::kInt, true, 1, kFeaturesMax, "filters"},
        kKernel, kStride, kPadding, kBias}},
      {OpKind::kMaxPool2d, "maxpool2d", false, {InputKind::kTensor}, {kKernel, kStride, kPadding}},
      {OpKind::kAvgPool2d, "avgpool2d", false, {InputKind::kTensor}, {kKernel, kStride, kPadding}},
      {OpKind::kLinear, "linear", false, {InputKind::kTensor},
       {{"out_features", AttributeType::kInt, true, 1, kFeaturesMax, "outputs"}, kBias}},
      {OpKind::kBatchNorm, "batchnorm", false, {InputKind::kTensor},
       {{"epsilon", AttributeType::kFloat, false, 1e-12, 1, "added to the variance"},
        {"momentum", AttributeType::kFloat, false, 1e-6, 1, "weight of a batch's statistics"}}},
      {OpKind::kRelu, "relu", false, {InputKind::kTensor}, {}},
      {OpKind::kDropout, "dropout", false, {InputKind::kTensor},
       {{"rate", AttributeType::kFloat, false, 0, 0.999, "share of elements set to 0"}}},
      {OpKind::kFlatten, "flatten", false, {InputKind::kTensor}, {}},
      {OpKind::kSoftmaxCrossEntropy, "softmax_cross_entropy", true,
       {InputKind::kTensor, InputKind::kLabels}, {}},
      {OpKind::kGatherRows, "gather_rows", false, {InputKind::kLabels},
       {{"rows", AttributeType::kInt, true, 1, kGatherRowsMax, "rows of the table"}}},
      {OpKind::kNegativeSum, "negative_sum", true, {InputKind::kTensor}, {}},
  };
  return *table;
}

bool IsWindowed(OpKind kind) {
  return kind == OpKind::kConv2d || kind == OpKind::kMaxPool2d || kind == OpKind::kAvgPool2d;
}

absl::Status Expected(absl::string_view what, absl::string_view came) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", got ", came));
}

std::string AttributeToString(const Attribute& attribute) {
  switch (attribute.value_case()) {
    case Attribute::kI: return absl::StrCat(attribute.i());
    case Attribute::kF: return absl::StrCat(attribute.f());
    case Attribute::kS: return absl::StrCat("\"", attribute.s(), "\"");
    case Attribute::kInts:
      return absl::StrCat("[", absl::StrJoin(attribute.ints().values(), ", "), "]");
    case Attribute::VALUE_NOT_SET: break;
  }
  return "nothing";
}

std::string Meaning(const AttributeSpec& spec) {
  const char* const type = spec.type == AttributeType::kInt     ? "an integer"
                           : spec.type == AttributeType::kFloat ? "a number"
                           : spec.type == AttributeType::kPair  ? "an integer or a pair of them"
                                                                : "0 or 1";
  const std::string range =
      spec.type == AttributeType::kFloat
          ? absl::StrCat(spec.minimum, ", ", spec.maximum)
          : absl::StrCat(static_cast<int64_t>(spec.minimum), ", ",
                         static_cast<int64_t>(spec.maximum));
  return absl::StrCat(spec.name, " (", spec.meaning, ") to be ", type, " in [", range, "]");
}

// The attribute's one or two numbers; empty when it has another type.
std::vector<double> Numbers(const AttributeSpec& spec, const Attribute& attribute) {
  if (attribute.has_i()) return {static_cast<double>(attribute.i())};
  if (attribute.has_f() && spec.type == AttributeType::kFloat) return {attribute.f()};
  if (attribute.has_ints() && spec.type == AttributeType::kPair &&
      (attribute.ints().values_size() == 1 || attribute.ints().values_size() == 2)) {
    return {attribute.ints().values().begin(), attribute.ints().values().end()};
  }
  return {};
}

void Store(absl::string_view name, const std::vector<double>& numbers, OperatorAttributes* out) {
  const auto first = static_cast<int64_t>(numbers[0]);
  const std::array<int64_t, 2> pair = {first, static_cast<int64_t>(numbers.back())};
  if (name == "out_channels") out->out_channels = first;
  if (name == "kernel") out->kernel = pair;
  if (name == "stride") out->stride = pair;
  if (name == "padding") out->padding = pair;
  if (name == "bias") out->bias = first != 0;
  if (name == "out_features") out->out_features = first;
  if (name == "epsilon") out->epsilon = numbers[0];
  if (name == "momentum") out->momentum = numbers[0];
  if (name == "rate") out->rate = numbers[0];
  if (name == "rows") out->rows = first;
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

absl::StatusOr<Dims> WindowedShape(OpKind kind, const OperatorAttributes& attributes,
                                   const Dims& input) {
  STARLING_RETURN_IF_ERROR(ExpectImage(input));
  Dims output = {kind == OpKind::kConv2d ? attributes.out_channels : input[0], 0, 0};
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t kernel = attributes.kernel[axis];
    const int64_t padding = attributes.padding[axis];
    if (kind != OpKind::kConv2d && 2 * padding > kernel) {
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

absl::StatusOr<Dims> ShapeOf(OpKind kind, const OperatorAttributes& attributes,
                             const Dims& input) {
  switch (kind) {
    case OpKind::kConv2d:
    case OpKind::kMaxPool2d:
    case OpKind::kAvgPool2d:
      return WindowedShape(kind, attributes, input);
    case OpKind::kLinear:
      if (input.size() != 1) {
        return Expected("an input [features] (put a flatten before it)", DimsToString(input));
      }
      return Dims{attributes.out_features};
    case OpKind::kBatchNorm:
      if (input.size() != 1) STARLING_RETURN_IF_ERROR(ExpectImage(input));
      return input;
    case OpKind::kRelu:
    case OpKind::kDropout:
      return input;
    case OpKind::kFlatten: {
      STARLING_ASSIGN_OR_RETURN(const int64_t elements, CheckedElements(input));
      return Dims{elements};
    }
    case OpKind::kSoftmaxCrossEntropy:
      if (input.size() != 1 || input[0] < 2) {
        return Expected("an input [classes] with at least 2 classes", DimsToString(input));
      }
      return Dims{};
    case OpKind::kGatherRows:
      return Dims{1};
    case OpKind::kNegativeSum:
      return Dims{};
  }
  return absl::InternalError("an operator without a shape rule");
}

Initializer Constant(double value) {
  Initializer init;
  init.set_kind(Initializer::CONSTANT);
  init.set_value(value);
  return init;
}

// Kaiming-uniform with a = sqrt(5), as PyTorch initialises weights; its biases use the same bound.
Initializer UniformByFanIn(int64_t fan_in) {
  Initializer init;
  init.set_kind(Initializer::UNIFORM);
  init.set_value(1.0 / std::sqrt(static_cast<double>(fan_in)));
  return init;
}

std::vector<ParameterSpec> WeightAndBias(Dims weight, int64_t fan_in, bool bias) {
  const int64_t outputs = weight[0];
  std::vector<ParameterSpec> specs;
  specs.push_back({"weight", std::move(weight), TRAINABLE, UniformByFanIn(fan_in)});
  if (bias) specs.push_back({"bias", {outputs}, TRAINABLE, UniformByFanIn(fan_in)});
  return specs;
}

}  // namespace

absl::Span<const OperatorRule> Operators() { return Table(); }

const OperatorRule& Rule(OpKind kind) { return Table()[static_cast<size_t>(kind)]; }

const OperatorRule* FindOperator(absl::string_view name) {
  for (const OperatorRule& rule : Table()) {
    if (name == rule.name) return &rule;
  }
  return nullptr;
}

std::string KnownOperators() {
  return absl::StrJoin(Table(), ", ", [](std::string* out, const OperatorRule& rule) {
    absl::StrAppend(out, rule.name);
  });
}

absl::StatusOr<OperatorAttributes> ResolveAttributes(const Node& node, const OperatorRule& rule) {
  for (const auto& [name, attribute] : node.attributes()) {
    bool known = false;
    for (const AttributeSpec& candidate : rule.attributes) known |= name == candidate.name;
    if (known) continue;
    const std::string names =
        absl::StrJoin(rule.attributes, ", ", [](std::string* out, const AttributeSpec& a) {
          absl::StrAppend(out, a.name);
        });
    return Expected(names.empty() ? "no attributes" : absl::StrCat("only the attributes ", names),
                    absl::StrCat("\"", name, "\""));
  }
  OperatorAttributes resolved;
  for (const AttributeSpec& attribute : rule.attributes) {
    const auto found = node.attributes().find(attribute.name);
    if (found == node.attributes().end()) {
      if (attribute.required) return Expected(Meaning(attribute), "nothing");
      continue;
    }
    const std::vector<double> numbers = Numbers(attribute, found->second);
    bool good = !numbers.empty();
    // NaN fails both comparisons.
    for (double x : numbers) good &= x >= attribute.minimum && x <= attribute.maximum;
    if (!good) return Expected(Meaning(attribute), AttributeToString(found->second));
    Store(attribute.name, numbers, &resolved);
  }
  if (IsWindowed(rule.kind) && rule.kind != OpKind::kConv2d &&
      !node.attributes().contains("stride")) {
    resolved.stride = resolved.kernel;
  }
  return resolved;
}

absl::StatusOr<Dims> InferShape(OpKind kind, const OperatorAttributes& attributes,
                                const Dims& input) {
  STARLING_RETURN_IF_ERROR(CheckedElements(input).status());
  STARLING_ASSIGN_OR_RETURN(Dims output, ShapeOf(kind, attributes, input));
  STARLING_RETURN_IF_ERROR(CheckedElements(output).status());
  return output;
}

absl::StatusOr<std::vector<ParameterSpec>> InferParameters(OpKind kind,
                                                           const OperatorAttributes& attributes,
                                                           const Dims& input) {
  std::vector<ParameterSpec> specs;
  switch (kind) {
    case OpKind::kConv2d: {
      STARLING_ASSIGN_OR_RETURN(const int64_t window,
                                CheckedProduct(attributes.kernel[0], attributes.kernel[1]));
      STARLING_ASSIGN_OR_RETURN(const int64_t fan_in, CheckedProduct(input[0], window));
      specs = WeightAndBias(
          {attributes.out_channels, input[0], attributes.kernel[0], attributes.kernel[1]}, fan_in,
          attributes.bias);
      break;
    }
    case OpKind::kLinear:
      specs = WeightAndBias({attributes.out_features, input[0]}, input[0], attributes.bias);
      break;
    case OpKind::kBatchNorm:
      specs = {{"weight", {input[0]}, TRAINABLE, Constant(1)},
               {"bias", {input[0]}, TRAINABLE, Constant(0)},
               {"running_mean", {input[0]}, STATISTIC, Constant(0)},
               {"running_var", {input[0]}, STATISTIC, Constant(1)}};
      break;
    case OpKind::kGatherRows:
      specs = {{"weight", {attributes.rows}, TRAINABLE, Constant(0)}};
      break;
    default:
      break;
  }
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
    if (__builtin_mul_overflow(elements, dim, &elements) ||
        elements > limits::kTensorElementsMax) {
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
