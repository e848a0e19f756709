// Between job files and JobSpecs, by the schema's table. Internal to common/config.
#ifndef STARLING_COMMON_CONFIG_JOB_FIELDS_H_
#define STARLING_COMMON_CONFIG_JOB_FIELDS_H_

#include "absl/status/status.h"
#include "common/config/job_file.h"
#include "common/config/schema.h"
#include "common/config/section.h"
#include "proto/job.pb.h"

namespace starling::config {

// Sets the field of each key that `root` has, and the default of each other key whose field has no
// presence. Errors (a value out of range, an unknown word) go into the section's status. Keys that
// are read by hand are only checked.
void ReadFields(const Section& root, const JobFileOptions& options, JobSpec* out);

// Whether a spec from any source has values that a job file may have, or 0 where that stands for a
// key that is not given. kInvalidArgument names the key.
absl::Status CheckFields(const JobSpec& spec);

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_JOB_FIELDS_H_
