#include "server/shard/apply/measure.h"

#include <cmath>

#include "server/shard/apply/update_kernels.h"
#include "server/shard/apply/verify.h"

namespace starling {
namespace {

constexpr size_t kRunElements = 8 << 10;

}  // namespace

PayloadMeasure MeasurePayload(Payload payload, InstructionSet set) {
  const UpdateKernels& kernels = UpdateKernelsFor(set);
  NormLanes lanes{};
  ForEachRun(payload, kRunElements, [&](const UnalignedFloat* values, size_t first, size_t count) {
    kernels.add_squares(values, count, first, lanes);
  });
  PayloadMeasure measure;
  measure.norm2 = Total(lanes);
  if (!std::isfinite(measure.norm2))
    measure.first_non_finite = VerifyPayload(payload, set).first_non_finite;
  return measure;
}

}  // namespace starling
