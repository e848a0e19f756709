#include "common/schedule/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

absl::Status CheckRate(const char* field, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("learning rate schedule: ", field, " is ", value,
                                                 "; expected a finite number, at least 0"));
}

absl::Status CheckSchedule(const Schedule& schedule) {
  if (schedule.warmup_steps() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("learning rate schedule: warmup_steps is ",
                                                   schedule.warmup_steps(),
                                                   "; expected at least 0"));
  }
  switch (schedule.kind_case()) {
    case Schedule::kConstant: return CheckRate("constant", schedule.constant());
    case Schedule::kStep:
      STARLING_RETURN_IF_ERROR(CheckRate("step.initial", schedule.step().initial()));
      STARLING_RETURN_IF_ERROR(CheckRate("step.factor", schedule.step().factor()));
      if (schedule.step().every_steps() < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("learning rate schedule: step.every_steps is ",
                         schedule.step().every_steps(), "; expected at least 1"));
      }
      return absl::OkStatus();
    case Schedule::kCosine:
      STARLING_RETURN_IF_ERROR(CheckRate("cosine.peak", schedule.cosine().peak()));
      return CheckRate("cosine.floor", schedule.cosine().floor());
    case Schedule::KIND_NOT_SET: break;
  }
  return absl::InvalidArgumentError(
      "learning rate schedule: expected one of constant, step and cosine");
}

}  // namespace

absl::StatusOr<LearningRate> LearningRate::Make(const Schedule& schedule, uint64_t total_steps) {
  STARLING_RETURN_IF_ERROR(CheckSchedule(schedule));
  return LearningRate(schedule, total_steps);
}

double LearningRate::BeforeWarmup(int64_t step) const {
  switch (schedule_.kind_case()) {
    case Schedule::kStep: {
      const Schedule::Step& s = schedule_.step();
      return s.initial() * std::pow(s.factor(), static_cast<double>(step / s.every_steps()));
    }
    case Schedule::kCosine: {
      const Schedule::Cosine& c = schedule_.cosine();
      const double length =
          static_cast<double>(total_steps_) - static_cast<double>(schedule_.warmup_steps());
      const double done =
          static_cast<double>(std::max<int64_t>(0, step - schedule_.warmup_steps()));
      const double progress = length > 0 ? std::min(1.0, done / length) : 0;
      return c.floor() + (c.peak() - c.floor()) * (1 + std::cos(std::numbers::pi * progress)) / 2;
    }
    default: return schedule_.constant();
  }
}

float LearningRate::At(int64_t step) const {
  double rate = BeforeWarmup(step);
  if (step < schedule_.warmup_steps()) {
    rate *= static_cast<double>(step + 1) / static_cast<double>(schedule_.warmup_steps());
  }
  return static_cast<float>(rate);
}

}  // namespace starling
