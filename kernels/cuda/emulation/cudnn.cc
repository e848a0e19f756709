// Stands in for kernels/cuda/cudnn.cc: convolutions and attention by definition, with sums in
// float. Refuses the attention that cuDNN refuses.
#include "kernels/cuda/cudnn.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cuda/alignment.h"
#include "kernels/cuda/emulation/device_math.cuh"
#include "kernels/cuda/status.h"

namespace starling::cuda {
namespace {

using Sizes = std::array<int64_t, 4>;

// A float tensor with strides.
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
    const int64_t channels = key_.weight[1];  // per group
    const int64_t filters = key_.output[1] / (key_.input[1] / channels);
    for (int64_t n = 0; n < key_.output[0]; ++n) {
      for (int64_t o = 0; o < key_.output[1]; ++o) {
        for (int64_t i = 0; i < key_.output[2] * key_.output[3]; ++i) {
          float& result = out.at(n, o, i / key_.output[3], i % key_.output[3]);
          for (int64_t k = 0; k < key_.weight[2] * key_.weight[3]; ++k) {
            const int64_t ky = k / key_.weight[3], kx = k % key_.weight[3];
            const int64_t iy =
                i / key_.output[3] * key_.stride[0] - key_.padding[0] + ky * key_.dilation[0];
            const int64_t ix =
                i % key_.output[3] * key_.stride[1] - key_.padding[1] + kx * key_.dilation[1];
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

class Attention : public AttentionPlan {
 public:
  explicit Attention(const AttentionKey& key) : key_(key) {}

  size_t workspace_bytes() const override { return ScratchBytes(kScratch); }
  absl::Status Run(const AttentionValues& at, void* workspace, CudaStream& stream) const override {
    for (const void* value :
         {at.query, at.key, at.value, at.grad_output, static_cast<const void*>(at.output),
          static_cast<const void*>(at.grad_query), static_cast<const void*>(at.grad_key),
          static_cast<const void*>(at.grad_value)}) {
      if (!Aligned16(value)) return absl::InternalError("a value is not aligned to 16 bytes");
    }
    STARLING_RETURN_IF_CUDA_ERROR(stream.get()->Order([this, at, workspace] {
      std::memset(AlignedScratch(workspace), 0xff, kScratch);
      static_cast<void>(WithType(key_.element, [&](auto zero) {
        for (int64_t i = 0; i < key_.samples * key_.heads; ++i) Compute<decltype(zero)>(at, i);
        return cudaSuccess;
      }));
    }));
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kScratch = 1000;

  // [T, width] of one head of a sample.
  template <typename T>
  std::vector<float> Load(const void* from, const Sizes& strides, int64_t head) const {
    std::vector<float> matrix(key_.positions * key_.width);
    for (size_t i = 0; i < matrix.size(); ++i) {
      matrix[i] = ToFloat(static_cast<const T*>(from)[IndexOf(strides, head, i)]);
    }
    return matrix;
  }
  template <typename T>
  void Store(const std::vector<float>& matrix, void* to, const Sizes& strides, int64_t head) const {
    for (size_t i = 0; i < matrix.size(); ++i) {
      static_cast<T*>(to)[IndexOf(strides, head, i)] = FromFloat<T>(matrix[i]);
    }
  }
  int64_t IndexOf(const Sizes& strides, int64_t head, int64_t i) const {
    return head / key_.heads * strides[0] + head % key_.heads * strides[1] +
           i / key_.width * strides[2] + i % key_.width * strides[3];
  }

  template <typename T>
  void Compute(const AttentionValues& at, int64_t head) const {
    const Sizes in = InputStrides(key_), out = OutputStrides(key_);
    const int64_t t = key_.positions, width = key_.width;
    const std::vector<float> q = Load<T>(at.query, in, head), k = Load<T>(at.key, in, head),
                             v = Load<T>(at.value, in, head);
    std::vector<float> y(q.size()), dy(q.size()), dq(q.size()), dk(q.size()), dv(q.size()), p(t);
    if (key_.backward) {
      y = Load<T>(at.output, out, head);
      dy = Load<T>(at.grad_output, out, head);
    }
    const auto dot = [&](const std::vector<float>& a, int64_t i, const std::vector<float>& b,
                         int64_t j) {
      float sum = 0;
      for (int64_t c = 0; c < width; ++c) sum += a[i * width + c] * b[j * width + c];
      return sum;
    };
    const auto add = [&](std::vector<float>& to, int64_t i, float factor,
                         const std::vector<float>& from, int64_t j) {
      for (int64_t c = 0; c < width; ++c) to[i * width + c] += factor * from[j * width + c];
    };
    const float scale = 1 / std::sqrt(static_cast<float>(width));
    for (int64_t i = 0; i < t; ++i) {
      const int64_t seen = key_.causal ? i + 1 : t;
      float top = -std::numeric_limits<float>::infinity(), sum = 0;
      for (int64_t j = 0; j < seen; ++j) top = std::max(top, p[j] = scale * dot(q, i, k, j));
      for (int64_t j = 0; j < seen; ++j) sum += std::exp(p[j] - top);
      if (!key_.backward) {
        if (key_.statistics) at.statistics[head * t + i] = top + std::log(sum);
        for (int64_t j = 0; j < seen; ++j) add(y, i, std::exp(p[j] - top) / sum, v, j);
        continue;
      }
      const float mean = dot(dy, i, y, i);
      for (int64_t j = 0; j < seen; ++j) {
        const float weight = std::exp(p[j] - at.statistics[head * t + i]);
        const float ds = weight * (dot(dy, i, v, j) - mean) * scale;
        add(dq, i, ds, k, j);
        add(dk, j, ds, q, i);
        add(dv, j, weight, dy, i);
      }
    }
    if (!key_.backward) return Store<T>(y, at.output, out, head);
    Store<T>(dq, at.grad_query, in, head);
    Store<T>(dk, at.grad_key, in, head);
    Store<T>(dv, at.grad_value, in, head);
  }

  const AttentionKey key_;
};

class EmulatedCudnn : public Cudnn {
 public:
  absl::StatusOr<std::shared_ptr<const ConvolutionPlan>> Plan(const ConvolutionKey& key) override {
    // Otherwise the code for shapes without a plan would never run here.
    if (key.weight[1] != key.input[1]) {
      return absl::UnimplementedError("the emulated cuDNN has no plan for groups");
    }
    return std::make_shared<Convolution>(key);
  }
  absl::StatusOr<std::shared_ptr<const AttentionPlan>> Plan(const AttentionKey& key) override {
    if (key.width % 8 != 0 || key.width > 256 || key.positions == 1 ||
        (key.backward && !ScratchIsAligned(key))) {
      return absl::UnimplementedError("cuDNN has no such attention");
    }
    return std::make_shared<Attention>(key);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Cudnn>> Cudnn::Load(const std::string&) {
  return std::make_unique<EmulatedCudnn>();
}

}  // namespace starling::cuda
