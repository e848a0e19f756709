// Images per second on one core: shuffle, gather and normalise MNIST-sized batches. Next to it, the
// limit: the same bytes moved by memcpy (784 in, 3,136 out per image).
#include <benchmark/benchmark.h>

#include <cstring>

#include "common/data_plan/epoch_order.h"
#include "worker/data/data_set.h"
#include "worker/data/testing/files.h"

namespace starling {
namespace {

constexpr int64_t kImages = 60'000;
constexpr int64_t kPixels = 784;
constexpr int64_t kBatch = 128;

std::shared_ptr<const DataSet> Mnist() {
  Normalize normalize;
  normalize.add_mean(0.1307);
  normalize.add_std(0.3081);
  return *DataSet::Open(
      data_testing::IdxSource(
          data_testing::WriteFile("b-images", data_testing::Images(kImages, 28, 28)),
          data_testing::WriteFile("b-labels", data_testing::Labels(kImages))),
      normalize, {});
}

void BM_ShuffleGatherNormalize(benchmark::State& state) {
  const auto data = Mnist();
  std::vector<float> inputs(kBatch * kPixels);
  std::vector<int32_t> labels(kBatch);
  std::vector<int64_t> ids(kBatch);
  const EpochOrder order(1, 0, kImages);
  int64_t position = 0;
  for (auto _ : state) {
    for (int64_t& id : ids) id = order.SampleAt(position++ % kImages);
    if (!data->Gather(ids, nullptr, inputs.data(), labels.data()).ok()) std::abort();
    benchmark::DoNotOptimize(inputs.data());
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
}
BENCHMARK(BM_ShuffleGatherNormalize);

void BM_ShuffleAlone(benchmark::State& state) {
  const EpochOrder order(1, 0, kImages);
  int64_t position = 0;
  for (auto _ : state) benchmark::DoNotOptimize(order.SampleAt(position++ % kImages));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_ShuffleAlone);

void BM_CopyTheSameBytes(benchmark::State& state) {
  const std::vector<uint8_t> in(kImages * kPixels, 1);
  std::vector<uint8_t> out(kBatch * kPixels * sizeof(float));
  int64_t row = 0;
  for (auto _ : state) {
    for (int64_t i = 0; i < kBatch; ++i) {
      row = (row + 7919) % kImages;
      for (int copy = 0; copy < 4; ++copy) {
        std::memcpy(&out[(4 * i + copy) * kPixels], &in[row * kPixels], kPixels);
      }
    }
    benchmark::DoNotOptimize(out.data());
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
}
BENCHMARK(BM_CopyTheSameBytes);

}  // namespace
}  // namespace starling
