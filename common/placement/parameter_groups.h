// The optimizer group of a parameter, and what it means for updates.
#ifndef STARLING_COMMON_PLACEMENT_PARAMETER_GROUPS_H_
#define STARLING_COMMON_PLACEMENT_PARAMETER_GROUPS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"

namespace starling {

// An index in Optimizer.groups.
using GroupIndex = int32_t;
inline constexpr GroupIndex kNoGroup = -1;

// The first group that contains `parameter`, which is trainable; kNoGroup: none.
GroupIndex GroupOf(const Optimizer& optimizer, const Parameter& parameter);

// kInvalidArgument names a glob that matches no trainable parameter: most likely a typo.
absl::Status CheckGroups(const Optimizer& optimizer, const Graph& graph);

struct GroupSettings {
  double rate_scale = 1;    // multiplies the learning rate
  double weight_decay = 0;  // the group's or else the optimizer's
  bool trust_ratio = true;  // lamb only
};
GroupSettings SettingsOf(const Optimizer& optimizer, GroupIndex group);

}  // namespace starling

#endif  // STARLING_COMMON_PLACEMENT_PARAMETER_GROUPS_H_
