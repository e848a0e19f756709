// An executor on the CPU with data in memory, for tests: gates that are open, sinks that collect.
#ifndef STARLING_WORKER_EXECUTOR_TESTING_HARNESS_H_
#define STARLING_WORKER_EXECUTOR_TESTING_HARNESS_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/graph/graph.h"
#include "common/placement/layout.h"
#include "common/sync/mutex.h"
#include "kernels/device.h"
#include "proto/model.pb.h"
#include "worker/executor/executor.h"
#include "worker/executor/local_run.h"

namespace starling {

// Inputs are fp32 or tokens, labels are classes or fp32 targets; the unused vectors are empty.
struct Samples32 {
  int64_t elements = 0;  // per sample
  std::vector<float> inputs;
  std::vector<int32_t> tokens = {};
  std::vector<int32_t> labels;
  std::vector<float> targets = {};
  int64_t label_elements = 1;  // per sample
  int64_t size() const {
    return static_cast<int64_t>(labels.size() + targets.size()) / label_elements;
  }
};

// Standard normal inputs; the label is the nearest of `classes` random directions.
Samples32 MakeSamples(int64_t count, int64_t elements, int64_t classes, uint32_t seed);

// Tokens in [0, vocabulary); each label is the next token.
Samples32 MakeTokens(int64_t count, int64_t positions, int64_t vocabulary, uint32_t seed);

// Micro-batch id i has the samples [i * size, (i + 1) * size), fewer or none past the end.
class MemoryBatches : public BatchSource {
 public:
  MemoryBatches(const Samples32* samples, int64_t size) : samples_(samples), size_(size) {}
  absl::StatusOr<MicroBatch> Get(const WorkRange& range, uint64_t id) override;

 private:
  const Samples32* const samples_;
  const int64_t size_;
};

// Keeps each range's gradient as one flat vector, 0 for frozen slices; fails the test if the
// contract is broken.
class CollectingSink : public GradientSink {
 public:
  explicit CollectingSink(const Layout* layout) : layout_(layout) {}

  float* Acquire(size_t range, SliceId slice) override;
  void Ready(size_t range, SliceId slice, uint32_t samples) override;
  void Overflowed() override { overflowed = true; }

  std::atomic<bool> overflowed = false;
  // Called at each Ready, without holding the lock.
  std::function<void(size_t range, SliceId slice)> on_ready;

  std::vector<float> gradient(size_t range);
  uint32_t samples(size_t range);  // as passed with slice 0
  bool complete(size_t range);     // all slices that are not frozen are ready
  size_t ready_slices();

 private:
  struct Entry {
    std::vector<float> values;        // the executor's until Ready
    std::vector<float> ready_values;  // their copy at that time
    bool ready = false;
    uint32_t samples = 0;
  };
  const Layout* const layout_;
  Mutex mutex_;
  std::map<std::pair<size_t, uint32_t>, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

// A graph, its layout, a device and an executor.
struct TestModel {
  Graph graph;
  ResolvedGraph resolved;
  Layout layout;
  std::unique_ptr<Device> device;
  std::unique_ptr<SpanRing> spans;
  std::unique_ptr<Executor> executor;

  // Fills the live parameters according to their initialisers, from a simple generator.
  void Initialise(uint32_t seed);
  absl::Span<float> live() {
    return {executor->live_parameters(), static_cast<size_t>(layout.elements)};
  }
};

// The device of a test's models: the CPU or, in targets with other `deps`, a device like a GPU
// (cpu_test_device.cc, far_test_device.cc).
std::unique_ptr<Device> MakeTestDevice();

TestModel MakeTestModel(Graph graph, const ExecutorOptions& options,
                        const Optimizer& optimizer = Optimizer::default_instance(),
                        std::unique_ptr<Device> device = MakeTestDevice());

WorkRange TrainRange(uint64_t first, uint32_t count);

// The gradients of the ranges, one flat vector each; the unit must succeed.
struct TrainOutput {
  std::vector<std::vector<float>> gradients;
  UnitResult result;
};
TrainOutput TrainOnce(TestModel& model, BatchSource& batches, const std::vector<WorkRange>& ranges,
                      uint64_t job_step = 0);

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_TESTING_HARNESS_H_
