// cuBLASLt, loaded only if there is a GPU: the library is hundreds of megabytes, which machines
// without a GPU need neither install nor map.
#ifndef STARLING_KERNELS_CUDA_CUBLAS_H_
#define STARLING_KERNELS_CUDA_CUBLAS_H_

#include <cublasLt.h>

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/gemm_layout.h"
#include "kernels/cuda/stream.h"

#define STARLING_CUBLASLT_FUNCTIONS(X) \
  X(Create)                            \
  X(Destroy)                           \
  X(GetStatusName)                     \
  X(Matmul)                            \
  X(MatmulAlgoGetHeuristic)            \
  X(MatmulDescCreate)                  \
  X(MatmulDescDestroy)                 \
  X(MatmulDescSetAttribute)            \
  X(MatmulPreferenceCreate)            \
  X(MatmulPreferenceDestroy)           \
  X(MatmulPreferenceSetAttribute)      \
  X(MatrixLayoutCreate)                \
  X(MatrixLayoutDestroy)               \
  X(MatrixLayoutSetAttribute)

namespace starling::cuda {

// The library's functions and a handle. Thread-safe: each product names its stream.
class CublasLt {
 public:
  // kFailedPrecondition: the library, or one of its functions, is not found (the message says
  // which).
  static absl::StatusOr<std::shared_ptr<const CublasLt>> Load();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

#define STARLING_DECLARE(name) decltype(&::cublasLt##name) name = nullptr;
  STARLING_CUBLASLT_FUNCTIONS(STARLING_DECLARE)
#undef STARLING_DECLARE

  cublasLtHandle_t handle() const { return handle_; }
  // As CudaStatus; `call` is the function's name.
  absl::Status Check(cublasStatus_t status, const char* call) const;

 private:
  CublasLt() = default;

  cublasLtHandle_t handle_ = nullptr;
};

// One product, with its algorithm chosen. Sums are added in one order: the same bits every time.
// One call at a time.
class Gemm {
 public:
  // kUnimplemented: cuBLASLt has no algorithm for it.
  static absl::StatusOr<std::unique_ptr<Gemm>> Create(std::shared_ptr<const CublasLt> library,
                                                      const GemmSpec& spec);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  size_t workspace_bytes() const { return ScratchBytes(workspace_bytes_); }
  // `bias` is null if the spec has none; `sum`, aligned to 16 bytes, is null if the spec does not
  // keep it.
  absl::Status Run(const void* a, const void* b, void* d, const void* bias, void* workspace,
                   CudaStream& stream, void* sum = nullptr);

 private:
  explicit Gemm(std::shared_ptr<const CublasLt> library) : library_(std::move(library)) {}

  absl::Status Describe(const GemmSpec& spec);
  absl::Status DescribeEpilogue(const GemmSpec& spec);
  absl::Status AddLayout(const ColumnMajor& matrix, Element element, int64_t batch, int64_t step,
                         cublasLtMatrixLayout_t* layout);
  absl::Status Choose(const GemmSpec& spec);

  const std::shared_ptr<const CublasLt> library_;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, result_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_ = {};
  size_t workspace_bytes_ = 0;
  float alpha_ = 1;
};

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_CUBLAS_H_
