// The model that `predict` and `generate` use: from a file, or from a job's shards.
#ifndef STARLING_TOOLS_CLI_USE_MODEL_H_
#define STARLING_TOOLS_CLI_USE_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/cli/command_line.h"
#include "tools/cli/context.h"
#include "worker/inference/saved_model.h"

namespace starling::cli {

// A file of tensors or a job, and what computes with it.
struct ModelChoice {
  std::string model;
  std::string job_file;  // -f: describes the model of a file without such a description
  int threads = 0;       // 0: one per core
};
// Adds the argument MODEL, -f and --threads, which fill `choice`.
void AddModelChoice(CLI::App* verb, ModelChoice* choice);

// Loads `choice.model`: a file of `starling export`; any safetensors file, with the job file that
// describes its model; or a job that has parameters, as `starling export` would read them.
//
// A job file does not give the number of classes, nor, for some formats, a sample's shape.
// `sample_shape` is that of the user's input; the number of classes is the one for which the
// model's tensors match the file's.
absl::StatusOr<SavedModel> UseModel(const ModelChoice& choice,
                                    const std::vector<int64_t>& sample_shape,
                                    const CommandLine& line, Context& context);

// The number of compute threads: as requested, or one per core.
int ComputeThreads(int asked);

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_USE_MODEL_H_
