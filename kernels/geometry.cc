#include "kernels/geometry.h"

#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/str_join.h"
#include "kernels/resolver.h"

namespace starling {
namespace {

using Op = OperatorGeometry::Op;
using R = GeometryResolver;

constexpr int64_t kMaxElements = int64_t{1} << 40;
constexpr int64_t kMaxDimension = int64_t{1} << 31;
constexpr int64_t kMaxDropoutElements = int64_t{1} << 34;  // 4 x the 32-bit block counter of Philox
constexpr size_t kMaxRank = 12;                            // oneDNN's
constexpr size_t kMany = std::numeric_limits<size_t>::max();

constexpr std::array<R::Row, 29> kOps = {{
    {"conv2d", Op::kConv2d, &R::Conv, 1, 1, 1, 2},
    {"maxpool2d", Op::kMaxPool2d, &R::Pool, 1, 1, 0, 0},
    {"avgpool2d", Op::kAvgPool2d, &R::Pool, 1, 1, 0, 0},
    {"global_avgpool2d", Op::kGlobalAvgPool2d, &R::GlobalAvgPool, 1, 1, 0, 0},
    {"linear", Op::kLinear, &R::Linear, 1, 1, 1, 2},
    {"batchnorm", Op::kBatchNorm, &R::BatchNorm, 1, 2, 4, 4},
    {"layernorm", Op::kLayerNorm, &R::LayerNorm, 1, 1, 2, 2},
    {"relu", Op::kRelu, &R::SameShape, 1, 1, 0, 0},
    {"gelu", Op::kGelu, &R::Gelu, 1, 1, 0, 0},
    {"sigmoid", Op::kSigmoid, &R::SameShape, 1, 1, 0, 0},
    {"tanh", Op::kTanh, &R::SameShape, 1, 1, 0, 0},
    {"clip", Op::kClip, &R::Clip, 1, 1, 0, 0},
    {"dropout", Op::kDropout, &R::Dropout, 1, 1, 0, 0},
    {"add", Op::kAdd, &R::SameShape, 2, 2, 0, 0},
    {"mul", Op::kMul, &R::SameShape, 2, 2, 0, 0},
    {"concat", Op::kConcat, &R::Concat, 2, kMany, 0, 0},
    {"slice", Op::kSlice, &R::Slice, 1, 1, 0, 0},
    {"reshape", Op::kReshape, &R::Reshape, 1, 1, 0, 0},
    {"transpose", Op::kTranspose, &R::Transpose, 1, 1, 0, 0},
    {"flatten", Op::kFlatten, &R::Flatten, 1, 1, 0, 0},
    {"embedding", Op::kEmbedding, &R::Embedding, 1, 1, 1, 1},
    {"position_embedding", Op::kPositionEmbedding, &R::PositionEmbedding, 1, 1, 1, 1},
    {"gather_rows", Op::kGatherRows, &R::GatherRows, 1, 1, 1, 1},
    {"matmul", Op::kMatMul, &R::MatMul, 2, 2, 0, 0},
    {"attention", Op::kAttention, &R::Attention, 1, 3, 0, 0},
    {"softmax_cross_entropy", Op::kSoftmaxCrossEntropy, &R::SoftmaxCrossEntropy, 2, 2, 0, 0},
    {"mean_squared_error", Op::kMeanSquaredError, &R::ElementwiseLoss, 2, 2, 0, 0},
    {"binary_cross_entropy", Op::kBinaryCrossEntropy, &R::ElementwiseLoss, 2, 2, 0, 0},
    {"negative_sum", Op::kNegativeSum, &R::NegativeSum, 1, 1, 0, 0},
}};

}  // namespace

std::string ShapeText(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

void GeometryResolver::ExpectShape(const char* what, const Shape& given, const Shape& expected) {
  if (given != expected) {
    Fail(what, " has shape ", ShapeText(given), ", expected ", ShapeText(expected));
  }
}

void GeometryResolver::ExpectRank(const char* what, const Shape& given, size_t rank) {
  if (given.size() != rank) {
    Fail(what, " has shape ", ShapeText(given), ", expected ", rank, " dimensions");
  }
}

bool GeometryResolver::HasRows() {
  if (input().size() < 2) {
    Fail("the input has shape ", ShapeText(input()), ", expected at least [N, features]");
  }
  return status_.ok();
}

void GeometryResolver::ExpectSameInputs() {
  for (const Shape& shape : spec_.input_shapes) ExpectShape("an input", shape, input());
}

const AttributeValue* GeometryResolver::Find(const char* name) {
  known_attributes_.insert(name);
  auto it = spec_.attributes.find(name);
  return it == spec_.attributes.end() ? nullptr : &it->second;
}

int64_t GeometryResolver::Int(const char* name, int64_t otherwise, int64_t least) {
  const AttributeValue* value = Find(name);
  if (value == nullptr) return otherwise;
  const int64_t* i = std::get_if<int64_t>(value);
  if (i == nullptr || *i < least || *i >= kMaxDimension) {
    Fail("attribute '", name, "' must be an integer of at least ", least);
    return otherwise;
  }
  return *i;
}

std::pair<int64_t, int64_t> GeometryResolver::Pair(const char* name,
                                                   std::pair<int64_t, int64_t> otherwise,
                                                   int64_t least) {
  const AttributeValue* value = Find(name);
  if (value == nullptr) return otherwise;
  std::pair<int64_t, int64_t> pair = {least - 1, least - 1};
  if (const auto* i = std::get_if<int64_t>(value)) pair = {*i, *i};
  if (const auto* ints = std::get_if<std::vector<int64_t>>(value); ints && ints->size() == 2) {
    pair = {(*ints)[0], (*ints)[1]};
  }
  for (int64_t x : {pair.first, pair.second}) {
    if (x < least || x >= kMaxDimension) {
      Fail("attribute '", name, "' must be an integer or a pair (height, width) of at least ",
           least);
      return otherwise;
    }
  }
  return pair;
}

double GeometryResolver::Double(const char* name, double otherwise) {
  const AttributeValue* value = Find(name);
  if (value == nullptr) return otherwise;
  if (const auto* d = std::get_if<double>(value)) return *d;
  if (const auto* i = std::get_if<int64_t>(value)) return static_cast<double>(*i);
  Fail("attribute '", name, "' must be a number");
  return otherwise;
}

bool GeometryResolver::Flag(const char* name) {
  const int64_t value = Int(name, 0, 0);
  if (value > 1) Fail("attribute '", name, "' must be 0 or 1");
  return value == 1;
}

double GeometryResolver::Epsilon() {
  const double epsilon = Double("epsilon", 1e-5);
  if (!(epsilon > 0 && std::isfinite(epsilon))) Fail("attribute 'epsilon' must be above 0");
  return epsilon;
}

std::vector<int64_t> GeometryResolver::Ints(const char* name) {
  const AttributeValue* value = Find(name);
  if (value == nullptr) {
    Fail("needs the attribute '", name, "'");
    return {};
  }
  if (const auto* ints = std::get_if<std::vector<int64_t>>(value)) return *ints;
  if (const auto* one = std::get_if<int64_t>(value)) return {*one};
  Fail("attribute '", name, "' must be a list of integers");
  return {};
}

int64_t GeometryResolver::Axis() {
  if (Find("axis") == nullptr) Fail("needs the attribute 'axis'");
  const int64_t axis = Int("axis", 0, 0);
  const int64_t rank = static_cast<int64_t>(input().size()) - 1;
  if (axis >= rank) {
    Fail("attribute 'axis' is ", axis, ", but a sample of ", ShapeText(input()), " has ", rank,
         " dimensions");
  }
  return status_.ok() ? axis + 1 : 0;
}

void GeometryResolver::ExpectCount(const char* name, int64_t expected) {
  const int64_t given = Int(name, expected, 1);
  if (given != expected) {
    Fail("attribute '", name, "' is ", given, ", but the weight says ", expected);
  }
}

bool GeometryResolver::MeanReduction(bool otherwise) {
  const AttributeValue* value = Find("reduction");
  if (value == nullptr) return otherwise;
  const std::string* s = std::get_if<std::string>(value);
  if (s == nullptr || (*s != "mean" && *s != "sum")) {
    Fail("attribute 'reduction' must be \"mean\" or \"sum\"");
    return otherwise;
  }
  return *s == "mean";
}

void GeometryResolver::CheckCounts(const Row& row) {
  const auto check = [this](size_t count, const char* what, size_t least, size_t most) {
    if (count >= least && count <= most) return;
    const std::string range = most == kMany  ? absl::StrCat("at least ", least)
                              : most > least ? absl::StrCat(least, " to ", most)
                                             : absl::StrCat(least);
    Fail("has ", count, " ", what, ", expected ", range);
  };
  check(spec_.input_shapes.size(), "inputs", row.inputs_min, row.inputs_max);
  check(spec_.parameter_shapes.size(), "parameters", row.parameters_min, row.parameters_max);
  if (!spec_.input_formats.empty() && spec_.input_formats.size() != spec_.input_shapes.size()) {
    Fail("has ", spec_.input_formats.size(), " input formats for ", spec_.input_shapes.size(),
         " inputs");
  }
  if (spec_.kernel_threads < 1 || spec_.kernel_threads > 1024) {
    Fail("kernel_threads is ", spec_.kernel_threads, ", expected 1 to 1024");
  }
}

void GeometryResolver::CheckShapes() {
  auto check = [this](const char* what, const Shape& shape) {
    if (shape.empty() || ElementCount(shape) < 0) {
      Fail(what, " has shape ", ShapeText(shape),
           ", expected dimensions of at least 1 and at most 2^40 elements in all");
    }
    if (shape.size() > kMaxRank) {
      Fail(what, " has shape ", ShapeText(shape), ", expected at most ", kMaxRank, " dimensions");
    }
  };
  for (const Shape& shape : spec_.input_shapes) check("an input", shape);
  for (const Shape& shape : spec_.parameter_shapes) check("a parameter", shape);
  if (!status_.ok()) return;
  g_.batch = input()[0];
  g_.inputs = ElementCount(input()) / g_.batch;
}

void GeometryResolver::SameShape() {
  ExpectSameInputs();
  ExpectShape("the output", spec_.output_shape, input());
}

void GeometryResolver::Gelu() {
  SameShape();
  g_.approximate = Flag("approximate");
}

void GeometryResolver::Clip() {
  SameShape();
  for (const char* name : {"minimum", "maximum"}) {
    if (!spec_.attributes.contains(name)) Fail("needs the attribute '", name, "'");
  }
  g_.minimum = Double("minimum", 0);
  g_.maximum = Double("maximum", 0);
  if (!(g_.minimum < g_.maximum && std::isfinite(g_.minimum) && std::isfinite(g_.maximum))) {
    Fail("attribute 'minimum' (", g_.minimum, ") must be below 'maximum' (", g_.maximum, ")");
  }
}

void GeometryResolver::Dropout() {
  if (!spec_.attributes.contains("rate")) Fail("needs the attribute 'rate'");
  g_.rate = Double("rate", 0);
  if (!(g_.rate >= 0 && g_.rate < 1)) Fail("attribute 'rate' must be in [0, 1)");
  if (ElementCount(input()) > kMaxDropoutElements) Fail("has more than 2^34 elements");
  ExpectShape("the output", spec_.output_shape, input());
}

void GeometryResolver::CheckAttributes() {
  for (const auto& [name, value] : spec_.attributes) {
    if (!known_attributes_.contains(name)) {
      Fail("unknown attribute '", name, "', expected ",
           known_attributes_.empty() ? "none" : absl::StrJoin(known_attributes_, ", "));
    }
  }
}

absl::StatusOr<OperatorGeometry> GeometryResolver::Resolve() {
  const Row* row = nullptr;
  for (const Row& candidate : kOps) {
    if (spec_.op == candidate.name) row = &candidate;
  }
  if (row == nullptr) {
    return absl::UnimplementedError(absl::StrCat("operator '", spec_.name, "' is a '", spec_.op,
                                                 "', expected one of ", OperatorNames()));
  }
  g_.op = row->op;
  CheckCounts(*row);
  if (status_.ok()) CheckShapes();
  if (!status_.ok()) return status_;
  (this->*row->resolve)();
  CheckAttributes();
  if (status_.ok() && ElementCount(spec_.output_shape) < 0) {
    Fail("the output has shape ", ShapeText(spec_.output_shape), ": more than 2^40 elements");
  }
  if (!status_.ok()) return status_;
  return g_;
}

int64_t ElementCount(const Shape& shape) {
  int64_t count = 1;
  for (int64_t dimension : shape) {
    if (dimension < 1 || dimension > kMaxElements / count) return -1;
    count *= dimension;
  }
  return count;
}

std::string OperatorNames() {
  return absl::StrJoin(kOps, ", ",
                       [](std::string* out, const R::Row& row) { absl::StrAppend(out, row.name); });
}

absl::StatusOr<OperatorGeometry> ResolveGeometry(const OperatorSpec& spec) {
  return GeometryResolver(spec).Resolve();
}

}  // namespace starling
