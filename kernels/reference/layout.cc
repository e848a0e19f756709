#include "kernels/reference/families.h"

namespace starling {
namespace {

// A shape split at one axis: [outer, axis, inner].
struct Split {
  int64_t outer = 1, axis = 1, inner = 1;
};

Split SplitAt(const Shape& shape, int64_t axis) {
  Split s;
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i);
    (at < axis ? s.outer : at == axis ? s.axis : s.inner) *= shape[i];
  }
  return s;
}

// Copies [outer, from.axis, inner] to the rows of `to` starting at `at`, or back.
void Place(const Split& part, const Split& whole, int64_t at, const Doubles* from, Doubles* to,
           bool gather) {
  for (int64_t o = 0; o < part.outer; ++o) {
    for (int64_t a = 0; a < part.axis; ++a) {
      for (int64_t i = 0; i < part.inner; ++i) {
        const int64_t small = (o * part.axis + a) * part.inner + i;
        const int64_t large = (o * whole.axis + at + a) * whole.inner + i;
        (*to)[gather ? small : large] = (*from)[gather ? large : small];
      }
    }
  }
}

// Calls visit(output index, input index).
template <typename Visit>
void ForEachTransposed(const OperatorGeometry& g, const OperatorSpec& spec, Visit visit) {
  const Shape& in = spec.input_shapes[0];
  const Shape& out = spec.output_shape;
  Shape strides(in.size(), 1);
  for (size_t i = in.size() - 1; i-- > 0;) strides[i] = strides[i + 1] * in[i + 1];
  for (int64_t index = 0; index < ElementCount(out); ++index) {
    int64_t rest = index, source = 0;
    for (size_t i = out.size(); i-- > 0;) {
      source += rest % out[i] * strides[g.axes[i]];
      rest /= out[i];
    }
    visit(index, source);
  }
}

}  // namespace

Doubles ConcatForward(const OperatorGeometry& g, const OperatorSpec& spec,
                      const ReferenceArgs& args) {
  Doubles y(ElementCount(spec.output_shape));
  const Split whole = SplitAt(spec.output_shape, g.axis);
  int64_t at = 0;
  for (size_t i = 0; i < args.inputs.size(); ++i) {
    const Split part = SplitAt(spec.input_shapes[i], g.axis);
    Place(part, whole, at, &args.inputs[i], &y, false);
    at += part.axis;
  }
  return y;
}

ReferenceGradients ConcatBackward(const OperatorGeometry& g, const OperatorSpec& spec,
                                  const Doubles& dy) {
  ReferenceGradients gradients;
  const Split whole = SplitAt(spec.output_shape, g.axis);
  int64_t at = 0;
  for (const Shape& shape : spec.input_shapes) {
    const Split part = SplitAt(shape, g.axis);
    Doubles dx(ElementCount(shape));
    Place(part, whole, at, &dy, &dx, true);
    gradients.inputs.push_back(dx);
    at += part.axis;
  }
  return gradients;
}

Doubles SliceForward(const OperatorGeometry& g, const OperatorSpec& spec, const Doubles& x) {
  Doubles y(ElementCount(spec.output_shape));
  Place(SplitAt(spec.output_shape, g.axis), SplitAt(spec.input_shapes[0], g.axis), g.begin, &x, &y,
        true);
  return y;
}

Doubles SliceBackward(const OperatorGeometry& g, const OperatorSpec& spec, const Doubles& dy) {
  Doubles dx(ElementCount(spec.input_shapes[0]), 0.0);
  Place(SplitAt(spec.output_shape, g.axis), SplitAt(spec.input_shapes[0], g.axis), g.begin, &dy,
        &dx, false);
  return dx;
}

Doubles TransposeForward(const OperatorGeometry& g, const OperatorSpec& spec, const Doubles& x) {
  Doubles y(x.size());
  ForEachTransposed(g, spec, [&](int64_t out, int64_t in) { y[out] = x[in]; });
  return y;
}

Doubles TransposeBackward(const OperatorGeometry& g, const OperatorSpec& spec, const Doubles& dy) {
  Doubles dx(dy.size());
  ForEachTransposed(g, spec, [&](int64_t out, int64_t in) { dx[in] = dy[out]; });
  return dx;
}

Doubles GlobalAvgPoolForward(const OperatorGeometry& g, const Doubles& x) {
  Doubles y(g.batch * g.outputs, 0.0);
  for (size_t i = 0; i < x.size(); ++i) y[i / g.spatial] += x[i] / static_cast<double>(g.spatial);
  return y;
}

Doubles GlobalAvgPoolBackward(const OperatorGeometry& g, const Doubles& dy) {
  Doubles dx(dy.size() * g.spatial);
  for (size_t i = 0; i < dx.size(); ++i) dx[i] = dy[i / g.spatial] / static_cast<double>(g.spatial);
  return dx;
}

}  // namespace starling
