#include "kernels/cpu/vector_math.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace starling {
namespace {

// The largest relative error over `count` points evenly spaced over [from, to].
double WorstError(float (*fast)(float), double (*exact)(double), double from, double to) {
  constexpr int kCount = 200001;
  double worst = 0;
  for (int i = 0; i < kCount; ++i) {
    const float x = static_cast<float>(from + (to - from) * i / (kCount - 1));
    const double expected = exact(x);
    if (expected == 0) {
      EXPECT_EQ(fast(x), 0) << x;
      continue;
    }
    worst = std::max(worst, std::abs(fast(x) - expected) / std::abs(expected));
  }
  return worst;
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(VectorMathTest, IsAsGoodAsItSays) {
  EXPECT_LT(WorstError(VectorExp, std::exp, -87.3, 88.3), 2e-7);
  EXPECT_LT(WorstError(VectorExp, std::exp, -1, 1), 2e-7);
  EXPECT_LT(WorstError(VectorTanh, std::tanh, -12, 12), 1e-6);
  EXPECT_LT(WorstError(VectorTanh, std::tanh, -1e-3, 1e-3), 1e-6);
  EXPECT_LT(WorstError(VectorErf, std::erf, -6, 6), 2e-6);
  EXPECT_LT(WorstError(VectorErf, std::erf, -1e-3, 1e-3), 2e-6);
  EXPECT_LT(WorstError(VectorSigmoid, Sigmoid, -80, 80), 1e-6);
}

TEST(VectorMathTest, EndsWhereFloatEnds) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(VectorExp(0), 1);
  EXPECT_GT(VectorExp(kInfinity), 2e38f);
  EXPECT_LT(VectorExp(-kInfinity), 2e-38f);
  EXPECT_EQ(VectorSigmoid(kInfinity), 1);
  EXPECT_LT(VectorSigmoid(-kInfinity), 1e-37f);
  EXPECT_NEAR(VectorTanh(kInfinity), 1, 1e-6);
  EXPECT_NEAR(VectorTanh(-kInfinity), -1, 1e-6);
  EXPECT_NEAR(VectorErf(kInfinity), 1, 2e-6);
  EXPECT_NEAR(VectorErf(-kInfinity), -1, 2e-6);
}

TEST(VectorMathTest, NanGoesThrough) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (float (*f)(float) : {VectorExp, VectorTanh, VectorErf, VectorSigmoid}) {
    EXPECT_TRUE(std::isnan(f(nan)));
  }
}

}  // namespace
}  // namespace starling
