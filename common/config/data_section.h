// The job file's `data` section. Internal to common/config.
#ifndef STARLING_COMMON_CONFIG_DATA_SECTION_H_
#define STARLING_COMMON_CONFIG_DATA_SECTION_H_

#include "common/config/job_file.h"
#include "common/config/schema.h"
#include "common/config/section.h"
#include "proto/job.pb.h"

namespace starling::config {

// The section's part of the schema.
Field DataField();

// Reads the section into `out`: sources, normalize, augment, shape, loading.
void ReadData(const Section& data, const JobFileOptions& options, JobSpec* out);

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_DATA_SECTION_H_
