// Shared by the GPU's operators. Private to kernels/cuda.
#ifndef STARLING_KERNELS_CUDA_KERNEL_H_
#define STARLING_KERNELS_CUDA_KERNEL_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/format.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"
#include "kernels/geometry.h"
#include "kernels/operator.h"

namespace starling::cuda {

class CublasLt;
class Cudnn;

// Offsets of pieces of one memory block, aligned to 256 bytes.
class Pieces {
 public:
  size_t Take(size_t bytes) {
    const size_t offset = size_;
    size_ += (bytes + 255) / 256 * 256;
    return offset;
  }
  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
};

template <typename T = void>
T* PieceAt(void* memory, size_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(memory) + offset);
}
template <typename T>
const T* PieceAt(const void* memory, size_t offset) {
  return reinterpret_cast<const T*>(static_cast<const char*>(memory) + offset);
}

// An operator whose inputs lie as `plan` says. Backward reads nothing unless the subclass says so.
class CudaKernel : public OperatorKernel {
 public:
  absl::Status Forward(const ForwardArgs& args, Stream& stream) final;
  absl::Status Backward(const BackwardArgs& args, Stream& stream) final;

 protected:
  CudaKernel(const OperatorSpec& spec, const OperatorGeometry& geometry, const FormatPlan& plan);

  // Orders work on the stream.
  virtual absl::Status Run(const ForwardArgs& args, CudaStream& stream) = 0;
  virtual absl::Status RunBackward(const BackwardArgs& args, CudaStream& stream) = 0;

  int64_t output_count() const { return ElementCount(spec_.output_shape); }
  Element element() const { return plan_.output.element; }
  // Copies `bytes` within the device; a no-op if both places are the same.
  absl::Status Copy(void* to, const void* from, size_t bytes, CudaStream& stream) const;

  const OperatorSpec spec_;
  const OperatorGeometry geometry_;
  const FormatPlan plan_;
};

using CudaKernelPtr = std::unique_ptr<OperatorKernel>;

// One per group of operators. `geometry` is ResolveGeometry(spec), `plan` is PlanFormats' result.
CudaKernelPtr MakeActivation(const OperatorSpec&, const OperatorGeometry&, const FormatPlan&);
CudaKernelPtr MakeDropout(const OperatorSpec&, const OperatorGeometry&, const FormatPlan&);
CudaKernelPtr MakeArithmetic(const OperatorSpec&, const OperatorGeometry&, const FormatPlan&);
CudaKernelPtr MakeReshape(const OperatorSpec&, const OperatorGeometry&, const FormatPlan&);
absl::StatusOr<CudaKernelPtr> MakeTranspose(const OperatorSpec&, const OperatorGeometry&,
                                            const FormatPlan&);
CudaKernelPtr MakeConcat(const OperatorSpec&, const OperatorGeometry&, const FormatPlan&);
CudaKernelPtr MakeSlice(const OperatorSpec&, const OperatorGeometry&, const FormatPlan&);
CudaKernelPtr MakeLayerNorm(const OperatorSpec&, const OperatorGeometry&, const FormatPlan&);
absl::StatusOr<CudaKernelPtr> MakeTable(const OperatorSpec&, const OperatorGeometry&,
                                        const FormatPlan&);
CudaKernelPtr MakePositionEmbedding(const OperatorSpec&, const OperatorGeometry&,
                                    const FormatPlan&);
CudaKernelPtr MakeSoftmaxCrossEntropy(const OperatorSpec&, const OperatorGeometry&,
                                      const FormatPlan&);
CudaKernelPtr MakeValueLoss(const OperatorSpec&, const OperatorGeometry&, const FormatPlan&);
CudaKernelPtr MakeBatchNorm(const OperatorSpec&, const OperatorGeometry&, const FormatPlan&);
absl::StatusOr<CudaKernelPtr> MakePool(const OperatorSpec&, const OperatorGeometry&,
                                       const FormatPlan&);
CudaKernelPtr MakeGlobalAvgPool(const OperatorSpec&, const OperatorGeometry&, const FormatPlan&);

// kUnimplemented: cuBLASLt has no algorithm for it.
absl::StatusOr<CudaKernelPtr> MakeLinear(const OperatorSpec&, const OperatorGeometry&,
                                         const FormatPlan&,
                                         const std::shared_ptr<const CublasLt>& library);
absl::StatusOr<CudaKernelPtr> MakeMatMul(const OperatorSpec&, const OperatorGeometry&,
                                         const FormatPlan&,
                                         const std::shared_ptr<const CublasLt>& library);
// Computed as matrix products, for every type and shape. `refusal`: cuDNN's own, kUnimplemented.
absl::StatusOr<CudaKernelPtr> MakeAttention(const OperatorSpec&, const OperatorGeometry&,
                                            const FormatPlan&,
                                            const std::shared_ptr<const CublasLt>& library,
                                            const absl::Status& refusal);

// `cudnn` outlives the kernel.
absl::StatusOr<CudaKernelPtr> MakeConvolution(const OperatorSpec&, const OperatorGeometry&,
                                              const FormatPlan&, Cudnn& cudnn);

// cuDNN's own attention. kUnimplemented: it has none for this type (float) or shape. `cudnn`
// outlives the kernel.
absl::StatusOr<CudaKernelPtr> MakeFusedAttention(const OperatorSpec&, const OperatorGeometry&,
                                                 const FormatPlan&, Cudnn& cudnn);

// Wraps `inner`, which takes and returns the formats of `plan`, for inputs in the formats `given`
// and an output in the format `output`.
CudaKernelPtr MakeConverting(const OperatorSpec& spec, const FormatPlan& plan,
                             const std::vector<Format>& given, const Format& output,
                             CudaKernelPtr inner);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_KERNEL_H_
