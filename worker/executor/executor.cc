#include "worker/executor/executor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/protocol/limits.h"
#include "worker/executor/copy_queue.h"
#include "worker/executor/device_memory.h"
#include "worker/executor/device_spans.h"
#include "worker/executor/gradient_sums.h"
#include "worker/executor/graph_segments.h"
#include "worker/executor/job_memory.h"
#include "worker/executor/lane_program.h"
#include "worker/executor/lane_times.h"
#include "worker/executor/lanes.h"
#include "worker/executor/memory_peak.h"
#include "worker/executor/micro_batches.h"
#include "worker/executor/outcome_reader.h"
#include "worker/executor/parameter_memory.h"
#include "worker/executor/program.h"
#include "worker/executor/slice_use.h"
#include "worker/executor/staging.h"
#include "worker/executor/unit_times.h"

namespace starling {
namespace {

// A lane's own state: no other thread touches it while a unit runs.
struct Lane {
  std::unique_ptr<Stream> stream;
  DeviceMemory arena;
  DeviceMemory gradients;    // flat; of one micro-batch
  DeviceMemory step_values;  // of the current micro-batch; only if work is captured
  std::vector<std::unique_ptr<LaneProgram>> train;  // by ExecutorOptions::train_samples
  std::vector<std::unique_ptr<LaneProgram>> evaluate;
  std::optional<Taken> taken;  // the next micro-batch
  // Staged for a later unit: its range, of one micro-batch, and its samples.
  std::optional<std::pair<WorkRange, int64_t>> ahead;
  // By slice: whether work that the lane orders in this unit sees its value.
  std::vector<char> sees;
  std::vector<int> steps_left;  // by slice, for the current micro-batch
  OutcomeReader outcome;
  ReplayWait replay;
  uint64_t slice_wait_us = 0;
  uint64_t ack_wait_us = 0;
  LaneTimes* times = nullptr;
  std::unique_ptr<DeviceSpans> device_spans;
  // If the host cannot access device memory.
  std::unique_ptr<CopyQueue> out;  // for sums
  std::unique_ptr<InputStaging> inputs;
  std::unique_ptr<Event> computed;  // set after the last backward that was ordered
  bool computing = false;           // ... and has not been waited for yet
};

class ExecutorImpl : public Executor {
 public:
  ExecutorImpl(const ResolvedGraph& graph, const Layout& layout, const ExecutorOptions& options,
               Device* device, SpanRing* spans)
      : layout_(layout),
        options_(options),
        device_(device),
        spans_(spans),
        memory_(graph, layout_, options_, device),
        graph_(memory_.graph()),
        use_(FindSliceUse(graph_, layout_)),
        segments_(MakeGraphSegments(graph_, layout_, use_,
                                    memory_.step_values_bytes() > 0 && !options.replay)),
        slice_ready_(new std::atomic<bool>[layout_.slices.size()]),
        times_(options.lanes),
        threads_(options.lanes) {
    for (const ResolvedNode& node : graph_.nodes) {
      again_names_.push_back(absl::StrCat("recompute ", node.name));
    }
  }

  absl::Status Prepare() {
    STARLING_RETURN_IF_ERROR(peak_.Begin(device_));
    for (int i = 0; i < options_.lanes; ++i) {
      lanes_.push_back(std::make_unique<Lane>());
      lanes_.back()->times = &times_.lane(i);
      STARLING_RETURN_IF_ERROR(CompileLane(*lanes_.back()));
    }
    STARLING_RETURN_IF_ERROR(PlanBytes());
    STARLING_RETURN_IF_ERROR(live_.Allocate(device_, layout_, spans_));
    if (!options_.evaluate_samples.empty()) {
      STARLING_RETURN_IF_ERROR(snapshot_.Allocate(device_, layout_, spans_));
    }
    STARLING_RETURN_IF_ERROR(pinned_.Allocate(device_, options_.lanes * LanePinnedBytes()));
    for (const auto& lane : lanes_) STARLING_RETURN_IF_ERROR(BindLane(*lane));
    STARLING_ASSIGN_OR_RETURN(
        sums_, GradientSums::Create(layout_, options_.micro_batches, options_.lanes, device_));
    return peak_.Sample();
  }

  float* live_parameters() override { return live_.host(); }
  float* snapshot_parameters() override { return snapshot_.host(); }

  size_t planned_bytes() const override { return planned_bytes_; }
  size_t planned_activation_bytes() const override { return activation_bytes_; }
  size_t device_peak_bytes() const override { return peak_.bytes(); }
  std::vector<std::string> slower_operators() const override {
    const auto& programs = lanes_[0]->train.empty() ? lanes_[0]->evaluate : lanes_[0]->train;
    std::vector<std::string> lines;
    for (const auto& program : programs) {  // a short micro-batch may differ
      for (std::string& line : program->program().slower_operators()) {
        if (std::find(lines.begin(), lines.end(), line) == lines.end()) {
          lines.push_back(std::move(line));
        }
      }
    }
    return lines;
  }
  size_t pinned_bytes() const override {
    if (device_->host_reaches_memory()) return 0;
    const size_t parameters = options_.evaluate_samples.empty() ? 1 : 2;
    return pinned_.bytes() + parameters * memory_.flat_bytes();
  }

  ExecutorTimes times() const override { return times_.Read(SpanRing::NowMicros()); }

  absl::Status Train(const Unit& unit, BatchSource& batches, SliceGate& gate, GradientSink& sink,
                     UnitResult* result) override {
    return Run(unit, batches, gate, &sink, result);
  }

  absl::Status Evaluate(const Unit& unit, BatchSource& batches, SliceGate& gate,
                        UnitResult* result) override {
    return Run(unit, batches, gate, nullptr, result);
  }

 private:
  // One call of Train or Evaluate. Constant while lanes run, unless a field says otherwise.
  struct UnderWay {
    const Unit* unit = nullptr;
    BatchSource* batches = nullptr;
    SliceGate* gate = nullptr;
    GradientSink* sink = nullptr;  // nullptr: evaluation
    MicroBatches micro_batches;
    std::atomic<bool> stop{false};
  };

  absl::Status CompileLane(Lane& lane) {
    STARLING_ASSIGN_OR_RETURN(lane.stream, device_->CreateStream());
    lane.device_spans = std::make_unique<DeviceSpans>(device_, spans_, lane.stream.get());
    const Lane& first = *lanes_[0];  // may be this lane
    STARLING_RETURN_IF_ERROR(
        CreatePrograms(options_.train_samples, true, first.train, &lane.train));
    return CreatePrograms(options_.evaluate_samples, false, first.evaluate, &lane.evaluate);
  }

  // The lanes share only parameters and sums; a lane's programs share one arena.
  absl::Status PlanBytes() {
    for (const auto* programs : {&lanes_[0]->train, &lanes_[0]->evaluate}) {
      for (const auto& program : *programs) {
        arena_bytes_ = std::max(arena_bytes_, program->program().arena_bytes());
        activation_bytes_ = std::max(activation_bytes_, program->program().activation_bytes());
        samples_max_ = std::max(samples_max_, program->program().samples());
      }
    }
    planned_bytes_ = memory_.BytesWith(arena_bytes_, samples_max_);
    return memory_.Check(arena_bytes_, samples_max_, options_.recompute);
  }

  absl::Status BindLane(Lane& lane) {
    STARLING_RETURN_IF_ERROR(lane.gradients.Allocate(device_, memory_.flat_bytes(), *lane.stream));
    STARLING_RETURN_IF_ERROR(lane.arena.Allocate(device_, arena_bytes_, *lane.stream));
    if (options_.replay) {
      STARLING_RETURN_IF_ERROR(
          device_->Zero(lane.gradients.as<float>(), memory_.flat_bytes(), *lane.stream));
    }
    if (segments_.captured) {
      STARLING_RETURN_IF_ERROR(
          lane.step_values.Allocate(device_, memory_.step_values_bytes(), *lane.stream));
    }
    char* const arena = lane.arena.as<char>();
    const auto* const values = lane.step_values.as<StepValues>();
    for (const auto& program : lane.train) {
      program->program().Bind(arena, layout_, live_.device(), lane.gradients.as<float>(), values);
    }
    for (const auto& program : lane.evaluate) {
      program->program().Bind(arena, layout_, snapshot_.device(), nullptr, values);
    }
    STARLING_RETURN_IF_ERROR(
        lane.outcome.Allocate(device_, memory_, samples_max_, &pinned_, *lane.stream));
    STARLING_RETURN_IF_ERROR(lane.stream->Synchronize());
    if (device_->host_reaches_memory()) return absl::OkStatus();
    STARLING_ASSIGN_OR_RETURN(lane.computed, device_->CreateEvent());
    STARLING_ASSIGN_OR_RETURN(lane.out, CopyQueue::Create(device_, spans_));
    STARLING_ASSIGN_OR_RETURN(
        lane.inputs,
        InputStaging::Create(device_, spans_, pinned_.Take(memory_.staging_bytes(samples_max_)),
                             memory_.input_bytes(samples_max_), memory_.label_bytes(samples_max_)));
    return absl::OkStatus();
  }

  size_t LanePinnedBytes() const {
    return OutcomeReader::PinnedBytes(memory_, samples_max_) + memory_.staging_bytes(samples_max_);
  }

  // `first`: the first lane's programs, if that is another lane.
  absl::Status CreatePrograms(const std::vector<int64_t>& sizes, bool training,
                              const std::vector<std::unique_ptr<LaneProgram>>& first,
                              std::vector<std::unique_ptr<LaneProgram>>* out) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      ProgramOptions options = {sizes[i], training, options_.kernel_threads, options_.global_batch};
      options.type = options_.type;
      options.tune = options_.tune;
      options.tf32 = options_.tf32;
      if (training) options.recompute = options_.recompute;
      const Program* const twin = &first == out ? nullptr : &first[i]->program();
      STARLING_ASSIGN_OR_RETURN(std::unique_ptr<Program> program,
                                Program::Create(graph_, device_, options, twin));
      out->push_back(std::make_unique<LaneProgram>(std::move(program), &segments_, &captures_));
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Unit& unit, BatchSource& batches, SliceGate& gate, GradientSink* sink,
                   UnitResult* result) {
    run_.unit = &unit;
    run_.batches = &batches;
    run_.gate = &gate;
    run_.sink = sink;
    run_.micro_batches.Begin(unit.ranges);
    const size_t micro_batches = run_.micro_batches.count();
    if (sink != nullptr && micro_batches > options_.micro_batches) {
      return absl::InvalidArgumentError(absl::StrCat("expected a unit of at most ",
                                                     options_.micro_batches, " micro-batches, got ",
                                                     micro_batches));
    }
    if (sink != nullptr && sink->device_update() != nullptr && micro_batches != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected one micro-batch in a unit that is updated on the device, got ", micro_batches));
    }
    run_.stop = false;
    for (size_t s = 0; s < layout_.slices.size(); ++s) slice_ready_[s] = false;
    for (const auto& lane : lanes_) {
      lane->slice_wait_us = lane->ack_wait_us = 0;
      lane->taken.reset();
      lane->computing = false;
      lane->sees.assign(layout_.slices.size(), false);
      if (lane->out != nullptr) lane->out->Begin(unit.clock);
      if (lane->inputs != nullptr) lane->inputs->BeginUnit(unit.clock);
    }
    parameters().BeginUnit(unit.clock);
    {
      MutexLock lock(&mutex_);
      failure_ = absl::OkStatus();
      bad_layer_.clear();
      finite_ = true;
    }
    if (sink != nullptr) STARLING_RETURN_IF_ERROR(sums_->Begin(unit.ranges));
    if (sink != nullptr) times_.Begin(SpanRing::NowMicros());
    threads_.Run([this](int lane) { RunLane(*lanes_[lane]); });
    Fail(parameters().EndUnit());
    if (sink != nullptr) times_.End(SpanRing::NowMicros());
    // A failed memory query is ignored unless the device is lost.
    if (const absl::Status status = peak_.Sample(); absl::IsUnavailable(status)) Fail(status);
    return Finish(result);
  }

  absl::Status Finish(UnitResult* result) {
    MutexLock lock(&mutex_);
    if (finite_ && !failure_.ok()) return failure_;
    result->finite = finite_;
    result->bad_layer = bad_layer_;
    result->bad_micro_batch = bad_micro_batch_;
    run_.micro_batches.Sum(&result->ranges);
    uint64_t slice_wait_us = 0, ack_wait_us = 0;
    for (const auto& lane : lanes_) {
      slice_wait_us += lane->slice_wait_us;
      ack_wait_us += lane->ack_wait_us;
    }
    result->slice_wait_seconds = 1e-6 * static_cast<double>(slice_wait_us) / options_.lanes;
    result->ack_wait_seconds = 1e-6 * static_cast<double>(ack_wait_us) / options_.lanes;
    return absl::OkStatus();
  }

  bool Stopped() const {
    return run_.stop || (run_.unit->cancelled != nullptr && *run_.unit->cancelled);
  }

  // Keeps the first failure. OK is none.
  void Fail(const absl::Status& status) {
    if (status.ok()) return;
    MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = status;
    run_.stop = true;
  }

  void RunLane(Lane& lane) {
    if (run_.sink != nullptr) lane.times->Begin(SpanRing::NowMicros());
    Fail(RunMicroBatches(lane));
    // Pending work reads and writes the sink's memory and parameters.
    Fail(Idle(lane));
    if (lane.out != nullptr) Fail(lane.out->Drain());
    if (lane.inputs != nullptr) {
      const absl::Status copied = lane.inputs->EndUnit();
      if (!copied.ok()) lane.ahead.reset();
      Fail(copied);
    }
    if (lane.computing) lane.times->Spend(SpanRing::NowMicros(), LanePhase::kBackward);
    lane.times->End();
  }

  // Waits for pending work.
  static absl::Status Idle(Lane& lane) {
    STARLING_RETURN_IF_ERROR(lane.stream->Synchronize());
    return lane.device_spans->Report();
  }

  absl::Status RunMicroBatches(Lane& lane) {
    STARLING_RETURN_IF_ERROR(lane.device_spans->Begin(run_.unit->clock));
    for (;;) {
      if (!lane.taken.has_value()) STARLING_RETURN_IF_ERROR(TakeNext(lane));
      if (!lane.taken.has_value()) return absl::OkStatus();
      const Taken taken = *std::exchange(lane.taken, std::nullopt);
      STARLING_RETURN_IF_ERROR(RunMicroBatch(lane, taken));
    }
  }

  // Takes the unit's next micro-batch, if any is left.
  absl::Status TakeNext(Lane& lane) {
    std::optional<Taken> next = run_.micro_batches.Take();
    if (!next.has_value()) return absl::OkStatus();
    if (Stopped()) return Abandoned();
    const auto ahead = std::exchange(lane.ahead, std::nullopt);
    if (ahead.has_value() &&
        ahead->first == MicroBatchOf(run_.unit->ranges[next->range], next->id)) {
      next->batch.samples = ahead->second;
      next->staged = true;
      lane.taken = next;
      return absl::OkStatus();
    }
    absl::StatusOr<MicroBatch> got = run_.batches->Get(run_.unit->ranges[next->range], next->id);
    if (got.ok()) next->batch = *got;
    absl::Status status = got.status();
    if (status.ok() && next->batch.samples > 0) status = Stage(lane, next->batch);
    lane.times->Spend(SpanRing::NowMicros(), LanePhase::kData);
    if (status.ok()) lane.taken = next;
    return status;
  }

  static WorkRange MicroBatchOf(WorkRange range, uint64_t id) {
    range.first = id;
    range.count = 1;
    return range;
  }

  // Stages the first micro-batch of the next unit. Without it that unit would begin with a copy.
  absl::Status StageAhead(Lane& lane) {
    if (run_.sink == nullptr || run_.unit->next == nullptr) return absl::OkStatus();
    if (options_.lanes > 1 || lane.ahead.has_value() || Stopped()) return absl::OkStatus();
    const std::optional<WorkRange> range = run_.unit->next();
    if (!range.has_value() || range->count == 0) return absl::OkStatus();
    const absl::StatusOr<MicroBatch> batch = run_.batches->Get(*range, range->first);
    absl::Status status;
    // The unit that needs it reports what is wrong.
    if (batch.ok() && batch->samples > 0 && ProgramFor(lane, batch->samples).ok()) {
      status = Stage(lane, *batch);
      if (status.ok()) lane.ahead = {MicroBatchOf(*range, range->first), batch->samples};
    }
    lane.times->Spend(SpanRing::NowMicros(), LanePhase::kData);
    return status;
  }

  absl::Status Stage(Lane& lane, const MicroBatch& batch) {
    if (lane.inputs == nullptr) return absl::OkStatus();
    STARLING_ASSIGN_OR_RETURN(LaneProgram* const program, ProgramFor(lane, batch.samples));
    return lane.inputs->Stage(program->program(), batch);
  }

  // Copies the next micro-batch while the device computes. Taking it may block, so all work of the
  // current one must have been ordered.
  absl::Status TakeAhead(Lane& lane) {
    if (lane.inputs == nullptr) return absl::OkStatus();
    STARLING_RETURN_IF_ERROR(TakeNext(lane));
    return lane.taken.has_value() ? absl::OkStatus() : StageAhead(lane);
  }

  absl::Status Load(Lane& lane, Program& program, const MicroBatch& batch) {
    if (lane.inputs != nullptr) return lane.inputs->Load(program, *lane.stream);
    return program.Load(batch.inputs, batch.labels, *lane.stream);
  }

  absl::Status RunMicroBatch(Lane& lane, const Taken& taken) {
    const size_t range = taken.range;
    const uint64_t leaf = taken.leaf;
    const MicroBatch& batch = taken.batch;
    if (batch.samples == 0) {
      if (run_.sink == nullptr) return absl::OkStatus();
      // Nothing is read, but a push before the step's values are ready would belong to an earlier
      // step.
      for (int node = 0; node < static_cast<int>(graph_.nodes.size()); ++node) {
        STARLING_RETURN_IF_ERROR(WaitForSlices(lane, node));
      }
      return AddNothing(lane, range, leaf, 0);
    }
    STARLING_ASSIGN_OR_RETURN(LaneProgram* const program, ProgramFor(lane, batch.samples));
    const RandomKey random = {options_.seed, static_cast<uint32_t>(run_.unit->job_step),
                              static_cast<uint32_t>(taken.id), 0};
    STARLING_RETURN_IF_ERROR(Load(lane, program->program(), batch));
    STARLING_RETURN_IF_ERROR(Forward(lane, *program, random));
    if (run_.sink == nullptr) STARLING_RETURN_IF_ERROR(TakeAhead(lane));
    STARLING_RETURN_IF_ERROR(CountBackward(lane));
    Outcome& outcome = run_.micro_batches.outcome(taken.index);
    STARLING_ASSIGN_OR_RETURN(outcome, ReadOutcome(lane, program->program()));
    lane.times->Spend(SpanRing::NowMicros(), LanePhase::kForward);
    if (!std::isfinite(outcome.loss_sum)) {
      if (run_.sink == nullptr || !scales_loss()) {
        return ReportNonFinite(lane, program->program(), taken, random);
      }
      outcome = Outcome();
      return AddOverflow(lane, range, leaf, batch);
    }
    if (run_.sink == nullptr) return absl::OkStatus();
    STARLING_RETURN_IF_ERROR(Backward(lane, *program, random, range, leaf));
    if (lane.computed != nullptr) {
      STARLING_RETURN_IF_ERROR(lane.stream->Record(*lane.computed));
      lane.computing = true;
    }
    return TakeAhead(lane);
  }

  // Counts the wait for the previous micro-batch's backward, which the device may still compute
  // after this forward was ordered.
  absl::Status CountBackward(Lane& lane) {
    if (!std::exchange(lane.computing, false)) return absl::OkStatus();
    STARLING_RETURN_IF_ERROR(lane.computed->Synchronize());
    lane.times->Spend(SpanRing::NowMicros(), LanePhase::kBackward);
    return absl::OkStatus();
  }

  static absl::Status Abandoned() { return absl::CancelledError("the unit was abandoned"); }

  absl::StatusOr<LaneProgram*> ProgramFor(const Lane& lane, int64_t samples) const {
    const auto& programs = run_.sink != nullptr ? lane.train : lane.evaluate;
    for (const auto& program : programs) {
      if (program->program().samples() == samples) return program.get();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a micro-batch of ",
        absl::StrJoin(run_.sink != nullptr ? options_.train_samples : options_.evaluate_samples,
                      " or "),
        " samples, got ", samples));
  }

  absl::Status WaitForSlices(Lane& lane, int node) {
    for (SliceId slice : use_.read_by_node[node]) {
      if (lane.sees[slice.value]) continue;
      if (slice_ready_[slice.value].load(std::memory_order_acquire)) {
        STARLING_RETURN_IF_ERROR(InstallSlice(lane, slice));
        continue;
      }
      const uint64_t begin = SpanRing::NowMicros();
      lane.times->Spend(begin, LanePhase::kForward);
      uint64_t held_us = 0;
      const bool ready = run_.gate->Wait(slice, &held_us);
      const uint64_t end = SpanRing::NowMicros();
      lane.times->Spend(end, LanePhase::kValues, LanePhase::kHeld, held_us);
      if (!ready) return Abandoned();
      STARLING_RETURN_IF_ERROR(InstallSlice(lane, slice));
      lane.slice_wait_us += end - begin;
      if (end > begin) {
        spans_->Record("wait slices", SpanCategory::kWait, begin, end,
                       {.clock = run_.unit->clock, .slice = slice.value});
      }
    }
    return absl::OkStatus();
  }

  ParameterMemory& parameters() { return run_.sink != nullptr ? live_ : snapshot_; }

  // Brings the slice's value to where lanes read it; the first lane to call this does the copy.
  absl::Status InstallSlice(Lane& lane, SliceId slice) {
    lane.sees[slice.value] = true;
    if (run_.unit->values_on_device) {
      slice_ready_[slice.value] = true;
      return absl::OkStatus();
    }
    return parameters().Install(layout_.slices[slice.value], &slice_ready_[slice.value],
                                *lane.stream);
  }

  // For captured work that follows on the lane's stream.
  absl::Status SetStepValues(Lane& lane, const RandomKey& random, double loss_scale) {
    if (!segments_.captured) return absl::OkStatus();
    const StepValues values = {random.step, random.micro_batch, static_cast<float>(loss_scale)};
    return device_->SetStepValues(lane.step_values.as<StepValues>(), values, *lane.stream);
  }

  absl::Status Forward(Lane& lane, LaneProgram& program, const RandomKey& random) {
    STARLING_RETURN_IF_ERROR(SetStepValues(lane, random, 1));
    for (size_t i = 0; i < segments_.forward.size(); ++i) {
      const auto [first, end] = segments_.forward[i];
      for (int node = first; node < end; ++node) {
        STARLING_RETURN_IF_ERROR(WaitForSlices(lane, node));
      }
      if (Stopped()) return Abandoned();
      const uint64_t begin = SpanRing::NowMicros();
      STARLING_RETURN_IF_ERROR(lane.device_spans->Open(segments_.forward_names[i]));
      STARLING_RETURN_IF_ERROR(ForwardSegment(lane, program, i, random));
      STARLING_RETURN_IF_ERROR(lane.device_spans->Close());
      spans_->Record(segments_.forward_names[i], SpanCategory::kForward, begin,
                     SpanRing::NowMicros(), {.clock = run_.unit->clock});
      if (run_.unit->moved) run_.unit->moved();
    }
    return absl::OkStatus();
  }

  absl::Status ForwardSegment(Lane& lane, LaneProgram& program, size_t segment,
                              const RandomKey& random) {
    if (!options_.replay) return program.Forward(segment, random, *lane.stream);
    return Replay(lane, options_.replay->forward / static_cast<double>(segments_.forward.size()));
  }

  absl::Status BackwardSegment(Lane& lane, LaneProgram& program, size_t segment,
                               const RandomKey& random, double loss_scale) {
    if (!options_.replay) return program.Backward(segment, random, loss_scale, *lane.stream);
    return Replay(lane, options_.replay->backward / static_cast<double>(segments_.backward.size()));
  }

  absl::Status Replay(Lane& lane, absl::Duration time) {
    return lane.replay.For(time, [this] { return Stopped(); }) ? absl::OkStatus() : Abandoned();
  }

  absl::StatusOr<Outcome> ReadOutcome(Lane& lane, const Program& program) {
    if (!options_.replay) {
      absl::StatusOr<Outcome> outcome = lane.outcome.Read(program, *lane.stream);
      if (outcome.ok()) STARLING_RETURN_IF_ERROR(lane.device_spans->Report());
      return outcome;
    }
    const int64_t n = program.samples();
    return Outcome{static_cast<double>(n), static_cast<uint64_t>(n), 0};
  }

  // Computes the micro-batch again to find the layer.
  absl::Status ReportNonFinite(Lane& lane, Program& program, const Taken& taken,
                               const RandomKey& random) {
    MicroBatch batch = taken.batch;
    if (taken.staged) {
      STARLING_ASSIGN_OR_RETURN(batch, run_.batches->Get(run_.unit->ranges[taken.range], taken.id));
    }
    STARLING_RETURN_IF_ERROR(program.Load(batch.inputs, batch.labels, *lane.stream));
    STARLING_ASSIGN_OR_RETURN(const std::string layer,
                              FirstNonFinite(graph_, device_, random, program, *lane.stream));
    MutexLock lock(&mutex_);
    run_.stop = true;
    if (!finite_ && bad_micro_batch_ < random.micro_batch) return absl::OkStatus();
    finite_ = false;
    bad_layer_ = layer;
    bad_micro_batch_ = random.micro_batch;
    return absl::OkStatus();
  }

  // The previous micro-batch's gradient may still be on its way out.
  absl::Status WaitForGradients(Lane& lane) {
    return lane.out == nullptr ? absl::OkStatus() : lane.out->MakeStreamWait(*lane.stream);
  }

  absl::Status Backward(Lane& lane, LaneProgram& program, const RandomKey& random, size_t range,
                        uint64_t leaf) {
    STARLING_RETURN_IF_ERROR(WaitForGradients(lane));
    double loss_scale = 1;
    if (scales_loss()) {
      loss_scale = run_.gate->LossScale();
      STARLING_RETURN_IF_ERROR(SetStepValues(lane, random, loss_scale));
    }
    lane.steps_left = use_.nodes_of_slice;
    const auto samples = static_cast<uint32_t>(program.program().samples());
    for (size_t i = 0; i < segments_.backward.size(); ++i) {
      if (Stopped()) return Abandoned();
      const auto [first, end] = segments_.backward[i];
      STARLING_RETURN_IF_ERROR(ComputeAgain(lane, program.program(), random, first));
      const uint64_t begin = SpanRing::NowMicros();
      STARLING_RETURN_IF_ERROR(lane.device_spans->Open(segments_.backward_names[i]));
      STARLING_RETURN_IF_ERROR(BackwardSegment(lane, program, i, random, loss_scale));
      STARLING_RETURN_IF_ERROR(lane.device_spans->Close());
      spans_->Record(segments_.backward_names[i], SpanCategory::kBackward, begin,
                     SpanRing::NowMicros(), {.clock = run_.unit->clock});
      if (run_.unit->moved) run_.unit->moved();
      for (int step = first; step < end; ++step) {
        const int node = program.program().backward_steps()[step].node;
        for (SliceId slice : use_.pushed_by_node[node]) {
          if (--lane.steps_left[slice.value] > 0) continue;
          STARLING_RETURN_IF_ERROR(AddSlice(lane, range, leaf, slice, samples));
        }
      }
    }
    return absl::OkStatus();
  }

  // Recomputes what forward dropped and the step needs. The parameters that it reads are unchanged:
  // a slice's owner may change them only once its gradient is ready, which is after the steps of
  // its own nodes.
  absl::Status ComputeAgain(Lane& lane, Program& program, const RandomKey& random, int step) {
    if (options_.replay) return absl::OkStatus();     // included in the time of backward
    if (segments_.captured) return absl::OkStatus();  // included in the segment
    for (int node : program.again(step)) {
      if (Stopped()) return Abandoned();
      const uint64_t begin = SpanRing::NowMicros();
      STARLING_RETURN_IF_ERROR(lane.device_spans->Open(again_names_[node]));
      STARLING_RETURN_IF_ERROR(program.ForwardAgain(node, random, *lane.stream));
      STARLING_RETURN_IF_ERROR(lane.device_spans->Close());
      spans_->Record(again_names_[node], SpanCategory::kBackward, begin, SpanRing::NowMicros(),
                     {.clock = run_.unit->clock});
    }
    return absl::OkStatus();
  }

  bool scales_loss() const { return options_.type == DataType::kFp16; }

  // The loss's gradient would make all others meaningless, so it is not computed; the update skips
  // the unit's sums.
  absl::Status AddOverflow(Lane& lane, size_t range, uint64_t leaf, const MicroBatch& batch) {
    run_.sink->Overflowed();
    return AddNothing(lane, range, leaf, static_cast<uint32_t>(batch.samples));
  }

  // A micro-batch without samples or gradient contributes +0.0, added like any other.
  absl::Status AddNothing(Lane& lane, size_t range, uint64_t leaf, uint32_t samples) {
    STARLING_RETURN_IF_ERROR(WaitForGradients(lane));
    STARLING_RETURN_IF_ERROR(
        device_->Zero(lane.gradients.as<float>(), lane.gradients.bytes(), *lane.stream));
    for (uint32_t s = 0; s < layout_.slices.size(); ++s) {
      if (use_.nodes_of_slice[s] == 0) continue;  // frozen
      if (Stopped()) return Abandoned();
      STARLING_RETURN_IF_ERROR(AddSlice(lane, range, leaf, SliceId(s), samples));
    }
    return absl::OkStatus();
  }

  absl::Status AddSlice(Lane& lane, size_t range, uint64_t leaf, SliceId slice, uint32_t samples) {
    const float* const gradient =
        lane.gradients.as<float>() + layout_.slices[slice.value].flat_begin;
    if (DeviceUpdate* const update = run_.sink->device_update()) {
      float* const values = live_.device() + layout_.slices[slice.value].flat_begin;
      return update->Update(slice, gradient, values, samples, *lane.stream);
    }
    uint64_t waited_us = 0;
    const absl::Status status =
        sums_->Add(range, static_cast<uint32_t>(leaf), slice, gradient, samples, *run_.sink,
                   *lane.stream, lane.out.get(), &waited_us);
    lane.ack_wait_us += waited_us;
    lane.times->Spend(SpanRing::NowMicros(), LanePhase::kBackward, LanePhase::kPush, waited_us);
    return status;
  }

  const Layout layout_;
  const ExecutorOptions options_;
  Device* const device_;
  SpanRing* const spans_;
  const JobMemory memory_;
  const ResolvedGraph& graph_;  // as the device computes it
  const SliceUse use_;
  const GraphSegments segments_;
  CaptureSwitch captures_;
  std::vector<std::string> again_names_;

  size_t arena_bytes_ = 0, activation_bytes_ = 0;  // per lane
  int64_t samples_max_ = 0;                        // per micro-batch
  size_t planned_bytes_ = 0;
  MemoryPeak peak_;
  PinnedPool pinned_;
  ParameterMemory live_;
  ParameterMemory snapshot_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<GradientSums> sums_;

  UnderWay run_;
  const std::unique_ptr<std::atomic<bool>[]> slice_ready_;  // by slice, in the current unit

  UnitTimes times_;

  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool finite_ ABSL_GUARDED_BY(mutex_) = true;
  std::string bad_layer_ ABSL_GUARDED_BY(mutex_);
  uint64_t bad_micro_batch_ ABSL_GUARDED_BY(mutex_) = 0;

  Lanes threads_;  // last: its threads stop before the rest is destroyed
};

absl::Status CheckOptions(const ResolvedGraph& graph, const Layout& layout,
                          const ExecutorOptions& options) {
  if (layout.parameters.size() != graph.parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat("expected a layout of ", graph.parameters.size(),
                                                   " parameters, got ", layout.parameters.size()));
  }
  if (options.lanes < 1 || options.kernel_threads < 1 || options.micro_batches < 1 ||
      options.micro_batches > limits::kMicroBatchesMax || options.global_batch < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected lanes, kernel threads, micro-batches (at most ", limits::kMicroBatchesMax,
        ") and the global batch to be at least 1, got ", options.lanes, ", ",
        options.kernel_threads, ", ", options.micro_batches, ", ", options.global_batch));
  }
  return absl::OkStatus();
}

}  // namespace

DataType TypeOf(Precision precision) {
  switch (precision) {
    case PRECISION_BF16: return DataType::kBf16;
    case PRECISION_FP16: return DataType::kFp16;
    default: return DataType::kFp32;
  }
}

int LanesOn(const Device& device, int lanes, uint32_t micro_batches) {
  // On an asynchronous device, one lane computes while the other's losses and gradients are copied
  // out. More lanes would only use memory.
  constexpr int kFarLanesMax = 2;
  if (!device.host_reaches_memory()) lanes = std::min(lanes, kFarLanesMax);
  return static_cast<int>(std::min<int64_t>(lanes, micro_batches));
}

absl::StatusOr<size_t> BytesToPlan(Device& device) {
  STARLING_ASSIGN_OR_RETURN(const MemoryBytes memory, device.Memory());
  return memory.available / 10 * 9;
}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const ResolvedGraph& graph,
                                                           const Layout& layout,
                                                           const ExecutorOptions& options,
                                                           Device* device, SpanRing* spans) {
  STARLING_RETURN_IF_ERROR(CheckOptions(graph, layout, options));
  auto executor = std::make_unique<ExecutorImpl>(graph, layout, options, device, spans);
  STARLING_RETURN_IF_ERROR(executor->Prepare());
  return executor;
}

}  // namespace starling
