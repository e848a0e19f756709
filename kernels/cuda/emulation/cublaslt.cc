// Stands in for NVIDIA's libcublasLt.so.13: the functions that kernels/cuda/cublas.h names.
// Computes products by definition, with sums in float, and checks the requirements in cublasLt.h.
#include <cublasLt.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cuda/emulation/device_math.cuh"

namespace {

using starling::cuda::FromFloat;
using starling::cuda::ToFloat;

struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t ld;
  int32_t batch = 1;
  int64_t step = 0;

  uint64_t element_bytes() const { return type == CUDA_R_32F ? 4 : 2; }
  uint64_t bytes() const { return ((columns - 1) * ld + rows) * element_bytes(); }
};

struct Product {
  cublasComputeType_t compute;
  cublasOperation_t first = CUBLAS_OP_N, second = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  void* sum = nullptr;
  int64_t sum_ld = 0;

  bool adds_bias() const { return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
  bool gelu() const { return (epilogue & CUBLASLT_EPILOGUE_GELU) == CUBLASLT_EPILOGUE_GELU; }
  bool keeps_sum() const {
    return (epilogue & CUBLASLT_EPILOGUE_GELU_AUX) == CUBLASLT_EPILOGUE_GELU_AUX;
  }
};

struct Preference {
  uint64_t workspace_bytes = 0;
  uint32_t alignments[4] = {256, 256, 256, 256};
};

// Stored in the opaque words of cublasLtMatmulAlgo_t.
struct Algorithm {
  uint64_t workspace_bytes;
  uint32_t alignments[4];  // for A, B, C, D
};

template <typename T>
cublasStatus_t Set(T* to, const void* from, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// A call that no version could accept is our bug, and must not pass as a missing algorithm.
cublasStatus_t Refuse(cublasStatus_t status, const char* why) {
  std::fprintf(stderr, "emulated cuBLASLt: %s\n", why);
  if (status == CUBLAS_STATUS_INVALID_VALUE) std::abort();
  return status;
}

template <typename T>
const T* As(const void* opaque) {
  return static_cast<const T*>(opaque);
}

float At(cudaDataType_t type, const void* data, int64_t i) {
  switch (type) {
    case CUDA_R_16BF: return ToFloat(static_cast<const __nv_bfloat16*>(data)[i]);
    case CUDA_R_16F: return ToFloat(static_cast<const __half*>(data)[i]);
    default: return static_cast<const float*>(data)[i];
  }
}

void Put(cudaDataType_t type, void* data, int64_t i, float value) {
  switch (type) {
    case CUDA_R_16BF: static_cast<__nv_bfloat16*>(data)[i] = FromFloat<__nv_bfloat16>(value); break;
    case CUDA_R_16F: static_cast<__half*>(data)[i] = FromFloat<__half>(value); break;
    default: static_cast<float*>(data)[i] = value;
  }
}

float Gelu(float x) {
  return 0.5f * x * (1 + std::tanh(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}

cublasStatus_t CheckShapes(const Product& p, const Layout& a, const Layout& b, const Layout& d) {
  const bool turn_a = p.first == CUBLAS_OP_T, turn_b = p.second == CUBLAS_OP_T;
  const uint64_t m = turn_a ? a.columns : a.rows, k = turn_a ? a.rows : a.columns;
  if (d.rows != m || d.columns != (turn_b ? b.rows : b.columns) ||
      k != (turn_b ? b.columns : b.rows)) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "shapes do not fit");
  }
  for (const Layout* l : {&a, &b, &d}) {
    if (l->ld < static_cast<int64_t>(l->rows) || l->batch != d.batch) {
      return Refuse(CUBLAS_STATUS_INVALID_VALUE, "a leading dimension below the rows, or batches");
    }
  }
  if (a.type != b.type || (d.type != a.type && d.type != CUDA_R_32F)) {
    return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, "types do not go together");
  }
  if (p.compute != CUBLAS_COMPUTE_32F && a.type != CUDA_R_32F) {
    return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, "tf32 is of floats");
  }
  if (!p.keeps_sum()) return CUBLAS_STATUS_SUCCESS;
  if (p.sum == nullptr || p.sum_ld % 8 != 0 || p.sum_ld < static_cast<int64_t>(d.rows)) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "where sums go is not set, or by no multiple of 8");
  }
  return CUBLAS_STATUS_SUCCESS;
}

bool Meet(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

// One matrix of the batch. All matrices are column-major.
void Multiply(const Product& p, float alpha, const Layout& a, const void* a_data, const Layout& b,
              const void* b_data, const Layout& d, void* d_data, int64_t index) {
  const auto m = static_cast<int64_t>(d.rows), n = static_cast<int64_t>(d.columns);
  const bool turn_a = p.first == CUBLAS_OP_T, turn_b = p.second == CUBLAS_OP_T;
  const auto k = static_cast<int64_t>(turn_a ? a.rows : a.columns);
  std::vector<float> left(m * k), sums(m);
  for (int64_t l = 0; l < k; ++l) {
    for (int64_t i = 0; i < m; ++i) {
      left[l * m + i] = At(a.type, a_data, index * a.step + (turn_a ? i * a.ld + l : l * a.ld + i));
    }
  }
  for (int64_t j = 0; j < n; ++j) {
    sums.assign(m, 0.0f);
    for (int64_t l = 0; l < k; ++l) {
      const float factor =
          At(b.type, b_data, index * b.step + (turn_b ? l * b.ld + j : j * b.ld + l));
      const float* const column = left.data() + l * m;
      for (int64_t i = 0; i < m; ++i) sums[i] += column[i] * factor;
    }
    for (int64_t i = 0; i < m; ++i) {
      float sum = alpha * sums[i];
      if (p.adds_bias()) sum += At(d.type, p.bias, i);
      if (p.keeps_sum()) Put(d.type, p.sum, j * p.sum_ld + i, sum);
      Put(d.type, d_data, index * d.step + j * d.ld + i, p.gelu() ? Gelu(sum) : sum);
    }
  }
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new char);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<char*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE" : "another status";
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  auto* const l = reinterpret_cast<Layout*>(layout);
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return Set(&l->batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return Set(&l->step, value, bytes);
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *product = reinterpret_cast<cublasLtMatmulDesc_t>(new Product{compute});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete reinterpret_cast<Product*>(product);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  auto* const p = reinterpret_cast<Product*>(product);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return Set(&p->first, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return Set(&p->second, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return Set(&p->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return Set(&p->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return Set(&p->sum, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return Set(&p->sum_ld, value, bytes);
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference());
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  auto* const p = reinterpret_cast<Preference*>(preference);
  uint32_t mask = 0;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return Set(&p->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return Set(&mask, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return Set(&p->alignments[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return Set(&p->alignments[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return Set(&p->alignments[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return Set(&p->alignments[3], value, bytes);
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

// One algorithm, which requests more workspace for larger results.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  *found = 0;
  const Layout& result = *As<Layout>(d);
  const cublasStatus_t status =
      CheckShapes(*As<Product>(product), *As<Layout>(a), *As<Layout>(b), result);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const Preference& wanted = *As<Preference>(preference);
  Algorithm algorithm = {std::min<uint64_t>(result.bytes() + 100, wanted.workspace_bytes), {}};
  std::memcpy(algorithm.alignments, wanted.alignments, sizeof(wanted.alignments));
  results[0] = {};
  std::memcpy(&results[0].algo, &algorithm, sizeof(algorithm));
  results[0].workspaceSize = algorithm.workspace_bytes;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Product p = *As<Product>(product);
  const Layout la = *As<Layout>(a_layout), lb = *As<Layout>(b_layout), ld = *As<Layout>(d_layout);
  if (const cublasStatus_t status = CheckShapes(p, la, lb, ld); status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  Algorithm algorithm;
  std::memcpy(&algorithm, algo, sizeof(algorithm));
  if (workspace_bytes < algorithm.workspace_bytes || reinterpret_cast<uintptr_t>(workspace) % 256) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "too little workspace, or not aligned");
  }
  const void* const places[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (reinterpret_cast<uintptr_t>(places[i]) % algorithm.alignments[i] != 0) {
      return Refuse(CUBLAS_STATUS_INVALID_VALUE, "a matrix is less aligned than was promised");
    }
  }
  const auto bytes = [](const Layout& l) {
    return (l.batch - 1) * l.step * l.element_bytes() + l.bytes();
  };
  if (p.adds_bias() == (p.bias == nullptr) || *static_cast<const float*>(beta) != 0 ||
      reinterpret_cast<uintptr_t>(p.bias) % 16 != 0 ||
      (p.keeps_sum() && reinterpret_cast<uintptr_t>(p.sum) % 16 != 0)) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "a bias, a sum's place or a beta that does not fit");
  }
  for (int i = 0; i < 2; ++i) {
    if (Meet(places[i], bytes(i == 0 ? la : lb), d, bytes(ld)) ||
        Meet(places[i], bytes(i == 0 ? la : lb), workspace, workspace_bytes)) {
      return Refuse(CUBLAS_STATUS_INVALID_VALUE, "a result over what it is made of");
    }
  }
  const float scale = *static_cast<const float*>(alpha);
  const cudaError_t error = stream->Order([=] {
    std::memset(workspace, 0xff, workspace_bytes);
    for (int64_t i = 0; i < ld.batch; ++i) Multiply(p, scale, la, a, lb, b, ld, d, i);
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
