#include "common/config/optimizer_section.h"

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/schema.h"

namespace starling::config {
namespace {

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
constexpr double kDecayMax = 1e3;
constexpr double kScaleMax = 1e3;
constexpr int kGroupsMax = 64;

absl::Status Invalid(const std::string& text) { return absl::InvalidArgumentError(text); }

void ReadSchedule(const Section& optimizer, Schedule* out) {
  constexpr double kRateMax = 1e6;
  const Section rate = optimizer.Child("learningRate");
  if (rate.node().IsScalar()) {
    out->set_constant(optimizer.Number("learningRate", 0, 0, kRateMax));
    return;
  }
  const int kinds = rate.Has("constant") + rate.Has("step") + rate.Has("cosine");
  if (kinds != 1) {
    optimizer.Fail("learningRate", "expected a number or exactly one of constant, step, cosine");
    return;
  }
  const Section inner = rate.Has("step")     ? rate.Child("step")
                        : rate.Has("cosine") ? rate.Child("cosine")
                                             : rate;
  if (rate.Has("constant")) {
    out->set_constant(inner.Number("constant", 0, 0, kRateMax));
  } else if (rate.Has("step")) {
    out->mutable_step()->set_initial(inner.Number("initial", 0, 0, kRateMax));
    out->mutable_step()->set_factor(inner.Number("factor", 0.1, 0, kRateMax));
    out->mutable_step()->set_every_steps(inner.Integer("everySteps", 1, 1, kInt64Max));
  } else {
    out->mutable_cosine()->set_peak(inner.Number("peak", 0, 0, kRateMax));
    out->mutable_cosine()->set_floor(inner.Number("floor", 0, 0, kRateMax));
  }
  if (rate.Has("warmupSteps") && !rate.Has("constant")) {
    rate.Fail("warmupSteps", "belongs inside step or cosine");
  }
  out->set_warmup_steps(inner.Integer("warmupSteps", 0, 0, int64_t{1} << 40));
}

void ReadMomentum(const Section& section, Optimizer::Momentum* out) {
  out->set_momentum(section.Number("momentum", 0.9, 0, std::nextafter(1.0, 0.0)));
}

void ReadAdagrad(const Section& section, Optimizer::Adagrad* out) {
  out->set_epsilon(section.Number("epsilon", 1e-10, 1e-30, 1));
  out->set_initial_accumulator(section.Number("initialAccumulator", 0, 0, 1e6));
}

void ReadAdam(const Section& section, double epsilon, Optimizer::Adam* out) {
  const double below_one = std::nextafter(1.0, 0.0);
  out->set_beta1(section.Number("beta1", 0.9, 0, below_one));
  out->set_beta2(section.Number("beta2", 0.999, 0, below_one));
  out->set_epsilon(section.Number("epsilon", epsilon, 1e-30, 1));
}

void ReadGroup(const Section& section, bool lamb, Optimizer::Group* out) {
  for (const std::string& glob : section.Texts("match")) out->add_match(glob);
  out->set_vectors(section.Boolean("vectors", false));
  if (section.Has("rateScale")) out->set_rate_scale(section.Number("rateScale", 1, 0, kScaleMax));
  if (section.Has("weightDecay"))
    out->set_weight_decay(section.Number("weightDecay", 0, 0, kDecayMax));
  out->set_no_trust_ratio(!section.Boolean("trustRatio", true));
  if (section.Has("trustRatio") && !lamb) section.Fail("trustRatio", "goes with lamb only");
}

absl::Status CheckGroup(const Optimizer::Group& group, int index) {
  const std::string name = absl::StrCat("optimizer.groups[", index, "]");
  if (group.match_size() == 0 && !group.vectors()) {
    return Invalid(
        absl::StrCat(name, ": which parameters? expected match: [globs], or vectors: true"));
  }
  for (const std::string& glob : group.match()) {
    if (glob.empty())
      return Invalid(absl::StrCat(name, ".match: expected globs, got an empty one"));
  }
  if (!group.has_rate_scale() && !group.has_weight_decay() && !group.no_trust_ratio()) {
    return Invalid(absl::StrCat(
        name, ": what is special about it? expected rateScale, weightDecay or trustRatio"));
  }
  for (double value : {group.rate_scale() / kScaleMax, group.weight_decay() / kDecayMax}) {
    if (!(value >= 0 && value <= 1)) {
      return Invalid(absl::StrCat(name, ": expected a rateScale from 0 to ", kScaleMax,
                                  " and a weightDecay from 0 to ", kDecayMax));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAdam(const Optimizer::Adam& adam) {
  for (double beta : {adam.beta1(), adam.beta2()}) {
    if (!(beta >= 0 && beta < 1))
      return Invalid(absl::StrCat(
          "optimizer: expected beta1 and beta2 of at least 0 and less than 1, got ", beta));
  }
  if (adam.epsilon() > 0 && adam.epsilon() <= 1) return absl::OkStatus();
  return Invalid(
      absl::StrCat("optimizer: expected an epsilon above 0 and at most 1, got ", adam.epsilon()));
}

absl::Status CheckKind(const Optimizer& optimizer) {
  switch (optimizer.kind_case()) {
    case Optimizer::KIND_NOT_SET:
      return Invalid(
          "optimizer: expected one of sgd, momentum, nesterov, adagrad, adam, adamw, lamb");
    case Optimizer::kAdam: return CheckAdam(optimizer.adam());
    case Optimizer::kAdamw: return CheckAdam(optimizer.adamw());
    case Optimizer::kLamb: return CheckAdam(optimizer.lamb());
    case Optimizer::kAdagrad:
      if (optimizer.adagrad().epsilon() > 0 && optimizer.adagrad().epsilon() <= 1)
        return absl::OkStatus();
      return Invalid(
          absl::StrCat("optimizer.adagrad: expected an epsilon above 0 and at most 1, got ",
                       optimizer.adagrad().epsilon()));
    default: return absl::OkStatus();
  }
}

absl::Status CheckSchedule(const Schedule& rate) {
  if (rate.warmup_steps() < 0)
    return Invalid(absl::StrCat("optimizer.learningRate.warmupSteps: expected at least 0, got ",
                                rate.warmup_steps()));
  if (rate.kind_case() == Schedule::KIND_NOT_SET)
    return Invalid("optimizer.learningRate: expected constant, step or cosine");
  if (rate.has_step() && rate.step().every_steps() < 1)
    return Invalid("optimizer.learningRate.step.everySteps: expected at least 1");
  if (rate.has_cosine() && rate.cosine().floor() > rate.cosine().peak()) {
    return Invalid("optimizer.learningRate.cosine: floor is above peak");
  }
  return absl::OkStatus();
}

}  // namespace

void ReadOptimizer(const Section& optimizer, Optimizer* out) {
  std::string kind;
  for (const char* name : {"sgd", "momentum", "nesterov", "adagrad", "adam", "adamw", "lamb"}) {
    if (optimizer.Has(name)) kind = name;
  }
  const Section section = optimizer.Child(kind);
  if (kind == "sgd") out->mutable_sgd();
  if (kind == "momentum") ReadMomentum(section, out->mutable_momentum());
  if (kind == "nesterov") ReadMomentum(section, out->mutable_nesterov());
  if (kind == "adagrad") ReadAdagrad(section, out->mutable_adagrad());
  if (kind == "adam") ReadAdam(section, 1e-8, out->mutable_adam());
  if (kind == "adamw") ReadAdam(section, 1e-8, out->mutable_adamw());
  if (kind == "lamb") ReadAdam(section, 1e-6, out->mutable_lamb());
  const double default_decay = kind == "adamw" || kind == "lamb" ? 0.01 : 0;
  out->set_weight_decay(section.Number("weightDecay", default_decay, 0, kDecayMax));
  ReadSchedule(section, out->mutable_learning_rate());
  for (const Section& group : optimizer.Items("groups"))
    ReadGroup(group, kind == "lamb", out->add_groups());
}

void ReadClip(const Section& clip, Clip* out) {
  out->set_norm(clip.Number("norm", 0, std::numeric_limits<double>::min(), 1e30));
  const std::string scope = clip.Text("scope", "");
  if (scope == "parameter")
    out->set_scope(Clip::PARAMETER);
  else if (scope == "worker")
    out->set_scope(Clip::WORKER);
  else if (scope == "global")
    out->set_scope(Clip::GLOBAL);
  else
    clip.Fail("scope", absl::StrCat("expected parameter, worker or global, got \"", scope, "\""));
}

absl::Status CheckOptimizer(const Optimizer& optimizer) {
  const Schedule& rate = optimizer.learning_rate();
  for (double value :
       {rate.constant(), rate.step().initial(), rate.step().factor(), rate.cosine().peak(),
        rate.cosine().floor(), optimizer.weight_decay(), optimizer.momentum().momentum(),
        optimizer.nesterov().momentum(), optimizer.adagrad().initial_accumulator()}) {
    if (!std::isfinite(value) || value < 0)
      return Invalid(absl::StrCat("optimizer: expected finite numbers of 0 or more, got ", value));
  }
  STARLING_RETURN_IF_ERROR(CheckKind(optimizer));
  STARLING_RETURN_IF_ERROR(CheckSchedule(rate));
  if (optimizer.groups_size() > kGroupsMax) {
    return Invalid(absl::StrCat("optimizer.groups: expected at most ", kGroupsMax, ", got ",
                                optimizer.groups_size()));
  }
  for (int g = 0; g < optimizer.groups_size(); ++g)
    STARLING_RETURN_IF_ERROR(CheckGroup(optimizer.groups(g), g));
  return absl::OkStatus();
}

}  // namespace starling::config
