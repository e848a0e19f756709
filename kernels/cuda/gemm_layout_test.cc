#include "kernels/cuda/gemm_layout.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace starling::cuda {
namespace {

using Numbers = std::vector<int64_t>;

int64_t At(const Numbers& data, const ColumnMajor& m, int64_t row, int64_t column) {
  return m.transpose ? data[row * m.ld + column] : data[column * m.ld + row];
}

// What cuBLASLt computes for the transposed product.
Numbers Compute(const TurnedGemm& t, const Numbers& a, const Numbers& b, int64_t k, size_t size) {
  Numbers d(size, -1);
  for (int64_t row = 0; row < t.result.rows; ++row) {
    for (int64_t column = 0; column < t.result.columns; ++column) {
      int64_t sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += At(b, t.first, row, i) * At(a, t.second, i, column);
      d[column * t.result.ld + row] = sum;
    }
  }
  return d;
}

TEST(TurnTest, IsTheSameProductHoweverItLies) {
  constexpr int64_t kM = 2, kN = 3, kK = 4;
  for (bool transpose_a : {false, true}) {
    for (bool transpose_b : {false, true}) {
      for (int64_t gap : {0, 5}) {
        GemmSpec g = {.m = kM, .n = kN, .k = kK};
        g.transpose_a = transpose_a;
        g.transpose_b = transpose_b;
        const int64_t row_a = (transpose_a ? kM : kK) + gap, row_b = (transpose_b ? kK : kN) + gap;
        const int64_t row_d = kN + gap;
        if (gap > 0) {
          g.row_a = row_a;
          g.row_b = row_b;
          g.row_d = row_d;
        }
        Numbers a(50), b(50);
        std::iota(a.begin(), a.end(), 1);
        std::iota(b.begin(), b.end(), 7);
        const Numbers d = Compute(Turn(g), a, b, kK, 50);
        for (int64_t i = 0; i < kM; ++i) {
          for (int64_t j = 0; j < kN; ++j) {
            int64_t sum = 0;
            for (int64_t x = 0; x < kK; ++x) {
              sum += (transpose_a ? a[x * row_a + i] : a[i * row_a + x]) *
                     (transpose_b ? b[j * row_b + x] : b[x * row_b + j]);
            }
            EXPECT_EQ(d[i * row_d + j], sum) << transpose_a << transpose_b << gap;
          }
        }
      }
    }
  }
}

TEST(Tf32Test, IsForFloats) {
  EXPECT_TRUE(RoundsToTf32({.input = Element::kFloat, .tf32 = true}));
  EXPECT_FALSE(RoundsToTf32({.input = Element::kFloat}));
  EXPECT_FALSE(RoundsToTf32({.input = Element::kHalf, .tf32 = true}));
}

TEST(GeluTest, RowsOfKeptSumsBeginAtMultiplesOfEight) {
  const GemmSpec fits = {.m = 5, .n = 24, .output = Element::kBfloat16, .keeps_sum = true};
  EXPECT_TRUE(GeluFitsEpilogue(fits));
  GemmSpec odd = fits;
  odd.n = 20;
  EXPECT_FALSE(GeluFitsEpilogue(odd));
  odd.keeps_sum = false;
  EXPECT_TRUE(GeluFitsEpilogue(odd)) << "nothing but the result is written";
  GemmSpec floats = fits;
  floats.output = Element::kFloat;
  EXPECT_FALSE(GeluFitsEpilogue(floats));
}

}  // namespace
}  // namespace starling::cuda
