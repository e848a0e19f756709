#include "common/graph/operators.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/nearest_name.h"
#include "common/base/status_macros.h"
#include "common/protocol/limits.h"

namespace starling {
namespace {

using A = OperatorAttributes;

constexpr double kSizeMax = 1 << 16;  // kernel, stride, padding
constexpr double kFeaturesMax = 1 << 24;
constexpr double kIndexMax = int64_t{1} << 33;
constexpr double kClipMax = 1e30;

constexpr AttributeSpec kKernel = {"kernel", &A::kernel, true,
                                   1,        kSizeMax,   "height and width of the window"};
constexpr AttributeSpec kStride = {"stride", &A::stride, false, 1, kSizeMax, "step"};
constexpr AttributeSpec kPadding = {"padding", &A::padding, false,
                                    0,         kSizeMax,    "zeros on each side"};
constexpr AttributeSpec kEpsilon = {"epsilon", &A::epsilon, false,
                                    1e-12,     1,           "added to the variance"};
constexpr AttributeSpec kAxis = {"axis", &A::axis, true, 0, 7, "axis, without the batch"};
constexpr AttributeSpec kBias = {"bias", &A::bias, false, 0, 1, "whether to add a bias"};

const std::vector<OperatorRule>& Table() {
  using enum OpKind;
  using enum InputKind;
  static const auto* const table = new std::vector<OperatorRule>{
      {kConv2d,
       "conv2d",
       false,
       {kTensor},
       {{"out_channels", &A::out_channels, true, 1, kFeaturesMax, "filters"},
        kKernel,
        kStride,
        kPadding,
        {"dilation", &A::dilation, false, 1, kSizeMax, "distance of the window's elements"},
        {"groups", &A::groups, false, 1, kFeaturesMax,
         "parts of the channels that are convolved apart"},
        kBias}},
      {kMaxPool2d, "maxpool2d", false, {kTensor}, {kKernel, kStride, kPadding}},
      {kAvgPool2d, "avgpool2d", false, {kTensor}, {kKernel, kStride, kPadding}},
      {kLinear,
       "linear",
       false,
       {kTensor},
       {{"out_features", &A::out_features, true, 1, kFeaturesMax, "outputs"}, kBias}},
      {kBatchNorm,
       "batchnorm",
       false,
       {kTensor},
       {kEpsilon, {"momentum", &A::momentum, false, 1e-6, 1, "weight of a batch's statistics"}}},
      {kRelu, "relu", false, {kTensor}, {}},
      {kDropout,
       "dropout",
       false,
       {kTensor},
       {{"rate", &A::rate, false, 0, 0.999, "share of elements set to 0"}}},
      {kFlatten, "flatten", false, {kTensor}, {}},
      {kSoftmaxCrossEntropy, "softmax_cross_entropy", true, {kTensor, kClasses}, {}},
      {kGatherRows,
       "gather_rows",
       false,
       {kClasses},
       {{"rows", &A::rows, true, 1, kGatherRowsMax, "rows of the table"}}},
      {kNegativeSum, "negative_sum", true, {kTensor}, {}},
      {kAdd, "add", false, {kTensor, kTensor}, {}},
      {kMul, "mul", false, {kTensor, kTensor}, {}},
      {kConcat, "concat", false, {kTensor, kTensor}, {kAxis}},
      {kSlice,
       "slice",
       false,
       {kTensor},
       {kAxis,
        {"begin", &A::begin, true, 0, kIndexMax, "first element along the axis"},
        {"length", &A::length, true, 1, kIndexMax, "elements along the axis"}}},
      {kReshape,
       "reshape",
       false,
       {kTensor},
       {{"shape", &A::shape, true, -1, kIndexMax, "of a sample; one -1 is worked out"}}},
      {kTranspose,
       "transpose",
       false,
       {kTensor},
       {{"axes", &A::axes, true, 0, 7, "a permutation of the sample's axes"}}},
      {kGlobalAvgPool2d, "global_avgpool2d", false, {kTensor}, {}},
      {kLayerNorm, "layernorm", false, {kTensor}, {kEpsilon}},
      {kGelu,
       "gelu",
       false,
       {kTensor},
       {{"approximate", &A::approximate, false, 0, 1, "the tanh form, as GPT-2 has it"}}},
      {kSigmoid, "sigmoid", false, {kTensor}, {}},
      {kTanh, "tanh", false, {kTensor}, {}},
      {kClip,
       "clip",
       false,
       {kTensor},
       {{"minimum", &A::minimum, false, -kClipMax, kClipMax, "least value"},
        {"maximum", &A::maximum, false, -kClipMax, kClipMax, "greatest value"}}},
      {kEmbedding,
       "embedding",
       false,
       {kTokens},
       {{"rows", &A::rows, true, 1, kGatherRowsMax, "rows of the table, one per token"},
        {"features", &A::features, true, 1, kFeaturesMax, "numbers in a row"}}},
      {kPositionEmbedding,
       "position_embedding",
       false,
       {kTensor},
       {{"rows", &A::rows, true, 1, kGatherRowsMax, "positions that the table has"}}},
      {kMatmul,
       "matmul",
       false,
       {kTensor, kTensor},
       {{"transpose_b", &A::transpose_b, false, 0, 1, "whether b is [..., N, K]"},
        {"scale", &A::scale, false, -kClipMax, kClipMax, "factor of the product"}}},
      {kAttention,
       "attention",
       false,
       {kTensor, kTensor, kTensor},
       {{"heads", &A::heads, true, 1, kSizeMax, "heads; they divide the features"},
        {"causal", &A::causal, false, 0, 1, "whether a position sees only those up to it"}}},
      {kMeanSquaredError, "mean_squared_error", true, {kTensor, kTargets}, {}},
      {kBinaryCrossEntropy, "binary_cross_entropy", true, {kTensor, kTargets}, {}},
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
  const char* const type = spec.type() == AttributeType::kInt     ? "an integer"
                           : spec.type() == AttributeType::kFloat ? "a number"
                           : spec.type() == AttributeType::kPair  ? "an integer or a pair of them"
                           : spec.type() == AttributeType::kInts  ? "integers"
                                                                  : "0 or 1";
  const std::string range = spec.type() == AttributeType::kFloat
                                ? absl::StrCat(spec.minimum, ", ", spec.maximum)
                                : absl::StrCat(static_cast<int64_t>(spec.minimum), ", ",
                                               static_cast<int64_t>(spec.maximum));
  return absl::StrCat(spec.name, " (", spec.meaning, ") to be ", type, " in [", range, "]");
}

// The attribute's numbers; empty if it has another type.
std::vector<double> Numbers(const AttributeSpec& spec, const Attribute& attribute) {
  if (attribute.has_i()) return {static_cast<double>(attribute.i())};
  if (attribute.has_f() && spec.type() == AttributeType::kFloat) return {attribute.f()};
  if (attribute.has_ints() && spec.type() == AttributeType::kPair &&
      (attribute.ints().values_size() == 1 || attribute.ints().values_size() == 2)) {
    return {attribute.ints().values().begin(), attribute.ints().values().end()};
  }
  if (attribute.has_ints() && spec.type() == AttributeType::kInts) {
    return {attribute.ints().values().begin(), attribute.ints().values().end()};
  }
  return {};
}

void Store(const AttributeField& field, const std::vector<double>& numbers,
           OperatorAttributes* out) {
  const auto store = [&](auto member) {
    auto& to = out->*member;
    using To = std::remove_reference_t<decltype(to)>;
    if constexpr (std::is_same_v<To, std::vector<int64_t>>) {
      to.assign(numbers.begin(), numbers.end());
    } else if constexpr (std::is_same_v<To, std::array<int64_t, 2>>) {
      to = {static_cast<int64_t>(numbers[0]), static_cast<int64_t>(numbers.back())};
    } else {
      to = static_cast<To>(numbers[0]);
    }
  };
  std::visit(store, field);
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
    std::vector<std::string> names;
    for (const AttributeSpec& candidate : rule.attributes) names.push_back(candidate.name);
    return Expected(names.empty()
                        ? "no attributes"
                        : absl::StrCat("only the attributes ", absl::StrJoin(names, ", ")),
                    absl::StrCat("\"", name, "\"", DidYouMean(name, names)));
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
    Store(attribute.field, numbers, &resolved);
  }
  if (IsWindowed(rule.kind) && rule.kind != OpKind::kConv2d &&
      !node.attributes().contains("stride")) {
    resolved.stride = resolved.kernel;
  }
  return resolved;
}

}  // namespace starling
