// The job file's `optimizer`, beyond the table. Internal to common/config.
#ifndef STARLING_COMMON_CONFIG_OPTIMIZER_SECTION_H_
#define STARLING_COMMON_CONFIG_OPTIMIZER_SECTION_H_

#include "absl/status/status.h"
#include "common/config/section.h"
#include "proto/job.pb.h"

namespace starling::config {

// Reads what the table leaves: groups' trustRatio.
void ReadOptimizer(const Section& optimizer, Optimizer* out);

// Checks how its keys go together; kInvalidArgument names the key.
absl::Status CheckOptimizer(const Optimizer& optimizer);

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_OPTIMIZER_SECTION_H_
