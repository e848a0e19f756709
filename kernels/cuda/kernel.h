// Shared by the GPU's operators. Private to kernels/cuda.
#ifndef STARLING_KERNELS_CUDA_KERNEL_H_
#define STARLING_KERNELS_CUDA_KERNEL_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/format.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"
#include "kernels/geometry.h"
#include "kernels/operator.h"

namespace starling::cuda {

class CublasLt;
class Cudnn;

// A weight that is converted in forward is kept for backward only if it has at most one such share
// of the output's bytes: what saves more is recomputed (common/graph/memory_plan.h), and converting
// the weight again is cheaper.
inline constexpr size_t kKeptWeightShare = 4;

// What a device's operators compute with. Outlives them.
struct Libraries {
  std::shared_ptr<const CublasLt> products;
  std::unique_ptr<Cudnn> cudnn;
};

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

  // Called once, before all else; subclasses that need a library, or refuse some specs, have their
  // own. kUnimplemented: there is no algorithm for this spec.
  absl::Status Prepare(const Libraries&) { return absl::OkStatus(); }

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

// `geometry` is ResolveGeometry(spec), `plan` is PlanFormats' result. Errors are those of
// CudaKernel::Prepare.
using MakeCudaKernel = absl::StatusOr<CudaKernelPtr> (*)(const OperatorSpec&,
                                                         const OperatorGeometry&, const FormatPlan&,
                                                         const Libraries&);

template <typename Kernel>
absl::StatusOr<CudaKernelPtr> MakeKernel(const OperatorSpec& spec, const OperatorGeometry& geometry,
                                         const FormatPlan& plan, const Libraries& libraries) {
  auto kernel = std::make_unique<Kernel>(spec, geometry, plan);
  STARLING_RETURN_IF_ERROR(kernel->Prepare(libraries));
  return CudaKernelPtr(std::move(kernel));
}

extern const MakeCudaKernel kMakeActivation, kMakeDropout, kMakeAdd, kMakeMul, kMakeReshape,
    kMakeTranspose, kMakeConcat, kMakeSlice, kMakeLayerNorm, kMakeTable, kMakePositionEmbedding,
    kMakeSoftmaxCrossEntropy, kMakeValueLoss, kMakeBatchNorm, kMakeMaxPool, kMakeAveragePool,
    kMakeGlobalAvgPool, kMakeLinear, kMakeMatMul, kMakeConvolution;
// cuDNN's own attention, for two-byte values; and that or, for every type and shape, attention by
// matrix products.
extern const MakeCudaKernel kMakeFusedAttention, kMakeAttention;

// Wraps `inner`, which takes and returns the formats of `plan`, for inputs in the formats `given`
// and an output in the format `output`.
CudaKernelPtr MakeConverting(const OperatorSpec& spec, const FormatPlan& plan,
                             const std::vector<Format>& given, const Format& output,
                             CudaKernelPtr inner);

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_KERNEL_H_
