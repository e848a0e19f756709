#include "kernels/testing/operator_cases.h"

#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/geometry.h"

namespace starling {
namespace {

using Pair = std::vector<int64_t>;

struct Window {
  Pair kernel;
  Pair stride = {1, 1};
  Pair padding = {0, 0};
  Pair dilation = {1, 1};
  int64_t groups = 1;
};

int64_t OutSize(const Window& w, int axis, int64_t size) {
  return (size + 2 * w.padding[axis] - w.dilation[axis] * (w.kernel[axis] - 1) - 1) /
             w.stride[axis] +
         1;
}

OperatorCase Case(std::string label, std::string op, Shape input, Shape output,
                  std::vector<Shape> parameters = {}, AttributeMap attributes = {}) {
  OperatorCase c;
  c.label = std::move(label);
  c.spec.name = "node_" + c.label;
  c.spec.op = std::move(op);
  c.spec.attributes = std::move(attributes);
  c.spec.input_shapes = {std::move(input)};
  c.spec.output_shape = std::move(output);
  c.spec.parameter_shapes = std::move(parameters);
  return c;
}

OperatorCase Conv(std::string label, const Shape& in, int64_t out_channels, const Window& w,
                  bool bias = true) {
  std::vector<Shape> parameters = {{out_channels, in[1] / w.groups, w.kernel[0], w.kernel[1]}};
  if (bias) parameters.push_back({out_channels});
  return Case("conv2d_" + label, "conv2d", in,
              {in[0], out_channels, OutSize(w, 0, in[2]), OutSize(w, 1, in[3])}, parameters,
              {{"stride", w.stride},
               {"padding", w.padding},
               {"dilation", w.dilation},
               {"groups", w.groups}});
}

OperatorCase Pool(const std::string& op, const std::string& label, const Shape& in,
                  const Window& w) {
  return Case(op + "_" + label, op, in, {in[0], in[1], OutSize(w, 0, in[2]), OutSize(w, 1, in[3])},
              {}, {{"kernel", w.kernel}, {"stride", w.stride}, {"padding", w.padding}});
}

OperatorCase Linear(int64_t batch, int64_t inputs, int64_t outputs, bool bias = true) {
  std::vector<Shape> parameters = {{outputs, inputs}};
  if (bias) parameters.push_back({outputs});
  return Case(absl::StrCat("linear_", batch, "x", inputs, "x", outputs, bias ? "" : "_no_bias"),
              "linear", {batch, inputs}, {batch, outputs}, parameters);
}

OperatorCase BatchNorm(const std::string& label, const Shape& in, double epsilon = 1e-5) {
  const Shape channels = {in[1]};
  return Case("batchnorm_" + label, "batchnorm", in, in, {channels, channels, channels, channels},
              {{"epsilon", epsilon}});
}

OperatorCase WithLabels(OperatorCase c, int64_t classes) {
  c.classes = classes;
  if (c.spec.op == "softmax_cross_entropy") c.spec.input_shapes.push_back({c.spec.output_shape[0]});
  return c;
}

OperatorCase CrossEntropy(int64_t batch, int64_t classes, const std::string& reduction) {
  return WithLabels(Case(absl::StrCat("cross_entropy_", batch, "x", classes, "_", reduction),
                         "softmax_cross_entropy", {batch, classes}, {batch}, {},
                         {{"reduction", reduction}}),
                    classes);
}

OperatorCase ForInference(OperatorCase c) {
  c.label += "_inference";
  c.spec.training = false;
  return c;
}

void AddPlanes(std::vector<OperatorCase>& cases) {
  cases.push_back(Conv("lenet1", {2, 1, 28, 28}, 32, {.kernel = {3, 3}}));
  cases.push_back(Conv("lenet2", {2, 32, 12, 12}, 64, {.kernel = {3, 3}}));
  cases.push_back(Conv("one_sample", {1, 3, 8, 8}, 4, {.kernel = {3, 3}, .padding = {1, 1}}));
  cases.push_back(Conv("primes", {3, 5, 13, 11}, 7, {.kernel = {5, 3}, .padding = {2, 1}}));
  cases.push_back(Conv("strides", {2, 16, 17, 19}, 16,
                       {.kernel = {3, 3}, .stride = {2, 3}, .padding = {1, 0}}));
  cases.push_back(Conv("dilation", {2, 17, 15, 14}, 33,
                       {.kernel = {3, 2}, .padding = {2, 1}, .dilation = {2, 3}}));
  cases.push_back(Conv("groups", {2, 12, 9, 9}, 18, {.kernel = {3, 3}, .groups = 3}));
  cases.push_back(Conv("depthwise", {2, 32, 9, 7}, 32,
                       {.kernel = {3, 3}, .padding = {1, 1}, .groups = 32}));
  cases.push_back(Conv("pointwise", {3, 31, 7, 7}, 15, {.kernel = {1, 1}}));
  cases.push_back(
      Conv("pointwise_stride", {2, 16, 8, 8}, 32, {.kernel = {1, 1}, .stride = {2, 2}}));
  cases.push_back(Conv("no_bias", {2, 8, 6, 6}, 8, {.kernel = {3, 3}}, false));
  cases.push_back(Conv("whole_image", {2, 6, 5, 5}, 12, {.kernel = {5, 5}}));
  for (const char* op : {"maxpool2d", "avgpool2d"}) {
    cases.push_back(Pool(op, "lenet", {2, 64, 24, 24}, {.kernel = {2, 2}, .stride = {2, 2}}));
    cases.push_back(Pool(op, "overlap", {2, 5, 13, 11},
                         {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}));
    cases.push_back(Pool(op, "leftover", {1, 17, 7, 8}, {.kernel = {2, 3}, .stride = {2, 3}}));
    cases.push_back(Pool(op, "gaps", {3, 3, 11, 11}, {.kernel = {2, 2}, .stride = {3, 3}}));
    cases.push_back(Pool(op, "global", {2, 16, 6, 5}, {.kernel = {6, 5}}));
  }
}

}  // namespace

bool OperatorCase::loss() const {
  return spec.op == "softmax_cross_entropy" || spec.op == "negative_sum";
}

std::vector<OperatorCase> OperatorCases() {
  std::vector<OperatorCase> cases;
  AddPlanes(cases);
  cases.push_back(Linear(1, 1, 1));
  cases.push_back(Linear(1, 64, 10));
  cases.push_back(Linear(7, 31, 13));
  cases.push_back(Linear(32, 128, 10));
  cases.push_back(Linear(16, 577, 128, false));
  cases.push_back(BatchNorm("rows", {16, 13}));
  cases.push_back(BatchNorm("planes", {4, 6, 5, 7}));
  cases.push_back(BatchNorm("vector_channels", {3, 32, 6, 6}));
  cases.push_back(BatchNorm("background", {16, 8, 28, 28}));
  cases.push_back(BatchNorm("odd_channels", {2, 19, 4, 4}, 1e-3));
  cases.push_back(ForInference(BatchNorm("planes", {4, 6, 5, 7})));
  cases.push_back(ForInference(BatchNorm("rows", {1, 13})));
  cases.push_back(ForInference(Conv("primes", {3, 5, 13, 11}, 7, {.kernel = {5, 3}})));
  cases.push_back(ForInference(Pool("maxpool2d", "overlap", {2, 5, 13, 11},
                                    {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}})));
  cases.push_back(Case("relu_rows", "relu", {5, 37}, {5, 37}));
  cases.push_back(Case("relu_planes", "relu", {2, 17, 5, 3}, {2, 17, 5, 3}));
  for (double rate : {0.0, 0.25, 0.5}) {
    const std::string label = absl::StrCat("dropout_", static_cast<int>(rate * 100));
    cases.push_back(Case(label + "_rows", "dropout", {9, 41}, {9, 41}, {}, {{"rate", rate}}));
    cases.push_back(
        Case(label + "_planes", "dropout", {3, 19, 4, 5}, {3, 19, 4, 5}, {}, {{"rate", rate}}));
  }
  cases.push_back(ForInference(Case("dropout", "dropout", {9, 41}, {9, 41}, {}, {{"rate", 0.5}})));
  cases.push_back(Case("flatten", "flatten", {3, 19, 4, 5}, {3, 380}));
  cases.push_back(Case("flatten_rows", "flatten", {3, 7}, {3, 7}));
  for (const char* reduction : {"mean", "sum"}) {
    cases.push_back(CrossEntropy(1, 2, reduction));
    cases.push_back(CrossEntropy(32, 10, reduction));
    cases.push_back(CrossEntropy(5, 1009, reduction));
  }
  cases.push_back(WithLabels(Case("gather_rows", "gather_rows", {11}, {11, 1}, {{29, 1}}), 29));
  cases.push_back(WithLabels(Case("gather_wide_rows", "gather_rows", {6}, {6, 5}, {{4, 5}}), 4));
  cases.push_back(Case("negative_sum", "negative_sum", {7, 3}, {7}));
  cases.push_back(Case("negative_sum_planes", "negative_sum", {3, 19, 4, 5}, {3}));
  cases.push_back(Case("negative_sum_scalars", "negative_sum", {3}, {3}));
  cases.push_back(Case("negative_sum_mean", "negative_sum", {7, 3}, {7}, {},
                       {{"reduction", std::string("mean")}}));
  return cases;
}

Doubles RandomDoubles(int64_t count, uint64_t seed) {
  std::mt19937_64 bits(seed);  // its sequence is fixed by the standard; the distributions' are not
  Doubles values(count);
  // Multiples of 2^-20 in [-2, 2): exact in float, ties as good as never.
  for (double& v : values) v = static_cast<double>(bits() >> 42) / (1 << 20) - 2;
  return values;
}

ReferenceArgs RandomArgs(const OperatorCase& test_case) {
  const OperatorSpec& spec = test_case.spec;
  ReferenceArgs args;
  args.random = {.seed = 1234, .step = 5, .micro_batch = 6, .node = 7};
  args.global_batch = 4 * spec.input_shapes[0][0];
  uint64_t seed = 1;
  for (size_t i = 0; i < spec.input_shapes.size(); ++i) {
    args.inputs.push_back(RandomDoubles(ElementCount(spec.input_shapes[i]), seed++));
    if (test_case.classes == 0 || i + 1 < spec.input_shapes.size()) continue;
    std::mt19937_64 bits(99);
    for (double& label : args.inputs[i]) {
      label = static_cast<double>(bits() % static_cast<uint64_t>(test_case.classes));
    }
  }
  for (size_t i = 0; i < spec.parameter_shapes.size(); ++i) {
    args.parameters.push_back(RandomDoubles(ElementCount(spec.parameter_shapes[i]), seed++));
    const bool variance = spec.op == "batchnorm" && i == 3;
    if (variance) {
      for (double& v : args.parameters[i]) v = v * v + 0.125;
    }
  }
  return args;
}

}  // namespace starling
