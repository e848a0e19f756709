// A reference of every operator, in double and in plain loops, by which the fast ones are judged.
#ifndef STARLING_KERNELS_REFERENCE_REFERENCE_H_
#define STARLING_KERNELS_REFERENCE_REFERENCE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/operator.h"

namespace starling {

using Doubles = std::vector<double>;

// Row-major values; labels and indices are whole numbers.
struct ReferenceArgs {
  std::vector<Doubles> inputs;
  std::vector<Doubles> parameters;
  RandomKey random;
  int64_t global_batch = 1;
};

struct ReferenceGradients {
  std::vector<Doubles> inputs;  // empty for labels and indices
  std::vector<Doubles> parameters;
};

// Pure functions. Errors: ResolveGeometry's.
absl::StatusOr<Doubles> ReferenceForward(const OperatorSpec& spec, const ReferenceArgs& args);

// grad_output is ignored for losses. Recomputes what it needs of the forward pass.
absl::StatusOr<ReferenceGradients> ReferenceBackward(const OperatorSpec& spec,
                                                     const ReferenceArgs& args,
                                                     const Doubles& grad_output);

}  // namespace starling

#endif  // STARLING_KERNELS_REFERENCE_REFERENCE_H_
