#include "worker/host/executor_runner.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/sync/mutex.h"
#include "spdlog/spdlog.h"
#include "worker/data/data_set.h"
#include "worker/host/push_sink.h"
#include "worker/host/step_recorder.h"

namespace starling {

namespace {

// The batches of one unit. They live until the unit ends.
class UnitBatches : public BatchSource {
 public:
  UnitBatches(ExecutorJob& job, absl::Span<const WorkRange> ranges,
              const std::atomic<bool>& cancelled, Progress* progress,
              std::pmr::memory_resource* memory)
      : job_(job),
        loader_(job.loader()),
        ranges_(ranges),
        wait_(job.data_wait()),
        cancelled_(cancelled),
        progress_(progress),
        taken_(memory) {}

  absl::StatusOr<MicroBatch> Get(const WorkRange& range, uint64_t id) override {
    // If needed, Take gathers the batch in this thread, which is as fast as reading memory.
    constexpr absl::Duration kDeadline = absl::Seconds(60);
    const auto cancelled = [this] { return cancelled_.load(); };
    if (cancelled() || !ReplayWait().For(wait_, cancelled)) {
      return absl::CancelledError("the unit was abandoned");
    }
    WorkRange micro = range;
    micro.first = id;
    micro.count = 1;
    // The next unit's: this one must not wait for it.
    const bool ahead = !Contains(range);
    if (ahead && !loader_.Ready(micro)) return absl::UnavailableError("not staged yet");
    auto batch = loader_.Take(micro, MonotonicNow() + kDeadline);
    if (!batch.ok()) return batch.status();
    if (ahead) job_.TakenAhead(micro);
    progress_->Moved();
    const MicroBatch view{(*batch)->samples(), (*batch)->input_data(), (*batch)->label_data()};
    MutexLock lock(&mutex_);
    if (ahead) {
      ahead_ = *std::move(batch);  // needed until this unit ends
    } else {
      taken_[id] = *std::move(batch);
    }
    return view;
  }

  const TakenBatches& taken() { return taken_; }

 private:
  bool Contains(const WorkRange& range) const {
    return std::find(ranges_.begin(), ranges_.end(), range) != ranges_.end();
  }

  ExecutorJob& job_;
  Loader& loader_;
  const absl::Span<const WorkRange> ranges_;
  const absl::Duration wait_;
  const std::atomic<bool>& cancelled_;
  Progress* const progress_;
  Mutex mutex_;
  TakenBatches taken_;
  BatchHandle ahead_;
};

// Gives the executor access to the unit's copy of the parameters.
class UnitGate : public SliceGate {
 public:
  UnitGate(ParameterCopy& copy, Clock version, Progress* progress)
      : progress_(progress), copy_(copy), version_(version) {}
  bool Wait(SliceId slice, uint64_t* held_us) override {
    progress_->BeginWait();
    const bool there = copy_.Wait(slice, version_, held_us);
    progress_->EndWait();
    return there;
  }
  double LossScale() override { return std::ldexp(1.0, LossScaleLog2()); }
  // The first result is kept, since the slice may get its next value after its last sum was
  // delivered.
  int LossScaleLog2() {
    MutexLock lock(&mutex_);
    if (loss_scale_log2_ < 0) loss_scale_log2_ = copy_.LossScaleLog2();
    return loss_scale_log2_;
  }

 private:
  Progress* const progress_;
  ParameterCopy& copy_;
  const Clock version_;
  Mutex mutex_;
  int loss_scale_log2_ ABSL_GUARDED_BY(mutex_) = -1;  // -1: not read yet
};

PushSink::Options SinkOptions(const ExecutorJob& job, const session::action::Compute& compute,
                              UnitGate& gate, Progress* progress) {
  const JobSpec& spec = job.description().spec();
  PushSink::Options options;
  options.unit = compute.unit;
  options.most = job.push_buffers_max();
  if (spec.clip().scope() == Clip::WORKER) options.clip_norm = spec.clip().norm();
  options.batch = spec.batch().global();
  options.whole = compute.whole;
  options.progress = progress;
  options.spoiled = job.spoils(compute.job_step);
  if (spec.precision() == PRECISION_FP16)
    options.loss_scale_log2 = [&gate] { return gate.LossScaleLog2(); };
  return options;
}

}  // namespace

void ExecutorJob::Start(session::action::Compute compute) {
  runner_->Start(shared_from_this(), std::move(compute));
}

ExecutorRunner::ExecutorRunner(const ExecutorJobOptions& options, const WorkerDevices* devices,
                               SpanRing* spans, UnitListener* listener, Progress* progress)
    : options_(options),
      devices_(devices),
      spans_(spans),
      listener_(listener),
      progress_(progress),
      compute_("compute"),
      background_("background"),
      inspections_("inspections") {}

ExecutorRunner::~ExecutorRunner() {
  Release();
  compute_.Stop();
}

void ExecutorRunner::Open(const JobDescription& description, std::function<void(OpenedJob)> done) {
  background_.Post([this, description, done = std::move(done)] { done(OpenNow(description)); });
}

OpenedJob ExecutorRunner::OpenNow(const JobDescription& description) {
  ReturnFreedMemory();
  ForgetPeakResidentBytes();
  const absl::StatusOr<Device*> device = devices_->For(description.spec().device());
  if (!device.ok()) return {device.status()};
  const std::string shared = SharedMemoryNotice(**device);
  if (!shared.empty()) spdlog::warn("{}", shared);
  auto job = ExecutorJob::Open(this, description, options_, *device, spans_);
  if (!job.ok()) return {job.status(), IsLost(**device)};
  return {*std::move(job)};
}

void ExecutorRunner::Inspect(const JobSpec& spec, std::function<void(Inspection)> done) {
  inspections_.Post([spec, done = std::move(done)] { done(InspectData(spec)); });
}

void ExecutorRunner::Start(std::shared_ptr<ExecutorJob> job, session::action::Compute compute) {
  std::shared_ptr<Task> task = tasks_.Get();
  task->job = std::move(job);
  task->compute = std::move(compute);
  task->cancelled = false;
  current_ = task;
  compute_.Post([this, task] { Run(task); });
}

void ExecutorRunner::Abandon(session::UnitId unit) {
  if (current_ == nullptr || current_->compute.unit != unit) return;
  current_->cancelled = true;
  current_->job->Cancel();
}

void ExecutorRunner::Release() {
  if (current_ != nullptr) Abandon(current_->compute.unit);
  current_.reset();
}

void ExecutorRunner::WhenStopped(std::function<void()> stopped) {
  compute_.Post(std::move(stopped));
}

void ExecutorRunner::ReturnMemory() {
  compute_.Post([] { ReturnFreedMemory(); });
}

void ExecutorRunner::Run(const std::shared_ptr<Task>& task) {
  Compute(task);
  listener_->OnStopped(task->compute.unit);
}

void ExecutorRunner::Compute(const std::shared_ptr<Task>& task) {
  ExecutorJob& job = *task->job;
  const session::action::Compute& compute = task->compute;
  if (task->cancelled) return;
  job.Resume();
  // If an Abandon came between the two lines above, Resume has undone it, so check again.
  if (task->cancelled) return;
  listener_->OnBegin();
  progress_->BeginUnit();

  job.Begin(compute.ranges);
  UnitBatches batches(job, compute.ranges, task->cancelled, progress_, &batch_memory_);
  UnitGate gate(job.copy(compute.params), compute.clock, progress_);
  Unit unit;
  unit.ranges = compute.ranges;
  unit.job_step = compute.job_step;
  unit.clock = compute.clock;
  unit.cancelled = &task->cancelled;
  unit.moved = [this] { progress_->Moved(); };
  // A recorder wants each unit's batches from that unit.
  if (job.recorder() == nullptr) unit.next = [&job] { return job.Upcoming(); };
  UnitResult result;
  absl::Status status;
  if (compute.purpose == WorkPurpose::kTrain) {
    PushSink sink(
        job.layout(), job.gradients(), SinkOptions(job, compute, gate, progress_),
        [this, &task](const session::event::SliceGradient& gradient,
                      std::shared_ptr<GradientBuffer> buffer) {
          progress_->Moved();
          if (StepRecorder* const recorder = task->job->recorder(); recorder != nullptr) {
            recorder->Gradient(gradient.slice, task->compute.clock,
                               absl::MakeConstSpan(buffer->data, buffer->elements));
          }
          listener_->OnGradient(gradient, std::move(buffer));
        },
        &push_memory_);
    status = job.executor().Train(unit, batches, gate, sink, &result);
    if (status.ok() && result.finite && !task->cancelled) sink.Finish();
    if (absl::IsCancelled(status) && sink.failed() && !task->cancelled) {
      status = absl::ResourceExhaustedError("no memory for the gradients of a unit");
    }
    if (job.recorder() != nullptr && status.ok() && result.finite) {
      job.recorder()->Batches(compute, batches.taken(), result);
    }
  } else {
    status = job.executor().Evaluate(unit, batches, gate, &result);
  }
  const bool whole_unit = status.ok() && compute.purpose == WorkPurpose::kTrain;
  progress_->EndUnit(whole_unit ? result.slice_wait_seconds + result.ack_wait_seconds : -1);
  if (!task->cancelled) Tell(*task, status, std::move(result));
}

void ExecutorRunner::Tell(const Task& task, const absl::Status& status, UnitResult result) {
  const session::UnitId unit = task.compute.unit;
  const absl::Duration waited = absl::Seconds(result.slice_wait_seconds + result.ack_wait_seconds);
  if (!status.ok()) {
    return listener_->OnFailed({unit, status, task.job->DeviceLost()}, waited);
  }
  session::event::UnitComputed computed;
  computed.unit = unit;
  computed.finite = result.finite;
  computed.bad_layer = std::move(result.bad_layer);
  for (const RangeResult& range : result.ranges) {
    computed.metrics.push_back({range.loss_sum, range.samples, range.correct});
  }
  listener_->OnComputed(std::move(computed), waited);
}

}  // namespace starling
