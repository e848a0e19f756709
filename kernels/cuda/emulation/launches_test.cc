// Kernels at sizes where a block or thread loops more than once, because the number of blocks in a
// grid is limited.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/movement.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/tables.h"

namespace starling::cuda {
namespace {

constexpr Element kFloat = Element::kFloat;
constexpr int64_t kBlocksMax = 132 * 16;  // the limit of BlocksFor, in device_math.cuh

// Device memory with initial values.
template <typename T = float>
class Values {
 public:
  explicit Values(const std::vector<T>& values, cudaStream_t stream)
      : count_(values.size()), stream_(stream) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, count_ * sizeof(T)), cudaSuccess);
    data_ = static_cast<T*>(memory);
    EXPECT_EQ(
        cudaMemcpyAsync(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice, stream_),
        cudaSuccess);
  }
  Values(size_t count, cudaStream_t stream) : Values(std::vector<T>(count, T(77)), stream) {}
  ~Values() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }

  T* data() const { return data_; }
  std::vector<T> Read() const {
    std::vector<T> values(count_);
    EXPECT_EQ(
        cudaMemcpyAsync(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost, stream_),
        cudaSuccess);
    return values;
  }

 private:
  const size_t count_;
  const cudaStream_t stream_;
  T* data_ = nullptr;
};

class LaunchesTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, 0), cudaSuccess); }
  void TearDown() override { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }

  cudaStream_t stream_ = nullptr;
};

std::vector<float> Numbers(int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i));
  return values;
}

TEST_F(LaunchesTest, Elementwise) {
  const int64_t count = kBlocksMax * 256 * 4 + 1029;  // packs of 4, and a remainder
  const std::vector<float> numbers = Numbers(count);
  const Values a(numbers, stream_), sum(count, stream_);
  ASSERT_EQ(LaunchAdd(kFloat, a.data(), a.data(), sum.data(), count, stream_), cudaSuccess);
  const std::vector<float> got = sum.Read();
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(got[i], 2 * numbers[i]) << i;
}

TEST_F(LaunchesTest, TransposeOfMoreTilesThanAGridIsHigh) {
  const int64_t batch = 65540, rows = 2, columns = 3;
  const std::vector<float> numbers = Numbers(batch * rows * columns);
  const Values from(numbers, stream_), to(numbers.size(), stream_);
  ASSERT_EQ(LaunchTranspose(kFloat, from.data(), kFloat, to.data(), batch, rows, columns, stream_),
            cudaSuccess);
  const std::vector<float> got = to.Read();
  for (int64_t i = 0; i < batch * rows * columns; ++i) {
    const int64_t b = i / (rows * columns), row = i / columns % rows, column = i % columns;
    ASSERT_EQ(got[(b * columns + column) * rows + row], numbers[i]) << i;
  }
}

// A block per row, of one warp or several.
TEST_F(LaunchesTest, RowsOfBlocks) {
  const int64_t rows = kBlocksMax + 30, classes = 3;
  for (int64_t columns : {37, 300}) {
    const std::vector<float> numbers = Numbers(rows * columns);
    std::vector<int32_t> labels(rows);
    for (int64_t r = 0; r < rows; ++r) labels[r] = static_cast<int32_t>(r % classes);
    labels[5] = -1;
    labels[rows - 3] = static_cast<int32_t>(columns);
    const Values x(numbers, stream_), p(numbers.size(), stream_), ds(numbers.size(), stream_);
    const Values losses(rows, stream_), logs(rows, stream_), sums(rows, stream_);
    const Values<int32_t> wanted(labels, stream_);
    ASSERT_EQ(LaunchSoftmax(x.data(), false, 1, rows, columns, kFloat, p.data(), stream_),
              cudaSuccess);
    ASSERT_EQ(
        LaunchSoftmaxGradient(kFloat, p.data(), x.data(), 2.0f, rows, columns, ds.data(), stream_),
        cudaSuccess);
    const LogitRows logits = {kFloat, x.data(), rows, columns, columns};
    ASSERT_EQ(LaunchSoftmaxCrossEntropy(logits, wanted.data(), losses.data(), logs.data(), stream_),
              cudaSuccess);
    ASSERT_EQ(
        LaunchRowSums(RowSum::kSum, x.data(), nullptr, 1.0f, rows, columns, sums.data(), stream_),
        cudaSuccess);
    const std::vector<float> got_p = p.Read(), got_ds = ds.Read(), got_losses = losses.Read(),
                             got_logs = logs.Read(), got_sums = sums.Read();
    for (int64_t r = 0; r < rows; ++r) {
      const float* const row = numbers.data() + r * columns;
      double total = 0, plain = 0, dot = 0;
      for (int64_t i = 0; i < columns; ++i) {
        total += std::exp(static_cast<double>(row[i]));
        plain += row[i];
      }
      const auto weight_of = [&](int64_t i) { return std::exp(double{row[i]}) / total; };
      for (int64_t i = 0; i < columns; ++i) dot += weight_of(i) * row[i];
      for (int64_t i = 0; i < columns; ++i) {
        const double weight = weight_of(i);
        ASSERT_NEAR(got_p[r * columns + i], weight, 1e-6) << r;
        ASSERT_NEAR(got_ds[r * columns + i], 2 * weight * (row[i] - dot), 1e-6) << r;
      }
      ASSERT_NEAR(got_logs[r], std::log(total), 1e-5) << r;
      ASSERT_NEAR(got_sums[r], plain, 1e-5) << r;
      if (labels[r] < 0 || labels[r] >= columns) {
        ASSERT_TRUE(std::isnan(got_losses[r])) << r;
      } else {
        ASSERT_NEAR(got_losses[r], std::log(total) - row[labels[r]], 1e-5) << r;
      }
    }
  }
}

// As where a model masks classes: they have no part in the sum, wherever they lie.
TEST_F(LaunchesTest, LogitsOfMinusInfinity) {
  const int64_t rows = 3, columns = 300;
  std::vector<float> numbers(rows * columns, -std::numeric_limits<float>::infinity());
  for (int64_t r = 0; r < rows; ++r) numbers[r * columns + 100 * r + 7] = 2;
  numbers[columns - 1] = 2;
  const std::vector<int32_t> labels = {7, 107, 207};
  const Values x(numbers, stream_), losses(rows, stream_), logs(rows, stream_);
  const Values gradient(numbers.size(), stream_);
  const Values<int32_t> wanted(labels, stream_);
  const LogitRows logits = {kFloat, x.data(), rows, columns, columns};
  ASSERT_EQ(LaunchSoftmaxCrossEntropy(logits, wanted.data(), losses.data(), logs.data(), stream_),
            cudaSuccess);
  ASSERT_EQ(LaunchSoftmaxCrossEntropyGradient(logits, wanted.data(), logs.data(), 1.0f, nullptr,
                                              gradient.data(), stream_),
            cudaSuccess);
  const std::vector<float> got = losses.Read(), slope = gradient.Read();
  EXPECT_NEAR(got[0], std::log(2.0), 1e-6);
  EXPECT_NEAR(got[1], 0, 1e-6);
  EXPECT_NEAR(got[2], 0, 1e-6);
  EXPECT_NEAR(slope[7], -0.5, 1e-6);
  EXPECT_NEAR(slope[columns - 1], 0.5, 1e-6);
  EXPECT_EQ(slope[0], 0);
}

// A warp per row.
TEST_F(LaunchesTest, RowsOfWarps) {
  const int64_t rows = kBlocksMax * 8 + 13, columns = 5;
  const std::vector<float> numbers = Numbers(rows * columns);
  std::vector<int32_t> greatest(rows);
  for (int64_t r = 0; r < rows; ++r) {
    for (int32_t i = 1; i < columns; ++i) {
      if (numbers[r * columns + i] > numbers[r * columns + greatest[r]]) greatest[r] = i;
    }
  }
  const Values x(numbers, stream_), y(numbers.size(), stream_), mean(rows, stream_),
      scale(rows, stream_), ones(std::vector<float>(columns, 1.0f), stream_);
  ASSERT_EQ(LaunchLayerNorm(kFloat, x.data(), ones.data(), ones.data(), 1e-5f, rows, columns,
                            y.data(), mean.data(), scale.data(), stream_),
            cudaSuccess);
  const Values<int32_t> labels(greatest, stream_);
  const Values<uint32_t> correct(std::vector<uint32_t>(1, 0), stream_);
  const LogitRows logits = {kFloat, x.data(), rows, columns, columns};
  ASSERT_EQ(LaunchCountGreatest(logits, labels.data(), rows, correct.data(), stream_), cudaSuccess);
  EXPECT_EQ(correct.Read()[0], rows);
  const std::vector<float> got = y.Read(), means = mean.Read();
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < columns; ++i) sum += numbers[r * columns + i];
    for (int64_t i = 0; i < columns; ++i) {
      squares += std::pow(numbers[r * columns + i] - sum / columns, 2);
    }
    ASSERT_NEAR(means[r], sum / columns, 1e-6) << r;
    for (int64_t i = 0; i < columns; ++i) {
      const double normal =
          (numbers[r * columns + i] - sum / columns) / std::sqrt(squares / columns + 1e-5);
      ASSERT_NEAR(got[r * columns + i], normal + 1, 1e-4) << r;
    }
  }
}

TEST_F(LaunchesTest, Tables) {
  const int64_t count = kBlocksMax + 100, rows = 7, width = 3;
  std::vector<int32_t> at(count);
  for (int64_t i = 0; i < count; ++i) at[i] = static_cast<int32_t>(i * i % rows);
  const std::vector<float> values = Numbers(rows * width), gradients = Numbers(count * width);
  const Values<int32_t> indices(at, stream_);
  const Values table(values, stream_), y(count * width, stream_), dy(gradients, stream_);
  ASSERT_EQ(LaunchGather(kFloat, indices.data(), table.data(), count, rows, width, y.data(),
                         nullptr, stream_),
            cudaSuccess);
  const std::vector<float> got = y.Read();
  std::vector<float> sums(rows * width);
  for (int64_t i = 0; i < count * width; ++i) {
    const int64_t place = at[i / width] * width + i % width;
    ASSERT_EQ(got[i], values[place]) << i;
    sums[place] += gradients[i];
  }
  size_t bytes = 0;
  ASSERT_EQ(ScatterWorkspaceBytes(count, rows, &bytes), cudaSuccess);
  const Values<char> workspace(bytes, stream_);
  ASSERT_EQ(LaunchScatter(kFloat, indices.data(), dy.data(), count, rows, width, table.data(),
                          workspace.data(), bytes, stream_),
            cudaSuccess);
  EXPECT_EQ(table.Read(), sums);  // in the order of the positions, so the same bits
}

// The sorted positions come right after the sorted keys, and the first of them equals such a key.
TEST_F(LaunchesTest, TheLastRunOfATableEnds) {
  const Values<int32_t> indices(std::vector<int32_t>(64, 0), stream_);
  const Values table(2, stream_), dy(std::vector<float>(64, 1.0f), stream_);
  size_t bytes = 0;
  ASSERT_EQ(ScatterWorkspaceBytes(64, 2, &bytes), cudaSuccess);
  const Values<char> workspace(bytes, stream_);
  ASSERT_EQ(LaunchScatter(kFloat, indices.data(), dy.data(), 64, 2, 1, table.data(),
                          workspace.data(), bytes, stream_),
            cudaSuccess);
  EXPECT_EQ(table.Read(), (std::vector<float>{64, 0}));
}

}  // namespace
}  // namespace starling::cuda
