// The executor on an asynchronous device whose memory the host cannot access computes the same bits
// as on the underlying device.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/graph/builders.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/testing/fake_discrete_device.h"
#include "worker/executor/executor.h"
#include "worker/executor/testing/harness.h"

namespace starling {
namespace {

constexpr int64_t kClasses = 3;

LayerDescription Conv(const std::string& name) {
  return {"conv2d",
          name,
          {{"out_channels", int64_t{8}}, {"kernel", int64_t{3}}, {"padding", int64_t{1}}}};
}

// Statistics, random numbers, a value with two readers, and parameters with two users.
Graph Net() {
  const std::vector<LayerDescription> layers = {
      Conv("stem"),
      {"batchnorm", "norm", {}},
      {"relu", "relu1", {}},
      Conv("branch"),
      {"add", "sum", {}, {"branch", "relu1"}},
      {"maxpool2d", "pool", {{"kernel", int64_t{2}}}},
      {"dropout", "drop", {{"rate", 0.25}}},
      {"flatten", "flat", {}},
      {"linear", "hidden", {{"out_features", int64_t{24}}}},
      {"gelu", "gelu1", {}},
      {"linear", "mix", {{"out_features", int64_t{24}}}},
      {"linear", "again", {{"out_features", int64_t{24}}}, {"mix"}, "mix"},
      {"linear", "fc", {}},
  };
  return BuildLayers({{2, 8, 8}, kClasses}, layers).value();
}

struct Case {
  DataType type;
  int lanes;
  FarRuns runs;
};

class FakeDiscreteDeviceTest : public ::testing::TestWithParam<Case> {
 protected:
  static TestModel Model(bool far, size_t memory_bytes = 0) {
    ExecutorOptions options;
    options.global_batch = 32;
    options.micro_batches = 8;
    options.train_samples = {4, 2};
    options.evaluate_samples = {4, 2};
    options.lanes = GetParam().lanes;
    options.seed = 5;
    options.type = GetParam().type;
    std::unique_ptr<Device> device = CreateCpuDevice().value();
    if (far) {
      device = MakeFakeDiscreteDevice(std::move(device),
                                      {.runs = GetParam().runs, .memory_bytes = memory_bytes});
    }
    return MakeTestModel(Net(), options, Optimizer::default_instance(), std::move(device));
  }
};

// Steps that change the parameters, as a whole and in ranges of other sizes, one of them a single
// micro-batch, one empty at its end; then an evaluation.
TEST_P(FakeDiscreteDeviceTest, ComputesTheSameBits) {
  const Samples32 samples = MakeSamples(26, 2 * 8 * 8, kClasses, 2);
  MemoryBatches batches(&samples, 4);
  TestModel near = Model(/*far=*/false), far = Model(/*far=*/true);
  ASSERT_FALSE(far.device->host_reaches_memory());
  const std::vector<std::vector<WorkRange>> units = {
      {TrainRange(0, 8)},
      {TrainRange(6, 2), TrainRange(0, 4), TrainRange(5, 1), TrainRange(4, 1)},
      {TrainRange(0, 1)},
      {TrainRange(0, 8)},
  };
  for (size_t step = 0; step < units.size(); ++step) {
    SCOPED_TRACE(step);
    const TrainOutput expected = TrainOnce(near, batches, units[step], step);
    const TrainOutput got = TrainOnce(far, batches, units[step], step);
    ASSERT_EQ(got.gradients, expected.gradients);
    for (size_t r = 0; r < units[step].size(); ++r) {
      EXPECT_EQ(got.result.ranges[r].loss_sum, expected.result.ranges[r].loss_sum);
      EXPECT_EQ(got.result.ranges[r].correct, expected.result.ranges[r].correct);
      for (size_t i = 0; i < near.live().size(); ++i) {
        near.live()[i] -= 0.1f * expected.gradients[r][i];
        far.live()[i] -= 0.1f * expected.gradients[r][i];
      }
    }
  }
  double losses[2];
  for (TestModel* model : {&near, &far}) {
    std::memcpy(model->executor->snapshot_parameters(), model->executor->live_parameters(),
                model->layout.elements * sizeof(float));
    OpenGate gate;
    UnitResult result;
    const std::vector<WorkRange> ranges = {{WorkPurpose::kEvaluate, 0, 0, 8}};
    ASSERT_TRUE(model->executor->Evaluate({ranges}, batches, gate, &result).ok());
    losses[model == &far] = result.ranges[0].loss_sum;
  }
  EXPECT_EQ(losses[1], losses[0]);
}

// Shows a step's parameters only while the unit may read them, and takes each gradient when it is
// ready. Detects reads of a slice's parameters after its last Ready, and writes to a buffer after
// its own.
class Owner : public SliceGate, public CollectingSink {
 public:
  Owner(TestModel* model, const std::vector<float>* values, size_t ranges)
      : CollectingSink(&model->layout), model_(model), values_(values), ranges_(ranges) {
    for (float& value : model_->live()) value = kNobodys;
    on_ready = [this](size_t, SliceId slice) { Take(slice); };
  }

  bool Wait(SliceId slice, uint64_t*) override {
    MutexLock lock(&mutex_);
    if (!given_.insert({slice.value, 0}).second) return true;
    const Slice& part = model_->layout.slices[slice.value];
    std::copy_n(values_->begin() + part.flat_begin, part.elements,
                model_->live().begin() + part.flat_begin);
    return true;
  }

 private:
  static constexpr float kNobodys = 1e30f;

  void Take(SliceId slice) {
    MutexLock lock(&mutex_);
    if (++given_[slice.value] < ranges_) return;
    const Slice& part = model_->layout.slices[slice.value];
    std::fill_n(model_->live().begin() + part.flat_begin, part.elements, kNobodys);
  }

  TestModel* const model_;
  const std::vector<float>* const values_;
  const size_t ranges_;
  Mutex mutex_;
  std::map<uint32_t, size_t> given_ ABSL_GUARDED_BY(mutex_);  // ranges whose gradient is ready
};

TEST_P(FakeDiscreteDeviceTest, AReadySliceIsItsOwnersAgain) {
  const Samples32 samples = MakeSamples(26, 2 * 8 * 8, kClasses, 2);
  MemoryBatches batches(&samples, 4);
  TestModel near = Model(/*far=*/false), far = Model(/*far=*/true);
  const std::vector<float> values(near.live().begin(), near.live().end());
  const std::vector<WorkRange> ranges = {TrainRange(4, 2), TrainRange(0, 4), TrainRange(6, 1)};
  const TrainOutput expected = TrainOnce(near, batches, ranges);
  for (int round = 0; round < 3; ++round) {
    Owner owner(&far, &values, ranges.size());
    UnitResult result;
    const absl::Status status = far.executor->Train({ranges}, batches, owner, owner, &result);
    ASSERT_TRUE(status.ok()) << status;
    for (size_t r = 0; r < ranges.size(); ++r) {
      ASSERT_EQ(owner.gradient(r), expected.gradients[r]) << r;
    }
  }
}

// Notes which micro-batches are requested.
class NotingBatches : public BatchSource {
 public:
  explicit NotingBatches(BatchSource* batches) : batches_(batches) {}
  absl::StatusOr<MicroBatch> Get(const WorkRange& range, uint64_t id) override {
    {
      MutexLock lock(&mutex_);
      ids_.push_back(id);
    }
    return batches_->Get(range, id);
  }
  std::vector<uint64_t> TakeIds() {
    MutexLock lock(&mutex_);
    std::sort(ids_.begin(), ids_.end());
    return std::exchange(ids_, {});
  }

 private:
  BatchSource* const batches_;
  Mutex mutex_;
  std::vector<uint64_t> ids_ ABSL_GUARDED_BY(mutex_);
};

// With one lane the next unit finds its first micro-batch on the device. Whether it does, or
// another unit comes, or the one ahead is bad: the same bits.
TEST_P(FakeDiscreteDeviceTest, ABatchIsCopiedAheadOfItsUnit) {
  const bool ahead = GetParam().lanes == 1;
  const Samples32 samples = MakeSamples(26, 2 * 8 * 8, kClasses, 2);
  MemoryBatches memory(&samples, 4);
  NotingBatches batches(&memory);
  TestModel near = Model(/*far=*/false), far = Model(/*far=*/true);
  OpenGate gate;
  using Ids = std::vector<uint64_t>;
  const auto train = [&](const WorkRange& range, std::optional<WorkRange> next, const Ids& asked) {
    SCOPED_TRACE(range.first);
    const std::vector<WorkRange> ranges = {range};
    Unit unit;
    unit.ranges = ranges;
    unit.next = [&] { return next; };
    CollectingSink sink(&far.layout);
    UnitResult result;
    const absl::Status status = far.executor->Train(unit, batches, gate, sink, &result);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(batches.TakeIds(), asked);
    EXPECT_EQ(sink.gradient(0), TrainOnce(near, memory, ranges).gradients[0]);
  };
  train(TrainRange(0, 2), TrainRange(2, 2), ahead ? Ids{0, 1, 2} : Ids{0, 1});
  train(TrainRange(2, 2), TrainRange(4, 2), ahead ? Ids{3, 4} : Ids{2, 3});
  // Not the one that was expected, and then nothing is.
  train(TrainRange(0, 2), std::nullopt, {0, 1});
  // The last micro-batch is short, and one past the end is empty: neither goes ahead in vain.
  train(TrainRange(4, 2), TrainRange(6, 1), ahead ? Ids{4, 5, 6} : Ids{4, 5});
  train(TrainRange(6, 1), TrainRange(7, 1), ahead ? Ids{7} : Ids{6});
  train(TrainRange(7, 1), std::nullopt, {7});
}

TEST_P(FakeDiscreteDeviceTest, ABadBatchThatWasCopiedAheadIsNamed) {
  const Samples32 good = MakeSamples(26, 2 * 8 * 8, kClasses, 2);
  Samples32 bad = good;
  bad.inputs[4 * 2 * 8 * 8 + 5] = std::numeric_limits<float>::quiet_NaN();  // in micro-batch 1
  MemoryBatches batches(&bad, 4);
  TestModel far = Model(/*far=*/true);
  OpenGate gate;
  const std::vector<WorkRange> first = {TrainRange(0, 1)}, second = {TrainRange(1, 1)};
  Unit unit;
  unit.ranges = first;
  unit.next = [] { return TrainRange(1, 1); };
  CollectingSink sink(&far.layout), unused(&far.layout);
  UnitResult result;
  ASSERT_TRUE(far.executor->Train(unit, batches, gate, sink, &result).ok());
  ASSERT_TRUE(result.finite);
  unit.ranges = second;
  unit.next = nullptr;
  const absl::Status status = far.executor->Train(unit, batches, gate, unused, &result);
  ASSERT_TRUE(status.ok()) << status;
  if (GetParam().type == DataType::kFp16) return;  // an overflow, not an error
  EXPECT_FALSE(result.finite);
  EXPECT_EQ(result.bad_layer, "stem (conv2d)");
}

TEST_P(FakeDiscreteDeviceTest, CopiesAreInTheTimeline) {
  // The last micro-batch is empty.
  const Samples32 samples = MakeSamples(26, 2 * 8 * 8, kClasses, 2);
  MemoryBatches batches(&samples, 4);
  TestModel far = Model(/*far=*/true);
  TrainOnce(far, batches, {TrainRange(0, 4), TrainRange(4, 4)});
  std::map<std::string, size_t> copies;
  for (const TraceSpan& span : far.spans->Read(0).spans) {
    if (span.category == SpanCategory::kCopy) ++copies[std::string(span.name())];
  }
  const size_t slices = far.layout.slices.size();
  const std::map<std::string, size_t> expected = {
      {"copy in", slices}, {"copy inputs", 7}, {"copy out", 2 * slices}};
  EXPECT_EQ(copies, expected);
}

// Each operator appears twice: when it was ordered, and when it ran, which is not earlier. Those
// that ran are in their lane's order.
TEST_P(FakeDiscreteDeviceTest, WhatRanIsInTheTimeline) {
  const Samples32 samples = MakeSamples(26, 2 * 8 * 8, kClasses, 2);
  MemoryBatches batches(&samples, 4);
  TestModel near = Model(/*far=*/false), far = Model(/*far=*/true);
  for (TestModel* const model : {&near, &far}) TrainOnce(*model, batches, {TrainRange(0, 8)});
  for (const TraceSpan& span : near.spans->Read(0).spans) {
    EXPECT_NE(span.category, SpanCategory::kDevice) << span.name();
  }
  using Lane = std::map<std::string, std::vector<uint64_t>>;  // by name: when each started
  std::map<uint64_t, Lane> ordered, ran;
  for (const TraceSpan& span : far.spans->Read(0).spans) {
    const std::string name(span.name());
    if (span.category == SpanCategory::kDevice) {
      ran[span.thread][name].push_back(span.begin_us);
    } else if (span.category == SpanCategory::kForward ||
               span.category == SpanCategory::kBackward) {
      ordered[span.thread][name].push_back(span.begin_us);
    }
  }
  ASSERT_EQ(ran.size(), ordered.size());
  for (const auto& [thread, lane] : ordered) {
    ASSERT_EQ(ran[thread].size(), lane.size());
    for (const auto& [name, begins] : lane) {
      const std::vector<uint64_t>& later = ran[thread][name];
      ASSERT_EQ(later.size(), begins.size()) << name;
      for (size_t i = 0; i < begins.size(); ++i) EXPECT_GE(later[i], begins[i]) << name;
    }
  }
}

// What a job uses is measured by the device, and is about what was planned.
TEST_P(FakeDiscreteDeviceTest, SaysWhatItTookOfTheDevice) {
  const Samples32 samples = MakeSamples(26, 2 * 8 * 8, kClasses, 2);
  MemoryBatches batches(&samples, 4);
  TestModel near = Model(/*far=*/false), far = Model(/*far=*/true, /*memory_bytes=*/64 << 20);
  const size_t planned = far.executor->planned_bytes();
  const size_t peak = far.executor->device_peak_bytes();
  EXPECT_GE(peak, planned);
  EXPECT_LT(peak, planned + (256 << 10)) << "blocks are whole pages, and there are few";
  TrainOnce(far, batches, {TrainRange(0, 8)});
  EXPECT_EQ(far.executor->device_peak_bytes(), peak) << "a unit takes nothing more";
  EXPECT_EQ(near.executor->device_peak_bytes(), 0u);
}

TEST_P(FakeDiscreteDeviceTest, WhatWaitsForItsTurnIsPlannedAndPinned) {
  const TestModel near = Model(/*far=*/false), far = Model(/*far=*/true);
  const size_t flat = far.layout.elements * sizeof(float);
  const size_t lanes = GetParam().lanes;
  const size_t staged = 4 * (2 * 8 * 8 + 1) * sizeof(float);  // a micro-batch's inputs and labels
  // If the host can access device memory, a sum may wait in the sink's buffer: one flat buffer
  // less.
  EXPECT_GE(far.executor->planned_bytes(), near.executor->planned_bytes() + flat + lanes * staged);
  EXPECT_LT(far.executor->planned_bytes(),
            near.executor->planned_bytes() + flat + lanes * (staged + 2 * 64));
  EXPECT_EQ(near.executor->pinned_bytes(), 0u);
  EXPECT_GE(far.executor->pinned_bytes(), 2 * flat + lanes * staged);
}

// Stops while each lane has work under way, wherever that is; afterwards everything works as
// before.
TEST_P(FakeDiscreteDeviceTest, AnAbandonedUnitLeavesNothingUnderWay) {
  const Samples32 samples = MakeSamples(26, 2 * 8 * 8, kClasses, 2);
  MemoryBatches batches(&samples, 4);
  TestModel near = Model(/*far=*/false), far = Model(/*far=*/true);
  const std::vector<WorkRange> ranges = {TrainRange(0, 2), TrainRange(2, 2), TrainRange(4, 4)};
  const TrainOutput expected = TrainOnce(near, batches, ranges);
  for (size_t ready = 1; ready < 2 * far.layout.slices.size(); ready += 2) {
    std::atomic<bool> cancelled{false};
    CollectingSink sink(&far.layout);
    std::atomic<size_t> left{0};
    sink.on_ready = [&](size_t, SliceId) {
      if (++left == ready) cancelled = true;
    };
    OpenGate gate;
    UnitResult result;
    const absl::Status status =
        far.executor->Train({ranges, 0, 0, &cancelled}, batches, gate, sink, &result);
    EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
  }
  EXPECT_EQ(TrainOnce(far, batches, ranges).gradients, expected.gradients);
}

INSTANTIATE_TEST_SUITE_P(Cases, FakeDiscreteDeviceTest,
                         ::testing::Values(Case{DataType::kFp32, 1, FarRuns::kLate},
                                           Case{DataType::kFp32, 3, FarRuns::kLate},
                                           Case{DataType::kBf16, 2, FarRuns::kLate},
                                           Case{DataType::kFp16, 2, FarRuns::kLate},
                                           Case{DataType::kFp32, 1, FarRuns::kBeside},
                                           Case{DataType::kFp32, 3, FarRuns::kBeside}),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           return std::string(DataTypeName(info.param.type)) + "_lanes" +
                                  std::to_string(info.param.lanes) +
                                  (info.param.runs == FarRuns::kLate ? "_late" : "_beside");
                         });

}  // namespace
}  // namespace starling
