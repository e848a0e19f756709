// The reference's convolution and pooling.
#ifndef STARLING_KERNELS_REFERENCE_PLANES_H_
#define STARLING_KERNELS_REFERENCE_PLANES_H_

#include "kernels/geometry.h"
#include "kernels/reference/reference.h"

namespace starling {

Doubles ConvForward(const Geometry2d& p, const ReferenceArgs& args);
ReferenceGradients ConvBackward(const Geometry2d& p, const ReferenceArgs& args, const Doubles& dy);
Doubles MaxPoolForward(const Geometry2d& p, const Doubles& x);
Doubles MaxPoolBackward(const Geometry2d& p, const Doubles& x, const Doubles& dy);
Doubles AvgPoolForward(const Geometry2d& p, const Doubles& x);
Doubles AvgPoolBackward(const Geometry2d& p, const Doubles& dy);

}  // namespace starling

#endif  // STARLING_KERNELS_REFERENCE_PLANES_H_
