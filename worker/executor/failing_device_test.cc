// A device on which one call fails, or all calls from one on, for every position of that call:
// GradientSums and the executor report it, never pass on a wrong sum, and neither abort nor hang.
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/graph/builders.h"
#include "common/sync/mutex.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/testing/fake_discrete_device.h"
#include "worker/executor/copy_queue.h"
#include "worker/executor/executor.h"
#include "worker/executor/gradient_sums.h"
#include "worker/executor/testing/harness.h"

namespace starling {
namespace {

constexpr uint32_t kMicroBatches = 8;
constexpr int kLanes = 2;
constexpr size_t kSpans = 1 << 8;  // never read
constexpr int64_t kFeatures = 6, kClasses = 3, kSamples = 2;

// Sums of four, two and one.
std::vector<WorkRange> Ranges() { return {TrainRange(0, 4), TrainRange(4, 2), TrainRange(7, 1)}; }

Graph Net() {
  const std::vector<LayerDescription> layers = {
      {"linear", "hidden", {{"out_features", int64_t{8}}}},
      {"relu", "relu1", {}},
      {"linear", "fc", {}},
  };
  return BuildLayers({{kFeatures}, kClasses}, layers).value();
}

// Knows the expected sums, flat by range, and compares what it is given with them.
class JudgingSink : public GradientSink {
 public:
  // Both outlive the sink.
  JudgingSink(const Layout* layout, const std::vector<std::vector<float>>* sums)
      : layout_(*layout), sums_(*sums) {}

  float* Acquire(size_t range, SliceId slice) override {
    MutexLock lock(&mutex_);
    std::vector<float>& buffer = buffers_[{range, slice.value}];
    buffer.assign(layout_.slices[slice.value].elements, std::numeric_limits<float>::quiet_NaN());
    return buffer.data();
  }
  void Ready(size_t range, SliceId slice, uint32_t) override {
    MutexLock lock(&mutex_);
    ++told_;
    const Slice& part = layout_.slices[slice.value];
    EXPECT_EQ(std::memcmp(buffers_[{range, slice.value}].data(),
                          sums_[range].data() + part.flat_begin, part.elements * sizeof(float)),
              0)
        << "range " << range << " slice " << slice;
  }

  bool complete() {
    MutexLock lock(&mutex_);
    return told_ == sums_.size() * layout_.slices.size();
  }

 private:
  const Layout& layout_;
  const std::vector<std::vector<float>>& sums_;
  Mutex mutex_;
  std::map<std::pair<size_t, uint32_t>, std::vector<float>> buffers_ ABSL_GUARDED_BY(mutex_);
  size_t told_ ABSL_GUARDED_BY(mutex_) = 0;
};

struct Case {
  FarRuns runs;
  bool lost;
};

class FailingDeviceTest : public ::testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Device> MakeDevice() {
    return MakeFakeDiscreteDevice(CreateCpuDevice().value(),
                                  {.runs = GetParam().runs, .fault = fault_});
  }
  void FailAt(uint64_t call) {
    if (GetParam().lost) {
      fault_->LoseAt(call);
    } else {
      fault_->FailAt(call);
    }
  }
  static absl::StatusCode Code() {
    return GetParam().lost ? absl::StatusCode::kUnavailable : absl::StatusCode::kInternal;
  }
  // Calls test(n) with the n-th call failing, for all n, until no call fails.
  template <typename Test>
  void ForEachCall(const Test& test) {
    uint64_t call = 0;
    do {
      ASSERT_LT(++call, 100'000u) << "no end of calls";
      fault_ = std::make_shared<FarFault>();
      SCOPED_TRACE(call);
      test(call);
    } while (fault_->struck() && !HasFailure());
    EXPECT_GT(call, 10u);
  }

  // A call that fails during a capture need not fail the unit, because the work is then ordered
  // call by call. Losing the device does.
  void ExpectFailure(const absl::Status& status) {
    if (!fault_->struck()) {
      EXPECT_TRUE(status.ok()) << status;
    } else if (fault_->lost() || !status.ok()) {
      EXPECT_EQ(status.code(), Code()) << status;
    }
  }

  std::shared_ptr<FarFault> fault_;
};

// What two lanes need to add; one thread plays both, so it chooses their order.
struct TwoLanes {
  explicit TwoLanes(std::unique_ptr<Device> on)
      : device(std::move(on)), layout(MakeLayout(Net()).value()) {
    sums = GradientSums::Create(layout, kMicroBatches, kLanes, device.get()).value();
    for (int lane = 0; lane < kLanes; ++lane) {
      streams.push_back(device->CreateStream().value());
      out.push_back(CopyQueue::Create(device.get(), &spans).value());
    }
    std::mt19937 random(7);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (uint32_t leaf = 0; leaf < kMicroBatches; ++leaf) {
      values.emplace_back(layout.elements);
      for (float& value : values.back()) value = uniform(random);
      const size_t bytes = layout.elements * sizeof(float);
      gradients.push_back(static_cast<float*>(device->Allocate(bytes).value()));
      EXPECT_TRUE(
          device->CopyToDevice(gradients.back(), values.back().data(), bytes, *streams[0]).ok());
    }
    EXPECT_TRUE(streams[0]->Synchronize().ok());
  }
  ~TwoLanes() {
    for (float* gradient : gradients) device->Free(gradient);
  }

  // Along the tree, over leaves [first, first + count).
  std::vector<float> SumOf(uint64_t first, uint32_t count) const {
    if (count == 1) return values[first];
    std::vector<float> sum = SumOf(first, count / 2);
    const std::vector<float> right = SumOf(first + count / 2, count / 2);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += right[i];
    return sum;
  }
  std::vector<std::vector<float>> Sums() const {
    std::vector<std::vector<float>> all;
    for (const WorkRange& range : Ranges()) all.push_back(SumOf(range.first, range.count));
    return all;
  }

  // A unit in which siblings follow each other directly, the `first` lane's before the other's.
  // Returns its first failure. A lane stops when it meets one.
  absl::Status Add(int first, GradientSink& sink) {
    const std::vector<WorkRange> ranges = Ranges();
    absl::Status failure = sums->Begin(ranges);
    if (!failure.ok()) return failure;
    bool stopped[kLanes] = {};
    for (size_t r = 0; r < ranges.size(); ++r) {
      for (uint32_t pair = 0; pair < ranges[r].count; pair += kLanes) {
        for (const Slice& slice : layout.slices) {
          for (int turn = 0; turn < kLanes; ++turn) {
            const int lane = (first + turn) % kLanes;
            const uint32_t leaf = pair + lane;
            if (stopped[lane] || leaf >= ranges[r].count) continue;
            uint64_t waited_us = 0;
            const absl::Status status =
                sums->Add(r, leaf, slice.id, gradients[ranges[r].first + leaf] + slice.flat_begin,
                          kSamples, sink, *streams[lane], out[lane].get(), &waited_us);
            EXPECT_FALSE(status.ok() && !failure.ok()) << "added to what lacks something";
            failure.Update(status);
            stopped[lane] = !status.ok();
          }
        }
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      failure.Update(streams[lane]->Synchronize());
      failure.Update(out[lane]->Drain());
    }
    return failure;
  }

  SpanRing spans{kSpans};
  std::unique_ptr<Device> device;
  const Layout layout;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<CopyQueue>> out;
  std::unique_ptr<GradientSums> sums;
  std::vector<std::vector<float>> values;  // by micro-batch
  std::vector<float*> gradients;           // the same, on the device
};

TEST_P(FailingDeviceTest, ASumThatLacksAnAdditionIsNobodys) {
  for (int first = 0; first < kLanes; ++first) {
    SCOPED_TRACE(first);
    ForEachCall([&](uint64_t call) {
      TwoLanes lanes(MakeDevice());
      const std::vector<std::vector<float>> sums = lanes.Sums();
      JudgingSink sink(&lanes.layout, &sums), again(&lanes.layout, &sums);
      FailAt(call);
      const absl::Status status = lanes.Add(first, sink);
      EXPECT_EQ(status.code(), fault_->struck() ? Code() : absl::StatusCode::kOk) << status;
      EXPECT_TRUE(sink.complete() || !status.ok());
      if (!fault_->struck()) return;
      // The next unit is unaffected, unless the device is lost.
      const absl::Status next = lanes.Add(first, again);
      EXPECT_EQ(next.ok(), !fault_->lost()) << next;
      EXPECT_EQ(again.complete(), next.ok());
    });
  }
}

ExecutorOptions Options() {
  ExecutorOptions options;
  options.global_batch = kMicroBatches * kSamples;
  options.micro_batches = kMicroBatches;
  options.train_samples = {kSamples};
  options.evaluate_samples = {kSamples};
  options.lanes = kLanes;
  return options;
}

TestModel Model(std::unique_ptr<Device> device) {
  return MakeTestModel(Net(), Options(), Optimizer::default_instance(), std::move(device));
}

TEST_P(FailingDeviceTest, AUnitFailsOrIsRight) {
  // The last micro-batch is empty.
  const Samples32 samples =
      MakeSamples((kMicroBatches - 1) * kSamples, kFeatures, kClasses, /*seed=*/2);
  MemoryBatches batches(&samples, kSamples);
  TestModel near = Model(CreateCpuDevice().value());
  const std::vector<WorkRange> ranges = Ranges();
  const TrainOutput expected = TrainOnce(near, batches, ranges);
  ForEachCall([&](uint64_t call) {
    TestModel far = Model(MakeDevice());
    OpenGate gate;
    UnitResult result;
    FailAt(call);
    const auto train = [&] {
      JudgingSink sink(&far.layout, &expected.gradients);
      const absl::Status status = far.executor->Train({ranges}, batches, gate, sink, &result);
      EXPECT_TRUE(sink.complete() || !status.ok());
      return status;
    };
    const absl::Status status = train();
    ExpectFailure(status);
    if (!fault_->struck()) return;
    const absl::Status next = train();
    EXPECT_EQ(next.ok(), !fault_->lost()) << next;
  });
}

TEST_P(FailingDeviceTest, AnEvaluationFailsOrIsRight) {
  const Samples32 samples = MakeSamples(kMicroBatches * kSamples, kFeatures, kClasses, /*seed=*/2);
  MemoryBatches batches(&samples, kSamples);
  const std::vector<WorkRange> ranges = {{WorkPurpose::kEvaluate, 0, 0, kMicroBatches}};
  const auto evaluate = [&](TestModel& model, double* loss_sum) {
    OpenGate gate;
    UnitResult result;
    const absl::Status status = model.executor->Evaluate({ranges}, batches, gate, &result);
    if (status.ok()) *loss_sum = result.ranges[0].loss_sum;
    return status;
  };
  const auto fill = [](TestModel& model) {
    std::memcpy(model.executor->snapshot_parameters(), model.executor->live_parameters(),
                model.layout.elements * sizeof(float));
  };
  TestModel near = Model(CreateCpuDevice().value());
  fill(near);
  double expected = 0;
  ASSERT_TRUE(evaluate(near, &expected).ok());
  ForEachCall([&](uint64_t call) {
    TestModel far = Model(MakeDevice());
    fill(far);
    FailAt(call);
    double got = expected;
    const absl::Status status = evaluate(far, &got);
    ExpectFailure(status);
    EXPECT_EQ(got, expected);
  });
}

TEST_P(FailingDeviceTest, AnExecutorIsMadeOrNot) {
  const TestModel near = Model(CreateCpuDevice().value());
  ForEachCall([&](uint64_t call) {
    const std::unique_ptr<Device> device = MakeDevice();
    SpanRing spans(kSpans);
    FailAt(call);
    const absl::Status status =
        Executor::Create(near.resolved, near.layout, Options(), device.get(), &spans).status();
    EXPECT_EQ(status.code(), fault_->struck() ? Code() : absl::StatusCode::kOk) << status;
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, FailingDeviceTest,
                         ::testing::Values(Case{FarRuns::kLate, /*lost=*/true},
                                           Case{FarRuns::kLate, /*lost=*/false},
                                           Case{FarRuns::kBeside, /*lost=*/true},
                                           Case{FarRuns::kBeside, /*lost=*/false}),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           return std::string(info.param.runs == FarRuns::kLate ? "late"
                                                                                : "beside") +
                                  (info.param.lost ? "_lost" : "_fails");
                         });

}  // namespace
}  // namespace starling
