#include "common/graph/operators.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/nearest_name.h"
#include "common/base/status_macros.h"
#include "common/protocol/limits.h"

namespace starling {
namespace {

constexpr double kSizeMax = 1 << 16;  // kernel, stride, padding
constexpr double kFeaturesMax = 1 << 24;
constexpr double kIndexMax = int64_t{1} << 33;
constexpr double kClipMax = 1e30;

const AttributeSpec kKernel = {
    "kernel", AttributeType::kPair, true, 1, kSizeMax, "height and width of the window"};
const AttributeSpec kStride = {"stride", AttributeType::kPair, false, 1, kSizeMax, "step"};
const AttributeSpec kPadding = {"padding", AttributeType::kPair, false, 0,
                                kSizeMax,  "zeros on each side"};
const AttributeSpec kEpsilon = {"epsilon", AttributeType::kFloat,  false, 1e-12,
                                1,         "added to the variance"};
const AttributeSpec kAxis = {"axis", AttributeType::kInt, true, 0, 7, "axis, without the batch"};
const AttributeSpec kBias = {"bias", AttributeType::kBool, false, 0, 1, "whether to add a bias"};

const std::vector<OperatorRule>& Table() {
  static const auto* const table = new std::vector<OperatorRule>{
      {OpKind::kConv2d,
       "conv2d",
       false,
       {InputKind::kTensor},
       {{"out_channels", AttributeType::kInt, true, 1, kFeaturesMax, "filters"},
        kKernel,
        kStride,
        kPadding,
        {"dilation", AttributeType::kPair, false, 1, kSizeMax, "distance of the window's elements"},
        {"groups", AttributeType::kInt, false, 1, kFeaturesMax,
         "parts of the channels that are convolved apart"},
        kBias}},
      {OpKind::kMaxPool2d, "maxpool2d", false, {InputKind::kTensor}, {kKernel, kStride, kPadding}},
      {OpKind::kAvgPool2d, "avgpool2d", false, {InputKind::kTensor}, {kKernel, kStride, kPadding}},
      {OpKind::kLinear,
       "linear",
       false,
       {InputKind::kTensor},
       {{"out_features", AttributeType::kInt, true, 1, kFeaturesMax, "outputs"}, kBias}},
      {OpKind::kBatchNorm,
       "batchnorm",
       false,
       {InputKind::kTensor},
       {kEpsilon,
        {"momentum", AttributeType::kFloat, false, 1e-6, 1, "weight of a batch's statistics"}}},
      {OpKind::kRelu, "relu", false, {InputKind::kTensor}, {}},
      {OpKind::kDropout,
       "dropout",
       false,
       {InputKind::kTensor},
       {{"rate", AttributeType::kFloat, false, 0, 0.999, "share of elements set to 0"}}},
      {OpKind::kFlatten, "flatten", false, {InputKind::kTensor}, {}},
      {OpKind::kSoftmaxCrossEntropy,
       "softmax_cross_entropy",
       true,
       {InputKind::kTensor, InputKind::kClasses},
       {}},
      {OpKind::kGatherRows,
       "gather_rows",
       false,
       {InputKind::kClasses},
       {{"rows", AttributeType::kInt, true, 1, kGatherRowsMax, "rows of the table"}}},
      {OpKind::kNegativeSum, "negative_sum", true, {InputKind::kTensor}, {}},
      {OpKind::kAdd, "add", false, {InputKind::kTensor, InputKind::kTensor}, {}},
      {OpKind::kMul, "mul", false, {InputKind::kTensor, InputKind::kTensor}, {}},
      {OpKind::kConcat, "concat", false, {InputKind::kTensor, InputKind::kTensor}, {kAxis}},
      {OpKind::kSlice,
       "slice",
       false,
       {InputKind::kTensor},
       {kAxis,
        {"begin", AttributeType::kInt, true, 0, kIndexMax, "first element along the axis"},
        {"length", AttributeType::kInt, true, 1, kIndexMax, "elements along the axis"}}},
      {OpKind::kReshape,
       "reshape",
       false,
       {InputKind::kTensor},
       {{"shape", AttributeType::kInts, true, -1, kIndexMax, "of a sample; one -1 is worked out"}}},
      {OpKind::kTranspose,
       "transpose",
       false,
       {InputKind::kTensor},
       {{"axes", AttributeType::kInts, true, 0, 7, "a permutation of the sample's axes"}}},
      {OpKind::kGlobalAvgPool2d, "global_avgpool2d", false, {InputKind::kTensor}, {}},
      {OpKind::kLayerNorm, "layernorm", false, {InputKind::kTensor}, {kEpsilon}},
      {OpKind::kGelu,
       "gelu",
       false,
       {InputKind::kTensor},
       {{"approximate", AttributeType::kBool, false, 0, 1, "the tanh form, as GPT-2 has it"}}},
      {OpKind::kSigmoid, "sigmoid", false, {InputKind::kTensor}, {}},
      {OpKind::kTanh, "tanh", false, {InputKind::kTensor}, {}},
      {OpKind::kClip,
       "clip",
       false,
       {InputKind::kTensor},
       {{"minimum", AttributeType::kFloat, false, -kClipMax, kClipMax, "least value"},
        {"maximum", AttributeType::kFloat, false, -kClipMax, kClipMax, "greatest value"}}},
      {OpKind::kEmbedding,
       "embedding",
       false,
       {InputKind::kTokens},
       {{"rows", AttributeType::kInt, true, 1, kGatherRowsMax, "rows of the table, one per token"},
        {"features", AttributeType::kInt, true, 1, kFeaturesMax, "numbers in a row"}}},
      {OpKind::kPositionEmbedding,
       "position_embedding",
       false,
       {InputKind::kTensor},
       {{"rows", AttributeType::kInt, true, 1, kGatherRowsMax, "positions that the table has"}}},
      {OpKind::kMatmul,
       "matmul",
       false,
       {InputKind::kTensor, InputKind::kTensor},
       {{"transpose_b", AttributeType::kBool, false, 0, 1, "whether b is [..., N, K]"},
        {"scale", AttributeType::kFloat, false, -kClipMax, kClipMax, "factor of the product"}}},
      {OpKind::kAttention,
       "attention",
       false,
       {InputKind::kTensor, InputKind::kTensor, InputKind::kTensor},
       {{"heads", AttributeType::kInt, true, 1, kSizeMax, "heads; they divide the features"},
        {"causal", AttributeType::kBool, false, 0, 1,
         "whether a position sees only those up to it"}}},
      {OpKind::kMeanSquaredError,
       "mean_squared_error",
       true,
       {InputKind::kTensor, InputKind::kTargets},
       {}},
      {OpKind::kBinaryCrossEntropy,
       "binary_cross_entropy",
       true,
       {InputKind::kTensor, InputKind::kTargets},
       {}},
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
                           : spec.type == AttributeType::kInts  ? "integers"
                                                                : "0 or 1";
  const std::string range = spec.type == AttributeType::kFloat
                                ? absl::StrCat(spec.minimum, ", ", spec.maximum)
                                : absl::StrCat(static_cast<int64_t>(spec.minimum), ", ",
                                               static_cast<int64_t>(spec.maximum));
  return absl::StrCat(spec.name, " (", spec.meaning, ") to be ", type, " in [", range, "]");
}

// The attribute's numbers; empty if it has another type.
std::vector<double> Numbers(const AttributeSpec& spec, const Attribute& attribute) {
  if (attribute.has_i()) return {static_cast<double>(attribute.i())};
  if (attribute.has_f() && spec.type == AttributeType::kFloat) return {attribute.f()};
  if (attribute.has_ints() && spec.type == AttributeType::kPair &&
      (attribute.ints().values_size() == 1 || attribute.ints().values_size() == 2)) {
    return {attribute.ints().values().begin(), attribute.ints().values().end()};
  }
  if (attribute.has_ints() && spec.type == AttributeType::kInts) {
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
  if (name == "dilation") out->dilation = pair;
  if (name == "groups") out->groups = first;
  if (name == "features") out->features = first;
  if (name == "axis") out->axis = first;
  if (name == "begin") out->begin = first;
  if (name == "length") out->length = first;
  if (name == "shape") out->shape.assign(numbers.begin(), numbers.end());
  if (name == "axes") out->axes.assign(numbers.begin(), numbers.end());
  if (name == "approximate") out->approximate = first != 0;
  if (name == "minimum") out->minimum = numbers[0];
  if (name == "maximum") out->maximum = numbers[0];
  if (name == "transpose_b") out->transpose_b = first != 0;
  if (name == "scale") out->scale = numbers[0];
  if (name == "heads") out->heads = first;
  if (name == "causal") out->causal = first != 0;
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
    Store(attribute.name, numbers, &resolved);
  }
  if (IsWindowed(rule.kind) && rule.kind != OpKind::kConv2d &&
      !node.attributes().contains("stride")) {
    resolved.stride = resolved.kernel;
  }
  return resolved;
}

}  // namespace starling
