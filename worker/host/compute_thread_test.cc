#include "worker/host/compute_thread.h"

#include <gtest/gtest.h>

#include <memory>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/graph/builders.h"
#include "common/placement/layout.h"
#include "kernels/cpu/cpu_device.h"

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

// The next job is planned with the memory that is free then: the one before must be gone.
TEST(ComputeThread, KeepsNothingOfAJobThatIsClosed) {
  const std::unique_ptr<Device> device = CreateCpuDevice().value();
  SpanRing spans;
  auto job = ServedJob::Open(CounterJob(), ServedJobOptions(), device.get(), &spans);
  ASSERT_TRUE(job.ok()) << job.status();
  const std::weak_ptr<ServedJob> held = *job;
  absl::Notification began;
  ComputeListener listener;
  listener.on_begin = [&](session::UnitId) { began.Notify(); };
  listener.on_gradient = [](FinishedGradient) {};
  listener.on_unit = [](FinishedUnit) {};
  listener.on_stopped = [](session::UnitId) {};
  Progress progress;
  ComputeThread compute(std::move(listener), nullptr, &progress);
  session::action::Compute unit;
  unit.unit = session::UnitId(1);
  unit.ranges = {{WorkPurpose::kTrain, 0, 0, 4}};
  compute.Start(*job, unit);
  began.WaitForNotification();  // it waits for values that nobody sends
  while (progress.Now().kind() != Activity::WAITING) absl::SleepFor(absl::Milliseconds(1));
  compute.Release();
  *job = nullptr;
  compute.WaitUntilStopped();
  EXPECT_TRUE(held.expired());
  EXPECT_EQ(progress.Now().kind(), Activity::IDLE);
}

}  // namespace
}  // namespace starling
