// starling advise batch: what fits into the memory of the device that a worker here would use, by
// plan, and what trains fastest on it, by real steps. Needs no coordinator.
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/config/bytes.h"
#include "common/graph/recompute.h"
#include "server/coordinator/core/resolve_model.h"
#include "tools/cli/command_line.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/read_job_file.h"
#include "tools/cli/verbs.h"
#include "worker/advice/batch_advisor.h"
#include "worker/data/data_set.h"
#include "worker/executor/executor.h"
#include "worker/host/devices.h"

namespace starling::cli {
namespace {

struct AdviseOptions {
  std::string file;
  std::vector<std::string> overrides;  // --set
  int lanes = 0;                       // 0: one per core, as in a worker
  int64_t memory_bytes = 0;            // that a job may plan; 0: nine tenths of what is available
  std::string device = "auto";         // as a worker's --device
  std::string cuda_library;            // as a worker's
  int seconds = 2;                     // to measure each batch size
};

struct Trial {
  int64_t samples = 0;  // per micro-batch
  double samples_per_second = 0;
};

// The job as the coordinator would resolve it after asking a worker on this machine.
absl::StatusOr<JobSpec> Resolved(const AdviseOptions& options, const Context& context) {
  STARLING_ASSIGN_OR_RETURN(JobSpec spec,
                            ReadJobFile(options.file, options.overrides, context.environment));
  const Inspection inspection = InspectData(spec);
  if (!inspection.error().empty()) return absl::InvalidArgumentError(inspection.error());
  STARLING_RETURN_IF_ERROR(coordinator::ResolveModel(inspection, spec));
  return spec;
}

absl::StatusOr<std::unique_ptr<BatchAdvisor>> MakeAdvisor(const JobSpec& spec,
                                                          const BatchAdvisor::Options& options,
                                                          Device* device) {
  DataSetOptions data_options;
  data_options.sample_shape.assign(spec.sample_shape().begin(), spec.sample_shape().end());
  data_options.classes = spec.model().classes();
  STARLING_ASSIGN_OR_RETURN(auto data, DataSet::Open(spec.train(), spec.normalize(), data_options));
  return BatchAdvisor::Create(spec, std::move(data), options, device);
}

// The job's own policy, no recomputing, and the policy that works for every model with blocks.
std::vector<Recompute> PoliciesToPlan(const JobSpec& spec, const ResolvedGraph& graph) {
  std::vector<Recompute> policies = {spec.recompute()};
  const auto add = [&](const Recompute& policy) {
    if (RecomputeText(policy) != RecomputeText(spec.recompute())) policies.push_back(policy);
  };
  add(Recompute());
  if (OutlineRecompute(graph).block_ends.size() > 1) {
    Recompute each;
    each.set_every_blocks(1);
    add(each);
  }
  return policies;
}

std::string BatchText(const BatchAdvisor& advisor, int64_t samples) {
  return absl::StrCat(CountText(static_cast<uint64_t>(samples) * advisor.micro_batches()), " = ",
                      advisor.micro_batches(), " x ", samples);
}

// Returns the largest micro-batch of the first policy.
absl::StatusOr<int64_t> PrintWhatFits(const BatchAdvisor& advisor,
                                      const std::vector<Recompute>& policies, Context& context) {
  Rows rows = {{"RECOMPUTE", "LARGEST BATCH", "PLANNED", "ACTIVATIONS", "FORWARD AGAIN"}};
  absl::StatusOr<int64_t> own = absl::InternalError("no policy");
  for (size_t i = 0; i < policies.size(); ++i) {
    const auto largest = advisor.LargestThatFits(policies[i]);
    if (i == 0) own = largest.ok() ? absl::StatusOr<int64_t>(largest->samples) : largest.status();
    const std::string name = absl::StrCat(RecomputeText(policies[i]), i == 0 ? " (the job's)" : "");
    if (!largest.ok()) {
      rows.push_back({name, "none", "-", "-", "-"});
      continue;
    }
    rows.push_back(
        {name, BatchText(advisor, largest->samples), BytesText(largest->planned.bytes),
         absl::StrCat(advisor.lanes(), " x ", BytesText(largest->planned.activation_bytes)),
         absl::StrFormat("%.0f%%", 100 * largest->planned.recomputed_share)});
  }
  context.out << TableText(rows) << std::flush;
  return own;
}

// Stops after two sizes in a row that are no faster than the best.
absl::StatusOr<Trial> PrintWhatIsFast(const BatchAdvisor& advisor, const JobSpec& spec,
                                      int64_t largest, Context& context) {
  const int64_t own = spec.batch().global() / spec.batch().micro_batches();
  Rows rows = {{"BATCH", "SAMPLES/S"}};
  Trial best;
  int slower = 0;
  for (int64_t samples : BatchAdvisor::SizesToTry(largest, own)) {
    if (slower >= 2 && samples > own) break;
    const auto speed = advisor.SamplesPerSecond(samples, spec.recompute());
    if (absl::IsInvalidArgument(speed.status())) continue;  // too small for an operator
    if (!speed.ok()) return speed.status();
    rows.push_back({absl::StrCat(BatchText(advisor, samples), samples == own ? " (the job's)" : ""),
                    absl::StrFormat("%.1f", *speed)});
    slower = *speed > best.samples_per_second ? 0 : slower + 1;
    if (*speed > best.samples_per_second) best = {samples, *speed};
  }
  context.out << TableText(rows) << std::flush;
  return best;
}

absl::StatusOr<int> Advise(const AdviseOptions& options, Context& context) {
  STARLING_ASSIGN_OR_RETURN(const JobSpec spec, Resolved(options, context));
  BatchAdvisor::Options advice;
  advice.lanes = options.lanes > 0
                     ? options.lanes
                     : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  advice.time = absl::Seconds(options.seconds);
  STARLING_ASSIGN_OR_RETURN(
      const WorkerDevices devices,
      WorkerDevices::Open({.device = options.device, .cuda_library = options.cuda_library}));
  STARLING_ASSIGN_OR_RETURN(Device* const device, devices.For(spec.device()));
  if (!devices.has_gpu()) context.err << "No GPU here: " << devices.why_no_gpu() << "\n";
  advice.bytes_max = options.memory_bytes;
  if (advice.bytes_max == 0) {
    STARLING_ASSIGN_OR_RETURN(advice.bytes_max, BytesToPlan(*device));
  }
  STARLING_ASSIGN_OR_RETURN(const auto advisor, MakeAdvisor(spec, advice, device));
  context.out << "Planned for a worker with " << BytesText(advice.bytes_max) << " and "
              << advisor->lanes() << (advisor->lanes() == 1 ? " lane" : " lanes") << " on "
              << device->name() << " (" << device->instruction_set()
              << "); a batch is its micro-batches x their samples:\n";
  STARLING_ASSIGN_OR_RETURN(
      const int64_t largest,
      PrintWhatFits(*advisor, PoliciesToPlan(spec, advisor->graph()), context));
  context.out << "\nMeasured on this machine with recompute " << RecomputeText(spec.recompute())
              << ": real steps of forward, backward and sums, for " << options.seconds
              << " s each; data loading and network not included:\n";
  STARLING_ASSIGN_OR_RETURN(const Trial best, PrintWhatIsFast(*advisor, spec, largest, context));
  context.out << "\nLargest batch that fits: " << BatchText(*advisor, largest)
              << " (planned)\nFastest batch: " << BatchText(*advisor, best.samples)
              << absl::StrFormat(" at %.1f samples/s (measured)\n", best.samples_per_second);
  return kExitOk;
}

// Converts "1GiB" to a number of bytes.
std::string ReadBytes(std::string& text) {
  const auto bytes = config::ParseBytes(text);
  if (!bytes.ok()) return std::string(bytes.status().message());
  text = absl::StrCat(*bytes);
  return "";
}

}  // namespace

void AddAdvise(CommandLine& line) {
  const auto [batch, options] = line.Verb<AdviseOptions>(
      "batch", "the largest batch that fits, and the fastest (measured)", Advise,
      line.Group("advise", "how a job would do best on this machine"));
  AddJobFile(batch, "the job file", &options->file, &options->overrides);
  batch->add_option("--lanes", options->lanes, "micro-batches computed at once (else one per core)")
      ->check(CLI::Range(1, 1024));
  batch
      ->add_option("--memory-bytes", options->memory_bytes,
                   "that a job may plan, as 8GiB (else nine tenths of what is available)")
      ->transform(CLI::Validator(ReadBytes, ""));
  batch
      ->add_option("--device", options->device,
                   "as a worker's: auto (a GPU where there is one), gpu, cpu; the job's own wish "
                   "counts, too")
      ->check(Member({"auto", "gpu", "cpu"}))
      ->capture_default_str();
  batch->add_option("--cuda-library", options->cuda_library,
                    "the shared object that computes on a GPU (else beside this program, or as "
                    "the loader finds it)");
  AddNumber(batch, "--seconds", &options->seconds, CLI::Range(0, 3600),
            "that each batch is measured for, at least");
}

}  // namespace starling::cli
