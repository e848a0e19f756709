// Products of matrices, and how cuBLASLt, which counts columns first, is to see them. Pure
// functions.
#ifndef STARLING_KERNELS_CUDA_GEMM_LAYOUT_H_
#define STARLING_KERNELS_CUDA_GEMM_LAYOUT_H_

#include <cstdint>

#include "kernels/cuda/element.h"

namespace starling::cuda {

// D = alpha * A * B (+ bias), for `batch` matrices: A is m x k, B k x n, D m x n, all row-major.
// With `gelu`, D = gelu(alpha * A * B (+ bias)) in GPT-2's form, of one matrix.
struct GemmSpec {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;  // A lies as k x m
  bool transpose_b = false;  // B lies as n x k
  // From one row, as it lies, to the next, in elements; 0: they are side by side.
  int64_t row_a = 0, row_b = 0, row_d = 0;
  int64_t batch = 1;
  int64_t step_a = 0, step_b = 0, step_d = 0;  // from one matrix of the batch to the next
  Element input = Element::kFloat;             // of A and B
  Element output = Element::kFloat;
  bool tf32 = false;  // floats may be rounded to tf32 before they are multiplied
  bool bias = false;  // n elements of D's type, added to each row
  bool gelu = false;
  bool keeps_sum = false;  // with gelu: what goes into it is written, too, m x n side by side
  int alignment = 16;      // of A and B, in bytes
  int alignment_d = 16;    // of D
  float alpha = 1;
};

// A matrix whose columns lie side by side, `ld` elements from one to the next.
struct ColumnMajor {
  int64_t rows = 0, columns = 0, ld = 0;
  bool transpose = false;
  friend bool operator==(const ColumnMajor&, const ColumnMajor&) = default;
};

// The same product, turned over: D' = B' * A'. A row-major matrix is, column by column, its own
// transpose; so B comes first, and a bias along D's rows is one along the columns of D'.
struct TurnedGemm {
  ColumnMajor first, second, result;
};

inline TurnedGemm Turn(const GemmSpec& g) {
  const auto stored = [](int64_t rows, int64_t columns, int64_t row, bool transpose) {
    return ColumnMajor{columns, rows, row == 0 ? columns : row, transpose};
  };
  return {g.transpose_b ? stored(g.n, g.k, g.row_b, true) : stored(g.k, g.n, g.row_b, false),
          g.transpose_a ? stored(g.k, g.m, g.row_a, true) : stored(g.m, g.k, g.row_a, false),
          stored(g.m, g.n, g.row_d, false)};
}

inline bool RoundsToTf32(const GemmSpec& g) { return g.tf32 && g.input == Element::kFloat; }

// Whether cuBLASLt is to be asked for gelu in its epilogue. It writes sums in rows that begin every
// multiple of 8 elements. Floats get a kernel of our own: how exact the epilogue's tanh is, is said
// nowhere, and only in two bytes does the rounding of the result hide it.
inline bool GeluFitsEpilogue(const GemmSpec& g) {
  return g.output != Element::kFloat && (!g.keeps_sum || g.n % 8 == 0);
}

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_GEMM_LAYOUT_H_
