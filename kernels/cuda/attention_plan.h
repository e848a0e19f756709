// What is requested from cuDNN for attention, and the keys under which plans are cached. Pure
// functions.
#ifndef STARLING_KERNELS_CUDA_ATTENTION_PLAN_H_
#define STARLING_KERNELS_CUDA_ATTENTION_PLAN_H_

#include <array>
#include <compare>
#include <cstdint>

#include "kernels/cuda/element.h"
#include "kernels/geometry.h"

namespace starling::cuda {

// Attentions with equal keys share a plan.
struct AttentionKey {
  bool backward = false;
  Element element = Element::kBfloat16;
  bool statistics = false;  // forward: also writes each row's log-sum-exp, which backward reads
  bool causal = false;
  bool packed = false;  // a position's query, key and value lie side by side
  int64_t samples = 0, heads = 0, positions = 0, width = 0;  // width: of one head
  friend auto operator<=>(const AttentionKey&, const AttentionKey&) = default;
};

// The key of `samples` of the micro-batch's samples.
inline AttentionKey KeyOf(const OperatorGeometry& g, int64_t samples, Element element,
                          bool training, bool backward) {
  return {.backward = backward,
          .element = element,
          .statistics = training,
          .causal = g.causal,
          .packed = g.packed,
          .samples = samples,
          .heads = g.heads,
          .positions = g.rows,
          .width = g.inputs / g.heads};
}

// In cuDNN's order of axes: [N, heads, T, width].
inline std::array<int64_t, 4> ValueSize(const AttentionKey& key) {
  return {key.samples, key.heads, key.positions, key.width};
}
// Memory order is [N, T, heads, width]; a position holds `parts` of these side by side.
inline std::array<int64_t, 4> ValueStrides(const AttentionKey& key, int64_t parts) {
  const int64_t row = parts * key.heads * key.width;
  return {key.positions * row, key.width, row, 1};
}
// Query, key, value and their gradients; then the output and its gradient.
inline std::array<int64_t, 4> InputStrides(const AttentionKey& key) {
  return ValueStrides(key, key.packed ? 3 : 1);
}
inline std::array<int64_t, 4> OutputStrides(const AttentionKey& key) {
  return ValueStrides(key, 1);
}

// Statistics: one float per row of scores, [N, heads, T, 1] without gaps.
inline std::array<int64_t, 4> StatisticsSize(const AttentionKey& key) {
  return {key.samples, key.heads, key.positions, 1};
}
inline std::array<int64_t, 4> StatisticsStrides(const AttentionKey& key) {
  return {key.heads * key.positions, key.positions, 1, 1};
}

// Backward's workspace starts with a float per row of scores, put there by the front end. Whether
// the rest of it then starts at a multiple of 16 bytes, on which cuDNN's kernels may rely.
inline bool ScratchIsAligned(const AttentionKey& key) {
  return key.samples * key.heads * key.positions % 4 == 0;
}

// The oldest cuDNN whose attention, forward and backward, needs only what the call passes. Before
// 9.6 the front end clears sums in each call; up to 9.15, if positions are not a multiple of 128,
// it copies their number to the GPU. For both it looks for a libcudart, which we do not load.
inline size_t OldestCudnn(const AttentionKey& key) {
  return key.positions % 128 == 0 ? 90600 : 91600;
}

// What deterministic backward keeps of a sample's scores in its workspace: T x T two-byte numbers
// per head, in whole tiles of 64 x 128.
inline int64_t ScoreBytes(const OperatorGeometry& g) {
  const int64_t rows = (g.rows + 63) / 64 * 64, columns = (g.rows + 127) / 128 * 128;
  return g.heads * rows * columns * 2;
}

// How many samples one call of cuDNN processes: the largest divisor of the micro-batch whose
// samples' scores fit `bytes_max`; at least 1.
inline int64_t SamplesAtOnce(const OperatorGeometry& g, int64_t bytes_max) {
  for (int64_t calls = 1; calls < g.batch; ++calls) {
    if (g.batch % calls == 0 && g.batch / calls * ScoreBytes(g) <= bytes_max) {
      return g.batch / calls;
    }
  }
  return 1;
}

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_ATTENTION_PLAN_H_
