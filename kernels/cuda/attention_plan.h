// What is asked of cuDNN for attention, and what plans are kept by. Pure functions.
#ifndef STARLING_KERNELS_CUDA_ATTENTION_PLAN_H_
#define STARLING_KERNELS_CUDA_ATTENTION_PLAN_H_

#include <array>
#include <compare>
#include <cstdint>

#include "kernels/cuda/element.h"
#include "kernels/geometry.h"

namespace starling::cuda {

// Two attentions with equal keys use one plan.
struct AttentionKey {
  bool backward = false;
  Element element = Element::kBfloat16;
  bool statistics = false;  // forward: each row's log-sum-exp is written, too; backward reads it
  bool causal = false;
  bool packed = false;  // a position's query, key and value lie side by side
  int64_t samples = 0, heads = 0, positions = 0, width = 0;  // width: of one head
  friend auto operator<=>(const AttentionKey&, const AttentionKey&) = default;
};

// Of `samples` of the micro-batch's samples.
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

// cuDNN's order of axes: [N, heads, T, width].
inline std::array<int64_t, 4> ValueSize(const AttentionKey& key) {
  return {key.samples, key.heads, key.positions, key.width};
}
// In memory: [N, T, heads, width], of one of `parts` that a position holds side by side.
inline std::array<int64_t, 4> ValueStrides(const AttentionKey& key, int64_t parts) {
  const int64_t row = parts * key.heads * key.width;
  return {key.positions * row, key.width, row, 1};
}
// Of query, key, value and of their gradients; of the output and of its gradient.
inline std::array<int64_t, 4> InputStrides(const AttentionKey& key) {
  return ValueStrides(key, key.packed ? 3 : 1);
}
inline std::array<int64_t, 4> OutputStrides(const AttentionKey& key) {
  return ValueStrides(key, 1);
}

// Statistics: one float for each row of scores, [N, heads, T, 1] without gaps.
inline std::array<int64_t, 4> StatisticsSize(const AttentionKey& key) {
  return {key.samples, key.heads, key.positions, 1};
}
inline std::array<int64_t, 4> StatisticsStrides(const AttentionKey& key) {
  return {key.heads * key.positions, key.positions, 1, 1};
}

// Whether what the front end puts first into backward's workspace, a float for each row of scores,
// leaves the rest of it at a multiple of 16 bytes, which cuDNN's kernels may rely on.
inline bool ScratchIsAligned(const AttentionKey& key) {
  return key.samples * key.heads * key.positions % 4 == 0;
}

// The oldest cuDNN whose attention, forward and backward, works on what a call hands over and
// nothing else: before 9.6 the front end clears sums in each call, and up to 9.15, where positions
// are no multiple of 128, it copies their number there; for both it looks for a libcudart that we
// do not load.
inline size_t OldestCudnn(const AttentionKey& key) {
  return key.positions % 128 == 0 ? 90600 : 91600;
}

// What backward in one order of additions keeps of a sample's scores in its workspace: T x T
// numbers of two bytes for each head, in whole tiles of 64 x 128.
inline int64_t ScoreBytes(const OperatorGeometry& g) {
  const int64_t rows = (g.rows + 63) / 64 * 64, columns = (g.rows + 127) / 128 * 128;
  return g.heads * rows * columns * 2;
}

// The largest divisor of the micro-batch whose samples' scores take no more than `bytes_max`; at
// least 1: so many samples are one call of cuDNN.
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
