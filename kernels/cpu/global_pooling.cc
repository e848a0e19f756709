// Global average pooling: from any format of planes to plain rows.
#include <algorithm>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/onednn.h"

namespace starling {
namespace {

// to[l] = the mean of from[p * stride + l] over `points`.
STARLING_VECTOR_CLONES void MeanOfLanes(const float* from, int64_t points, int64_t lanes,
                                        float* to) {
  for (int64_t l = 0; l < lanes; ++l) to[l] = 0;
  for (int64_t p = 0; p < points; ++p, from += lanes) {
    for (int64_t l = 0; l < lanes; ++l) to[l] += from[l];
  }
  const float share = 1.0f / static_cast<float>(points);
  for (int64_t l = 0; l < lanes; ++l) to[l] *= share;
}

class GlobalAvgPool : public CpuKernel {
 public:
  GlobalAvgPool(const OperatorSpec& spec, const OperatorGeometry& geometry)
      : CpuKernel(spec, geometry),
        channels_(geometry.outputs),
        points_(geometry.spatial),
        lanes_(input_format_.id == kChannelsLast ? geometry.outputs : BlockOf(input_format_)) {}

 protected:
  void Run(const ForwardArgs& args, const CpuStream&) override {
    const float* const x = static_cast<const float*>(args.inputs[0]);
    float* const y = static_cast<float*>(args.output);
    ForEachBlock([&](int64_t at, int64_t to, int64_t width) {
      if (lanes_ == 1) {
        y[to] = SumOf(x + at, points_) / static_cast<float>(points_);
      } else if (width == lanes_) {
        MeanOfLanes(x + at, points_, lanes_, y + to);
      } else {
        float means[16];  // the last block of a blocked format
        MeanOfLanes(x + at, points_, lanes_, means);
        std::copy_n(means, width, y + to);
      }
    });
  }

  void RunBackward(const BackwardArgs& args, const CpuStream&) override {
    float* const dx = static_cast<float*>(args.grad_inputs[0]);
    if (dx == nullptr) return;
    const float* const dy = static_cast<const float*>(args.grad_output);
    const float share = 1.0f / static_cast<float>(points_);
    ForEachBlock([&](int64_t at, int64_t from, int64_t width) {
      float* to = dx + at;
      for (int64_t l = 0; l < width; ++l) to[l] = dy[from + l] * share;
      std::fill(to + width, to + lanes_, 0.0f);
      if (lanes_ == 1) {
        std::fill_n(to, points_, to[0]);
        return;
      }
      for (int64_t p = 1; p < points_; ++p) std::copy_n(to, lanes_, to + p * lanes_);
    });
  }

 private:
  // Calls fn(the block's offset in the planes, its first channel's offset in the rows, its
  // channels).
  template <typename Fn>
  void ForEachBlock(Fn fn) const {
    const int64_t blocks = (channels_ + lanes_ - 1) / lanes_;
    const int64_t all = geometry_.batch * blocks;
    ParallelRanges(
        spec_.kernel_threads, all, all * points_ * lanes_, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t c = i % blocks * lanes_;
            fn(i * points_ * lanes_, i / blocks * channels_ + c, std::min(lanes_, channels_ - c));
          }
        });
  }

  const int64_t channels_, points_, lanes_;
};

}  // namespace

const MakeCpuKernel kMakeGlobalAvgPool = MakeKernel<GlobalAvgPool>;

}  // namespace starling
