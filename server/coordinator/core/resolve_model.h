// Builds a validated graph from the model in a job file and a worker's inspection of the data.
#ifndef STARLING_SERVER_COORDINATOR_CORE_RESOLVE_MODEL_H_
#define STARLING_SERVER_COORDINATOR_CORE_RESOLVE_MODEL_H_

#include "absl/status/status.h"
#include "proto/coordinator.pb.h"
#include "proto/job.pb.h"

namespace starling::coordinator {

// Sets spec.model from spec.model_source. A spec with a graph and no source keeps its graph.
// kInvalidArgument says what does not fit: layers, the sample's shape, the number of classes, names
// to freeze, tensors to start from, blocks to recompute.
absl::Status ResolveModel(const Inspection& inspection, JobSpec& spec);

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_RESOLVE_MODEL_H_
