// The squared norm of a gradient and its finite check.
#ifndef STARLING_SERVER_SHARD_APPLY_MEASURE_H_
#define STARLING_SERVER_SHARD_APPLY_MEASURE_H_

#include <cstdint>

#include "server/shard/apply/instruction_set.h"
#include "server/shard/apply/payload.h"

namespace starling {

struct PayloadMeasure {
  double norm2 = 0;               // the sum of the squares
  int64_t first_non_finite = -1;  // first element that is NaN or infinite; -1: none
};

// Thread-safe. Squares are summed in double and in fixed lanes, so the bits do not depend on the
// instruction set or on how the payload is cut. The squares of finite elements cannot overflow.
PayloadMeasure MeasurePayload(Payload payload, InstructionSet set = BestInstructionSet());

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_APPLY_MEASURE_H_
