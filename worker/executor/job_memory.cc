#include "worker/executor/job_memory.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/executor/fuse.h"
#include "worker/executor/gradient_sums.h"
#include "worker/executor/program.h"
#include "worker/executor/staging.h"

namespace starling {

std::string MiBText(size_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

JobMemory::JobMemory(const ResolvedGraph& graph, const Layout& layout,
                     const ExecutorOptions& options, Device* device)
    : graph_(Fuse(graph, device->fusions())), layout_(layout), options_(options), device_(device) {}

size_t JobMemory::flat_buffers() const {
  return (options_.evaluate_samples.empty() ? 1 : 2) + options_.lanes +
         GradientSums::SpareBuffers(options_.micro_batches, options_.lanes,
                                    device_->host_reaches_memory());
}

size_t JobMemory::judged_bytes(int64_t samples) const {
  return JudgedLabels(graph_) == 0 ? 0 : samples * sizeof(uint32_t);
}

size_t JobMemory::step_values_bytes() const {
  return options_.capture && device_->captures() ? sizeof(StepValues) : 0;
}

size_t JobMemory::input_bytes(int64_t samples) const {
  return samples * graph_.values[kInputValue].elements * sizeof(float);
}

size_t JobMemory::label_bytes(int64_t samples) const {
  return samples * graph_.values[kLabelValue].elements * sizeof(float);
}

size_t JobMemory::staging_bytes(int64_t samples) const {
  if (device_->host_reaches_memory()) return 0;
  return InputStaging::Bytes(input_bytes(samples), label_bytes(samples));
}

size_t JobMemory::BytesWith(size_t arena_bytes, int64_t samples) const {
  return options_.lanes *
             (arena_bytes + judged_bytes(samples) + staging_bytes(samples) + step_values_bytes()) +
         flat_buffers() * flat_bytes();
}

absl::StatusOr<JobMemory::Planned> JobMemory::Plan(int64_t samples,
                                                   const Recompute& recompute) const {
  const ProgramOptions options = {
      samples,       true,         options_.kernel_threads, options_.global_batch, recompute,
      options_.type, options_.tf32};
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<Program> program,
                            Program::Create(graph_, device_, options));
  return Planned{BytesWith(program->arena_bytes(), samples), program->activation_bytes(),
                 program->recomputed_share()};
}

absl::Status JobMemory::Check(size_t arena_bytes, int64_t samples,
                              const Recompute& recompute) const {
  const size_t bytes = BytesWith(arena_bytes, samples);
  if (bytes <= options_.bytes_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the job needs ", MiBText(bytes), " here with batch.global ",
      samples * options_.micro_batches, " in micro-batches of ", samples, " (", options_.lanes,
      " lanes x ", MiBText(arena_bytes), " of activations, ", flat_buffers(), " x ",
      MiBText(flat_bytes()), " of parameters and gradients), but ", MiBText(options_.bytes_max),
      " are allowed: ", WhatFits(arena_bytes, samples, recompute)));
}

std::string JobMemory::WhatFits(size_t arena_bytes, int64_t samples,
                                const Recompute& recompute) const {
  std::vector<std::string> ways;
  for (const std::string& way :
       {MoreRecomputing(arena_bytes, samples), SmallerBatch(samples, recompute)}) {
    if (!way.empty()) ways.push_back(way);
  }
  if (!ways.empty()) {
    return absl::StrCat(absl::StrJoin(ways, "; "), "; or give the worker fewer --lanes");
  }
  return "not even micro-batches of one sample would fit; a worker with fewer --lanes or more "
         "memory is needed";
}

// The largest batch that fits, found by bisection.
std::string JobMemory::SmallerBatch(int64_t samples, const Recompute& recompute) const {
  for (samples /= 2; samples >= 1; samples /= 2) {
    const absl::StatusOr<Planned> planned = Plan(samples, recompute);
    if (!planned.ok()) continue;  // a batch norm of one value, say
    if (planned->bytes > options_.bytes_max) continue;
    return absl::StrCat("batch.global ", samples * options_.micro_batches,
                        " with batch.microBatches ", options_.micro_batches, " would need ",
                        MiBText(planned->bytes), ", or raise batch.microBatches");
  }
  return "";
}

// The same batch, with a budget for the activations that fits the memory.
std::string JobMemory::MoreRecomputing(size_t arena_bytes, int64_t samples) const {
  const size_t over = BytesWith(arena_bytes, samples) - options_.bytes_max;
  const size_t over_per_lane = (over + options_.lanes - 1) / options_.lanes;
  // The arena exceeds its activations by a constant.
  const size_t beside = kBlockAlignment + Program::SharedGradientBytes(graph_);
  if (arena_bytes <= over_per_lane + beside) return "";
  Recompute recompute;
  recompute.set_activation_bytes(arena_bytes - over_per_lane - beside);
  const absl::StatusOr<Planned> planned = Plan(samples, recompute);
  if (!planned.ok() || planned->bytes > options_.bytes_max) return "";
  return absl::StrFormat(
      "the same batch with recompute.activationBytes %d would need %s, and compute %.0f%% of "
      "forward again in backward",
      recompute.activation_bytes(), MiBText(planned->bytes), 100 * planned->recomputed_share);
}

}  // namespace starling
