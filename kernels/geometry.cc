#include "kernels/geometry.h"

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace starling {
namespace {

using Op = OperatorGeometry::Op;

constexpr int64_t kMaxElements = int64_t{1} << 40;
constexpr int64_t kMaxDimension = int64_t{1} << 31;
constexpr int64_t kMaxDropoutElements = int64_t{1} << 34;  // 4 x the 32-bit block counter of Philox

struct OpRow {
  const char* name;
  Op op;
  size_t inputs;
  size_t parameters_min;
  size_t parameters_max;
};

constexpr std::array<OpRow, 11> kOps = {{
    {"conv2d", Op::kConv2d, 1, 1, 2},
    {"maxpool2d", Op::kMaxPool2d, 1, 0, 0},
    {"avgpool2d", Op::kAvgPool2d, 1, 0, 0},
    {"linear", Op::kLinear, 1, 1, 2},
    {"batchnorm", Op::kBatchNorm, 1, 4, 4},
    {"relu", Op::kRelu, 1, 0, 0},
    {"dropout", Op::kDropout, 1, 0, 0},
    {"flatten", Op::kFlatten, 1, 0, 0},
    {"softmax_cross_entropy", Op::kSoftmaxCrossEntropy, 2, 0, 0},
    {"gather_rows", Op::kGatherRows, 1, 1, 1},
    {"negative_sum", Op::kNegativeSum, 1, 0, 0},
}};

std::string ShapeText(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Collects one operator's facts; the first error wins and makes every later step a no-op.
class Resolver {
 public:
  explicit Resolver(const OperatorSpec& spec) : spec_(spec) {}

  absl::StatusOr<OperatorGeometry> Resolve();

 private:
  template <typename... Parts>
  void Fail(const Parts&... parts) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("operator '", spec_.name, "' (", spec_.op, "): ", parts...));
    }
  }
  void ExpectShape(const char* what, const Shape& given, const Shape& expected) {
    if (given != expected) {
      Fail(what, " has shape ", ShapeText(given), ", expected ", ShapeText(expected));
    }
  }
  void ExpectRank(const char* what, const Shape& given, size_t rank) {
    if (given.size() != rank) {
      Fail(what, " has shape ", ShapeText(given), ", expected ", rank, " dimensions");
    }
  }

  const AttributeValue* Find(const char* name) {
    known_attributes_.insert(name);
    auto it = spec_.attributes.find(name);
    return it == spec_.attributes.end() ? nullptr : &it->second;
  }
  std::pair<int64_t, int64_t> Pair(const char* name, std::pair<int64_t, int64_t> otherwise,
                                   int64_t least);
  int64_t Int(const char* name, int64_t otherwise, int64_t least);
  double Double(const char* name, double otherwise);
  bool MeanReduction(bool otherwise);

  void CheckCounts(const OpRow& row);
  void CheckShapes();
  void Conv();
  void Pool();
  void Windows(int64_t* out_height, int64_t* out_width);
  void Linear();
  void BatchNorm();
  void Dropout();
  void SoftmaxCrossEntropy();
  void GatherRows();
  void CheckAttributes();

  const Shape& input() const { return spec_.input_shapes[0]; }

  const OperatorSpec& spec_;
  OperatorGeometry g_;
  absl::Status status_;
  std::set<std::string> known_attributes_;
};

int64_t Resolver::Int(const char* name, int64_t otherwise, int64_t least) {
  const AttributeValue* value = Find(name);
  if (value == nullptr) return otherwise;
  const int64_t* i = std::get_if<int64_t>(value);
  if (i == nullptr || *i < least || *i >= kMaxDimension) {
    Fail("attribute '", name, "' must be an integer of at least ", least);
    return otherwise;
  }
  return *i;
}

std::pair<int64_t, int64_t> Resolver::Pair(const char* name, std::pair<int64_t, int64_t> otherwise,
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

double Resolver::Double(const char* name, double otherwise) {
  const AttributeValue* value = Find(name);
  if (value == nullptr) return otherwise;
  if (const auto* d = std::get_if<double>(value)) return *d;
  if (const auto* i = std::get_if<int64_t>(value)) return static_cast<double>(*i);
  Fail("attribute '", name, "' must be a number");
  return otherwise;
}

bool Resolver::MeanReduction(bool otherwise) {
  const AttributeValue* value = Find("reduction");
  if (value == nullptr) return otherwise;
  const std::string* s = std::get_if<std::string>(value);
  if (s == nullptr || (*s != "mean" && *s != "sum")) {
    Fail("attribute 'reduction' must be \"mean\" or \"sum\"");
    return otherwise;
  }
  return *s == "mean";
}

void Resolver::CheckCounts(const OpRow& row) {
  if (spec_.input_shapes.size() != row.inputs) {
    Fail("has ", spec_.input_shapes.size(), " inputs, expected ", row.inputs);
  }
  const size_t parameters = spec_.parameter_shapes.size();
  if (parameters < row.parameters_min || parameters > row.parameters_max) {
    Fail("has ", parameters, " parameters, expected ", row.parameters_min,
         row.parameters_max > row.parameters_min ? absl::StrCat(" to ", row.parameters_max) : "");
  }
  if (!spec_.input_formats.empty() && spec_.input_formats.size() != spec_.input_shapes.size()) {
    Fail("has ", spec_.input_formats.size(), " input formats for ", spec_.input_shapes.size(),
         " inputs");
  }
  if (spec_.kernel_threads < 1 || spec_.kernel_threads > 1024) {
    Fail("kernel_threads is ", spec_.kernel_threads, ", expected 1 to 1024");
  }
}

void Resolver::CheckShapes() {
  auto check = [this](const char* what, const Shape& shape) {
    if (shape.empty() || ElementCount(shape) < 0) {
      Fail(what, " has shape ", ShapeText(shape),
           ", expected dimensions of at least 1 and at most 2^40 elements in all");
    }
  };
  for (const Shape& shape : spec_.input_shapes) check("an input", shape);
  for (const Shape& shape : spec_.parameter_shapes) check("a parameter", shape);
  if (!status_.ok()) return;
  g_.batch = input()[0];
  g_.inputs = ElementCount(input()) / g_.batch;
}

void Resolver::Windows(int64_t* out_height, int64_t* out_width) {
  Geometry2d& p = g_.plane;
  auto windows = [this](int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                        int64_t dilation, const char* what) -> int64_t {
    const int64_t reach = size + 2 * padding - dilation * (kernel - 1) - 1;
    if (reach < 0) {
      Fail("the kernel does not fit: it spans ", dilation * (kernel - 1) + 1, " of a ", what,
           " of ", size, " with ", padding, " of padding on both sides");
      return 1;
    }
    return reach / stride + 1;
  };
  *out_height = windows(p.in_height, p.kernel_height, p.stride_height, p.padding_height,
                        p.dilation_height, "height");
  *out_width = windows(p.in_width, p.kernel_width, p.stride_width, p.padding_width,
                       p.dilation_width, "width");
}

void Resolver::Conv() {
  ExpectRank("the input", input(), 4);
  const Shape& weight = spec_.parameter_shapes[0];
  ExpectRank("the weight", weight, 4);
  if (!status_.ok()) return;
  Geometry2d& p = g_.plane;
  p.batch = input()[0];
  p.in_channels = input()[1];
  p.in_height = input()[2];
  p.in_width = input()[3];
  p.out_channels = weight[0];
  p.kernel_height = weight[2];
  p.kernel_width = weight[3];
  std::tie(p.stride_height, p.stride_width) = Pair("stride", {1, 1}, 1);
  std::tie(p.padding_height, p.padding_width) = Pair("padding", {0, 0}, 0);
  std::tie(p.dilation_height, p.dilation_width) = Pair("dilation", {1, 1}, 1);
  p.groups = Int("groups", 1, 1);
  p.bias = spec_.parameter_shapes.size() == 2;
  if (p.in_channels % p.groups != 0 || p.out_channels % p.groups != 0) {
    Fail("groups = ", p.groups, " does not divide ", p.in_channels, " input and ", p.out_channels,
         " output channels");
    return;
  }
  ExpectShape("the weight", weight,
              {p.out_channels, p.in_channels / p.groups, p.kernel_height, p.kernel_width});
  if (p.bias) ExpectShape("the bias", spec_.parameter_shapes[1], {p.out_channels});
  Windows(&p.out_height, &p.out_width);
  ExpectShape("the output", spec_.output_shape,
              {p.batch, p.out_channels, p.out_height, p.out_width});
}

void Resolver::Pool() {
  ExpectRank("the input", input(), 4);
  if (!status_.ok()) return;
  Geometry2d& p = g_.plane;
  p.batch = input()[0];
  p.in_channels = p.out_channels = input()[1];
  p.in_height = input()[2];
  p.in_width = input()[3];
  if (!spec_.attributes.contains("kernel")) Fail("needs the attribute 'kernel'");
  std::tie(p.kernel_height, p.kernel_width) = Pair("kernel", {1, 1}, 1);
  std::tie(p.stride_height, p.stride_width) = Pair("stride", {p.kernel_height, p.kernel_width}, 1);
  std::tie(p.padding_height, p.padding_width) = Pair("padding", {0, 0}, 0);
  if (p.padding_height > p.kernel_height / 2 || p.padding_width > p.kernel_width / 2) {
    Fail("padding (", p.padding_height, ", ", p.padding_width,
         ") is more than half of the kernel (", p.kernel_height, ", ", p.kernel_width, ")");
  }
  Windows(&p.out_height, &p.out_width);
  ExpectShape("the output", spec_.output_shape,
              {p.batch, p.out_channels, p.out_height, p.out_width});
}

void Resolver::Linear() {
  ExpectRank("the input", input(), 2);
  const Shape& weight = spec_.parameter_shapes[0];
  ExpectRank("the weight", weight, 2);
  if (!status_.ok()) return;
  g_.outputs = weight[0];
  g_.bias = spec_.parameter_shapes.size() == 2;
  ExpectShape("the weight", weight, {g_.outputs, g_.inputs});
  if (g_.bias) ExpectShape("the bias", spec_.parameter_shapes[1], {g_.outputs});
  ExpectShape("the output", spec_.output_shape, {g_.batch, g_.outputs});
}

void Resolver::BatchNorm() {
  if (input().size() != 2 && input().size() != 4) {
    Fail("the input has shape ", ShapeText(input()), ", expected [N, C] or [N, C, H, W]");
    return;
  }
  g_.inputs = input()[1];
  g_.spatial = input().size() == 4 ? input()[2] * input()[3] : 1;
  const char* names[] = {"the weight", "the bias", "the mean", "the variance"};
  for (int i = 0; i < 4; ++i) ExpectShape(names[i], spec_.parameter_shapes[i], {g_.inputs});
  g_.epsilon = Double("epsilon", 1e-5);
  if (!(g_.epsilon > 0 && std::isfinite(g_.epsilon))) Fail("attribute 'epsilon' must be above 0");
  ExpectShape("the output", spec_.output_shape, input());
}

void Resolver::Dropout() {
  if (!spec_.attributes.contains("rate")) Fail("needs the attribute 'rate'");
  g_.rate = Double("rate", 0);
  if (!(g_.rate >= 0 && g_.rate < 1)) Fail("attribute 'rate' must be in [0, 1)");
  if (ElementCount(input()) > kMaxDropoutElements) Fail("has more than 2^34 elements");
  ExpectShape("the output", spec_.output_shape, input());
}

void Resolver::SoftmaxCrossEntropy() {
  ExpectRank("the logits", input(), 2);
  ExpectShape("the labels", spec_.input_shapes[1], {g_.batch});
  ExpectShape("the output", spec_.output_shape, {g_.batch});
  g_.outputs = g_.inputs;
  g_.mean_reduction = MeanReduction(true);
  g_.labels_input = true;
}

void Resolver::GatherRows() {
  ExpectRank("the indices", input(), 1);
  ExpectRank("the weight", spec_.parameter_shapes[0], 2);
  if (!status_.ok()) return;
  g_.inputs = spec_.parameter_shapes[0][0];
  g_.outputs = spec_.parameter_shapes[0][1];
  g_.labels_input = true;
  ExpectShape("the output", spec_.output_shape, {g_.batch, g_.outputs});
}

void Resolver::CheckAttributes() {
  for (const auto& [name, value] : spec_.attributes) {
    if (!known_attributes_.contains(name)) {
      Fail("unknown attribute '", name, "', expected ",
           known_attributes_.empty() ? "none" : absl::StrJoin(known_attributes_, ", "));
    }
  }
}

absl::StatusOr<OperatorGeometry> Resolver::Resolve() {
  const OpRow* row = nullptr;
  for (const OpRow& candidate : kOps) {
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
  switch (row->op) {
    case Op::kConv2d: Conv(); break;
    case Op::kMaxPool2d:
    case Op::kAvgPool2d: Pool(); break;
    case Op::kLinear: Linear(); break;
    case Op::kBatchNorm: BatchNorm(); break;
    case Op::kRelu: ExpectShape("the output", spec_.output_shape, input()); break;
    case Op::kDropout: Dropout(); break;
    case Op::kFlatten: ExpectShape("the output", spec_.output_shape, {g_.batch, g_.inputs}); break;
    case Op::kSoftmaxCrossEntropy: SoftmaxCrossEntropy(); break;
    case Op::kGatherRows: GatherRows(); break;
    case Op::kNegativeSum:
      ExpectShape("the output", spec_.output_shape, {g_.batch});
      g_.mean_reduction = MeanReduction(false);
      break;
  }
  CheckAttributes();
  if (status_.ok() && ElementCount(spec_.output_shape) < 0) {
    Fail("the output has shape ", ShapeText(spec_.output_shape), ": more than 2^40 elements");
  }
  if (!status_.ok()) return status_;
  return g_;
}

}  // namespace

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
                       [](std::string* out, const OpRow& row) { absl::StrAppend(out, row.name); });
}

absl::StatusOr<OperatorGeometry> ResolveGeometry(const OperatorSpec& spec) {
  return Resolver(spec).Resolve();
}

}  // namespace starling
