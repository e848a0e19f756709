#include "server/shard/apply/init.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace starling {
namespace {

Initializer Make(Initializer::Kind kind, double value) {
  Initializer init;
  init.set_kind(kind);
  init.set_value(value);
  return init;
}

std::vector<float> Values(uint64_t seed, const char* name, const Initializer& init, uint64_t begin,
                          uint64_t length) {
  std::vector<float> values(length);
  InitParameter(seed, name, init, begin, length, values.data());
  return values;
}

TEST(InitTest, SlicingDoesNotChangeTheValues) {
  Graph graph;
  for (const char* name : {"a", "b"}) {
    Parameter* parameter = graph.add_parameters();
    parameter->set_name(name);
    parameter->set_kind(TRAINABLE);
    parameter->add_shape(300'000);
    *parameter->mutable_init() = Make(Initializer::NORMAL, 0.1);
  }
  const Layout layout = MakeLayout(graph).value();
  ASSERT_GT(layout.slices.size(), 2u);
  std::vector<float> flat(layout.elements);
  for (const Slice& slice : layout.slices)
    ASSERT_TRUE(FirstValues(9, graph).Make(slice, flat.data() + slice.flat_begin).ok());
  for (int p = 0; p < 2; ++p) {
    const Parameter& parameter = graph.parameters(p);
    const std::vector<float> whole =
        Values(9, parameter.name().c_str(), parameter.init(), 0, 300'000);
    EXPECT_TRUE(
        std::equal(whole.begin(), whole.end(), flat.begin() + layout.parameters[p].flat_begin));
  }
}

TEST(InitTest, SeedAndNameDecide) {
  const Initializer init = Make(Initializer::UNIFORM, 1);
  EXPECT_EQ(Values(1, "w", init, 0, 50), Values(1, "w", init, 0, 50));
  EXPECT_NE(Values(1, "w", init, 0, 50), Values(2, "w", init, 0, 50));
  EXPECT_NE(Values(1, "w", init, 0, 50), Values(1, "v", init, 0, 50));
}

TEST(InitTest, UniformStaysInItsRangeAndFillsIt) {
  const std::vector<float> values = Values(3, "w", Make(Initializer::UNIFORM, 0.5), 0, 100'000);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  EXPECT_GE(*low, -0.5f);
  EXPECT_LT(*high, 0.5f);
  EXPECT_LT(*low, -0.499f);
  EXPECT_GT(*high, 0.499f);
  EXPECT_NEAR(std::accumulate(values.begin(), values.end(), 0.0) / values.size(), 0, 0.005);
}

TEST(InitTest, NormalHasItsMoments) {
  const std::vector<float> values = Values(3, "w", Make(Initializer::NORMAL, 2), 0, 200'000);
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  for (const double v : values) {
    ASSERT_TRUE(std::isfinite(v));
    sum += v;
    squares += v * v;
    fourth += v * v * v * v;
  }
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 0.02);
  EXPECT_NEAR(squares / n, 4, 0.06);
  EXPECT_NEAR(fourth / n / 16, 3, 0.1);
}

TEST(InitTest, ConstantAndUnset) {
  EXPECT_EQ(Values(3, "w", Make(Initializer::CONSTANT, 1.5), 7, 3), std::vector<float>(3, 1.5f));
  EXPECT_EQ(Values(3, "w", Initializer(), 0, 3), std::vector<float>(3, 0.0f));
}

}  // namespace
}  // namespace starling
