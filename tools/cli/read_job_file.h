// Reads a job file, and the files that it describes to the coordinator, from disk.
#ifndef STARLING_TOOLS_CLI_READ_JOB_FILE_H_
#define STARLING_TOOLS_CLI_READ_JOB_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/daemon/settings.h"
#include "proto/job.pb.h"

namespace starling::cli {

// Relative paths in it are relative to its folder; `overrides`: see config::JobFileOptions. Does
// not resolve the model. kInvalidArgument names the file and what is wrong with it.
absl::StatusOr<JobSpec> ReadJobFile(const std::string& file,
                                    const std::vector<std::string>& overrides,
                                    const Environment& environment);

// If spec.model_source.init names a safetensors file, reads all of it and records its tensors:
// names, types, shapes, places and digests. The coordinator, which knows the model, checks that
// they match it. Blocks while reading. kInvalidArgument names the file and what is wrong with it.
absl::Status ReadInitFile(JobSpec* spec);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_READ_JOB_FILE_H_
