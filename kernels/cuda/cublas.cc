#include "kernels/cuda/cublas.h"

#include <dlfcn.h>

#include <type_traits>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling::cuda {
namespace {

constexpr char kLibrary[] = "libcublasLt.so.13";
constexpr uint64_t kWorkspaceBytesMax = 32 << 20;  // cuBLAS's recommendation for Hopper
constexpr uintptr_t kSumAlignment = 16;

cudaDataType_t TypeOf(Element element) {
  switch (element) {
    case Element::kFloat: return CUDA_R_32F;
    case Element::kBfloat16: return CUDA_R_16BF;
    case Element::kHalf: return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

cublasLtEpilogue_t EpilogueOf(const GemmSpec& spec) {
  if (!spec.gelu) return spec.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  if (spec.keeps_sum) {
    return spec.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  }
  return spec.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

absl::Status Missing(const std::string& what) {
  return absl::FailedPreconditionError(
      absl::StrCat(what,
                   ": cuBLAS of CUDA 13 is needed: install it, or put its folder into "
                   "LD_LIBRARY_PATH"));
}

}  // namespace

#define STARLING_RETURN_IF_CUBLAS_ERROR(library, name, ...) \
  STARLING_RETURN_IF_ERROR((library).Check((library).name(__VA_ARGS__), "cublasLt" #name))

absl::StatusOr<std::shared_ptr<const CublasLt>> CublasLt::Load() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Missing(dlerror());
  const std::shared_ptr<CublasLt> made(new CublasLt());
#define STARLING_FIND(name)                                                              \
  made->name = reinterpret_cast<decltype(made->name)>(dlsym(library, "cublasLt" #name)); \
  if (made->name == nullptr) return Missing(absl::StrCat(kLibrary, " has no cublasLt" #name));
  STARLING_CUBLASLT_FUNCTIONS(STARLING_FIND)
#undef STARLING_FIND
  STARLING_RETURN_IF_CUBLAS_ERROR(*made, Create, &made->handle_);
  return made;
}

CublasLt::~CublasLt() {
  if (handle_ != nullptr) static_cast<void>(Destroy(handle_));
}

absl::Status CublasLt::Check(cublasStatus_t status, const char* call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat(call, ": ", GetStatusName(status));
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED: return absl::ResourceExhaustedError(text);
    case CUBLAS_STATUS_NOT_SUPPORTED: return absl::UnimplementedError(text);
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return absl::UnavailableError(
          absl::StrCat("the GPU is lost to this process: ", text,
                       "; look at the system's log (Xid), and start the process again"));
    default: return absl::InternalError(text);
  }
}

absl::StatusOr<std::unique_ptr<Gemm>> Gemm::Create(std::shared_ptr<const CublasLt> library,
                                                   const GemmSpec& spec) {
  std::unique_ptr<Gemm> gemm(new Gemm(std::move(library)));
  gemm->alpha_ = spec.alpha;
  STARLING_RETURN_IF_ERROR(gemm->Describe(spec));
  STARLING_RETURN_IF_ERROR(gemm->Choose(spec));
  return gemm;
}

Gemm::~Gemm() {
  for (cublasLtMatrixLayout_t layout : {first_, second_, result_}) {
    if (layout != nullptr) static_cast<void>(library_->MatrixLayoutDestroy(layout));
  }
  if (product_ != nullptr) static_cast<void>(library_->MatmulDescDestroy(product_));
}

absl::Status Gemm::AddLayout(const ColumnMajor& matrix, Element element, int64_t batch,
                             int64_t step, cublasLtMatrixLayout_t* layout) {
  STARLING_RETURN_IF_CUBLAS_ERROR(*library_, MatrixLayoutCreate, layout, TypeOf(element),
                                  static_cast<uint64_t>(matrix.rows),
                                  static_cast<uint64_t>(matrix.columns), matrix.ld);
  const auto count = static_cast<int32_t>(batch);
  STARLING_RETURN_IF_CUBLAS_ERROR(*library_, MatrixLayoutSetAttribute, *layout,
                                  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count));
  STARLING_RETURN_IF_CUBLAS_ERROR(*library_, MatrixLayoutSetAttribute, *layout,
                                  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof(step));
  return absl::OkStatus();
}

absl::Status Gemm::Describe(const GemmSpec& spec) {
  const cublasComputeType_t compute =
      RoundsToTf32(spec) ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  STARLING_RETURN_IF_CUBLAS_ERROR(*library_, MatmulDescCreate, &product_, compute, CUDA_R_32F);
  const TurnedGemm turned = Turn(spec);
  const auto turn = [](const ColumnMajor& m) { return m.transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const cublasOperation_t first = turn(turned.first), second = turn(turned.second);
  STARLING_RETURN_IF_CUBLAS_ERROR(*library_, MatmulDescSetAttribute, product_,
                                  CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first));
  STARLING_RETURN_IF_CUBLAS_ERROR(*library_, MatmulDescSetAttribute, product_,
                                  CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second));
  STARLING_RETURN_IF_ERROR(DescribeEpilogue(spec));
  STARLING_RETURN_IF_ERROR(AddLayout(turned.first, spec.input, spec.batch, spec.step_b, &first_));
  STARLING_RETURN_IF_ERROR(AddLayout(turned.second, spec.input, spec.batch, spec.step_a, &second_));
  return AddLayout(turned.result, spec.output, spec.batch, spec.step_d, &result_);
}

absl::Status Gemm::DescribeEpilogue(const GemmSpec& spec) {
  const cublasLtEpilogue_t epilogue = EpilogueOf(spec);
  STARLING_RETURN_IF_CUBLAS_ERROR(*library_, MatmulDescSetAttribute, product_,
                                  CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
  if (!spec.keeps_sum) return absl::OkStatus();
  STARLING_RETURN_IF_CUBLAS_ERROR(*library_, MatmulDescSetAttribute, product_,
                                  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &spec.n, sizeof(spec.n));
  // The algorithm's choice depends only on this pointer's alignment; nothing is read through it.
  const auto* const aligned = reinterpret_cast<const void*>(kSumAlignment);
  STARLING_RETURN_IF_CUBLAS_ERROR(*library_, MatmulDescSetAttribute, product_,
                                  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aligned,
                                  sizeof(aligned));
  return absl::OkStatus();
}

absl::Status Gemm::Choose(const GemmSpec& spec) {
  cublasLtMatmulPreference_t created = nullptr;
  STARLING_RETURN_IF_CUBLAS_ERROR(*library_, MatmulPreferenceCreate, &created);
  const auto destroy = [this](cublasLtMatmulPreference_t preference) {
    static_cast<void>(library_->MatmulPreferenceDestroy(preference));
  };
  const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, decltype(destroy)>
      preference(created, destroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return library_->Check(
        library_->MatmulPreferenceSetAttribute(created, attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
  };
  STARLING_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytesMax));
  // Excludes in-place reduction, which adds partial sums in order of arrival.
  const uint32_t in_order =
      CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  STARLING_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, in_order));
  const auto alignment = static_cast<uint32_t>(spec.alignment);
  STARLING_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment));
  STARLING_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment));
  const auto alignment_d = static_cast<uint32_t>(spec.alignment_d);
  STARLING_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_d));
  STARLING_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_d));
  cublasLtMatmulHeuristicResult_t best = {};
  int found = 0;
  const cublasStatus_t status = library_->MatmulAlgoGetHeuristic(
      library_->handle(), product_, first_, second_, result_, result_, created, 1, &best, &found);
  // It may report an epilogue that it lacks for these types as an invalid value.
  const bool refused =
      status == CUBLAS_STATUS_NOT_SUPPORTED || (spec.gelu && status == CUBLAS_STATUS_INVALID_VALUE);
  if (refused || (status == CUBLAS_STATUS_SUCCESS && found == 0)) {
    return absl::UnimplementedError(absl::StrCat("cuBLASLt has no algorithm for the product of ",
                                                 spec.m, " x ", spec.k, " and ", spec.k, " x ",
                                                 spec.n));
  }
  STARLING_RETURN_IF_ERROR(library_->Check(status, "cublasLtMatmulAlgoGetHeuristic"));
  algorithm_ = best.algo;
  workspace_bytes_ = best.workspaceSize;
  return absl::OkStatus();
}

absl::Status Gemm::Run(const void* a, const void* b, void* d, const void* bias, void* workspace,
                       CudaStream& stream, void* sum) {
  if (sum != nullptr) {
    STARLING_RETURN_IF_CUBLAS_ERROR(*library_, MatmulDescSetAttribute, product_,
                                    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &sum, sizeof(sum));
  }
  if (bias != nullptr) {
    STARLING_RETURN_IF_CUBLAS_ERROR(*library_, MatmulDescSetAttribute, product_,
                                    CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
  }
  const float beta = 0;
  STARLING_RETURN_IF_CUBLAS_ERROR(*library_, Matmul, library_->handle(), product_, &alpha_, b,
                                  first_, a, second_, &beta, d, result_, d, result_, &algorithm_,
                                  AlignedScratch(workspace), workspace_bytes_, stream.get());
  return absl::OkStatus();
}

}  // namespace starling::cuda
