#include "common/placement/parameter_groups.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/glob.h"

namespace starling {
namespace {

bool Has(const Optimizer::Group& group, const Parameter& parameter) {
  if (group.vectors() && parameter.shape_size() == 1) return true;
  return std::any_of(group.match().begin(), group.match().end(),
                     [&](const std::string& glob) { return MatchesGlob(glob, parameter.name()); });
}

}  // namespace

GroupIndex GroupOf(const Optimizer& optimizer, const Parameter& parameter) {
  for (GroupIndex g = 0; g < optimizer.groups_size(); ++g) {
    if (Has(optimizer.groups(g), parameter)) return g;
  }
  return kNoGroup;
}

absl::Status CheckGroups(const Optimizer& optimizer, const Graph& graph) {
  for (int g = 0; g < optimizer.groups_size(); ++g) {
    for (const std::string& glob : optimizer.groups(g).match()) {
      const bool found = std::any_of(
          graph.parameters().begin(), graph.parameters().end(), [&](const Parameter& parameter) {
            return parameter.kind() == TRAINABLE && MatchesGlob(glob, parameter.name());
          });
      if (found) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer.groups[", g, "]: \"", glob,
                       "\" matches no trainable parameter of the model, whose ",
                       graph.parameters_size(), " parameters begin with \"",
                       graph.parameters_size() == 0 ? "" : graph.parameters(0).name(), "\""));
    }
  }
  return absl::OkStatus();
}

GroupSettings SettingsOf(const Optimizer& optimizer, GroupIndex group) {
  GroupSettings settings;
  settings.weight_decay = optimizer.weight_decay();
  if (group == kNoGroup) return settings;
  const Optimizer::Group& own = optimizer.groups(group);
  if (own.has_rate_scale()) settings.rate_scale = own.rate_scale();
  if (own.has_weight_decay()) settings.weight_decay = own.weight_decay();
  settings.trust_ratio = !own.no_trust_ratio();
  return settings;
}

}  // namespace starling
