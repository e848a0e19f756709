// ValidateSpec: ranges and relations of a JobSpec from any source.
#include <algorithm>
#include <cctype>
#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/config/data_section.h"
#include "common/config/job_fields.h"
#include "common/config/job_file.h"
#include "common/config/optimizer_section.h"
#include "common/protocol/limits.h"

namespace starling::config {
namespace {

// File systems allow 255; the temporary file's name is longer than the final one.
constexpr size_t kFileNameBytesMax = 240;

absl::Status Invalid(const std::string& text) { return absl::InvalidArgumentError(text); }

absl::Status CheckName(const std::string& name) {
  const auto good = [](char c) {
    return std::islower(static_cast<unsigned char>(c)) ||
           std::isdigit(static_cast<unsigned char>(c)) || c == '-';
  };
  bool ok = !name.empty() && name.size() <= limits::kNameBytesMax && name.front() != '-' &&
            name.back() != '-';
  for (char c : name) ok = ok && good(c);
  if (ok) return absl::OkStatus();
  return Invalid(absl::StrCat("metadata.name: expected 1 to ", limits::kNameBytesMax,
                              " lower-case letters, digits or inner '-', got \"",
                              name.substr(0, 200), "\""));
}

absl::Status CheckBatch(const Batch& batch) {
  const uint32_t micro = batch.micro_batches();
  if ((micro & (micro - 1)) != 0) {
    return Invalid(absl::StrCat("batch.microBatches: expected a power of two up to ",
                                limits::kMicroBatchesMax, ", got ", micro));
  }
  if (batch.global() % micro == 0) return absl::OkStatus();
  return Invalid(absl::StrCat("batch.microBatches: ", micro,
                              " micro-batches do not divide a global batch of ", batch.global(),
                              "; choose a power of two that does"));
}

absl::Status CheckPolicy(const Policy& policy) {
  if (policy.kind() == Policy::BSP || policy.kind() == Policy::SSP ||
      policy.kind() == Policy::ASYNC) {
    return absl::OkStatus();
  }
  return Invalid("consistency: expected bsp, ssp or async");
}

absl::Status CheckGuard(const JobSpec& spec) {
  const Guard& guard = spec.policy().guard();
  if (!std::isfinite(guard.loss_factor()) || guard.loss_factor() <= 1) {
    return Invalid(
        absl::StrCat("consistency.guard.lossFactor: expected a finite number above 1, got ",
                     guard.loss_factor()));
  }
  if (spec.clip().scope() == Clip::WORKER) {
    return Invalid(
        "consistency.guard: it ends in bsp, which clip.scope worker does not go with; use "
        "parameter, or remove guard");
  }
  return absl::OkStatus();
}

absl::Status CheckPrecision(const JobSpec& spec) {
  if (spec.tf32() && spec.precision() != PRECISION_FP32) {
    return Invalid(
        "tf32: is how fp32 values are multiplied, and has nothing to do in precision bf16 or fp16: "
        "remove tf32, or precision");
  }
  if (spec.precision() == PRECISION_FP32 || spec.model_source().builtin() != "counter") {
    return absl::OkStatus();
  }
  return Invalid(
      "precision: model.builtin counter counts, which needs fp32's 24 bits: remove precision");
}

absl::Status CheckCheckpoint(const Checkpoint& checkpoint) {
  const double seconds = checkpoint.every_seconds();
  if ((seconds != 0) == (checkpoint.every_steps() != 0)) {
    return Invalid(absl::StrCat("checkpoint: expected exactly one of every, everySteps, got ",
                                seconds != 0 ? "both" : "none"));
  }
  if (checkpoint.every_steps() != 0 || (std::isfinite(seconds) && seconds >= 1)) {
    return absl::OkStatus();
  }
  return Invalid(
      absl::StrCat("checkpoint.every: expected a duration of at least 1s, got ", seconds, " s"));
}

absl::Status CheckModel(const JobSpec& spec) {
  const bool counter_model = spec.model_source().builtin() == "counter";
  if (counter_model != spec.train().has_counter()) {
    return Invalid(
        "model.builtin counter and data.train.counter go together: give both or neither");
  }
  if (!counter_model) return absl::OkStatus();
  if (!spec.optimizer().has_sgd()) {
    return Invalid("model.builtin counter: expected optimizer sgd, whose update is exact");
  }
  if (spec.has_clip())
    return Invalid(
        "clip: model.builtin counter counts, and a clipped gradient miscounts: remove clip");
  const int64_t samples = spec.train().counter().samples();
  if (samples % spec.batch().global() != 0) {
    return Invalid(
        absl::StrCat("data.train.counter.samples: expected a multiple of batch.global ",
                     spec.batch().global(), ", got ", samples,
                     ": a short last batch is scaled up, and its rows would grow by more than 1"));
  }
  return absl::OkStatus();
}

void AddUnusedHoldout(const char* what, const DataSource::Csv& csv, std::vector<std::string>* out) {
  if (csv.holdout_fraction() == 0 || csv.part() != DataSource::Csv::PART_ALL) return;
  out->push_back(absl::StrCat(what,
                              ".csv.holdoutFraction is not used, since part is all: say part: "
                              "train or part: holdout, or remove it"));
}

// Checks for a path beneath the coordinator's --output-root, whatever that contains.
absl::Status CheckOutput(const std::string& output) {
  if (output.empty()) return absl::OkStatus();
  constexpr absl::string_view kEnding = ".safetensors";
  bool good = output.size() <= limits::kPathBytesMax && absl::EndsWith(output, kEnding);
  for (const absl::string_view name : absl::StrSplit(output, '/')) {
    good = good && !name.empty() && name != "." && name != ".." && name != kEnding &&
           name.size() <= kFileNameBytesMax;
  }
  for (const char c : output) good = good && static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  if (good) return absl::OkStatus();
  return Invalid(
      absl::StrCat("output: expected the name of a .safetensors file beneath the coordinator's "
                   "--output-root, like "
                   "runs/digits.safetensors, of names of at most 240 bytes, without a leading /, "
                   "without //, . and .., got \"",
                   absl::CHexEscape(output.substr(0, 200)), "\""));
}

}  // namespace

std::vector<std::string> UnusedKeys(const JobSpec& spec) {
  std::vector<std::string> out;
  if (spec.test().source_case() != DataSource::SOURCE_NOT_SET &&
      spec.evaluate().every_epochs() == 0) {
    out.push_back(
        "data.test is not used, since nothing is measured without evaluate: add "
        "evaluate: {everyEpochs: 1}, or remove data.test");
  }
  AddUnusedHoldout("data.train", spec.train().csv(), &out);
  AddUnusedHoldout("data.test", spec.test().csv(), &out);
  if (spec.tf32() && spec.device() == DEVICE_CPU) {
    out.push_back(
        "tf32 is not used, since CPUs do not round and workers.device is cpu: remove one");
  }
  if (spec.workers_backup() > 0 && spec.policy().kind() != Policy::BSP) {
    out.push_back(
        "workers.backup is not used until the job changes to bsp: under other policies no step "
        "waits for a late worker; remove workers.backup, or say consistency: {bsp: {}}");
  }
  return out;
}

absl::Status CheckClip(const Clip& clip, Policy::Kind policy) {
  const bool bsp = policy == Policy::BSP;
  if (clip.scope() == Clip::WORKER && bsp) {
    return Invalid(
        "clip.scope worker: in BSP a worker's contribution is a part of the step that depends on "
        "the number of workers, and so would the result; use parameter");
  }
  if (clip.scope() == Clip::GLOBAL && !bsp) {
    return Invalid(
        "clip.scope global: only BSP has a step whose whole gradient is known before it is "
        "applied; use parameter, or consistency: {bsp: {}}");
  }
  for (const Clip::Scope known : {Clip::PARAMETER, Clip::WORKER, Clip::GLOBAL}) {
    if (clip.scope() == known) return absl::OkStatus();
  }
  return Invalid("clip.scope: expected parameter, worker or global");
}

absl::Status ValidateSpec(const JobSpec& spec) {
  STARLING_RETURN_IF_ERROR(CheckName(spec.name()));
  STARLING_RETURN_IF_ERROR(CheckFields(spec));
  STARLING_RETURN_IF_ERROR(CheckData(spec));
  STARLING_RETURN_IF_ERROR(CheckBatch(spec.batch()));
  STARLING_RETURN_IF_ERROR(CheckOptimizer(spec.optimizer()));
  if (spec.policy().has_guard()) STARLING_RETURN_IF_ERROR(CheckGuard(spec));
  if (spec.has_clip()) STARLING_RETURN_IF_ERROR(CheckClip(spec.clip(), spec.policy().kind()));
  STARLING_RETURN_IF_ERROR(CheckPrecision(spec));
  STARLING_RETURN_IF_ERROR(CheckModel(spec));
  if (spec.has_checkpoint()) STARLING_RETURN_IF_ERROR(CheckCheckpoint(spec.checkpoint()));
  STARLING_RETURN_IF_ERROR(CheckPolicy(spec.policy()));
  if (spec.workers_max() < spec.workers_min()) {
    return Invalid(absl::StrCat("workers: expected 1 <= min <= max <= ", limits::kWorkersPerJobMax,
                                ", got min ", spec.workers_min(), " and max ", spec.workers_max()));
  }
  if (spec.workers_backup() >= std::max(1u, spec.workers_max())) {
    return Invalid(absl::StrCat("workers.backup: expected fewer than workers.max, ",
                                spec.workers_max(), ", got ", spec.workers_backup(),
                                ": others must compute what backup workers repeat"));
  }
  if (spec.evaluate().every_epochs() > 0 &&
      spec.test().source_case() == DataSource::SOURCE_NOT_SET) {
    return Invalid("evaluate: data.test is missing: say what to evaluate on, or remove evaluate");
  }
  if (!spec.has_stop()) return Invalid("stop: expected epochs");
  if (!std::isfinite(spec.stop().wall_time_seconds()) || spec.stop().wall_time_seconds() < 0) {
    return Invalid("stop.wallTime: expected a duration above 0");
  }
  const std::string& folder = spec.tensorboard();
  if (!folder.empty() && (folder.front() != '/' || folder.size() > limits::kPathBytesMax ||
                          folder.find('\0') != std::string::npos)) {
    return Invalid(absl::StrCat("tensorboard: expected an absolute path of at most ",
                                limits::kPathBytesMax, " bytes, got \"", folder.substr(0, 200),
                                "\""));
  }
  return CheckOutput(spec.output());
}

}  // namespace starling::config
