#include "worker/host/executor_runner.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/clock.h"
#include "common/graph/builders.h"
#include "common/placement/layout.h"
#include "kernels/cpu/cpu_device.h"
#include "worker/host/executor_job.h"

namespace starling {
namespace {

constexpr int64_t kSamples = 64;

JobDescription CounterJob() {
  JobDescription job;
  JobSpec& spec = *job.mutable_spec();
  spec.set_name("counter");
  *spec.mutable_model() = BuildCounter(kSamples).value();
  spec.mutable_train()->mutable_counter()->set_samples(kSamples);
  spec.mutable_batch()->set_global(8);
  spec.mutable_batch()->set_micro_batches(4);
  spec.mutable_batch()->set_kernel_threads(1);
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_policy()->set_kind(Policy::SSP);
  spec.mutable_stop()->set_epochs(1);
  const Layout layout = MakeLayout(spec).value();
  job.set_train_samples(kSamples);
  job.set_partitions(static_cast<uint32_t>(layout.partitions.size()));
  job.set_layout_digest(layout.digest);
  return job;
}

// Says when a unit has begun.
class BeginListener : public UnitListener {
 public:
  void OnBegin() override { began.set_value(); }
  void OnGradient(session::event::SliceGradient, std::shared_ptr<GradientBuffer>) override {}
  void OnComputed(session::event::UnitComputed, absl::Duration) override {}
  void OnFailed(session::event::UnitFailed, absl::Duration) override {}
  void OnStopped(session::UnitId) override {}

  std::promise<void> began;
};

// The next job is planned with the memory that is free then: the one before must be gone.
TEST(ExecutorRunner, KeepsNothingOfAJobThatIsClosed) {
  const WorkerDevices devices(CreateCpuDevice().value(), nullptr, "");
  SpanRing spans;
  BeginListener listener;
  Progress progress;
  ExecutorRunner runner({}, &devices, &spans, &listener, &progress);
  std::promise<absl::StatusOr<std::shared_ptr<ServedJob>>> opening;
  runner.Open(CounterJob(), [&](OpenedJob opened) { opening.set_value(std::move(opened.job)); });
  absl::StatusOr<std::shared_ptr<ServedJob>> job = opening.get_future().get();
  ASSERT_TRUE(job.ok()) << job.status();
  const std::weak_ptr<ServedJob> held = *job;
  session::action::Compute unit;
  unit.unit = session::UnitId(1);
  unit.ranges = {{WorkPurpose::kTrain, 0, 0, 4}};
  (*job)->Start(unit);
  listener.began.get_future().wait();  // it waits for values that never come
  while (progress.Now().kind() != Activity::WAITING) absl::SleepFor(absl::Milliseconds(1));
  runner.Release();
  *job = nullptr;
  std::promise<void> stopped;
  runner.WhenStopped([&stopped] { stopped.set_value(); });
  stopped.get_future().wait();
  EXPECT_TRUE(held.expired());
  EXPECT_EQ(progress.Now().kind(), Activity::IDLE);
}

// A submission's files may hang, as those of a mount that is gone.
TEST(ExecutorRunner, OpensAJobWhileDataIsInspected) {
  const WorkerDevices devices(CreateCpuDevice().value(), nullptr, "");
  SpanRing spans;
  BeginListener listener;
  Progress progress;
  std::promise<void> inspecting, hang;
  std::promise<absl::Status> opening;
  ExecutorRunner runner({}, &devices, &spans, &listener, &progress);  // its threads use these
  runner.Inspect(CounterJob().spec(), [&, hanging = hang.get_future().share()](const Inspection&) {
    inspecting.set_value();
    hanging.wait();
  });
  inspecting.get_future().wait();
  runner.Open(CounterJob(), [&](OpenedJob opened) { opening.set_value(opened.job.status()); });
  std::future<absl::Status> opened = opening.get_future();
  const bool is_open = opened.wait_for(std::chrono::minutes(1)) == std::future_status::ready;
  hang.set_value();
  ASSERT_TRUE(is_open);
  EXPECT_TRUE(opened.get().ok());
}

// It would stay in the loader, whose read-ahead it would use up.
TEST(ExecutorJob, DoesNotRequestAgainWhatWasTakenAhead) {
  const std::unique_ptr<Device> device = CreateCpuDevice().value();
  SpanRing spans;
  const auto job = ExecutorJob::Open(nullptr, CounterJob(), {}, device.get(), &spans).value();
  const auto range = [](uint64_t first, uint32_t count) {
    return WorkRange{WorkPurpose::kTrain, 0, first, count};
  };
  const std::vector<WorkRange> first = {range(0, 4)}, second = {range(4, 4)};
  ASSERT_TRUE(job->Prefetch(first[0]).ok());
  ASSERT_TRUE(job->Prefetch(second[0]).ok());
  EXPECT_EQ(job->Upcoming(), first[0]);
  job->Begin(first);
  EXPECT_EQ(job->Upcoming(), second[0]);
  const auto take = [&](uint64_t id) {
    return job->loader().Take(range(id, 1), absl::Now() + absl::Seconds(60)).ok();
  };
  ASSERT_TRUE(take(4));
  job->TakenAhead(range(4, 1));
  job->ClearPrefetched();
  EXPECT_EQ(job->Upcoming(), std::nullopt);
  ASSERT_TRUE(job->Prefetch(second[0]).ok());
  EXPECT_EQ(job->Upcoming(), second[0]);
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  for (uint64_t id : {5, 6, 7}) {
    while (!job->loader().Ready(range(id, 1)) && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    ASSERT_TRUE(job->loader().Ready(range(id, 1))) << id;
  }
  EXPECT_FALSE(job->loader().Ready(range(4, 1)));
  job->Begin(second);
  EXPECT_EQ(job->Upcoming(), std::nullopt);
}

}  // namespace
}  // namespace starling
