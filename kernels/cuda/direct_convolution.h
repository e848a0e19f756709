// A convolution plan that needs no library.
#ifndef STARLING_KERNELS_CUDA_DIRECT_CONVOLUTION_H_
#define STARLING_KERNELS_CUDA_DIRECT_CONVOLUTION_H_

#include <memory>

#include "kernels/cuda/convolution_plan.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/direct.h"

namespace starling::cuda {

DirectShape DirectShapeOf(const ConvolutionKey& key);

// For every key; needs no workspace.
std::shared_ptr<const ConvolutionPlan> MakeDirectConvolution(const ConvolutionKey& key);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_DIRECT_CONVOLUTION_H_
