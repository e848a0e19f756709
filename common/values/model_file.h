// A job's values as a safetensors file that says itself which model they are of, and how inputs
// become the model's: what `starling export` and spec.output write. The same values give the same
// bytes.
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

// What `spec`, with its model resolved, says of how inputs become the model's.
JobSpec PreprocessingOf(const JobSpec& spec);

std::map<std::string, std::string> ModelMetadata(const JobReply& job, const ReadPoint& point);

// In the order of the flat buffer, so that slices can be written as they come.
std::vector<safetensors::TensorInfo> ModelTensors(const Graph& model, const Layout& layout);

}  // namespace starling

#endif  // STARLING_COMMON_VALUES_MODEL_FILE_H_
