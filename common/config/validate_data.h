// ValidateSpec's checks of the data. Internal to common/config.
#ifndef STARLING_COMMON_CONFIG_VALIDATE_DATA_H_
#define STARLING_COMMON_CONFIG_VALIDATE_DATA_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace starling::config {

// kInvalidArgument: a source, augmentation or loading that no file can satisfy.
absl::Status CheckData(const JobSpec& spec);

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_VALIDATE_DATA_H_
