// Samples per second of forward, backward and sums, with nothing to wait for: lenet, batch 128.
//
//   bazel run -c opt //worker/executor:executor_benchmark
//
// Arguments: lanes, threads inside one micro-batch. Always the same work: 4 micro-batches of 32.
#include "benchmark/benchmark.h"
#include "common/graph/builders.h"
#include "worker/executor/executor.h"
#include "worker/executor/testing/harness.h"

namespace starling {
namespace {

constexpr int64_t kBatch = 128;
constexpr int64_t kMicroBatches = 4;

class FixedSink : public GradientSink {
 public:
  explicit FixedSink(const Layout& layout) {
    for (const Slice& slice : layout.slices) buffers_.emplace_back(slice.elements);
  }
  float* Acquire(size_t, SliceId slice) override { return buffers_[slice.value].data(); }
  void Ready(size_t, SliceId, uint32_t) override {}

 private:
  std::vector<std::vector<float>> buffers_;
};

void BM_LenetStep(benchmark::State& state) {
  ExecutorOptions options;
  options.global_batch = kBatch;
  options.micro_batches = kMicroBatches;
  options.train_samples = {kBatch / kMicroBatches};
  options.lanes = static_cast<int>(state.range(0));
  options.kernel_threads = static_cast<int>(state.range(1));
  TestModel model = MakeTestModel(BuildLenet({{1, 28, 28}, 10}).value(), options);
  const Samples32 samples = MakeSamples(kBatch, 28 * 28, 10, 1);
  MemoryBatches batches(&samples, kBatch / kMicroBatches);
  OpenGate gate;
  FixedSink sink(model.layout);
  UnitResult result;
  const std::vector<WorkRange> ranges = {TrainRange(0, kMicroBatches)};
  for (auto _ : state) {
    if (!model.executor->Train({ranges}, batches, gate, sink, &result).ok() || !result.finite) {
      state.SkipWithError("the step failed");
    }
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
  state.SetLabel(model.device->instruction_set());
  state.counters["planned_MiB"] = static_cast<double>(model.executor->planned_bytes()) / (1 << 20);
}
BENCHMARK(BM_LenetStep)
    ->Args({1, 1})
    ->Args({2, 1})
    ->Args({1, 2})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace starling
