// Geometry of the operators that only move elements.
#include <algorithm>
#include <numeric>

#include "kernels/resolver.h"

namespace starling {

void GeometryResolver::Flatten() {
  ExpectShape("the output", spec_.output_shape, {g_.batch, g_.inputs});
}

void GeometryResolver::Concat() {
  g_.axis = Axis();
  if (!status_.ok()) return;
  Shape expected = input();
  expected[g_.axis] = 0;
  for (const Shape& shape : spec_.input_shapes) {
    Shape other = shape;
    if (other.size() == expected.size()) {
      expected[g_.axis] += other[g_.axis];
      other[g_.axis] = input()[g_.axis];
    }
    ExpectShape("an input, apart from the axis,", other, input());
  }
  ExpectShape("the output", spec_.output_shape, expected);
}

void GeometryResolver::Slice() {
  g_.axis = Axis();
  for (const char* name : {"begin", "length"}) {
    if (!spec_.attributes.contains(name)) Fail("needs the attribute '", name, "'");
  }
  g_.begin = Int("begin", 0, 0);
  g_.length = Int("length", 1, 1);
  if (!status_.ok()) return;
  if (g_.begin + g_.length > input()[g_.axis]) {
    Fail("the slice [", g_.begin, ", ", g_.begin + g_.length, ") does not lie in the axis' [0, ",
         input()[g_.axis], ")");
  }
  Shape expected = input();
  expected[g_.axis] = g_.length;
  ExpectShape("the output", spec_.output_shape, expected);
}

void GeometryResolver::Reshape() {
  Shape shape = Ints("shape");
  if (!status_.ok()) return;
  const auto open = std::find(shape.begin(), shape.end(), -1);
  if (open != shape.end()) {
    *open = 1;
    const int64_t known = ElementCount(shape);
    if (known > 0 && g_.inputs % known == 0) *open = g_.inputs / known;
  }
  if (ElementCount(shape) != g_.inputs) {
    Fail("attribute 'shape' is ", ShapeText(Ints("shape")), ", but a sample has ", g_.inputs,
         " elements");
  }
  shape.insert(shape.begin(), g_.batch);
  ExpectShape("the output", spec_.output_shape, shape);
}

void GeometryResolver::Transpose() {
  const std::vector<int64_t> axes = Ints("axes");
  if (!status_.ok()) return;
  std::vector<int64_t> sorted = axes, all(input().size() - 1);
  std::sort(sorted.begin(), sorted.end());
  std::iota(all.begin(), all.end(), 0);
  if (sorted != all) {
    Fail("attribute 'axes' is ", ShapeText(axes), ", expected the axes ", ShapeText(all),
         " in some order");
    return;
  }
  Shape expected = {g_.batch};
  g_.axes = {0};
  for (int64_t axis : axes) {
    expected.push_back(input()[axis + 1]);
    g_.axes.push_back(axis + 1);
  }
  ExpectShape("the output", spec_.output_shape, expected);
}

}  // namespace starling
