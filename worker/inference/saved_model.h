// A trained model, ready for use: its graph, its values, and how its inputs were preprocessed.
//
// Independent of the cluster: files and memory only.
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
  std::vector<float> values;  // the flat buffer: layout.elements, in the order of layout; or empty
  JobSpec preprocessing;      // train, test, normalize and sample_shape; the rest is unset
};

// The graph of spec.model without values, because it may be larger than the file or than memory.
// kInvalidArgument: it is not a valid graph.
absl::StatusOr<SavedModel> MakeModel(const JobSpec& spec);

// A file from `starling export`. kInvalidArgument: it names no model, or one that this version
// cannot read; or as ReadValues.
absl::StatusOr<SavedModel> LoadModel(const safetensors::Reader& file);

// Why the file's tensors cannot be the parameters of the graph: each one that is missing, of
// another type or shape, or unknown to the graph (except PyTorch's num_batches_tracked).
std::vector<std::string> Mismatches(const safetensors::Reader& file, const ResolvedGraph& graph);

// Fills model->values from the tensors of the same names. kInvalidArgument: there are mismatches;
// the message lists the first ten. kResourceExhausted: no memory.
absl::Status ReadValues(const safetensors::Reader& file, SavedModel* model);

}  // namespace starling

#endif  // STARLING_WORKER_INFERENCE_SAVED_MODEL_H_
