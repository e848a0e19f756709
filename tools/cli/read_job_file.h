// Reads a job file from disk.
#ifndef STARLING_TOOLS_CLI_READ_JOB_FILE_H_
#define STARLING_TOOLS_CLI_READ_JOB_FILE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "proto/job.pb.h"

namespace starling::cli {

using Environment = std::function<absl::optional<std::string>(const std::string& name)>;

// Relative paths in it are relative to its folder; `overrides`: see config::JobFileOptions. Does
// not resolve the model. kInvalidArgument names the file and what is wrong with it.
absl::StatusOr<JobSpec> ReadJobFile(const std::string& file,
                                    const std::vector<std::string>& overrides,
                                    const Environment& environment);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_READ_JOB_FILE_H_
