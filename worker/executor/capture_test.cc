// Steps launched as captured work on a fake discrete device compute the same bits as the same steps
// call by call on the CPU.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "common/graph/builders.h"
#include "common/sync/mutex.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/testing/fake_discrete_device.h"
#include "worker/executor/executor.h"
#include "worker/executor/testing/harness.h"

namespace starling {
namespace {

constexpr int64_t kClasses = 3;
constexpr int kForward = 3, kBackward = 2;  // graph segments of Net()

// Statistics, random numbers, and parameters of several MiB, so that there is more than one graph
// segment.
Graph Net() {
  const std::vector<LayerDescription> layers = {
      {"conv2d",
       "stem",
       {{"out_channels", int64_t{8}}, {"kernel", int64_t{3}}, {"padding", int64_t{1}}}},
      {"batchnorm", "norm", {}},
      {"relu", "relu1", {}},
      {"maxpool2d", "pool", {{"kernel", int64_t{2}}}},
      {"dropout", "drop1", {{"rate", 0.25}}},
      {"flatten", "flat", {}},
      {"linear", "hidden1", {{"out_features", int64_t{512}}}},
      {"gelu", "gelu1", {}},
      {"linear", "hidden2", {{"out_features", int64_t{512}}}},
      {"gelu", "gelu2", {}},
      {"dropout", "drop2", {{"rate", 0.5}}},
      {"linear", "hidden3", {{"out_features", int64_t{512}}}},
      {"relu", "relu2", {}},
      {"linear", "fc", {}},
  };
  return BuildLayers({{2, 8, 8}, kClasses}, layers).value();
}

// Values are ready, and the test sets the loss scale.
class ScalingGate : public OpenGate {
 public:
  explicit ScalingGate(double scale) : scale_(scale) {}
  double LossScale() override { return scale_; }

 private:
  const double scale_;
};

struct Case {
  DataType type;
  int lanes;
  FarRuns runs;
};

class CaptureTest : public ::testing::TestWithParam<Case> {
 protected:
  CaptureTest() : samples_(MakeSamples(26, 2 * 8 * 8, kClasses, 2)), batches_(&samples_, 4) {}

  // 26 samples in 8 micro-batches of 4: one is short, one empty.
  static ExecutorOptions Options() {
    ExecutorOptions options;
    options.global_batch = 32;
    options.micro_batches = 8;
    options.train_samples = {4, 2};
    options.evaluate_samples = {4, 2};
    options.lanes = GetParam().lanes;
    options.seed = 5;
    options.type = GetParam().type;
    return options;
  }
  static TestModel Near(const ExecutorOptions& options) {
    return MakeTestModel(Net(), options, Optimizer::default_instance(), CreateCpuDevice().value());
  }
  TestModel Far(const ExecutorOptions& options) {
    return MakeTestModel(Net(), options, Optimizer::default_instance(),
                         MakeFakeDiscreteDevice(CreateCpuDevice().value(),
                                                {.runs = GetParam().runs, .captures = &captures_}));
  }

  TrainOutput Train(TestModel& model, uint64_t step, SliceGate* other_gate = nullptr) {
    ScalingGate open(step % 2 == 0 ? 8 : 64);
    SliceGate& gate = other_gate != nullptr ? *other_gate : open;
    CollectingSink sink(&model.layout);
    const std::vector<WorkRange> ranges = {TrainRange(0, 4), TrainRange(4, 4)};
    TrainOutput output;
    const absl::Status status =
        model.executor->Train({ranges, step, 0, nullptr}, batches_, gate, sink, &output.result);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok() || !output.result.finite) return output;
    for (size_t r = 0; r < ranges.size(); ++r) output.gradients.push_back(sink.gradient(r));
    return output;
  }
  double Evaluate(TestModel& model) {
    std::memcpy(model.executor->snapshot_parameters(), model.executor->live_parameters(),
                model.layout.elements * sizeof(float));
    OpenGate gate;
    UnitResult result;
    const std::vector<WorkRange> ranges = {{WorkPurpose::kEvaluate, 0, 0, 8}};
    EXPECT_TRUE(model.executor->Evaluate({ranges}, batches_, gate, &result).ok());
    return result.ranges[0].loss_sum + 1e3 * static_cast<double>(result.ranges[0].correct);
  }

  static void Descend(TestModel& model, const std::vector<float>& gradient) {
    float* values = model.executor->live_parameters();
    for (const float g : gradient) *values++ -= 0.001f * g;
  }

  // Runs steps that change the parameters, each followed by an evaluation.
  void ExpectTheSameBits(TestModel& far, const ExecutorOptions& options, uint64_t first,
                         uint64_t steps) {
    TestModel near = Near(options);
    std::copy(far.live().begin(), far.live().end(), near.live().begin());
    for (uint64_t step = first; step < first + steps; ++step) {
      SCOPED_TRACE(step);
      const TrainOutput expected = Train(near, step), got = Train(far, step);
      ASSERT_EQ(got.gradients.size(), 2u);
      for (size_t r = 0; r < 2; ++r) {
        ASSERT_EQ(got.gradients[r], expected.gradients[r]) << r;
        EXPECT_EQ(got.result.ranges[r].loss_sum, expected.result.ranges[r].loss_sum);
        Descend(near, expected.gradients[r]);
        Descend(far, expected.gradients[r]);
      }
      ASSERT_EQ(Evaluate(far), Evaluate(near));
    }
  }

  const Samples32 samples_;
  MemoryBatches batches_;
  FarCaptures captures_;
};

// Dropout masks change with step and micro-batch, the loss scale with the step. Everything is
// captured by the end of the second step.
TEST_P(CaptureTest, LaunchesComputeTheSameBits) {
  TestModel far = Far(Options());
  ExpectTheSameBits(far, Options(), 0, 3);
  const int launched = captures_.launched;
  EXPECT_GT(launched, 0);
  // Per lane: two sizes, for training and evaluation.
  const int most = GetParam().lanes * 2 * (2 * kForward + kBackward);
  EXPECT_LE(captures_.begun, most);
  EXPECT_EQ(captures_.alive, captures_.begun);
  if (GetParam().lanes > 1) return;  // which lane takes the short micro-batch depends on timing
  EXPECT_EQ(captures_.begun, most);
  ExpectTheSameBits(far, Options(), 3, 1);
  EXPECT_EQ(captures_.begun, most) << "captured again";
  // 6 whole micro-batches and a short one; the empty one launches nothing. Trained and evaluated.
  EXPECT_EQ(captures_.launched - launched, 7 * (2 * kForward + kBackward));
}

TEST_P(CaptureTest, CapturedWorkIsGoneBeforeTheDevice) {
  {
    TestModel far = Far(Options());
    Train(far, 0);
    EXPECT_GT(captures_.alive, 0);
  }
  EXPECT_EQ(captures_.alive, 0);
}

TEST_P(CaptureTest, RecomputesTheSameBits) {
  ExecutorOptions options = Options();
  options.recompute.set_every_blocks(2);
  TestModel far = Far(options);
  ExpectTheSameBits(far, options, 0, 2);
  EXPECT_GT(captures_.launched, 0);
}

TEST_P(CaptureTest, AFailedCaptureIsNotTriedAgain) {
  ExecutorOptions options = Options();
  options.lanes = 1;
  // In forward, in backward, and in a later program; at the capture's end, or at a call in it.
  for (const int failing : {0, kForward, kForward + kBackward}) {
    for (std::atomic<int>* const how : {&captures_.fail_at, &captures_.refuse_at}) {
      SCOPED_TRACE(failing);
      SCOPED_TRACE(how == &captures_.fail_at ? "end" : "call");
      captures_.begun = captures_.launched = 0;
      captures_.fail_at = captures_.refuse_at = -1;
      *how = failing;
      TestModel far = Far(options);
      ExpectTheSameBits(far, options, 0, 1);
      const int launched = captures_.launched;
      EXPECT_EQ(captures_.begun, failing + 1);
      EXPECT_EQ(captures_.alive, failing);
      ExpectTheSameBits(far, options, 1, 1);
      EXPECT_EQ(captures_.begun, failing + 1);
      EXPECT_EQ(captures_.launched, launched);
    }
  }
}

TEST_P(CaptureTest, CapturesOnlyWhereItMay) {
  ExecutorOptions options = Options();
  options.capture = false;
  TestModel off = Far(options);
  ExpectTheSameBits(off, options, 0, 1);
  captures_.possible = false;
  TestModel without = Far(Options());
  ExpectTheSameBits(without, Options(), 0, 1);
  EXPECT_EQ(captures_.begun, 0);
  EXPECT_EQ(captures_.launched, 0);
}

// Releases each slice only when it is requested, and the last one only after work was ordered.
class LateGate : public SliceGate {
 public:
  LateGate(TestModel* model, const std::vector<float>* values) : model_(model), values_(values) {
    std::fill(model_->live().begin(), model_->live().end(), 1e30f);
    begin_us_ = SpanRing::NowMicros();
  }
  bool Wait(SliceId slice, uint64_t*) override {
    const Slice& part = model_->layout.slices[slice.value];
    // The last trainable one is the head's.
    const SliceId last = model_->layout.parameters.back().last_slice;
    if (slice == last) {
      const absl::Time deadline = absl::Now() + absl::Seconds(60);
      while (!ForwardBegan()) {
        if (absl::Now() > deadline) return false;
        std::this_thread::yield();
      }
    }
    MutexLock lock(&mutex_);
    if (given_.insert(slice.value).second) {
      std::copy_n(values_->begin() + part.flat_begin, part.elements,
                  model_->live().begin() + part.flat_begin);
    }
    return true;
  }
  double LossScale() override { return 8; }

 private:
  bool ForwardBegan() const {
    for (const TraceSpan& span : model_->spans->Read(0).spans) {
      if (span.begin_us >= begin_us_ && absl::StartsWith(span.name(), "forward ")) return true;
    }
    return false;
  }

  TestModel* const model_;
  const std::vector<float>* const values_;
  uint64_t begin_us_ = 0;
  Mutex mutex_;
  std::set<uint32_t> given_ ABSL_GUARDED_BY(mutex_);
};

// A segment is launched once the slices that it reads are ready; other slices do not delay it.
TEST_P(CaptureTest, ASegmentWaitsForItsSlicesAlone) {
  TestModel near = Near(Options()), far = Far(Options());
  std::vector<float> values(near.live().begin(), near.live().end());
  for (uint64_t step = 0; step < 4; step += 2) {
    const TrainOutput expected = Train(near, step);
    LateGate gate(&far, &values);
    ASSERT_EQ(Train(far, step, &gate).gradients, expected.gradients) << step;
    Descend(near, expected.gradients[0]);
    values.assign(near.live().begin(), near.live().end());
  }
  EXPECT_GT(captures_.launched, 0);
}

// A loss that is not finite adds nothing in fp16; otherwise the layer is found, even though it was
// launched with others. Later steps are unaffected.
TEST_P(CaptureTest, SaysWhatIsNotFinite) {
  Samples32 bad = samples_;
  bad.inputs[9 * bad.elements] = std::numeric_limits<float>::quiet_NaN();
  MemoryBatches bad_batches(&bad, 4);
  TestModel near = Near(Options()), far = Far(Options());
  Train(near, 0);
  Train(far, 0);
  TestModel* const models[] = {&near, &far};
  UnitResult results[2];
  bool overflowed[2];
  for (int i = 0; i < 2; ++i) {
    ScalingGate gate(8);
    CollectingSink sink(&models[i]->layout);
    const std::vector<WorkRange> ranges = {TrainRange(0, 8)};
    ASSERT_TRUE(models[i]->executor->Train({ranges, 1}, bad_batches, gate, sink, &results[i]).ok());
    overflowed[i] = sink.overflowed;
  }
  EXPECT_EQ(overflowed[1], overflowed[0]);
  EXPECT_EQ(overflowed[0], GetParam().type == DataType::kFp16);
  EXPECT_EQ(results[1].finite, results[0].finite);
  EXPECT_EQ(results[1].bad_layer, results[0].bad_layer);
  EXPECT_EQ(results[1].bad_micro_batch, results[0].bad_micro_batch);
  EXPECT_EQ(Train(far, 2).gradients, Train(near, 2).gradients);
}

TEST_P(CaptureTest, SegmentesAreInTheTimeline) {
  TestModel far = Far(Options());
  Train(far, 0);
  std::map<std::string, int> spans, ran;
  for (const TraceSpan& span : far.spans->Read(0).spans) {
    if (span.category == SpanCategory::kForward || span.category == SpanCategory::kBackward) {
      ++spans[std::string(span.name())];
    }
    if (span.category == SpanCategory::kDevice) ++ran[std::string(span.name())];
  }
  EXPECT_EQ(spans.size(), size_t{kForward + kBackward});
  EXPECT_EQ(ran, spans);
  for (const auto& [name, count] : spans) {
    EXPECT_EQ(count, 7) << name;  // one of the 8 micro-batches is empty
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CaptureTest,
                         ::testing::Values(Case{DataType::kFp32, 1, FarRuns::kLate},
                                           Case{DataType::kFp16, 2, FarRuns::kLate},
                                           Case{DataType::kFp16, 2, FarRuns::kBeside}),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           return std::string(DataTypeName(info.param.type)) + "_lanes" +
                                  std::to_string(info.param.lanes) +
                                  (info.param.runs == FarRuns::kLate ? "_late" : "_beside");
                         });

}  // namespace
}  // namespace starling
