#include "tests/sim/fake_executor.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"
#include "worker/host/testing/plain_job.h"

namespace starling::sim {

using session::Params;
using session::UnitId;
namespace action = session::action;
namespace event = session::event;

std::shared_ptr<void> FakeDevice::TakeMemory(const Process* by) {
  const bool held = !memory_.expired() && holder_->alive && holder_->life == life_;
  if (held) return nullptr;
  holder_ = by;
  life_ = by->life;
  auto memory = std::make_shared<int>();
  memory_ = memory;
  return memory;
}

// An object pool of gradients, never freed before the end, so that code that still reads a returned
// buffer reads other values.
class FakeExecutor::Gradients : public std::enable_shared_from_this<Gradients> {
 public:
  std::shared_ptr<GradientBuffer> Take(SliceId slice, const Values& sum) {
    std::vector<Entry*>& free = free_[slice];
    if (free.empty()) free.push_back(all_.emplace_back(std::make_unique<Entry>()).get());
    Entry* const entry = free.back();
    free.pop_back();
    entry->values = sum;
    entry->buffer.data = entry->values.data();
    entry->buffer.elements = static_cast<uint32_t>(sum.size());
    entry->buffer.slice = slice;
    entry->buffer.digest = XXH3_64bits(sum.data(), sum.size() * sizeof(float));
    return {&entry->buffer, [self = shared_from_this(), entry, slice](GradientBuffer*) {
              std::fill(entry->values.begin(), entry->values.end(), -77.0F);
              self->free_[slice].push_back(entry);
            }};
  }

 private:
  struct Entry {
    GradientBuffer buffer;
    Values values;
  };
  std::vector<std::unique_ptr<Entry>> all_;
  std::map<SliceId, std::vector<Entry*>> free_;
};

class FakeExecutor::Job final : public PlainJob, public std::enable_shared_from_this<Job> {
 public:
  Job(const JobDescription& description, FakeExecutor* executor, JobTruth* truth,
      std::shared_ptr<void> memory)
      : PlainJob(description, truth->layout()),
        executor_(executor),
        truth_(truth),
        memory_(std::move(memory)) {}

  JobTruth& truth() const { return *truth_; }
  Values ValuesOf(Params params, SliceId slice) const {
    const Slice& place = layout().slices[slice.value];
    const float* const from = values_[static_cast<int>(params)].data() + place.flat_begin;
    return {from, from + place.elements};
  }

  ParameterCopy& copy(Params params) override {
    return params == Params::kLive ? live_ : snapshot_;
  }
  void Start(action::Compute unit) override;

 private:
  ParameterCopy::Installed InstalledIn(Params params) {
    return [this, params](SliceId slice, Clock version, absl::Span<const float> value) {
      executor_->OnInstalled(truth_, params, slice, version, Values(value.begin(), value.end()));
    };
  }

  FakeExecutor* const executor_;
  JobTruth* const truth_;
  const std::shared_ptr<void> memory_;
  Values values_[2] = {Values(layout().elements), Values(layout().elements)};
  ParameterCopy live_{layout(), Params::kLive, values_[0].data(), InstalledIn(Params::kLive)};
  ParameterCopy snapshot_{layout(), Params::kSnapshot, values_[1].data(),
                          InstalledIn(Params::kSnapshot)};
};

class FakeExecutor::Runner final : public JobRunner {
 public:
  Runner(FakeExecutor* executor, UnitListener* listener, Progress* progress)
      : executor_(executor), world_(executor->world_), listener_(listener), progress_(progress) {
    executor_->runner_ = this;
  }
  ~Runner() override { executor_->runner_ = nullptr; }

  void Open(const JobDescription& description, std::function<void(OpenedJob)> done) override;
  void Inspect(const JobSpec& spec, std::function<void(Inspection)> done) override;

  void Start(std::shared_ptr<Job> job, action::Compute unit) {
    current_ = std::move(job);
    if (unit.purpose == WorkPurpose::kTrain) {
      current_->truth().OnUnit(executor_->wire_->incarnation(), unit.clock, unit.ranges.front());
    }
    Task& task = Add();
    task.job = current_;
    task.unit = std::move(unit);
    task.reads.resize(current_->layout().slices.size());
  }

  void Abandon(UnitId unit) override {
    for (Task& task : tasks_) {
      if (task.job == nullptr || task.unit.unit != unit || task.abandoned) continue;
      task.abandoned = true;
      if (task.begun) task.job->copy(task.unit.params).Cancel();
      if (task.begun && !hung_) After(Between(absl::Milliseconds(5)), [this] { StopAbandoned(); });
    }
  }

  void Release() override {
    if (!tasks_.empty() && tasks_.back().job != nullptr) Abandon(tasks_.back().unit.unit);
    current_.reset();
  }

  void WhenStopped(std::function<void()> stopped) override { Add().stopped = std::move(stopped); }
  void ReturnMemory() override {}

  // A value has arrived. The compute threads learn of it a little later.
  void Poke() {
    if (std::exchange(poked_, true)) return;
    After(Between(absl::Microseconds(20)), [this] {
      poked_ = false;
      Read();
    });
  }
  void Hang() { hangs_ = true; }
  void FailUnit(const WorkerFault& fault) { fault_ = fault; }

 private:
  // A unit; or, without a job, a callback in its turn.
  struct Task {
    std::shared_ptr<Job> job;
    action::Compute unit;
    std::function<void()> stopped;
    bool begun = false;
    bool running = false;  // has all values
    bool abandoned = false;
    absl::Time since;  // when it started to wait for values
    absl::Duration waited;
    std::vector<std::optional<Values>> reads;  // by slice, once their values are there
    std::map<SliceId, size_t> delivered;       // sums, by slice
  };

  absl::Duration Between(absl::Duration most) {
    return world_->random().Between(absl::ZeroDuration(), most);
  }
  void After(absl::Duration delay, std::function<void()> run) {
    world_->After(delay, executor_->process_, std::move(run));
  }
  void ReadFiles(std::function<void()> then) {
    After(world_->random().Between(absl::Milliseconds(1), absl::Milliseconds(20)), std::move(then));
  }

  Task& Add() {
    tasks_.emplace_back();
    if (tasks_.size() == 1) BeginSoon();
    return tasks_.back();
  }
  void BeginSoon() {
    After(Between(absl::Microseconds(20)), [this] { Begin(); });
  }
  void Begin() {
    Task& task = tasks_.front();
    if (task.job == nullptr) {
      const std::function<void()> stopped = std::move(task.stopped);
      End();
      return stopped();
    }
    if (task.abandoned) return Stop();
    task.job->copy(task.unit.params).Resume();
    task.begun = true;
    task.since = world_->now();
    listener_->OnBegin();
    progress_->BeginUnit();
    progress_->BeginWait();
    Read();
  }
  void End() {
    tasks_.pop_front();
    if (!tasks_.empty()) BeginSoon();
  }

  // The unit being computed, if it is this one and was not abandoned.
  Task* Computing(UnitId unit) {
    if (tasks_.empty() || hung_) return nullptr;
    Task& task = tasks_.front();
    return task.job != nullptr && task.unit.unit == unit && task.running && !task.abandoned
               ? &task
               : nullptr;
  }

  // Takes the values that have arrived for the unit, and computes it once it has all.
  void Read() {
    if (tasks_.empty() || !tasks_.front().begun) return;
    Task& task = tasks_.front();
    if (task.running || task.abandoned) return;
    ParameterCopy& copy = task.job->copy(task.unit.params);
    bool all = true;
    for (uint32_t s = 0; s < task.reads.size(); ++s) {
      if (task.reads[s].has_value()) continue;
      if (copy.Has(SliceId(s), task.unit.clock)) {
        task.reads[s] = task.job->ValuesOf(task.unit.params, SliceId(s));
      }
      all = all && task.reads[s].has_value();
    }
    if (!all) return;
    task.running = true;
    task.waited = world_->now() - task.since;
    progress_->EndWait();
    hung_ = hangs_;
    if (hung_) return world_->Count("fault: computing hangs");
    if (task.unit.purpose == WorkPurpose::kEvaluate) return Evaluate(task);
    task.job->truth().OnAllValues(executor_->wire_->incarnation(), task.unit.clock);
    Train(task);
  }

  // A slice does not change from when the unit may read it until its last sum is delivered.
  void CheckReads(const Task& task) {
    for (uint32_t s = 0; s < task.reads.size(); ++s) {
      if (!task.reads[s].has_value()) continue;
      if (*task.reads[s] == task.job->ValuesOf(task.unit.params, SliceId(s))) continue;
      world_->Violate(Promise::kReads,
                      absl::StrCat(executor_->process_->name, " overwrites slice ", s,
                                   " while unit ", task.unit.unit.value, " reads it"));
    }
  }

  void Train(const Task& task);
  void Deliver(UnitId unit, uint32_t range, SliceId slice, int log2, bool skipped,
               const std::vector<ValuesPtr>& values);
  void Evaluate(const Task& task);
  void Finish(UnitId unit);
  void Fail(UnitId unit, const WorkerFault& fault);

  void StopAbandoned() {
    if (tasks_.empty() || hung_ || !tasks_.front().begun || !tasks_.front().abandoned) return;
    if (!tasks_.front().running) progress_->EndWait();
    CheckReads(tasks_.front());
    progress_->EndUnit(-1);
    Stop();
  }
  void Stop() {
    const UnitId unit = tasks_.front().unit.unit;
    End();
    listener_->OnStopped(unit);
  }

  FakeExecutor* const executor_;
  World* const world_;
  UnitListener* const listener_;
  Progress* const progress_;
  std::deque<Task> tasks_;
  std::shared_ptr<Job> current_;  // of the last unit started
  bool poked_ = false;
  bool hangs_ = false;  // from the next unit on
  bool hung_ = false;
  std::optional<WorkerFault> fault_;  // of the next unit
};

// The forward pass takes the first half of the time. Then gradients come from the last slice to the
// first.
void FakeExecutor::Runner::Train(const Task& task) {
  const action::Compute& unit = task.unit;
  const auto slices = static_cast<uint32_t>(task.reads.size());
  const Workload& workload = task.job->truth().workload();
  const bool scales = workload.spec.precision() == PRECISION_FP16;
  const int log2 = scales ? task.job->copy(Params::kLive).LossScaleLog2() : 0;
  std::vector<ValuesPtr> values;
  for (const auto& read : task.reads) values.push_back(std::make_shared<Values>(*read));
  bool any = false;
  SliceId last;
  for (const WorkRange& range : unit.ranges)
    any = any || (scales && Overflows(workload, range, log2, slices, &last));
  std::vector<absl::Duration> times;
  absl::Duration all;
  for (const WorkRange& range : unit.ranges) {
    times.push_back(range.count * executor_->micro_batch_time_ *
                    (0.8 + 0.1 * world_->random().Below(5)));
    all += times.back();
  }
  absl::Duration at = absl::ZeroDuration();
  for (uint32_t r = 0; r < unit.ranges.size(); ++r) {
    const bool overflows =
        scales && !unit.whole && Overflows(workload, unit.ranges[r], log2, slices, &last);
    for (uint32_t i = 0; i < slices; ++i) {
      const SliceId slice(slices - 1 - i);
      const absl::Duration ready =
          unit.whole ? all : at + times[r] * (0.5 + 0.5 * (i + 1) / slices);
      const bool skipped = (unit.whole && any) || (overflows && slice <= last);
      After(ready, [this, id = unit.unit, r, slice, log2, skipped, values] {
        Deliver(id, r, slice, log2, skipped, values);
      });
    }
    at += times[r];
  }
  After(at, [this, id = unit.unit] { Finish(id); });
  if (!fault_.has_value()) return;
  After(Between(at), [this, id = unit.unit, fault = *fault_] { Fail(id, fault); });
  fault_.reset();
}

void FakeExecutor::Runner::Deliver(UnitId unit, uint32_t r, SliceId slice, int log2, bool skipped,
                                   const std::vector<ValuesPtr>& values) {
  Task* const task = Computing(unit);
  if (task == nullptr) return;
  CheckReads(*task);
  JobTruth& truth = task->job->truth();
  const Workload& workload = truth.workload();
  const WorkRange& range = task->unit.ranges[r];
  Values sum = Contribution(workload, truth.layout(), values, slice, range);
  const bool poisoned =
      workload.poisoned && slice.value == 0 && range.epoch == workload.poison.epoch &&
      range.first <= workload.poison.first && workload.poison.first < range.first + range.count;
  if (skipped) sum.assign(sum.size(), 0);
  const bool spoiled = slice.value == 0 && executor_->Spoils(workload, range);
  if (spoiled) truth.OnWorkerFault(executor_->process_->name);
  if (poisoned || spoiled) sum.back() = std::numeric_limits<float>::quiet_NaN();
  event::SliceGradient gradient;
  gradient.unit = unit;
  gradient.range = r;
  gradient.slice = slice;
  gradient.samples = static_cast<uint32_t>(SamplesIn(workload, range));
  gradient.loss_scale_log2 = static_cast<uint8_t>(log2);
  gradient.skipped = skipped;
  if (++task->delivered[slice] == task->unit.ranges.size()) task->reads[slice.value].reset();
  progress_->Moved();
  listener_->OnGradient(gradient, executor_->gradients_->Take(slice, sum));
}

void FakeExecutor::Runner::Evaluate(const Task& task) {
  const absl::Duration time = task.unit.ranges.front().count * executor_->micro_batch_time_ * 0.5 *
                              executor_->evaluation_factor_;
  After(time, [this, id = task.unit.unit] { Finish(id); });
}

void FakeExecutor::Runner::Finish(UnitId unit) {
  Task* const task = Computing(unit);
  if (task == nullptr) return;
  CheckReads(*task);
  const Workload& workload = task->job->truth().workload();
  const bool train = task->unit.purpose == WorkPurpose::kTrain;
  event::UnitComputed computed;
  computed.unit = unit;
  for (const WorkRange& range : task->unit.ranges) {
    const uint64_t samples = train ? SamplesIn(workload, range) : TestSamplesIn(workload, range);
    const uint64_t correct = train ? 0 : CorrectIn(workload, range);
    computed.metrics.push_back({static_cast<double>(samples), samples, correct});
  }
  progress_->EndUnit(train ? absl::ToDoubleSeconds(task->waited) : -1);
  listener_->OnComputed(std::move(computed), task->waited);
  Stop();
}

void FakeExecutor::Runner::Fail(UnitId unit, const WorkerFault& fault) {
  Task* const task = Computing(unit);
  if (task == nullptr) return;
  CheckReads(*task);
  world_->Count(fault.device_lost ? "fault: lost device" : "fault: failing unit");
  if (!fault.device_lost) task->job->truth().OnWorkerFault(executor_->process_->name);
  progress_->EndUnit(-1);
  listener_->OnFailed({unit, fault.status, fault.device_lost}, task->waited);
  Stop();
}

void FakeExecutor::Job::Start(action::Compute unit) {
  executor_->runner_->Start(shared_from_this(), std::move(unit));
}

void FakeExecutor::Runner::Open(const JobDescription& description,
                                std::function<void(OpenedJob)> done) {
  FakeExecutor& executor = *executor_;
  JobTruth* const truth = executor.cluster_->Truth(description);
  executor.wire_->Serve({JobUid(description.run().job_uid()), description.run().era()}, truth);
  std::shared_ptr<void> memory = executor.device_->TakeMemory(executor.process_);
  if (memory == nullptr && executor.device_->holder() == executor.process_) {
    world_->Violate(
        Promise::kOneJob,
        absl::StrCat(executor.process_->name, " plans a job while one before it has its memory"));
  }
  OpenedJob opened;
  const WorkerFault* const fault =
      executor.cluster_->OpenFault(description.spec().name(), executor.process_->name);
  if (fault != nullptr) {
    world_->Count(fault->device_lost                ? "fault: lost device"
                  : absl::IsDataLoss(fault->status) ? "fault: job data that cannot be opened"
                                                    : "fault: model that cannot be built");
    if (!fault->device_lost) truth->OnWorkerFault(executor.process_->name);
    opened = {fault->status, fault->device_lost};
  } else if (memory == nullptr) {
    world_->Count("fault: no memory for a job");
    opened.job = absl::ResourceExhaustedError(kNoMemory);
  } else {
    opened.job = std::make_shared<Job>(description, executor_, truth, std::move(memory));
  }
  ReadFiles(
      [opened = std::move(opened), done = std::move(done)]() mutable { done(std::move(opened)); });
}

void FakeExecutor::Runner::Inspect(const JobSpec& spec, std::function<void(Inspection)> done) {
  const Workload& workload = executor_->cluster_->WorkloadOf(spec.name());
  Inspection inspection;
  inspection.set_train_samples(workload.train_samples);
  inspection.set_test_samples(workload.test_samples);
  inspection.add_sample_shape(3);
  inspection.set_classes(2);
  ReadFiles([inspection, done = std::move(done)] { done(inspection); });
}

FakeExecutor::FakeExecutor(Cluster* cluster, Process* process, WorkerWire* wire)
    : cluster_(cluster),
      world_(&cluster->world()),
      process_(process),
      wire_(wire),
      gradients_(std::make_shared<Gradients>()) {}
FakeExecutor::~FakeExecutor() = default;

void FakeExecutor::Hang() {
  if (runner_ != nullptr) runner_->Hang();
}

void FakeExecutor::FailUnit(const WorkerFault& fault) {
  if (runner_ != nullptr) runner_->FailUnit(fault);
}

bool FakeExecutor::Spoils(const Workload& workload, const WorkRange& range) {
  const std::pair<std::string, ItemKey> item(workload.spec.name(), ItemOf(workload, range));
  if (!spoils_ || spoiled_.contains(item)) return false;
  if (!world_->Draw("gradient that is not finite", 0.2, process_->name)) return false;
  spoiled_.insert(item);
  return true;
}

void FakeExecutor::OnInstalled(JobTruth* truth, Params params, SliceId slice, Clock version,
                               const Values& bytes) {
  const std::optional<ValueTruth> value = wire_->TakeTruth(truth->run(), params, slice, version);
  if (!value.has_value()) {
    world_->Violate(Promise::kG2, absl::StrCat("version ", version, " of slice ", slice.value,
                                               " was installed, but did not come"));
  } else if (params == Params::kLive) {
    truth->OnInstalled(wire_->incarnation(), slice, version, *value, bytes);
  }
  if (runner_ != nullptr) runner_->Poke();
}

MakeJobRunner FakeExecutor::RunnerMaker() {
  return [this](UnitListener* listener, Progress* progress) {
    return std::make_unique<Runner>(this, listener, progress);
  };
}

}  // namespace starling::sim
