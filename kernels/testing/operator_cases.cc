#include "kernels/testing/operator_cases.h"

#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

// Followed by an addition, a ReLU, or both.
OperatorCase Fused(OperatorCase c, bool add, bool relu) {
  c.label += absl::StrCat(add ? "_add" : "", relu ? "_relu" : "");
  if (add) c.spec.input_shapes.push_back(c.spec.input_shapes[0]);
  c.spec.attributes["relu"] = int64_t{relu};
  return c;
}

OperatorCase WithLabels(OperatorCase c, int64_t classes) {
  c.classes = classes;
  if (c.spec.op == "softmax_cross_entropy") c.spec.input_shapes.push_back({c.spec.output_shape[0]});
  return c;
}

OperatorCase CrossEntropy(int64_t batch, int64_t classes, const std::string& reduction) {
  return WithLabels(
      Case(absl::StrCat("cross_entropy_", batch, "x", classes, "_", reduction),
           "softmax_cross_entropy", {batch, classes}, {batch}, {}, {{"reduction", reduction}}),
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
  cases.push_back(
      Conv("depthwise", {2, 32, 9, 7}, 32, {.kernel = {3, 3}, .padding = {1, 1}, .groups = 32}));
  cases.push_back(Conv("depthwise_stride", {2, 24, 9, 7}, 24,
                       {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .groups = 24},
                       false));
  cases.push_back(Conv("depthwise_odd", {1, 29, 7, 5}, 29,
                       {.kernel = {3, 3}, .padding = {1, 1}, .groups = 29}));
  cases.push_back(Conv("depthwise_dilation", {3, 16, 11, 9}, 16,
                       {.kernel = {3, 3}, .padding = {2, 2}, .dilation = {2, 2}, .groups = 16}));
  cases.push_back(Conv("depthwise_multiplier", {2, 6, 7, 7}, 12,
                       {.kernel = {3, 3}, .padding = {1, 1}, .groups = 6}));
  cases.push_back(Conv("groups_blocks", {2, 32, 5, 7}, 32,
                       {.kernel = {3, 1}, .stride = {2, 1}, .padding = {1, 0}, .groups = 2}));
  cases.push_back(Conv("groups_pointwise", {1, 30, 5, 5}, 20, {.kernel = {1, 1}, .groups = 5}));
  cases.push_back(Conv("dilation_groups", {1, 6, 17, 13}, 9,
                       {.kernel = {3, 3}, .padding = {3, 3}, .dilation = {3, 3}, .groups = 3}));
  cases.push_back(Conv("dilation_stride", {2, 16, 15, 15}, 16,
                       {.kernel = {3, 3}, .stride = {2, 2}, .padding = {2, 2}, .dilation = {2, 2}},
                       false));
  cases.push_back(Conv("pointwise", {3, 31, 7, 7}, 15, {.kernel = {1, 1}}));
  cases.push_back(
      Conv("pointwise_stride", {2, 16, 8, 8}, 32, {.kernel = {1, 1}, .stride = {2, 2}}));
  cases.push_back(Conv("no_bias", {2, 8, 6, 6}, 8, {.kernel = {3, 3}}, false));
  // Enough channels and tiles for Winograd's algorithm: planes of odd size, no border, whole tiles.
  const Window same = {.kernel = {3, 3}, .padding = {1, 1}};
  for (OperatorCase c : {Conv("winograd_odd", {11, 32, 9, 7}, 48, same),
                         Conv("winograd_no_border", {8, 32, 12, 12}, 32, {.kernel = {3, 3}}),
                         Conv("winograd", {16, 48, 8, 8}, 32, same, /*bias=*/false)}) {
    c.large = true;
    cases.push_back(std::move(c));
  }
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

std::string Text(const Shape& shape) { return absl::StrJoin(shape, "x"); }

OperatorCase Several(std::string label, std::string op, std::vector<Shape> inputs, Shape output,
                     AttributeMap attributes = {}) {
  OperatorCase c = Case(std::move(label), std::move(op), inputs[0], std::move(output), {},
                        std::move(attributes));
  c.spec.input_shapes = std::move(inputs);
  return c;
}

void AddElementwise(std::vector<OperatorCase>& cases) {
  // One element, less than a vector, planes with padding channels, planes of whole blocks, and
  // enough for two threads.
  for (const Shape& shape :
       {Shape{1, 1}, Shape{5, 37}, Shape{2, 17, 5, 3}, Shape{2, 32, 3, 3}, Shape{3, 7, 11, 101}}) {
    const std::string at = "_" + Text(shape);
    for (const char* op : {"sigmoid", "tanh", "gelu"}) {
      cases.push_back(Case(op + at, op, shape, shape));
    }
    cases.push_back(
        Case("gelu_tanh" + at, "gelu", shape, shape, {}, {{"approximate", int64_t{1}}}));
    cases.push_back(
        Case("relu6" + at, "clip", shape, shape, {}, {{"minimum", 0.0}, {"maximum", 6.0}}));
    cases.push_back(
        Case("clip" + at, "clip", shape, shape, {}, {{"minimum", 0.25}, {"maximum", 1.5}}));
    for (const char* op : {"add", "mul"}) {
      cases.push_back(Several(op + at, op, {shape, shape}, shape));
    }
  }
  cases.push_back(ForInference(Case("gelu_rows", "gelu", {5, 37}, {5, 37})));
  cases.push_back(ForInference(Several("mul_rows", "mul", {{5, 37}, {5, 37}}, {5, 37})));
  for (const Shape& in : {Shape{1, 1, 1, 1}, Shape{2, 17, 5, 3}, Shape{3, 32, 7, 7},
                          Shape{2, 5, 13, 11}, Shape{4, 128, 8, 8}}) {
    cases.push_back(Case("global_avgpool2d_" + Text(in), "global_avgpool2d", in, {in[0], in[1]}));
  }
}

OperatorCase Concat(const std::vector<Shape>& inputs, int64_t axis) {
  Shape output = inputs[0];
  output[axis + 1] = 0;
  std::string label = "concat";
  for (const Shape& shape : inputs) {
    output[axis + 1] += shape[axis + 1];
    label += "_" + Text(shape);
  }
  return Several(absl::StrCat(label, "_axis", axis), "concat", inputs, output, {{"axis", axis}});
}

OperatorCase Slice(const Shape& input, int64_t axis, int64_t begin, int64_t length) {
  Shape output = input;
  output[axis + 1] = length;
  return Case(absl::StrCat("slice_", Text(input), "_axis", axis, "_from", begin, "_of", length),
              "slice", input, output, {}, {{"axis", axis}, {"begin", begin}, {"length", length}});
}

OperatorCase Transpose(const Shape& input, const std::vector<int64_t>& axes) {
  Shape output = {input[0]};
  for (int64_t axis : axes) output.push_back(input[axis + 1]);
  return Case(absl::StrCat("transpose_", Text(input), "_axes", absl::StrJoin(axes, "")),
              "transpose", input, output, {}, {{"axes", axes}});
}

OperatorCase Reshape(const Shape& input, const Shape& output, const std::vector<int64_t>& shape) {
  return Case(absl::StrCat("reshape_", Text(input), "_to_", Text(output)), "reshape", input, output,
              {}, {{"shape", shape}});
}

void AddMovement(std::vector<OperatorCase>& cases) {
  cases.push_back(Concat({{3, 4}, {3, 7}, {3, 1}}, 0));
  cases.push_back(Concat({{2, 3, 5}, {2, 3, 2}}, 1));
  cases.push_back(Concat({{1, 1}, {1, 1}}, 0));
  for (int64_t axis : {0, 1, 2}) {
    cases.push_back(Concat({{2, 16, 3, 5}, {2, 16, 3, 5}}, axis));
    cases.push_back(Concat({{2, 19, 3, 5}, {2, 19, 3, 5}}, axis));
    cases.push_back(Slice({2, 48, 4, 6}, axis, 1, 2));
    cases.push_back(Slice({2, 19, 7, 5}, axis, 2, 3));
  }
  cases.push_back(Concat({{3, 32, 2, 3}, {3, 16, 2, 3}, {3, 7, 2, 3}}, 0));
  cases.push_back(Slice({2, 48, 4, 6}, 0, 16, 16));
  cases.push_back(Slice({2, 48, 4, 6}, 0, 32, 16));
  cases.push_back(Slice({3, 35, 2, 3}, 0, 32, 3));
  cases.push_back(Slice({5, 13}, 0, 0, 13));
  cases.push_back(Slice({1, 3, 5}, 1, 4, 1));
  cases.push_back(Transpose({3, 5, 7}, {1, 0}));
  cases.push_back(Transpose({2, 17, 3, 5}, {2, 0, 1}));
  cases.push_back(Transpose({2, 16, 4, 4}, {0, 2, 1}));
  cases.push_back(Transpose({2, 2, 29, 3, 5}, {1, 0, 2, 3}));  // a channel shuffle
  cases.push_back(Transpose({1, 7}, {0}));
  cases.push_back(Reshape({2, 19, 3, 5}, {2, 3, 5, 19}, {3, 5, 19}));
  cases.push_back(Reshape({2, 32, 3, 5}, {2, 2, 16, 3, 5}, {2, 16, -1, 5}));
  cases.push_back(Reshape({3, 12}, {3, 12}, {-1}));
}

OperatorCase LayerNorm(const Shape& shape, double epsilon = 1e-5) {
  return Case("layernorm_" + Text(shape), "layernorm", shape, shape,
              {{shape.back()}, {shape.back()}}, {{"epsilon", epsilon}});
}

OperatorCase LinearRows(const Shape& in, int64_t outputs, bool bias) {
  std::vector<Shape> parameters = {{outputs, in.back()}};
  if (bias) parameters.push_back({outputs});
  Shape out = in;
  out.back() = outputs;
  return Case(absl::StrCat("linear_", Text(in), "_to_", outputs), "linear", in, out, parameters);
}

// Followed by GPT-2's GELU.
OperatorCase LinearGelu(const Shape& in, int64_t outputs, bool bias) {
  OperatorCase c = LinearRows(in, outputs, bias);
  c.label += absl::StrCat(bias ? "" : "_no_bias", "_gelu");
  c.spec.attributes["gelu"] = int64_t{1};
  c.fusion = &Fusions::linear_gelu;
  return c;
}

OperatorCase MatMul(const Shape& a, int64_t columns, bool transpose_b, double scale) {
  Shape b = a, y = a;
  const size_t last = a.size() - 1;
  b[last - 1] = transpose_b ? columns : a[last];
  b[last] = transpose_b ? a[last] : columns;
  y[last] = columns;
  return Several(
      absl::StrCat("matmul_", Text(a), "_by_", Text(b), transpose_b ? "_transposed" : ""), "matmul",
      {a, b}, y, {{"transpose_b", int64_t{transpose_b}}, {"scale", scale}});
}

OperatorCase Attention(const Shape& shape, int64_t heads, bool causal) {
  return Several(absl::StrCat("attention_", Text(shape), "_heads", heads, causal ? "_causal" : ""),
                 "attention", {shape, shape, shape}, shape,
                 {{"heads", heads}, {"causal", int64_t{causal}}});
}

OperatorCase PackedAttention(const Shape& shape, int64_t heads, bool causal) {
  OperatorCase c = Attention(shape, heads, causal);
  c.label = "packed_" + c.label;
  c.spec.input_shapes = {{shape[0], shape[1], 3 * shape[2]}};
  return c;
}

OperatorCase Embedding(const Shape& ids, int64_t rows, int64_t features) {
  Shape output = ids;
  output.push_back(features);
  return WithLabels(
      Case(absl::StrCat("embedding_", Text(ids), "_of_", rows, "x", features), "embedding", ids,
           output, {{rows, features}}, {{"rows", rows}, {"features", features}}),
      rows);
}

OperatorCase PositionEmbedding(const Shape& shape, int64_t rows) {
  return Case(absl::StrCat("position_embedding_", Text(shape), "_of_", rows), "position_embedding",
              shape, shape, {{rows, shape[2]}}, {{"rows", rows}});
}

void AddRows(std::vector<OperatorCase>& cases) {
  for (const Shape& shape : {Shape{1, 2}, Shape{7, 31}, Shape{3, 5, 192}, Shape{2, 67, 131},
                             Shape{2, 3, 4, 17}, Shape{1, 769}}) {
    cases.push_back(LayerNorm(shape));
  }
  cases.push_back(ForInference(LayerNorm({3, 5, 64}, 1e-3)));
  cases.push_back(LinearRows({2, 5, 7}, 11, true));
  cases.push_back(LinearRows({3, 17, 64}, 192, false));
  cases.push_back(LinearRows({2, 16, 3, 5}, 13, true));
  // Rows that start at multiples of 8 elements, and others.
  for (const int64_t outputs : {24, 13}) {
    for (const bool bias : {true, false}) {
      cases.push_back(LinearGelu({2, 5, 16}, outputs, bias));
      cases.push_back(ForInference(LinearGelu({2, 5, 16}, outputs, bias)));
    }
  }
  cases.push_back(LinearGelu({3, 17, 64}, 256, true));
  for (bool transpose_b : {false, true}) {
    cases.push_back(MatMul({1, 1, 1}, 1, transpose_b, 1));
    cases.push_back(MatMul({3, 5, 7}, 11, transpose_b, 0.125));
    cases.push_back(MatMul({2, 16, 9, 13}, 8, transpose_b, -2));
    cases.push_back(MatMul({2, 37, 64}, 41, transpose_b, 1));
  }
  for (bool causal : {false, true}) {
    cases.push_back(Attention({1, 1, 1}, 1, causal));
    cases.push_back(Attention({3, 7, 10}, 2, causal));
    cases.push_back(Attention({2, 130, 24}, 3, causal));
    cases.push_back(Attention({1, 64, 32}, 1, causal));
    cases.push_back(PackedAttention({3, 7, 10}, 2, causal));
    cases.push_back(PackedAttention({2, 130, 24}, 3, causal));
  }
  // Like a GPT's heads, for which a GPU has fused attention; it has none for the heads of 5 above.
  for (OperatorCase c : {Attention({2, 128, 128}, 2, true), PackedAttention({2, 128, 128}, 2, true),
                         Attention({1, 128, 128}, 2, false)}) {
    c.large = true;
    cases.push_back(std::move(c));
  }
  cases.push_back(ForInference(PackedAttention({1, 128, 128}, 2, true)));
  cases.push_back(ForInference(Attention({2, 67, 12}, 3, true)));
  cases.push_back(ForInference(PackedAttention({2, 67, 12}, 3, true)));
  cases.push_back(Embedding({1}, 1, 1));
  cases.push_back(Embedding({3, 11}, 29, 7));
  cases.push_back(Embedding({2, 130}, 5, 64));
  cases.push_back(Embedding({2, 3, 2, 2}, 13, 5));
  cases.push_back(PositionEmbedding({1, 1, 1}, 1));
  cases.push_back(PositionEmbedding({3, 7, 13}, 7));
  cases.push_back(PositionEmbedding({2, 5, 64}, 11));
}

void AddLosses(std::vector<OperatorCase>& cases) {
  for (const char* reduction : {"mean", "sum"}) {
    const AttributeMap attributes = {{"reduction", std::string(reduction)}};
    for (const Shape& logits : {Shape{3, 5, 7}, Shape{1, 1, 2}, Shape{3, 37, 211}}) {
      OperatorCase c = Case(absl::StrCat("cross_entropy_", Text(logits), "_", reduction),
                            "softmax_cross_entropy", logits, {logits[0]}, {}, attributes);
      c.spec.input_shapes.push_back({logits[0], logits[1]});
      c.classes = logits[2];
      cases.push_back(std::move(c));
    }
    for (const char* op : {"mean_squared_error", "binary_cross_entropy"}) {
      for (const Shape& shape : {Shape{1}, Shape{1, 1}, Shape{7, 13}, Shape{3, 19, 2, 5}}) {
        cases.push_back(Several(absl::StrCat(op, "_", Text(shape), "_", reduction), op,
                                {shape, shape}, {shape[0]}, attributes));
      }
    }
  }
}

}  // namespace

bool OperatorCase::loss() const {
  const std::string& op = spec.op;
  return op == "softmax_cross_entropy" || op == "negative_sum" || op == "mean_squared_error" ||
         op == "binary_cross_entropy";
}

bool OperatorCase::labels(size_t i) const {
  const bool last = i + 1 == spec.input_shapes.size();
  return last && (classes > 0 || (loss() && spec.input_shapes.size() > 1));
}

std::vector<OperatorCase> OperatorCases() {
  std::vector<OperatorCase> cases;
  AddPlanes(cases);
  AddElementwise(cases);
  AddMovement(cases);
  AddRows(cases);
  AddLosses(cases);
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
  for (const auto& [add, relu] :
       std::vector<std::pair<bool, bool>>{{false, true}, {true, false}, {true, true}}) {
    cases.push_back(Fused(BatchNorm("rows", {16, 13}), add, relu));
    cases.push_back(Fused(BatchNorm("planes", {4, 6, 5, 7}), add, relu));
    cases.push_back(Fused(BatchNorm("vector_channels", {3, 32, 6, 6}), add, relu));
    cases.push_back(Fused(BatchNorm("odd_channels", {2, 19, 4, 4}), add, relu));
    for (OperatorCase c :
         {BatchNorm("pieces", {2, 17, 23, 23}), BatchNorm("plain_pieces", {1, 3, 67, 71})}) {
      cases.push_back(Fused(std::move(c), add, relu));
      cases.back().large = true;
    }
    cases.push_back(ForInference(Fused(BatchNorm("planes", {4, 6, 5, 7}), add, relu)));
  }
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
  // Multiples of 2^-20 in [-2, 2): exact in float, practically without ties.
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
    if (spec.op == "binary_cross_entropy" && i == 1) {
      for (double& label : args.inputs[i]) label = (label + 2) / 4;
    }
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
