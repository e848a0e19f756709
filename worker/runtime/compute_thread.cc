#include "worker/runtime/compute_thread.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/sync/mutex.h"
#include "worker/runtime/step_recorder.h"
#include "xxhash.h"

namespace starling {

struct ComputeThread::Task {
  std::shared_ptr<ServedJob> job;
  session::action::Compute compute;
  std::atomic<bool> cancelled = false;
};

namespace {

// Batches of one unit; they live until the unit ends.
class UnitBatches : public BatchSource {
 public:
  UnitBatches(Loader& loader, const std::atomic<bool>& cancelled)
      : loader_(loader), cancelled_(cancelled) {}

  absl::StatusOr<MicroBatch> Get(const WorkRange& range, uint64_t id) override {
    // Taking gathers in this thread if need be: it takes as long as reading memory does.
    constexpr absl::Duration kDeadline = absl::Seconds(60);
    if (cancelled_.load()) return absl::CancelledError("the unit was abandoned");
    WorkRange micro = range;
    micro.first = id;
    micro.count = 1;
    auto batch = loader_.Take(micro, absl::Now() + kDeadline);
    if (!batch.ok()) return batch.status();
    const MicroBatch view{(*batch)->samples(), (*batch)->input_data(), (*batch)->label_data()};
    MutexLock lock(&mutex_);
    taken_[id] = *std::move(batch);
    return view;
  }

  const std::map<uint64_t, BatchHandle>& taken() { return taken_; }

 private:
  Loader& loader_;
  const std::atomic<bool>& cancelled_;
  Mutex mutex_;
  std::map<uint64_t, BatchHandle> taken_;
};

class VersionGate : public SliceGate {
 public:
  VersionGate(SliceVersions& versions, Clock version) : versions_(versions), version_(version) {}
  bool Wait(SliceId slice) override { return versions_.Wait(slice, version_); }

 private:
  SliceVersions& versions_;
  const Clock version_;
};

class PushSink : public GradientSink {
 public:
  PushSink(const std::shared_ptr<GradientPool>& pool, int most,
           const session::action::Compute& compute,
           const std::function<void(FinishedGradient)>& deliver)
      : pool_(pool), most_(most), compute_(compute), deliver_(deliver) {}

  float* Acquire(size_t range, SliceId slice) override {
    auto buffer = GradientPool::Acquire(pool_, slice, most_);
    if (buffer == nullptr) {
      failed_ = true;
      return nullptr;
    }
    float* data = buffer->data;
    MutexLock lock(&mutex_);
    held_[{range, slice}] = std::move(buffer);
    return data;
  }

  void Ready(size_t range, SliceId slice, uint32_t samples) override {
    FinishedGradient gradient;
    gradient.unit = compute_.unit;
    gradient.range = static_cast<uint32_t>(range);
    gradient.slice = slice;
    gradient.samples = samples;
    {
      MutexLock lock(&mutex_);
      gradient.buffer = std::move(held_.extract({range, slice}).mapped());
    }
    gradient.digest = XXH3_64bits(gradient.buffer->data, gradient.buffer->elements * sizeof(float));
    deliver_(std::move(gradient));
  }

  // Some Acquire had no memory to give, or was cancelled.
  bool failed() const { return failed_; }

 private:
  const std::shared_ptr<GradientPool>& pool_;
  const int most_;
  std::atomic<bool> failed_ = false;
  const session::action::Compute& compute_;
  const std::function<void(FinishedGradient)>& deliver_;
  Mutex mutex_;
  std::map<std::pair<size_t, SliceId>, std::shared_ptr<GradientBuffer>> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

ComputeThread::ComputeThread(ComputeListener listener, StepRecorder* recorder)
    : listener_(std::move(listener)), recorder_(recorder), loop_("compute") {}

ComputeThread::~ComputeThread() {
  if (current_ != nullptr) Abandon(current_->compute.unit);
  loop_.Stop();
}

void ComputeThread::Start(std::shared_ptr<ServedJob> job, session::action::Compute compute) {
  auto task = std::make_shared<Task>();
  task->job = std::move(job);
  task->compute = std::move(compute);
  current_ = task;
  loop_.Post([this, task] { Run(task); });
}

void ComputeThread::Abandon(session::UnitId unit) {
  if (current_ == nullptr || current_->compute.unit != unit) return;
  current_->cancelled = true;
  current_->job->Cancel();
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

  UnitBatches batches(job.loader(), task->cancelled);
  VersionGate gate(job.versions(compute.params), compute.clock);
  Unit unit;
  unit.ranges = compute.ranges;
  unit.job_step = compute.job_step;
  unit.clock = compute.clock;
  unit.cancelled = &task->cancelled;
  FinishedUnit finished;
  finished.unit = compute.unit;
  if (compute.purpose == WorkPurpose::kTrain) {
    PushSink sink(job.gradients(), job.push_buffers_max(), compute, listener_.on_gradient);
    finished.status = job.executor().Train(unit, batches, gate, sink, &finished.result);
    if (absl::IsCancelled(finished.status) && sink.failed() && !task->cancelled) {
      finished.status = absl::ResourceExhaustedError("no memory for the gradients of a unit");
    }
    if (recorder_ != nullptr && finished.status.ok() && finished.result.finite) {
      recorder_->Batches(compute, batches.taken(), finished.result);
    }
  } else {
    finished.status = job.executor().Evaluate(unit, batches, gate, &finished.result);
  }
  if (!task->cancelled) listener_.on_unit(std::move(finished));
}

}  // namespace starling
