// cuDNN's graph API, loaded only if there is a GPU. Only cudnn.cc includes its front end, which is
// slow to compile.
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

// Where an attention call finds its values, laid out as the key says, aligned to 16 bytes.
struct AttentionValues {
  const void* query = nullptr;
  const void* key = nullptr;
  const void* value = nullptr;
  void* output = nullptr;       // forward writes it, backward reads it
  float* statistics = nullptr;  // the same; null: forward writes none
  // Backward only: read, then written.
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

// Thread-safe. Outlives its plans and the CUDA graphs that captured their calls.
class Cudnn {
 public:
  // `library` as for dlopen. kFailedPrecondition: it is not found, or its major version is not 9.
  static absl::StatusOr<std::unique_ptr<Cudnn>> Load(const std::string& library = "libcudnn.so.9");
  virtual ~Cudnn() = default;

  // The plan of `key`, created at the first request, which may take seconds. Plans add in one
  // order, and in float without rounding inputs unless the key allows tf32. The plan is the
  // heuristics' first choice; with key.tune, the fastest of several, which are timed on memory
  // allocated for that time, if there is enough. kUnimplemented: cuDNN has none.
  virtual absl::StatusOr<std::shared_ptr<const ConvolutionPlan>> Plan(
      const ConvolutionKey& key) = 0;
  // In bfloat16 and half. What cuDNN refuses is kUnimplemented, too.
  virtual absl::StatusOr<std::shared_ptr<const AttentionPlan>> Plan(const AttentionKey& key) = 0;
};

// Whether the front end accepts the description of a convolution, as far as it can tell without a
// GPU. An attempt to load cuDNN, even a failed one, must come first. For tests.
absl::Status ValidateConvolution(const ConvolutionKey& key);
// The same for attention, on a Hopper GPU. kUnimplemented: it does not accept this shape.
absl::Status ValidateAttention(const AttentionKey& key);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_CUDNN_H_
