// Stands in for kernels/cuda/cudnn.cc: convolutions as their definition says, sums in float. It refuses
// attention, as cuDNN does some, so that attention is computed from products.
#include "kernels/cuda/cudnn.h"

#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cuda/alignment.h"
#include "kernels/cuda/emulation/device_math.cuh"
#include "kernels/cuda/status.h"

namespace starling::cuda {
namespace {

using Sizes = std::array<int64_t, 4>;

// A tensor in float, and how to find an element.
struct Tensor {
  std::vector<float> values;
  Sizes strides;
  float& at(int64_t a, int64_t b, int64_t c, int64_t d) {
    return values[a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3]];
  }
};

class Convolution : public ConvolutionPlan {
 public:
  explicit Convolution(const ConvolutionKey& key) : key_(key) {}

  size_t workspace_bytes() const override { return ScratchBytes(kScratch); }
  absl::Status Run(void* x, void* w, void* y, void* workspace, CudaStream& stream) const override {
    for (const void* value : {x, w, y}) {
      if (!Aligned16(value)) return absl::InternalError("a value is not aligned to 16 bytes");
    }
    STARLING_RETURN_IF_CUDA_ERROR(stream.get()->Order([this, x, w, y, workspace] {
      std::memset(AlignedScratch(workspace), 0xff, kScratch);
      static_cast<void>(WithType(key_.element, [&](auto zero) {
        Compute<decltype(zero)>(x, w, y);
        return cudaSuccess;
      }));
    }));
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kScratch = 1000;

  template <typename T>
  Tensor Load(const void* from, const Sizes& size, bool reads) const {
    Tensor tensor;
    tensor.values.resize(size[0] * size[1] * size[2] * size[3]);
    tensor.strides = StridesOf(size, key_.channels_last);
    for (size_t i = 0; reads && i < tensor.values.size(); ++i) {
      tensor.values[i] = ToFloat(static_cast<const T*>(from)[i]);
    }
    return tensor;
  }
  template <typename T>
  static void Store(const Tensor& tensor, void* to) {
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      static_cast<T*>(to)[i] = FromFloat<T>(tensor.values[i]);
    }
  }

  template <typename T>
  void Compute(void* x, void* w, void* y) const {
    Tensor in = Load<T>(x, key_.input, key_.pass != Pass::kInputGradient);
    Tensor weight = Load<T>(w, key_.weight, key_.pass != Pass::kWeightGradient);
    Tensor out = Load<T>(y, key_.output, key_.pass != Pass::kForward);
    const int64_t channels = key_.weight[1];  // of a group
    const int64_t filters = key_.output[1] / (key_.input[1] / channels);
    for (int64_t n = 0; n < key_.output[0]; ++n) {
      for (int64_t o = 0; o < key_.output[1]; ++o) {
        for (int64_t i = 0; i < key_.output[2] * key_.output[3]; ++i) {
          float& result = out.at(n, o, i / key_.output[3], i % key_.output[3]);
          for (int64_t k = 0; k < key_.weight[2] * key_.weight[3]; ++k) {
            const int64_t ky = k / key_.weight[3], kx = k % key_.weight[3];
            const int64_t iy = i / key_.output[3] * key_.stride[0] - key_.padding[0] +
                               ky * key_.dilation[0];
            const int64_t ix = i % key_.output[3] * key_.stride[1] - key_.padding[1] +
                               kx * key_.dilation[1];
            if (iy < 0 || iy >= key_.input[2] || ix < 0 || ix >= key_.input[3]) continue;
            for (int64_t c = 0; c < channels; ++c) {
              float& from = in.at(n, o / filters * channels + c, iy, ix);
              float& factor = weight.at(o, c, ky, kx);
              if (key_.pass == Pass::kForward) result += from * factor;
              if (key_.pass == Pass::kInputGradient) from += result * factor;
              if (key_.pass == Pass::kWeightGradient) factor += result * from;
            }
          }
        }
      }
    }
    if (key_.pass == Pass::kForward) Store<T>(out, y);
    if (key_.pass == Pass::kInputGradient) Store<T>(in, x);
    if (key_.pass == Pass::kWeightGradient) Store<T>(weight, w);
  }

  const ConvolutionKey key_;
};

class EmulatedCudnn : public Cudnn {
 public:
  absl::StatusOr<std::shared_ptr<const ConvolutionPlan>> Plan(const ConvolutionKey& key) override {
    // Or what is computed without it would not run here.
    if (key.weight[1] != key.input[1]) {
      return absl::UnimplementedError("the emulated cuDNN has no plan for groups");
    }
    return std::make_shared<Convolution>(key);
  }
  absl::StatusOr<std::shared_ptr<const AttentionPlan>> Plan(const AttentionKey&) override {
    return absl::UnimplementedError("no attention in the emulation");
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Cudnn>> Cudnn::Load(const std::string&) {
  return std::make_unique<EmulatedCudnn>();
}

}  // namespace starling::cuda
