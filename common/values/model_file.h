// A job's values as a self-describing safetensors file, with the model and the preprocessing of its
// inputs: written by `starling export` and spec.output. The same values give the same bytes.
#ifndef STARLING_COMMON_VALUES_MODEL_FILE_H_
#define STARLING_COMMON_VALUES_MODEL_FILE_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/placement/layout.h"
#include "common/safetensors/safetensors.h"
#include "common/values/slice_reader.h"
#include "proto/coordinator.pb.h"
#include "proto/job.pb.h"

namespace starling {

// Keys of the metadata: protobuf JSON of a Graph, and of PreprocessingOf.
inline constexpr char kModelKey[] = "model";
inline constexpr char kPreprocessingKey[] = "preprocessing";

// The parts of `spec` (model resolved) that define how inputs are preprocessed.
JobSpec PreprocessingOf(const JobSpec& spec);

std::map<std::string, std::string> ModelMetadata(const JobReply& job, const ReadPoint& point);

// In the order of the flat buffer, so that slices can be written as they arrive.
std::vector<safetensors::TensorInfo> ModelTensors(const Graph& model, const Layout& layout);

}  // namespace starling

#endif  // STARLING_COMMON_VALUES_MODEL_FILE_H_
