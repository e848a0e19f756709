#include "worker/host/compute_thread.h"

#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/sync/mutex.h"
#include "worker/host/step_recorder.h"

namespace starling {

namespace {

// Batches of one unit; they live until the unit ends.
class UnitBatches : public BatchSource {
 public:
  UnitBatches(ServedJob& job, const std::atomic<bool>& cancelled, Progress* progress,
              std::pmr::memory_resource* memory)
      : loader_(job.loader()),
        wait_(job.data_wait()),
        cancelled_(cancelled),
        progress_(progress),
        taken_(memory) {}

  absl::StatusOr<MicroBatch> Get(const WorkRange& range, uint64_t id) override {
    // Taking gathers in this thread if need be: it takes as long as reading memory does.
    constexpr absl::Duration kDeadline = absl::Seconds(60);
    const auto cancelled = [this] { return cancelled_.load(); };
    if (cancelled() || !ReplayWait().For(wait_, cancelled)) {
      return absl::CancelledError("the unit was abandoned");
    }
    WorkRange micro = range;
    micro.first = id;
    micro.count = 1;
    auto batch = loader_.Take(micro, MonotonicNow() + kDeadline);
    if (!batch.ok()) return batch.status();
    progress_->Moved();
    const MicroBatch view{(*batch)->samples(), (*batch)->input_data(), (*batch)->label_data()};
    MutexLock lock(&mutex_);
    taken_[id] = *std::move(batch);
    return view;
  }

  const TakenBatches& taken() { return taken_; }

 private:
  Loader& loader_;
  const absl::Duration wait_;
  const std::atomic<bool>& cancelled_;
  Progress* const progress_;
  Mutex mutex_;
  TakenBatches taken_;
};

class VersionGate : public SliceGate {
 public:
  VersionGate(ServedJob& job, const session::action::Compute& compute, Progress* progress)
      : progress_(progress),
        layout_(job.layout()),
        versions_(job.versions(compute.params)),
        live_(compute.params == session::Params::kLive),
        version_(compute.clock) {}
  bool Wait(SliceId slice, uint64_t* held_us) override {
    // A frozen slice's live value has version 0, and never another.
    const bool frozen = live_ && layout_.slices[slice.value].kind == FROZEN;
    progress_->BeginWait();
    const bool there = versions_.Wait(slice, frozen ? 0 : version_, held_us);
    progress_->EndWait();
    return there;
  }
  double LossScale() override { return std::ldexp(1.0, LossScaleLog2()); }
  // Kept from the first call on: once the slice's last sum is delivered it may get its next value.
  int LossScaleLog2() {
    MutexLock lock(&mutex_);
    if (loss_scale_log2_ < 0) loss_scale_log2_ = versions_.LossScaleLog2(kLossScaleSlice);
    return loss_scale_log2_;
  }

 private:
  Progress* const progress_;
  const Layout& layout_;
  SliceVersions& versions_;
  const bool live_;
  const Clock version_;
  Mutex mutex_;
  int loss_scale_log2_ ABSL_GUARDED_BY(mutex_) = -1;  // -1: not asked for
};

PushSink::Options SinkOptions(const ServedJob& job, const session::action::Compute& compute,
                              VersionGate& gate, Progress* progress) {
  const JobSpec& spec = job.description().spec();
  PushSink::Options options;
  options.most = job.push_buffers_max();
  if (spec.clip().scope() == Clip::WORKER) options.clip_norm = spec.clip().norm();
  options.batch = spec.batch().global();
  options.whole = compute.whole;
  options.progress = progress;
  if (spec.precision() == PRECISION_FP16)
    options.loss_scale_log2 = [&gate] { return gate.LossScaleLog2(); };
  return options;
}

}  // namespace

ComputeThread::ComputeThread(ComputeListener listener, StepRecorder* recorder, Progress* progress)
    : listener_(std::move(listener)), recorder_(recorder), progress_(progress), loop_("compute") {}

ComputeThread::~ComputeThread() {
  if (current_ != nullptr) Abandon(current_->compute.unit);
  loop_.Stop();
}

void ComputeThread::Start(std::shared_ptr<ServedJob> job, session::action::Compute compute) {
  std::shared_ptr<Task> task = tasks_.Get();
  task->job = std::move(job);
  task->compute = std::move(compute);
  task->cancelled = false;
  current_ = task;
  loop_.Post([this, task] { Run(task); });
}

void ComputeThread::Abandon(session::UnitId unit) {
  if (current_ == nullptr || current_->compute.unit != unit) return;
  current_->cancelled = true;
  current_->job->Cancel();
}

void ComputeThread::Release() {
  if (current_ != nullptr) Abandon(current_->compute.unit);
  current_.reset();
}

void ComputeThread::WaitUntilStopped() {
  absl::Notification stopped;
  if (loop_.Post([&stopped] { stopped.Notify(); })) stopped.WaitForNotification();
}

void ComputeThread::ReturnMemory() {
  loop_.Post([] { ReturnFreedMemory(); });
}

void ComputeThread::Run(const std::shared_ptr<Task>& task) {
  Compute(task);
  listener_.on_stopped(task->compute.unit);
}

void ComputeThread::Compute(const std::shared_ptr<Task>& task) {
  ServedJob& job = *task->job;
  const session::action::Compute& compute = task->compute;
  if (task->cancelled) return;
  job.Resume();
  // An Abandon between the two lines above was undone by Resume: look again.
  if (task->cancelled) return;
  listener_.on_begin(compute.unit);
  progress_->BeginUnit();

  UnitBatches batches(job, task->cancelled, progress_, &batch_memory_);
  VersionGate gate(job, compute, progress_);
  Unit unit;
  unit.ranges = compute.ranges;
  unit.job_step = compute.job_step;
  unit.clock = compute.clock;
  unit.cancelled = &task->cancelled;
  unit.moved = [this] { progress_->Moved(); };
  FinishedUnit finished;
  finished.unit = compute.unit;
  if (compute.purpose == WorkPurpose::kTrain) {
    PushSink sink(
        job.layout(), job.gradients(), SinkOptions(job, compute, gate, progress_),
        [&](PushedGradient gradient) {
          progress_->Moved();
          listener_.on_gradient(FinishedGradient{std::move(gradient), compute.unit});
        },
        &push_memory_);
    finished.status = job.executor().Train(unit, batches, gate, sink, &finished.result);
    if (finished.status.ok() && finished.result.finite && !task->cancelled) sink.Finish();
    if (absl::IsCancelled(finished.status) && sink.failed() && !task->cancelled) {
      finished.status = absl::ResourceExhaustedError("no memory for the gradients of a unit");
    }
    if (recorder_ != nullptr && finished.status.ok() && finished.result.finite) {
      recorder_->Batches(compute, batches.taken(), finished.result);
    }
  } else {
    finished.status = job.executor().Evaluate(unit, batches, gate, &finished.result);
  }
  const bool whole_unit = finished.status.ok() && compute.purpose == WorkPurpose::kTrain;
  progress_->EndUnit(
      whole_unit ? finished.result.slice_wait_seconds + finished.result.ack_wait_seconds : -1);
  finished.device_lost = !finished.status.ok() && job.DeviceLost();
  if (!task->cancelled) listener_.on_unit(std::move(finished));
}

}  // namespace starling
