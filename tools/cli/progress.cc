#include "tools/cli/progress.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/loss_text.h"
#include "common/protocol/limits.h"
#include "tools/cli/output.h"

namespace starling::cli {

absl::optional<double> SecondsLeft(const JobStatus& status, const JobSpec& spec) {
  absl::optional<double> left;
  if (status.samples_per_second() > 0 && status.epochs() < limits::kEpochsMax) {
    const uint64_t steps = status.steps() - std::min(status.step(), status.steps());
    left = static_cast<double>(steps) * spec.batch().global() / status.samples_per_second();
  }
  if (spec.stop().wall_time_seconds() > 0) {
    const double wall = std::max(0.0, spec.stop().wall_time_seconds() - status.running_seconds());
    left = std::min(left.value_or(wall), wall);
  }
  return left;
}

std::string StalenessText(uint64_t now, uint64_t bound) {
  return bound == std::numeric_limits<uint64_t>::max()
             ? CountText(now)
             : absl::StrCat(CountText(now), "/", CountText(bound));
}

std::string EpochText(uint32_t epoch, const JobStatus& status) {
  if (status.epochs() >= limits::kEpochsMax) return CountText(uint64_t{epoch} + 1);
  // After the last epoch none is in progress.
  return absl::StrCat(CountText(std::min(uint64_t{epoch} + 1, uint64_t{status.epochs()})), "/",
                      CountText(status.epochs()));
}

std::string PositionText(const JobStatus& status, const char* separator) {
  const bool total = status.epochs() < limits::kEpochsMax;
  return absl::StrCat("epoch ", EpochText(status.epoch(), status), separator, "step ",
                      CountText(status.step()),
                      total ? absl::StrCat("/", CountText(status.steps())) : "");
}

namespace {

// The labels of a running job's numbers.
struct Words {
  const char* separator;
  const char* samples;
  const char* staleness;
};

std::string RunningLine(const JobStatus& status, const JobSpec& spec, const Words& words) {
  std::vector<std::string> parts = {
      PositionText(status, words.separator),
      absl::StrCat(CountText(static_cast<uint64_t>(std::max(0.0, status.samples_per_second()))),
                   words.samples)};
  if (status.has_train_loss())
    parts.push_back(absl::StrCat("loss ", LossText(status.train_loss())));
  parts.push_back(
      absl::StrCat(words.staleness, StalenessText(status.staleness(), status.staleness_bound())));
  parts.push_back(absl::StrFormat("%.0f%% hidden", 100 * status.hidden_share()));
  const auto left = SecondsLeft(status, spec);
  if (left) parts.push_back(absl::StrCat("ETA ", DurationText(*left)));
  return absl::StrJoin(parts, words.separator);
}

}  // namespace

std::string ProgressLine(const JobStatus& status, const JobSpec& spec) {
  if (status.state() == RUNNING) {
    return absl::StrCat(status.name(), "  ",
                        RunningLine(status, spec, {"  ", " samples/s", "staleness "}));
  }
  return absl::StrCat(status.name(), "  ", JobState_Name(status.state()),
                      status.reason().empty() ? "" : ": ", PrintableText(status.reason()));
}

std::string ShortProgressLine(const JobStatus& status, const JobSpec& spec) {
  return status.state() == RUNNING ? RunningLine(status, spec, {" ", "/s", "stale "})
                                   : ProgressLine(status, spec);
}

std::string EpochLine(const EpochResult& result, const JobStatus& status) {
  std::string line = absl::StrCat("epoch ", EpochText(result.epoch(), status));
  absl::StrAppend(&line, ": train loss ", TrainLossText(result));
  if (result.evaluated()) {
    absl::StrAppend(&line, ", test loss ", LossText(result.test_loss()));
    if (result.has_test_accuracy())
      absl::StrAppendFormat(&line, ", test accuracy %.4f", result.test_accuracy());
  }
  return absl::StrCat(line, ", ", DurationText(result.seconds()));
}

const EpochResult* LastEvaluation(const JobStatus& status) {
  for (int i = status.epochs_done_size(); i-- > 0;) {
    if (status.epochs_done(i).evaluated()) return &status.epochs_done(i);
  }
  return nullptr;
}

}  // namespace starling::cli
