// The model that `predict` and `generate` use: from a file, or from a job's shards.
#ifndef STARLING_TOOLS_CLI_USE_MODEL_H_
#define STARLING_TOOLS_CLI_USE_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/cli/context.h"
#include "tools/cli/verbs.h"
#include "worker/inference/saved_model.h"

namespace starling::cli {

// Whether it names a file and not a job, whose names have neither dots nor slashes.
bool IsFile(const std::string& model);

// Loads `choice.model`: a file of `starling export`; any safetensors file, with the job file that
// describes its model; or a job that has parameters, as `starling export` would read them.
//
// A job file does not say how many classes there are, nor, for some formats, a sample's shape:
// `sample_shape` is that of the user's input, and the classes are those with which the model's
// tensors are the file's.
absl::StatusOr<SavedModel> UseModel(const ModelChoice& choice,
                                    const std::vector<int64_t>& sample_shape,
                                    const Connector& connect, Context& context);

// The threads to compute with: as many as asked for, or one per core.
int ComputeThreads(int asked);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_USE_MODEL_H_
