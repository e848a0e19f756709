#include "common/config/optimizer_section.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling::config {
namespace {

constexpr int kGroupsMax = 64;

absl::Status Invalid(const std::string& text) { return absl::InvalidArgumentError(text); }

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
  if (group.has_rate_scale() || group.has_weight_decay() || group.no_trust_ratio()) {
    return absl::OkStatus();
  }
  return Invalid(absl::StrCat(
      name, ": what is special about it? expected rateScale, weightDecay or trustRatio"));
}

}  // namespace

void ReadOptimizer(const Section& optimizer, Optimizer* out) {
  int index = 0;
  for (const Section& group : optimizer.Items("groups")) {
    Optimizer::Group* const to = out->mutable_groups(index++);
    if (!group.Has("trustRatio")) continue;
    to->set_no_trust_ratio(!group.node()["trustRatio"].as<bool>());
    if (!out->has_lamb()) group.Fail("trustRatio", "goes with lamb only");
  }
}

absl::Status CheckOptimizer(const Optimizer& optimizer) {
  const Schedule::Cosine& cosine = optimizer.learning_rate().cosine();
  if (cosine.floor() > cosine.peak()) {
    return Invalid("optimizer.learningRate.cosine: floor is above peak");
  }
  if (optimizer.groups_size() > kGroupsMax) {
    return Invalid(absl::StrCat("optimizer.groups: expected at most ", kGroupsMax, ", got ",
                                optimizer.groups_size()));
  }
  for (int g = 0; g < optimizer.groups_size(); ++g)
    STARLING_RETURN_IF_ERROR(CheckGroup(optimizer.groups(g), g));
  return absl::OkStatus();
}

}  // namespace starling::config
