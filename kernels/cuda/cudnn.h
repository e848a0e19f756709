// cuDNN's graph API, loaded when there is a GPU. Its front end, which takes long to compile, is
// seen by cudnn.cc alone.
#ifndef STARLING_KERNELS_CUDA_CUDNN_H_
#define STARLING_KERNELS_CUDA_CUDNN_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/attention_plan.h"
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

// Where a call of attention finds its values, which lie as the key says, aligned to 16 bytes.
struct AttentionValues {
  const void* query = nullptr;
  const void* key = nullptr;
  const void* value = nullptr;
  void* output = nullptr;       // forward writes it, backward reads it
  float* statistics = nullptr;  // the same; null: forward writes none
  // Backward alone: read, and written.
  const void* grad_output = nullptr;
  void* grad_query = nullptr;
  void* grad_key = nullptr;
  void* grad_value = nullptr;
};

// One attention's plan, forward or backward. Thread-safe.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
  virtual size_t workspace_bytes() const = 0;
  virtual absl::Status Run(const AttentionValues& values, void* workspace,
                           CudaStream& stream) const = 0;
};

// Thread-safe. Outlives its plans, and CUDA graphs that their calls were captured into.
class Cudnn {
 public:
  // `library` as dlopen takes it. kFailedPrecondition: it is not found, or of another major version
  // than 9.
  static absl::StatusOr<std::unique_ptr<Cudnn>> Load(const std::string& library = "libcudnn.so.9");
  virtual ~Cudnn() = default;

  // The plan of `key`, made when it is asked for first, which takes up to seconds. Plans add up in
  // one order, and in float without rounding inputs, unless the key allows tf32. It is the
  // heuristics' first; with key.tune the fastest of several, which run for that on memory allocated
  // as long, if there is some. kUnimplemented: cuDNN has none.
  virtual absl::StatusOr<std::shared_ptr<const ConvolutionPlan>> Plan(
      const ConvolutionKey& key) = 0;
  // In bfloat16 and half. What cuDNN refuses is kUnimplemented, too.
  virtual absl::StatusOr<std::shared_ptr<const AttentionPlan>> Plan(const AttentionKey& key) = 0;
};

// Whether the front end takes the description of a convolution, as far as it can say without a GPU;
// cuDNN must have been loaded, if in vain. For tests.
absl::Status ValidateConvolution(const ConvolutionKey& key);
// The same of attention, on a GPU of Hopper's kind. kUnimplemented: it does not take this shape.
absl::Status ValidateAttention(const AttentionKey& key);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_CUDNN_H_
