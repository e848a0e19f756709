// The client's description of a job's file of initial values (model.init).
#ifndef STARLING_TOOLS_CLI_INIT_FILE_H_
#define STARLING_TOOLS_CLI_INIT_FILE_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace starling::cli {

// If spec.model_source.init names a safetensors file, reads all of it and records its tensors:
// names, types, shapes, places and digests. The coordinator, which knows the model, checks that
// they match it. Blocks while reading. kInvalidArgument names the file and what is wrong with it.
absl::Status ReadInitFile(JobSpec* spec);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_INIT_FILE_H_
