// MakeUpdateRule: derives what one slice's updates need from the job's optimizer.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "server/shard/apply/update.h"

namespace starling {
namespace {

absl::Status CheckRange(const char* field, double value, bool good, const char* expected) {
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer: ", field, " is ", value, "; expected ", expected));
}

absl::Status CheckFraction(const char* field, double value) {
  return CheckRange(field, value, value >= 0 && value < 1, "a number in [0, 1)");
}

absl::Status CheckAtLeastZero(const char* field, double value) {
  return CheckRange(field, value, std::isfinite(value) && value >= 0,
                    "a finite number, at least 0");
}

absl::Status CheckEpsilon(double value) {
  return CheckRange("epsilon", value, std::isfinite(value) && value > 0, "a finite number above 0");
}

absl::Status FillMomentum(UpdateRule::Kind kind, const Optimizer::Momentum& momentum,
                          UpdateRule* rule) {
  rule->kind = kind;
  rule->momentum = momentum.momentum();
  return CheckFraction("momentum", rule->momentum);
}

absl::Status FillAdagrad(const Optimizer::Adagrad& adagrad, UpdateRule* rule) {
  rule->kind = UpdateRule::kAdagrad;
  rule->epsilon = adagrad.epsilon();
  rule->first_slot0 = static_cast<float>(adagrad.initial_accumulator());
  STARLING_RETURN_IF_ERROR(CheckAtLeastZero("initial_accumulator", rule->first_slot0));
  return CheckEpsilon(rule->epsilon);
}

absl::Status FillAdam(UpdateRule::Kind kind, const Optimizer::Adam& adam, UpdateRule* rule) {
  rule->kind = kind;
  rule->beta1 = adam.beta1();
  rule->beta2 = adam.beta2();
  rule->epsilon = adam.epsilon();
  STARLING_RETURN_IF_ERROR(CheckFraction("beta1", rule->beta1));
  STARLING_RETURN_IF_ERROR(CheckFraction("beta2", rule->beta2));
  return CheckEpsilon(rule->epsilon);
}

absl::Status FillKind(const Optimizer& optimizer, UpdateRule* rule) {
  switch (optimizer.kind_case()) {
    case Optimizer::kSgd: return absl::OkStatus();
    case Optimizer::kMomentum:
      return FillMomentum(UpdateRule::kMomentum, optimizer.momentum(), rule);
    case Optimizer::kNesterov:
      return FillMomentum(UpdateRule::kNesterov, optimizer.nesterov(), rule);
    case Optimizer::kAdagrad: return FillAdagrad(optimizer.adagrad(), rule);
    case Optimizer::kAdam: return FillAdam(UpdateRule::kAdam, optimizer.adam(), rule);
    case Optimizer::kAdamw: return FillAdam(UpdateRule::kAdamW, optimizer.adamw(), rule);
    case Optimizer::kLamb: return FillAdam(UpdateRule::kLamb, optimizer.lamb(), rule);
    case Optimizer::KIND_NOT_SET: break;
  }
  return absl::InvalidArgumentError(
      "optimizer: expected one of sgd, momentum, nesterov, adagrad, adam, adamw and lamb");
}

}  // namespace

int UpdateRule::slots() const {
  switch (kind) {
    case kSgd:
    case kStatistic: return 0;
    case kMomentum:
    case kNesterov:
    case kAdagrad: return 1;
    case kAdam:
    case kAdamW:
    case kLamb: break;
  }
  return 2;
}

absl::StatusOr<UpdateRule> MakeUpdateRule(const JobSpec& spec, const Slice& slice) {
  UpdateRule rule;
  for (const Segment& segment : slice.segments) rule.blocks.push_back(segment.length);
  if (slice.kind == STATISTIC) {
    rule.kind = UpdateRule::kStatistic;
    rule.momentum = slice.statistic_momentum;
    STARLING_RETURN_IF_ERROR(CheckRange("statistic_momentum", rule.momentum,
                                        rule.momentum >= 0 && rule.momentum <= 1,
                                        "a number in [0, 1]"));
    return rule;
  }
  STARLING_RETURN_IF_ERROR(FillKind(spec.optimizer(), &rule));
  const GroupSettings settings = SettingsOf(spec.optimizer(), slice.group);
  STARLING_RETURN_IF_ERROR(CheckAtLeastZero("weight_decay", settings.weight_decay));
  STARLING_RETURN_IF_ERROR(CheckAtLeastZero("rate_scale", settings.rate_scale));
  rule.trust_ratio = rule.kind == UpdateRule::kLamb && settings.trust_ratio;
  if (spec.clip().scope() == Clip::PARAMETER) {
    rule.clip_norm = spec.clip().norm();
    if (!(std::isfinite(rule.clip_norm) && rule.clip_norm > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("clip: norm is ", rule.clip_norm, "; expected a finite number above 0"));
    }
  }
  return rule;
}

}  // namespace starling
