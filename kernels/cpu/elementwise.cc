// Addition; and dropout, which keeps its input's format: padding elements are zero and stay zero.
#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/onednn.h"
#include "kernels/random.h"

// Each float is computed independently: every clone gives the same bits. `ivdep`: buffers are
// identical (in place) or disjoint, never shifted.
namespace starling {

STARLING_VECTOR_CLONES void AddFloats(float* to, const float* from, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

namespace {

STARLING_VECTOR_CLONES void DropoutLoop(const uint8_t* keep, float scale, const float* from,
                                        float* to, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const uint32_t kept = 0u - keep[i];  // all bits set or none
    to[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(from[i] * scale) & kept);
  }
}

// `saved` holds a byte per element, 1 if it is kept, in the order of the input's format; the random
// numbers come channels last.
class Dropout : public CpuKernel {
 public:
  Dropout(const OperatorSpec& spec, const OperatorGeometry& geometry)
      : CpuKernel(spec, geometry), scale_(static_cast<float>(1 / (1 - geometry.rate))) {
    KeepInputFormat();
    forward_in_place_ok_ = backward_in_place_ok_ = true;
    if (!spec_.training) return;
    saved_bytes_ = output_bytes_ / sizeof(float);
    in_order_ = spec_.input_shapes[0].size() != 4 || input_format_.id == kChannelsLast;
    if (!in_order_) workspace_bytes_ = ElementCount(spec_.input_shapes[0]);
  }

 protected:
  void Run(const ForwardArgs& args, const CpuStream&) override {
    if (!spec_.training) {
      if (args.output != args.inputs[0]) std::memcpy(args.output, args.inputs[0], output_bytes_);
      return;
    }
    uint8_t* keep = static_cast<uint8_t*>(args.saved);
    uint8_t* drawn = in_order_ ? keep : static_cast<uint8_t*>(args.workspace);
    RandomKey key = args.random;
    if (args.values != nullptr) {
      key.step = args.values->step;
      key.micro_batch = args.values->micro_batch;
    }
    DropoutMask(key, geometry_.rate, ElementCount(spec_.input_shapes[0]), drawn);
    if (!in_order_) Permute(drawn, keep);
    Apply(keep, static_cast<const float*>(args.inputs[0]), static_cast<float*>(args.output));
  }
  void RunBackward(const BackwardArgs& args, const CpuStream&) override {
    if (args.grad_inputs[0] == nullptr) return;
    Apply(static_cast<const uint8_t*>(args.saved), static_cast<const float*>(args.grad_output),
          static_cast<float*>(args.grad_inputs[0]));
  }

 private:
  void Apply(const uint8_t* keep, const float* from, float* to) const {
    DropoutLoop(keep, scale_, from, to, output_bytes_ / sizeof(float));
  }

  // From [N, H*W, C] into [N, C/block, H*W, block]; entries past C are 0. Plain is block 1.
  void Permute(const uint8_t* drawn, uint8_t* keep) const {
    const Shape& shape = spec_.input_shapes[0];
    const int64_t channels = shape[1], plane = shape[2] * shape[3];
    const int64_t block = BlockOf(input_format_);
    for (int64_t n = 0; n < shape[0]; ++n, drawn += channels * plane) {
      for (int64_t c = 0; c < channels; c += block) {
        const int64_t width = std::min(block, channels - c);
        if (width == 16) {  // a constant length, so one load and one store
          for (int64_t i = 0; i < plane; ++i)
            std::memcpy(keep + i * 16, drawn + i * channels + c, 16);
        } else {
          std::memset(keep, 0, plane * block);
          for (int64_t i = 0; i < plane; ++i) {
            for (int64_t k = 0; k < width; ++k) keep[i * block + k] = drawn[i * channels + c + k];
          }
        }
        keep += plane * block;
      }
    }
  }

  const float scale_;
  bool in_order_ = true;  // the format has the order of the random numbers
};

}  // namespace

const MakeCpuKernel kMakeDropout = MakeKernel<Dropout>;

}  // namespace starling
