// The reference by operator family; reference.cc dispatches.
#ifndef STARLING_KERNELS_REFERENCE_FAMILIES_H_
#define STARLING_KERNELS_REFERENCE_FAMILIES_H_

#include "kernels/geometry.h"
#include "kernels/reference/reference.h"

namespace starling {

// pointwise.cc: gelu, sigmoid, tanh, clip, mul; mean_squared_error and binary_cross_entropy, whose
// gradient is multiplied by `scale`.
Doubles PointwiseForward(const OperatorGeometry& g, const Doubles& x);
Doubles PointwiseBackward(const OperatorGeometry& g, const Doubles& x, const Doubles& dy);
Doubles Product(const Doubles& a, const Doubles& b);
Doubles ElementwiseLossForward(const OperatorGeometry& g, const ReferenceArgs& args);
Doubles ElementwiseLossBackward(const OperatorGeometry& g, const ReferenceArgs& args, double scale);

// layout.cc: concat, slice, transpose, global_avgpool2d.
Doubles ConcatForward(const OperatorGeometry& g, const OperatorSpec& spec,
                      const ReferenceArgs& args);
ReferenceGradients ConcatBackward(const OperatorGeometry& g, const OperatorSpec& spec,
                                  const Doubles& dy);
Doubles SliceForward(const OperatorGeometry& g, const OperatorSpec& spec, const Doubles& x);
Doubles SliceBackward(const OperatorGeometry& g, const OperatorSpec& spec, const Doubles& dy);
Doubles TransposeForward(const OperatorGeometry& g, const OperatorSpec& spec, const Doubles& x);
Doubles TransposeBackward(const OperatorGeometry& g, const OperatorSpec& spec, const Doubles& dy);
Doubles GlobalAvgPoolForward(const OperatorGeometry& g, const Doubles& x);
Doubles GlobalAvgPoolBackward(const OperatorGeometry& g, const Doubles& dy);

// sequence.cc
Doubles LayerNormForward(const OperatorGeometry& g, const ReferenceArgs& args);
ReferenceGradients LayerNormBackward(const OperatorGeometry& g, const ReferenceArgs& args,
                                     const Doubles& dy);
Doubles PositionForward(const OperatorGeometry& g, const ReferenceArgs& args);
ReferenceGradients PositionBackward(const OperatorGeometry& g, const Doubles& dy);
Doubles MatMulForward(const OperatorGeometry& g, const ReferenceArgs& args);
ReferenceGradients MatMulBackward(const OperatorGeometry& g, const ReferenceArgs& args,
                                  const Doubles& dy);
Doubles AttentionForward(const OperatorGeometry& g, const ReferenceArgs& args);
ReferenceGradients AttentionBackward(const OperatorGeometry& g, const ReferenceArgs& args,
                                     const Doubles& dy);

}  // namespace starling

#endif  // STARLING_KERNELS_REFERENCE_FAMILIES_H_
