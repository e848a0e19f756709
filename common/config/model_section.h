// The `model` section of a job file. Internal to common/config.
#ifndef STARLING_COMMON_CONFIG_MODEL_SECTION_H_
#define STARLING_COMMON_CONFIG_MODEL_SECTION_H_

#include "common/config/job_file.h"
#include "common/config/section.h"
#include "proto/model.pb.h"

namespace starling::config {

// Errors go into the section's status. Layer names and attributes are checked when the graph is
// built, against common/graph's operators.
void ReadModel(const Section& model, const JobFileOptions& options, ModelSource* out);

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_MODEL_SECTION_H_
