// What the executor promises about timing: what waits for what, what is pushed early, what stops.
#include <thread>

#include "common/graph/builders.h"
#include "gtest/gtest.h"
#include "worker/executor/executor.h"
#include "worker/executor/testing/harness.h"

namespace starling {
namespace {

constexpr int64_t kClasses = 3;
constexpr absl::Duration kDeadline = absl::Seconds(30);

// Four linear layers, each in its own slices (each is more than an eighth of the model).
Graph DeepMlp() { return BuildMlp({{64}, kClasses}, {.hidden = {64, 64, 64}}).value(); }

ExecutorOptions Options(int lanes) {
  ExecutorOptions options;
  options.global_batch = 16;
  options.micro_batches = 4;
  options.train_samples = {4};
  options.lanes = lanes;
  return options;
}

class FlowTest : public testing::Test {
 protected:
  explicit FlowTest(int lanes = 2)
      : samples_(MakeSamples(16, 64, kClasses, 2)),
        batches_(&samples_, 4),
        model_(MakeTestModel(DeepMlp(), Options(lanes))),
        sink_(&model_.layout) {}

  bool Recorded(const std::string& name) {
    for (const TraceSpan& span : model_.spans->Read(0).spans) {
      if (span.name() == name) return true;
    }
    return false;
  }

  const std::vector<WorkRange> ranges_ = {TrainRange(0, 4)};
  Samples32 samples_;
  MemoryBatches batches_;
  TestModel model_;
  CollectingSink sink_;
  UnitResult result_;
};

class OneLaneFlowTest : public FlowTest {
 protected:
  OneLaneFlowTest() : FlowTest(1) {}
};

// A slice is ready only once an earlier operator has run.
class LateGate : public SliceGate {
 public:
  LateGate(SliceId late, std::function<bool()> condition)
      : late_(late), condition_(std::move(condition)) {}
  bool Wait(SliceId slice, uint64_t*) override {
    if (slice != late_) return true;
    const absl::Time deadline = absl::Now() + kDeadline;
    while (!condition_()) {
      if (absl::Now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  const SliceId late_;
  const std::function<bool()> condition_;
};

TEST_F(FlowTest, AnOperatorWaitsOnlyForItsOwnSlices) {
  ASSERT_GT(model_.layout.slices.size(), 2u);
  LateGate gate(model_.layout.parameters[4].first_slice,  // fc3.weight
                [this] { return Recorded("forward fc2"); });
  const absl::Status status = model_.executor->Train({ranges_}, batches_, gate, sink_, &result_);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Recorded("wait slices"));
  EXPECT_GT(result_.slice_wait_seconds, 0);
}

// Until the shard has sealed the previous step, it would refuse a push as too early.
TEST_F(FlowTest, AnEmptyMicroBatchWaitsForTheValuesToo) {
  class ClosedGate : public SliceGate {
   public:
    bool Wait(SliceId, uint64_t*) override { return false; }
  } gate;
  sink_.on_ready = [](size_t, SliceId slice) {
    ADD_FAILURE() << "slice " << slice.value << " left";
  };
  const std::vector<WorkRange> beyond_the_end = {TrainRange(4, 4)};
  const absl::Status status =
      model_.executor->Train({beyond_the_end}, batches_, gate, sink_, &result_);
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

// Has a buffer for a slice only once the previous slice was pushed.
class ImpatientSink : public CollectingSink {
 public:
  using CollectingSink::CollectingSink;
  float* Acquire(size_t range, SliceId slice) override {
    const absl::Time deadline = absl::Now() + kDeadline;
    while (ready_slices() < acquired_) {
      if (absl::Now() > deadline) return nullptr;
      std::this_thread::yield();
    }
    ++acquired_;
    return CollectingSink::Acquire(range, slice);
  }

 private:
  size_t acquired_ = 0;
};

TEST_F(OneLaneFlowTest, SlicesLeaveWhileBackwardGoesOn) {
  ImpatientSink sink(&model_.layout);
  std::vector<SliceId> order;
  sink.on_ready = [&](size_t, SliceId slice) { order.push_back(slice); };
  OpenGate gate;
  const std::vector<WorkRange> one = {TrainRange(0, 1)};
  const absl::Status status = model_.executor->Train({one}, batches_, gate, sink, &result_);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(order.size(), model_.layout.slices.size());
  EXPECT_EQ(order.front(), model_.layout.parameters.back().last_slice);
  EXPECT_EQ(order.back(), model_.layout.parameters.front().first_slice);
}

TEST_F(FlowTest, AReadySlicesParametersAreNotReadAnyMore) {
  const std::vector<float> expected = TrainOnce(model_, batches_, ranges_).gradients[0];
  sink_.on_ready = [this](size_t, SliceId slice) {
    const Slice& s = model_.layout.slices[slice.value];
    for (float& value : model_.live().subspan(s.flat_begin, s.elements)) value = 1e30f;
  };
  OpenGate gate;
  ASSERT_TRUE(model_.executor->Train({ranges_}, batches_, gate, sink_, &result_).ok());
  EXPECT_EQ(sink_.gradient(0), expected);
}

TEST_F(FlowTest, AnAbandonedGateEndsTheUnit) {
  LateGate gate(model_.layout.parameters[4].first_slice, [] { return true; });
  class Closed : public SliceGate {
   public:
    bool Wait(SliceId, uint64_t*) override { return false; }
  } closed;
  EXPECT_EQ(model_.executor->Train({ranges_}, batches_, closed, sink_, &result_).code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(sink_.ready_slices(), 0u);
  CollectingSink fresh(&model_.layout);
  EXPECT_TRUE(model_.executor->Train({ranges_}, batches_, gate, fresh, &result_).ok());
  EXPECT_TRUE(fresh.complete(0));
}

TEST_F(FlowTest, CancellingStopsBetweenOperators) {
  std::atomic<bool> cancelled{false};
  // Cancels in the middle of forward: nothing runs after that.
  LateGate gate(model_.layout.parameters[4].first_slice, [&] {
    cancelled = true;
    return true;
  });
  Unit unit{ranges_, 0, 0, &cancelled};
  EXPECT_EQ(model_.executor->Train(unit, batches_, gate, sink_, &result_).code(),
            absl::StatusCode::kCancelled);
  EXPECT_FALSE(Recorded("forward fc3"));
  EXPECT_EQ(sink_.ready_slices(), 0u);
}

TEST_F(FlowTest, ASinkWithoutABufferEndsTheUnit) {
  class NoBuffer : public GradientSink {
   public:
    float* Acquire(size_t, SliceId) override { return nullptr; }
    void Ready(size_t, SliceId, uint32_t) override { ADD_FAILURE() << "ready without a buffer"; }
  } no_buffer;
  OpenGate gate;
  EXPECT_EQ(model_.executor->Train({ranges_}, batches_, gate, no_buffer, &result_).code(),
            absl::StatusCode::kCancelled);
}

// Waits wherever a lane can wait, always on the clock that measures the times.
class SlowWorld : public BatchSource, public SliceGate, public CollectingSink {
 public:
  SlowWorld(MemoryBatches* batches, const Layout* layout)
      : CollectingSink(layout), batches_(batches) {}

  absl::StatusOr<MicroBatch> Get(const WorkRange& range, uint64_t id) override {
    Pass(kData);
    return batches_->Get(range, id);
  }
  bool Wait(SliceId, uint64_t* held_us) override {
    Pass(kGate);
    *held_us = kHeld;
    return true;
  }
  float* Acquire(size_t range, SliceId slice) override {
    Pass(kPush);
    return CollectingSink::Acquire(range, slice);
  }

  static constexpr uint64_t kData = 3000, kGate = 2000, kHeld = 1500, kPush = 4000;  // us

 private:
  static void Pass(uint64_t us) {
    const uint64_t end = SpanRing::NowMicros() + us;
    while (SpanRing::NowMicros() < end) std::this_thread::yield();
  }
  MemoryBatches* const batches_;
};

TEST_F(OneLaneFlowTest, TimesSayWhereTheLaneWas) {
  SlowWorld world(&batches_, &model_.layout);
  ASSERT_TRUE(model_.executor->Train({ranges_}, world, world, world, &result_).ok());
  const ExecutorTimes times = model_.executor->times();
  const double slices = static_cast<double>(model_.layout.slices.size());
  EXPECT_GE(times.data, 4 * 1e-6 * SlowWorld::kData);
  EXPECT_GE(times.values, slices * 1e-6 * (SlowWorld::kGate - SlowWorld::kHeld));
  EXPECT_NEAR(times.held, slices * 1e-6 * SlowWorld::kHeld, 1e-9);
  EXPECT_GE(times.push, slices * 1e-6 * SlowWorld::kPush);
  EXPECT_EQ(times.pending, 0);
  EXPECT_LE(times.data + times.forward + times.backward + times.values + times.held + times.push,
            times.total + 1e-9);
  EXPECT_NEAR(times.values + times.held, result_.slice_wait_seconds, 1e-9);
  EXPECT_NEAR(times.push, result_.ack_wait_seconds, 1e-9);
}

TEST_F(OneLaneFlowTest, WhatIsUnderWayIsPending) {
  ExecutorTimes meanwhile;
  LateGate gate(model_.layout.parameters[4].first_slice, [&] {
    meanwhile = model_.executor->times();
    return meanwhile.pending > 0.002;
  });
  ASSERT_TRUE(model_.executor->Train({ranges_}, batches_, gate, sink_, &result_).ok());
  EXPECT_GT(meanwhile.total, meanwhile.pending);
  EXPECT_EQ(model_.executor->times().pending, 0);
  EXPECT_GE(model_.executor->times().values, 0.002);
}

// A sink with one buffer per slice, which becomes free again some time after Ready.
class OneBufferSink : public GradientSink {
 public:
  explicit OneBufferSink(const Layout& layout) {
    for (const Slice& slice : layout.slices) buffers_.emplace_back(slice.elements);
    taken_.assign(buffers_.size(), false);
  }
  float* Acquire(size_t, SliceId slice) override {
    MutexLock lock(&mutex_);
    while (taken_[slice.value]) changed_.Wait(&mutex_);
    taken_[slice.value] = true;
    return buffers_[slice.value].data();
  }
  void Ready(size_t range, SliceId slice, uint32_t) override {
    MutexLock lock(&mutex_);
    sums_[range].push_back(buffers_[slice.value][0]);
    taken_[slice.value] = false;
    changed_.SignalAll();
  }
  size_t ready(size_t range) {
    MutexLock lock(&mutex_);
    return sums_[range].size();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::vector<float>> buffers_;
  std::vector<bool> taken_ ABSL_GUARDED_BY(mutex_);
  std::map<size_t, std::vector<float>> sums_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(FlowTest, RangesThatWaitForTheSameBufferDoNotDeadlock) {
  OpenGate gate;
  OneBufferSink sink(model_.layout);
  const std::vector<WorkRange> ranges = {TrainRange(0, 2), TrainRange(2, 1), TrainRange(3, 1)};
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(model_.executor->Train({ranges}, batches_, gate, sink, &result_).ok());
  }
  for (size_t r = 0; r < ranges.size(); ++r) {
    EXPECT_EQ(sink.ready(r), 20 * model_.layout.slices.size());
  }
}

TEST_F(FlowTest, MemoryIsPlannedAheadAndShared) {
  // Live parameters, per-lane gradients and arena, and one spare buffer for waiting sums.
  const size_t flat = model_.layout.elements * sizeof(float);
  EXPECT_GE(model_.executor->planned_bytes(), 4 * flat);
  EXPECT_LT(model_.executor->planned_bytes(), 4 * flat + 2 * (64 << 10));
  EXPECT_EQ(model_.executor->snapshot_parameters(), nullptr);
}

TEST(ExecutorCreateTest, ImpossibleOptionsAreRefused) {
  TestModel model = MakeTestModel(DeepMlp(), Options(1));
  ExecutorOptions options = Options(1);
  options.bytes_max = 1000;
  const absl::Status too_large =
      Executor::Create(model.resolved, model.layout, options, model.device.get(), model.spans.get())
          .status();
  EXPECT_EQ(too_large.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(too_large.message().find("0 MiB are allowed"), absl::string_view::npos) << too_large;
  options = Options(1);
  options.lanes = 0;
  EXPECT_EQ(
      Executor::Create(model.resolved, model.layout, options, model.device.get(), model.spans.get())
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
  OpenGate gate;
  CollectingSink sink(&model.layout);
  UnitResult result;
  const Samples32 samples = MakeSamples(32, 64, kClasses, 2);
  MemoryBatches batches(&samples, 4);
  const std::vector<WorkRange> too_much = {TrainRange(0, 8)};
  EXPECT_EQ(model.executor->Train({too_much}, batches, gate, sink, &result).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace starling
