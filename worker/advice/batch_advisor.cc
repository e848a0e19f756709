#include "worker/advice/batch_advisor.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/memory.h"
#include "common/base/status_macros.h"
#include "common/graph/recompute.h"
#include "common/protocol/limits.h"
#include "common/trace/span_ring.h"
#include "worker/executor/local_run.h"

namespace starling {
namespace {

// The same samples for every micro-batch.
absl::StatusOr<std::unique_ptr<FixedBatches>> Gather(const DataSet& data, int64_t samples,
                                                     Device* device) {
  STARLING_ASSIGN_OR_RETURN(std::unique_ptr<FixedBatches> batch,
                            FixedBatches::Create({.samples = samples,
                                                  .input_elements = data.sample_elements(),
                                                  .label_elements = data.label_elements()},
                                                 device));
  std::vector<int64_t> ids(samples);
  for (int64_t i = 0; i < samples; ++i) ids[i] = i % data.samples();
  STARLING_RETURN_IF_ERROR(data.Gather(ids, nullptr, batch->inputs(), batch->labels()));
  return batch;
}

// Accepts gradients and discards them.
class Buffers : public GradientSink {
 public:
  explicit Buffers(const Layout& layout) : layout_(layout), memory_(AllocateFloats(size())) {}
  bool ok() const { return memory_ != nullptr; }
  float* Acquire(size_t, SliceId slice) override { return memory_.get() + kStride * slice.value; }
  void Ready(size_t, SliceId, uint32_t) override {}

 private:
  static constexpr size_t kStride = limits::kSliceElementsMax;
  size_t size() const { return kStride * layout_.slices.size(); }
  const Layout& layout_;
  const std::shared_ptr<float> memory_;
};

// Values as the graph's initialisers define them, but not the ones that a shard would draw.
void Initialise(const ResolvedGraph& graph, const Layout& layout, float* values) {
  std::mt19937 random(1);
  for (size_t p = 0; p < graph.parameters.size(); ++p) {
    const Initializer& init = graph.parameters[p].init;
    float* const to = values + layout.parameters[p].flat_begin;
    const auto value = static_cast<float>(init.value());
    if (init.kind() == Initializer::UNIFORM || init.kind() == Initializer::NORMAL) {
      std::uniform_real_distribution<float> draw(-value, value);
      std::generate_n(to, layout.parameters[p].elements, [&] { return draw(random); });
    } else {
      std::fill_n(to, layout.parameters[p].elements, value);
    }
  }
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<BatchAdvisor>> BatchAdvisor::Create(
    const JobSpec& spec, std::shared_ptr<const DataSet> data, const Options& options,
    Device* device) {
  std::unique_ptr<BatchAdvisor> advisor(new BatchAdvisor(std::move(data), options.time, device));
  STARLING_ASSIGN_OR_RETURN(advisor->graph_, Validate(spec.model()));
  STARLING_ASSIGN_OR_RETURN(advisor->layout_, MakeLayout(spec));
  ExecutorOptions& executor = advisor->executor_;
  executor.global_batch = spec.batch().global();
  executor.micro_batches = spec.batch().micro_batches();
  executor.lanes = LanesOn(*device, options.lanes, spec.batch().micro_batches());
  executor.kernel_threads = static_cast<int>(spec.batch().kernel_threads());
  executor.seed = spec.seed();
  executor.type = TypeOf(spec.precision());
  executor.tf32 = spec.tf32();
  executor.bytes_max = options.bytes_max;
  if (spec.evaluate().every_epochs() > 0) executor.evaluate_samples = {1};  // counts as a buffer
  return advisor;
}

absl::StatusOr<BatchAdvisor::Largest> BatchAdvisor::LargestThatFits(
    const Recompute& recompute) const {
  const JobMemory memory(graph_, layout_, executor_, device_);
  const int64_t most = std::max<int64_t>(
      1, std::min<int64_t>(limits::kGlobalBatchMax, data_->samples()) / executor_.micro_batches);
  Largest largest;
  absl::Status refusal;
  const auto fits = [&](int64_t samples) {
    const absl::StatusOr<JobMemory::Planned> planned = memory.Plan(samples, recompute);
    if (!planned.ok()) {
      refusal = planned.status();
      return false;
    }
    if (planned->bytes > executor_.bytes_max) {
      refusal = absl::ResourceExhaustedError(
          absl::StrCat("micro-batches of ", samples, " need ", MiBText(planned->bytes),
                       " here, but ", MiBText(executor_.bytes_max), " are allowed"));
      return false;
    }
    if (samples > largest.samples) largest = {samples, *planned};
    return true;
  };
  int64_t too_many = most + 1;
  for (int64_t samples = 1; samples <= most; samples *= 2) {
    // A refusal of a size too small for an operator (a batch norm of one value) says nothing about
    // others.
    if (fits(samples) || absl::IsInvalidArgument(refusal)) continue;
    too_many = samples;
    break;
  }
  if (largest.samples == 0) {
    return absl::ResourceExhaustedError(absl::StrCat("no batch fits with recompute ",
                                                     RecomputeText(recompute), ": ",
                                                     std::string(refusal.message())));
  }
  for (int64_t low = largest.samples; low + 1 < too_many;) {
    const int64_t middle = low + (too_many - low) / 2;
    (fits(middle) ? low : too_many) = middle;
  }
  return largest;
}

std::vector<int64_t> BatchAdvisor::SizesToTry(int64_t largest, int64_t own) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= largest; size *= 2) sizes.push_back(size);
  if (own >= 1 && own <= largest) sizes.push_back(own);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

absl::StatusOr<double> BatchAdvisor::SamplesPerSecond(int64_t samples,
                                                      const Recompute& recompute) const {
  ExecutorOptions options = executor_;
  options.evaluate_samples.clear();
  options.train_samples = {samples};
  options.global_batch = samples * executor_.micro_batches;
  options.recompute = recompute;
  SpanRing spans;
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<Executor> executor,
                            Executor::Create(graph_, layout_, options, device_, &spans));
  Initialise(graph_, layout_, executor->live_parameters());
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<FixedBatches> batch,
                            Gather(*data_, samples, device_));
  Buffers sink(layout_);
  if (!sink.ok()) return absl::ResourceExhaustedError("no memory for the sums of gradients");
  OpenGate gate;
  const std::vector<WorkRange> ranges = {{WorkPurpose::kTrain, 0, 0, executor_.micro_batches}};
  // The first step warms caches and pages; with capturing, the second step captures.
  const size_t warm_steps = device_->captures() ? 2 : 1;
  std::vector<double> seconds;
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t step = 0;
       seconds.size() < warm_steps + 2 || SecondsSince(begin) < absl::ToDoubleSeconds(time_);
       ++step) {
    UnitResult result;
    const auto step_begin = std::chrono::steady_clock::now();
    STARLING_RETURN_IF_ERROR(executor->Train({ranges, step}, *batch, gate, sink, &result));
    if (!result.finite) {
      return absl::FailedPreconditionError(
          absl::StrCat("a trial step's loss is not finite, from ", result.bad_layer,
                       " on: look at the data with starling data inspect"));
    }
    seconds.push_back(SecondsSince(step_begin));
  }
  seconds.erase(seconds.begin(), seconds.begin() + warm_steps);
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return static_cast<double>(options.global_batch) / seconds[seconds.size() / 2];
}

}  // namespace starling
