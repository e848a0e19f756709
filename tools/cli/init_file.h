// What a client says of the file that a job starts from (model.init).
#ifndef STARLING_TOOLS_CLI_INIT_FILE_H_
#define STARLING_TOOLS_CLI_INIT_FILE_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace starling::cli {

// Reads all of the safetensors file that spec.model_source.init names, if it names one, and notes
// its tensors: names, types, shapes, places and digests. Whether they are the model's, the
// coordinator says, which knows the model. Blocks as long as reading takes. kInvalidArgument names
// the file and what is wrong with it.
absl::Status ReadInitFile(JobSpec* spec);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_INIT_FILE_H_
