// The models that BuildBuiltin makes, one family per file. Internal to common/graph/builders.
#ifndef STARLING_COMMON_GRAPH_BUILDERS_FAMILIES_H_
#define STARLING_COMMON_GRAPH_BUILDERS_FAMILIES_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/graph/builders.h"

namespace starling::builders {

absl::StatusOr<Graph> Mlp(const ModelInput& input, const MlpOptions& options,
                          const std::string& loss);
absl::StatusOr<Graph> Lenet(const ModelInput& input, const std::string& loss);

// He et al. 2016, "Deep residual learning", as torchvision builds it (a bottleneck's stride is in
// its 3x3 convolution), with torchvision's names and initialization. The ImageNet stem is a 7x7
// convolution with stride 2 and a max pool, for 224x224 images; the CIFAR stem is a 3x3 with stride
// 1.
struct ResnetOptions {
  int depth = 18;  // 18, 34 or 50
  bool cifar_stem = false;
  int64_t classes = 0;
};
absl::StatusOr<Graph> Resnet(const ModelInput& input, const ResnetOptions& options,
                             const std::string& loss);

// Sandler et al. 2018, "MobileNetV2", as torchvision builds it. `width_factor` scales the channels,
// rounded to multiples of 8.
struct MobilenetV2Options {
  double width_factor = 1;
  double dropout = 0.2;
  int64_t classes = 0;
};
absl::StatusOr<Graph> MobilenetV2(const ModelInput& input, const MobilenetV2Options& options,
                                  const std::string& loss);

// Ma et al. 2018, "ShuffleNet V2", as torchvision builds it. Width factor 0.5, 1, 1.5 or 2.
struct ShufflenetV2Options {
  double width_factor = 1;
  int64_t classes = 0;
};
absl::StatusOr<Graph> ShufflenetV2(const ModelInput& input, const ShufflenetV2Options& options,
                                   const std::string& loss);

// Radford et al. 2019, "GPT-2": pre-norm transformer blocks, learned positions, GELU in its tanh
// form. GPT-2's initialization: normal with deviation 0.02, residual projections scaled by 1/sqrt(2
// * depth), biases 0. Linear weights are [out, in], as in PyTorch. Dropout, if any, follows the
// embeddings and each residual branch; attention weights have none.
struct Gpt2Options {
  int64_t depth = 12;
  int64_t heads = 12;
  int64_t width = 768;
  int64_t context = 0;     // positions in the table; 0: the sample's
  int64_t vocabulary = 0;  // 0: the data's
  bool tied_head = true;   // the head's weight is the token table
  double dropout = 0;
};
absl::StatusOr<Graph> Gpt2(const ModelInput& input, const Gpt2Options& options,
                           const std::string& loss);

}  // namespace starling::builders

#endif  // STARLING_COMMON_GRAPH_BUILDERS_FAMILIES_H_
