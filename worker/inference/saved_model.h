// A trained model, ready to be used: its graph, its values, and how its inputs were preprocessed.
//
// Kept apart from the cluster: files and memory only.
#ifndef STARLING_WORKER_INFERENCE_SAVED_MODEL_H_
#define STARLING_WORKER_INFERENCE_SAVED_MODEL_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/graph/graph.h"
#include "common/placement/layout.h"
#include "common/safetensors/safetensors.h"
#include "common/values/model_file.h"
#include "proto/job.pb.h"

namespace starling {

struct SavedModel {
  Graph graph;
  ResolvedGraph resolved;
  Layout layout;
  std::vector<float>
      values;             // the flat buffer: layout.elements, in the order of layout; or none yet
  JobSpec preprocessing;  // train, test, normalize and sample_shape; the rest is unset
};

// The graph of spec.model, without values: it may be larger than the file at hand, or than memory.
// kInvalidArgument: it is no valid graph.
absl::StatusOr<SavedModel> MakeModel(const JobSpec& spec);

// Whether the file says itself which model it is.
bool HasModel(const safetensors::Reader& file);

// A file of `starling export`. kInvalidArgument: it names no model, or one that this version cannot
// read; or as ReadValues.
absl::StatusOr<SavedModel> LoadModel(const safetensors::Reader& file);

// What keeps the file's tensors from being the parameters of the graph: every one that is missing,
// of another type or shape, or unknown to the graph (but for PyTorch's num_batches_tracked).
std::vector<std::string> Mismatches(const safetensors::Reader& file, const ResolvedGraph& graph);

// Makes model->values from the tensors of the same names. kInvalidArgument: there are mismatches;
// it says the first ten. kResourceExhausted: no memory.
absl::Status ReadValues(const safetensors::Reader& file, SavedModel* model);

}  // namespace starling

#endif  // STARLING_WORKER_INFERENCE_SAVED_MODEL_H_
