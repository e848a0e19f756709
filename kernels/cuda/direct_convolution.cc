#include "kernels/cuda/direct_convolution.h"

#include <algorithm>

#include "kernels/cuda/status.h"

namespace starling::cuda {
namespace {

DirectTensor TensorOf(const std::array<int64_t, 4>& size, bool channels_last) {
  DirectTensor tensor;
  std::copy(size.begin(), size.end(), tensor.size);
  const std::array<int64_t, 4> strides = StridesOf(size, channels_last);
  std::copy(strides.begin(), strides.end(), tensor.step);
  return tensor;
}

class DirectConvolution : public ConvolutionPlan {
 public:
  explicit DirectConvolution(const ConvolutionKey& key) : key_(key), shape_(DirectShapeOf(key)) {}

  size_t workspace_bytes() const override { return 0; }

  absl::Status Run(void* x, void* w, void* y, void*, CudaStream& stream) const override {
    switch (key_.pass) {
      case Pass::kForward:
        return STARLING_CUDA_STATUS(
            LaunchDirectForward(key_.element, shape_, x, w, y, stream.get()));
      case Pass::kInputGradient:
        return STARLING_CUDA_STATUS(
            LaunchDirectInputGradient(key_.element, shape_, w, y, x, stream.get()));
      case Pass::kWeightGradient:
        return STARLING_CUDA_STATUS(
            LaunchDirectWeightGradient(key_.element, shape_, x, y, w, stream.get()));
    }
    return absl::OkStatus();
  }

 private:
  const ConvolutionKey key_;
  const DirectShape shape_;
};

}  // namespace

DirectShape DirectShapeOf(const ConvolutionKey& key) {
  DirectShape shape;
  shape.x = TensorOf(key.input, key.channels_last);
  shape.w = TensorOf(key.weight, key.channels_last);
  shape.y = TensorOf(key.output, key.channels_last);
  std::copy(key.stride.begin(), key.stride.end(), shape.stride);
  std::copy(key.padding.begin(), key.padding.end(), shape.padding);
  std::copy(key.dilation.begin(), key.dilation.end(), shape.dilation);
  return shape;
}

std::shared_ptr<const ConvolutionPlan> MakeDirectConvolution(const ConvolutionKey& key) {
  return std::make_shared<DirectConvolution>(key);
}

}  // namespace starling::cuda
