// The loops of an update, compiled for each instruction set. Only for update.cc.
#ifndef STARLING_SERVER_SHARD_APPLY_UPDATE_KERNELS_H_
#define STARLING_SERVER_SHARD_APPLY_UPDATE_KERNELS_H_

#include <array>
#include <cstddef>

#include "server/shard/apply/update_math.h"

namespace starling {

// Contiguous elements of one block.
struct UpdateRun {
  const UnalignedFloat* gradient;
  const float* in;
  float* out;
  float* slot0;
  float* slot1;
  size_t count;
};

// Sums of squares: element k of a block goes to lane k % 16, each lane in ascending order.
inline constexpr size_t kNormLanes = 16;
using NormLanes = std::array<double, kNormLanes>;

// The sum of the lanes, in a fixed order.
double Total(const NormLanes& lanes);

struct BlockNorms {
  NormLanes value{};      // |w|^2
  NormLanes direction{};  // |r|^2 of lamb
};

struct UpdateKernels {
  void (*update[UpdateRule::kStatistic + 1])(const UpdateConstants&, const UpdateRun&);  // by kind
  void (*add)(const UnalignedFloat* from, float* into, size_t count);
  // `begin`: the first element's index in its block.
  void (*add_squares)(const UnalignedFloat* from, size_t count, size_t begin, NormLanes& lanes);
  // Over a whole block, with the moments after the update.
  void (*lamb_norms)(const UpdateConstants&, const float* w, const float* m, const float* v,
                     size_t count, BlockNorms& norms);
  void (*lamb_step)(const UpdateConstants&, float rate, float* w, const float* m, const float* v,
                    size_t count);
};

const UpdateKernels& UpdateKernelsFor(InstructionSet set);

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_APPLY_UPDATE_KERNELS_H_
