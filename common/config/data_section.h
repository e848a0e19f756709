// The job file's `data` section. Internal to common/config.
#ifndef STARLING_COMMON_CONFIG_DATA_SECTION_H_
#define STARLING_COMMON_CONFIG_DATA_SECTION_H_

#include "absl/status/status.h"
#include "common/config/schema.h"
#include "common/config/section.h"
#include "proto/job.pb.h"

namespace starling::config {

// The section's part of the schema.
Field DataField();

inline constexpr uint32_t kImageSideMax = 8192;

// Reads what the table leaves: webdataset.size and loading.readAheadMiB. Refuses values that stand
// for a default in a spec alone.
void ReadData(const Section& data, JobSpec* out);

// How the keys of a job's data go together. kInvalidArgument begins with the key.
absl::Status CheckData(const JobSpec& spec);

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_DATA_SECTION_H_
