// ValidateSpec: ranges and relations of a JobSpec, wherever it came from.
#include <cctype>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/job_file.h"
#include "common/protocol/limits.h"

namespace starling::config {
namespace {

absl::Status Invalid(const std::string& text) { return absl::InvalidArgumentError(text); }

absl::Status CheckName(const std::string& name) {
  const auto good = [](char c) { return std::islower(static_cast<unsigned char>(c)) || std::isdigit(static_cast<unsigned char>(c)) || c == '-'; };
  bool ok = !name.empty() && name.size() <= limits::kNameBytesMax && name.front() != '-' && name.back() != '-';
  for (char c : name) ok = ok && good(c);
  if (ok) return absl::OkStatus();
  return Invalid(absl::StrCat("metadata.name: expected 1 to ", limits::kNameBytesMax,
                              " lower-case letters, digits or inner '-', got \"", name.substr(0, 200), "\""));
}

absl::Status CheckBatch(const Batch& batch) {
  if (batch.global() < 1 || batch.global() > limits::kGlobalBatchMax) {
    return Invalid(absl::StrCat("batch.global: expected 1 to ", limits::kGlobalBatchMax, ", got ", batch.global()));
  }
  const uint32_t micro = batch.micro_batches();
  if (micro < 1 || micro > limits::kMicroBatchesMax || (micro & (micro - 1)) != 0) {
    return Invalid(absl::StrCat("batch.microBatches: expected a power of two up to ", limits::kMicroBatchesMax, ", got ", micro));
  }
  if (batch.global() % micro != 0) {
    return Invalid(absl::StrCat("batch.microBatches: ", micro, " micro-batches do not divide a global batch of ",
                                batch.global(), "; choose a power of two that does"));
  }
  if (batch.kernel_threads() < 1 || batch.kernel_threads() > 256) {
    return Invalid(absl::StrCat("batch.kernelThreads: expected 1 to 256, got ", batch.kernel_threads()));
  }
  return absl::OkStatus();
}

absl::Status CheckOptimizer(const Optimizer& optimizer) {
  if (optimizer.kind_case() == Optimizer::KIND_NOT_SET) return Invalid("optimizer: expected one of sgd, momentum, adam, adamw");
  const Schedule& rate = optimizer.learning_rate();
  for (double value : {rate.constant(), rate.step().initial(), rate.step().factor(), rate.cosine().peak(),
                       rate.cosine().floor(), optimizer.weight_decay(), optimizer.momentum().momentum()}) {
    if (!std::isfinite(value) || value < 0) return Invalid(absl::StrCat("optimizer: expected finite numbers of 0 or more, got ", value));
  }
  if (rate.kind_case() == Schedule::KIND_NOT_SET) return Invalid("optimizer.learningRate: expected constant, step or cosine");
  if (rate.has_step() && rate.step().every_steps() < 1) return Invalid("optimizer.learningRate.step.everySteps: expected at least 1");
  if (rate.has_cosine() && rate.cosine().floor() > rate.cosine().peak()) {
    return Invalid("optimizer.learningRate.cosine: floor is above peak");
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const JobSpec& spec) {
  const bool counter_model = spec.model_source().builtin() == "counter";
  if (counter_model != spec.train().has_counter()) {
    return Invalid("model.builtin counter and data.train.counter go together: give both or neither");
  }
  if (counter_model && !spec.optimizer().has_sgd()) {
    return Invalid("model.builtin counter: expected optimizer sgd, whose update is exact");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateSpec(const JobSpec& spec) {
  STARLING_RETURN_IF_ERROR(CheckName(spec.name()));
  STARLING_RETURN_IF_ERROR(CheckBatch(spec.batch()));
  STARLING_RETURN_IF_ERROR(CheckOptimizer(spec.optimizer()));
  if (spec.train().source_case() == DataSource::SOURCE_NOT_SET) return Invalid("data.train: expected idx, csv or counter");
  STARLING_RETURN_IF_ERROR(CheckModel(spec));
  if (spec.policy().kind() == Policy::KIND_UNSPECIFIED) return Invalid("consistency: expected bsp, ssp or async");
  if (spec.policy().staleness() > limits::kStalenessMax) {
    return Invalid(absl::StrCat("consistency.ssp.staleness: expected 0 to ", limits::kStalenessMax, ", got ", spec.policy().staleness()));
  }
  if (spec.workers_min() < 1 || spec.workers_max() < spec.workers_min() || spec.workers_max() > limits::kWorkersPerJobMax) {
    return Invalid(absl::StrCat("workers: expected 1 <= min <= max <= ", limits::kWorkersPerJobMax, ", got min ",
                                spec.workers_min(), " and max ", spec.workers_max()));
  }
  if (spec.evaluate().every_epochs() > 0 && spec.test().source_case() == DataSource::SOURCE_NOT_SET) {
    return Invalid("evaluate: data.test is missing: say what to evaluate on, or remove evaluate");
  }
  if (spec.stop().epochs() < 1 || spec.stop().epochs() > limits::kEpochsMax) {
    return Invalid(absl::StrCat("stop.epochs: expected 1 to ", limits::kEpochsMax, ", got ", spec.stop().epochs()));
  }
  if (!std::isfinite(spec.stop().wall_time_seconds()) || spec.stop().wall_time_seconds() < 0) {
    return Invalid("stop.wallTime: expected a duration above 0");
  }
  return absl::OkStatus();
}

}  // namespace starling::config
