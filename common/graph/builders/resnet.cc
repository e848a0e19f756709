#include "absl/strings/str_cat.h"
#include "common/graph/builders/conv_net.h"
#include "common/graph/builders/families.h"

namespace starling::builders {
namespace {

std::string Convolution(GraphBuilder& net, const std::string& prefix, const std::string& number,
                        const std::string& input, const Conv& conv) {
  return ConvNorm(net, absl::StrCat(prefix, "conv", number), absl::StrCat(prefix, "bn", number),
                  input, conv, {.init = {{"weight", KaimingFanOut(conv)}}});
}

std::string Relu(GraphBuilder& net, const std::string& name, const std::string& input) {
  return net.Add("relu", name, {input});
}

// A block's input, projected if the shape changes.
std::string Shortcut(GraphBuilder& net, const std::string& prefix, const std::string& input,
                     int64_t out_channels, int64_t stride) {
  const Dims shape = net.shape(input);
  if (stride == 1 && (shape.empty() || shape[0] == out_channels)) return input;
  const Conv conv = {.out_channels = out_channels, .kernel = 1, .stride = stride};
  return ConvNorm(net, absl::StrCat(prefix, "downsample.0"), absl::StrCat(prefix, "downsample.1"),
                  input, conv, {.init = {{"weight", KaimingFanOut(conv)}}});
}

// Two 3x3 convolutions.
std::string BasicBlock(GraphBuilder& net, const std::string& prefix, const std::string& input,
                       int64_t channels, int64_t stride) {
  std::string x = Convolution(net, prefix, "1", input, {channels, 3, stride});
  x = Relu(net, absl::StrCat(prefix, "relu1"), x);
  x = Convolution(net, prefix, "2", x, {channels, 3});
  x = net.Add("add", absl::StrCat(prefix, "add"),
              {x, Shortcut(net, prefix, input, channels, stride)});
  return Relu(net, absl::StrCat(prefix, "relu2"), x);
}

// 1x1, 3x3 and 1x1 to four times the channels.
std::string Bottleneck(GraphBuilder& net, const std::string& prefix, const std::string& input,
                       int64_t channels, int64_t stride) {
  std::string x = Convolution(net, prefix, "1", input, {channels, 1});
  x = Relu(net, absl::StrCat(prefix, "relu1"), x);
  x = Convolution(net, prefix, "2", x, {channels, 3, stride});
  x = Relu(net, absl::StrCat(prefix, "relu2"), x);
  x = Convolution(net, prefix, "3", x, {4 * channels, 1});
  x = net.Add("add", absl::StrCat(prefix, "add"),
              {x, Shortcut(net, prefix, input, 4 * channels, stride)});
  return Relu(net, absl::StrCat(prefix, "relu3"), x);
}

std::string Stem(GraphBuilder& net, bool cifar) {
  if (cifar) return Relu(net, "relu", Convolution(net, "", "1", kInputName, {64, 3, 1}));
  const std::string x = Relu(net, "relu", Convolution(net, "", "1", kInputName, {64, 7, 2}));
  return net.Add("maxpool2d", "maxpool", {x},
                 {{"kernel", int64_t{3}}, {"stride", int64_t{2}}, {"padding", int64_t{1}}});
}

}  // namespace

absl::StatusOr<Graph> Resnet(const ModelInput& input, const ResnetOptions& options,
                             const std::string& loss) {
  const std::vector<int> blocks =
      options.depth == 18 ? std::vector<int>{2, 2, 2, 2} : std::vector<int>{3, 4, 6, 3};
  GraphBuilder net(absl::StrCat("resnet", options.depth), input);
  std::string x = Stem(net, options.cifar_stem);
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t channels = int64_t{64} << stage;
    for (int block = 0; block < blocks[stage]; ++block) {
      const std::string prefix = absl::StrCat("layer", stage + 1, ".", block, ".");
      const int64_t stride = block == 0 && stage > 0 ? 2 : 1;
      x = options.depth == 50 ? Bottleneck(net, prefix, x, channels, stride)
                              : BasicBlock(net, prefix, x, channels, stride);
    }
  }
  x = net.Add("global_avgpool2d", "avgpool", {x});
  x = net.Add("linear", "fc", {x}, {{"out_features", OutputsOr(options.classes, input)}});
  return net.Finish(loss, x);
}

}  // namespace starling::builders
