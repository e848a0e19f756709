// Geometry of the operators on rows of features: [N, ..., D].
#include <cmath>

#include "kernels/resolver.h"

namespace starling {

void GeometryResolver::Linear() {
  if (!HasRows()) return;
  const Shape& weight = spec_.parameter_shapes[0];
  ExpectRank("the weight", weight, 2);
  if (!status_.ok()) return;
  g_.inputs = input().back();
  g_.outputs = weight[0];
  g_.rows = ElementCount(input()) / g_.inputs;
  g_.bias = spec_.parameter_shapes.size() == 2;
  g_.gelu = Flag("gelu");
  ExpectShape("the weight", weight, {g_.outputs, g_.inputs});
  if (g_.bias) ExpectShape("the bias", spec_.parameter_shapes[1], {g_.outputs});
  Shape expected = input();
  expected.back() = g_.outputs;
  ExpectShape("the output", spec_.output_shape, expected);
}

void GeometryResolver::LayerNorm() {
  if (!HasRows()) return;
  g_.inputs = input().back();
  g_.rows = ElementCount(input()) / g_.inputs;
  g_.epsilon = Epsilon();
  ExpectShape("the weight", spec_.parameter_shapes[0], {g_.inputs});
  ExpectShape("the bias", spec_.parameter_shapes[1], {g_.inputs});
  ExpectShape("the output", spec_.output_shape, input());
}

void GeometryResolver::GatherRows() {
  ExpectRank("the indices", input(), 1);
  Embedding();
}

void GeometryResolver::Embedding() {
  ExpectRank("the weight", spec_.parameter_shapes[0], 2);
  if (!status_.ok()) return;
  g_.rows = ElementCount(input());
  g_.inputs = spec_.parameter_shapes[0][0];
  g_.outputs = spec_.parameter_shapes[0][1];
  g_.labels_input = true;
  if (g_.op == OperatorGeometry::Op::kEmbedding) {
    ExpectCount("rows", g_.inputs);
    ExpectCount("features", g_.outputs);
  }
  Shape expected = input();
  expected.push_back(g_.outputs);
  ExpectShape("the output", spec_.output_shape, expected);
}

void GeometryResolver::PositionEmbedding() {
  ExpectRank("the input", input(), 3);
  ExpectRank("the weight", spec_.parameter_shapes[0], 2);
  if (!status_.ok()) return;
  g_.rows = input()[1];
  g_.outputs = input()[2];
  g_.inputs = spec_.parameter_shapes[0][0];
  ExpectCount("rows", g_.inputs);
  ExpectShape("the weight", spec_.parameter_shapes[0], {g_.inputs, g_.outputs});
  if (g_.rows > g_.inputs) {
    Fail("a sample has ", g_.rows, " positions, but the weight only ", g_.inputs, " rows");
  }
  ExpectShape("the output", spec_.output_shape, input());
}

void GeometryResolver::MatMul() {
  const Shape& a = input();
  const Shape& b = spec_.input_shapes[1];
  if (a.size() < 3) {
    Fail("the input has shape ", ShapeText(a), ", expected at least [N, M, K]");
    return;
  }
  ExpectRank("the second input", b, a.size());
  g_.transpose_b = Flag("transpose_b");
  g_.scale = Double("scale", 1);
  if (!(std::isfinite(g_.scale) && g_.scale != 0)) {
    Fail("attribute 'scale' must be a number other than 0");
  }
  if (!status_.ok()) return;
  const size_t last = a.size() - 1;
  g_.inputs = a[last];
  g_.rows = a[last - 1];
  g_.outputs = g_.transpose_b ? b[last - 1] : b[last];
  Shape expected = a;
  expected[last - 1] = g_.transpose_b ? g_.outputs : g_.inputs;
  expected[last] = g_.transpose_b ? g_.inputs : g_.outputs;
  ExpectShape("the second input", b, expected);
  expected = a;
  expected[last] = g_.outputs;
  ExpectShape("the output", spec_.output_shape, expected);
}

void GeometryResolver::Attention() {
  ExpectRank("the input", input(), 3);
  const size_t inputs = spec_.input_shapes.size();
  g_.packed = inputs == 1;
  if (inputs == 2) Fail("has 2 inputs, expected query, key and value, or one that holds them");
  if (g_.packed && input().back() % 3 != 0) {
    Fail("the input has shape ", ShapeText(input()),
         ", expected query, key and value side by side");
  }
  if (!status_.ok()) return;
  g_.rows = input()[1];
  g_.inputs = g_.packed ? input()[2] / 3 : input()[2];
  g_.heads = Int("heads", 1, 1);
  g_.causal = Flag("causal");
  if (g_.inputs % g_.heads != 0) {
    Fail("heads = ", g_.heads, " does not divide ", g_.inputs, " features");
    return;
  }
  ExpectSameInputs();
  ExpectShape("the output", spec_.output_shape, {g_.batch, g_.rows, g_.inputs});
}

}  // namespace starling
