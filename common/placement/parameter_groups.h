// Which of an optimizer's groups a parameter is in, and what that means for its updates.
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

// The first group that has `parameter`, which is trainable; kNoGroup: none has.
GroupIndex GroupOf(const Optimizer& optimizer, const Parameter& parameter);

// kInvalidArgument names a glob that fits no trainable parameter of the model: it was mistyped.
absl::Status CheckGroups(const Optimizer& optimizer, const Graph& graph);

struct GroupSettings {
  double rate_scale = 1;    // multiplies the learning rate
  double weight_decay = 0;  // of its own, or the optimizer's
  bool trust_ratio = true;  // lamb only
};
GroupSettings SettingsOf(const Optimizer& optimizer, GroupIndex group);

}  // namespace starling

#endif  // STARLING_COMMON_PLACEMENT_PARAMETER_GROUPS_H_
