// Applies `model.freeze` and `model.init` to a graph. Internal to resolve_model.
#ifndef STARLING_SERVER_COORDINATOR_CORE_RESOLVE_MODEL_VALUES_H_
#define STARLING_SERVER_COORDINATOR_CORE_RESOLVE_MODEL_VALUES_H_

#include "absl/status/status.h"
#include "proto/model.pb.h"

namespace starling::coordinator {

// Makes the parameters that match a glob of `source.freeze` FROZEN. kInvalidArgument names a glob
// that matches none, and some of the existing names.
absl::Status FreezeParameters(const ModelSource& source, Graph* graph);

// Makes all parameters start from the tensors of `file`, which must be the model's: the same names,
// shapes and float32. PyTorch's counters "*.num_batches_tracked" are ignored. kInvalidArgument
// lists every mismatch.
absl::Status InitFromFile(const InitFile& file, Graph* graph);

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_RESOLVE_MODEL_VALUES_H_
