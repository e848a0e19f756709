// Matrix products, and how they are described to cuBLASLt, which is column-major. Pure functions.
#ifndef STARLING_KERNELS_CUDA_GEMM_LAYOUT_H_
#define STARLING_KERNELS_CUDA_GEMM_LAYOUT_H_

#include <cstdint>

#include "kernels/cuda/element.h"

namespace starling::cuda {

// D = alpha * A * B (+ bias), for `batch` matrices: A is m x k, B k x n, D m x n, all row-major.
// With `gelu`, D = gelu(alpha * A * B (+ bias)) in GPT-2's form, for one matrix.
struct GemmSpec {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;  // A is stored as k x m
  bool transpose_b = false;  // B is stored as n x k
  // Elements from one stored row to the next; 0: rows are contiguous.
  int64_t row_a = 0, row_b = 0, row_d = 0;
  int64_t batch = 1;
  int64_t step_a = 0, step_b = 0, step_d = 0;  // from one matrix of the batch to the next
  Element input = Element::kFloat;             // A and B
  Element output = Element::kFloat;
  bool tf32 = false;  // floats may be rounded to tf32 before multiplication
  bool bias = false;  // n elements of D's type, added to each row
  bool gelu = false;
  bool keeps_sum = false;  // with gelu: also writes gelu's input, m x n, contiguous
  int alignment = 16;      // of A and B, in bytes
  int alignment_d = 16;    // of D
  float alpha = 1;
};

// A matrix with contiguous columns, `ld` elements from one to the next.
struct ColumnMajor {
  int64_t rows = 0, columns = 0, ld = 0;
  bool transpose = false;
  friend bool operator==(const ColumnMajor&, const ColumnMajor&) = default;
};

// The same product, transposed: D' = B' * A'. A row-major matrix read column by column is its own
// transpose, so B comes first, and a bias along D's rows is one along the columns of D'.
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

// Whether to request gelu in cuBLASLt's epilogue. The epilogue writes sums in rows that start at
// multiples of 8 elements. Floats use a kernel of our own: the accuracy of the epilogue's tanh is
// not documented, and only rounding the result to two bytes hides it.
inline bool GeluFitsEpilogue(const GemmSpec& g) {
  return g.output != Element::kFloat && (!g.keeps_sum || g.n % 8 == 0);
}

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_GEMM_LAYOUT_H_
