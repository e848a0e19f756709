// cuDNN's graph API, loaded when there is a GPU. Its front end, which takes long to compile, is
// seen by cudnn.cc alone.
#ifndef STARLING_KERNELS_CUDA_CUDNN_H_
#define STARLING_KERNELS_CUDA_CUDNN_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/convolution_plan.h"
#include "kernels/cuda/stream.h"

namespace starling::cuda {

// One convolution's plan. Thread-safe.
class ConvolutionPlan {
 public:
  virtual ~ConvolutionPlan() = default;
  virtual size_t workspace_bytes() const = 0;
  // Values are aligned to 16 bytes. Forward: y from x and w. Input gradient: x from y and w. Weight
  // gradient: w from x and y.
  virtual absl::Status Run(void* x, void* w, void* y, void* workspace,
                           CudaStream& stream) const = 0;
};

// Thread-safe. Outlives its plans.
class Cudnn {
 public:
  // `library` as dlopen takes it. kFailedPrecondition: it is not found, or of another major version
  // than 9.
  static absl::StatusOr<std::unique_ptr<Cudnn>> Load(const std::string& library = "libcudnn.so.9");
  virtual ~Cudnn() = default;

  // The plan of `key`, made when it is asked for first, which takes up to seconds. Plans add up in
  // one order, and in float without rounding inputs. kUnimplemented: cuDNN has none.
  virtual absl::StatusOr<std::shared_ptr<const ConvolutionPlan>> Plan(
      const ConvolutionKey& key) = 0;
};

// Whether the front end takes the description of a convolution, as far as it can say without a GPU;
// cuDNN must have been loaded, if in vain. For tests.
absl::Status ValidateConvolution(const ConvolutionKey& key);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_CUDNN_H_
