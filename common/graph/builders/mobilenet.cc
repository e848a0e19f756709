#include "absl/strings/str_cat.h"
#include "common/graph/builders/conv_net.h"
#include "common/graph/builders/families.h"

namespace starling::builders {
namespace {

// Rounds to the nearest multiple of 8, but never down by more than a tenth.
int64_t Rounded(double channels) {
  const int64_t rounded = std::max<int64_t>(8, static_cast<int64_t>(channels + 4) / 8 * 8);
  return static_cast<double>(rounded) < 0.9 * channels ? rounded + 8 : rounded;
}

// The convolution NAME.0 and its batch norm NAME.1.
std::string ConvNormAt(GraphBuilder& net, const std::string& conv, const std::string& norm,
                       const std::string& input, const Conv& shape) {
  return ConvNorm(net, conv, norm, input, shape, {.init = {{"weight", KaimingFanOut(shape)}}});
}

std::string ConvNormRelu6(GraphBuilder& net, const std::string& name, const std::string& input,
                          const Conv& conv) {
  const std::string x =
      ConvNormAt(net, absl::StrCat(name, ".0"), absl::StrCat(name, ".1"), input, conv);
  return net.Add("clip", absl::StrCat(name, ".2"), {x}, {{"minimum", 0.0}, {"maximum", 6.0}});
}

// Expansion 1x1, depthwise 3x3, linear 1x1; with a shortcut if the shape is unchanged.
std::string InvertedResidual(GraphBuilder& net, const std::string& name, const std::string& input,
                             int64_t out_channels, int64_t stride, int64_t expansion) {
  const Dims shape = net.shape(input);
  const int64_t in_channels = shape.empty() ? 1 : shape[0];
  const int64_t hidden = in_channels * expansion;
  std::string x = input;
  int at = 0;
  if (expansion != 1) x = ConvNormRelu6(net, absl::StrCat(name, ".conv.", at++), x, {hidden, 1});
  x = ConvNormRelu6(net, absl::StrCat(name, ".conv.", at++), x, {hidden, 3, stride, hidden});
  x = ConvNormAt(net, absl::StrCat(name, ".conv.", at), absl::StrCat(name, ".conv.", at + 1), x,
                 {out_channels, 1});
  if (stride != 1 || in_channels != out_channels) return x;
  return net.Add("add", absl::StrCat(name, ".add"), {input, x});
}

}  // namespace

absl::StatusOr<Graph> MobilenetV2(const ModelInput& input, const MobilenetV2Options& options,
                                  const std::string& loss) {
  struct Stage {
    int64_t expansion, channels, blocks, stride;
  };
  constexpr Stage kStages[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                               {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
  GraphBuilder net("mobilenet_v2", input);
  std::string x =
      ConvNormRelu6(net, "features.0", kInputName, {Rounded(32 * options.width_factor), 3, 2});
  int feature = 1;
  for (const Stage& stage : kStages) {
    for (int64_t block = 0; block < stage.blocks; ++block) {
      x = InvertedResidual(net, absl::StrCat("features.", feature++), x,
                           Rounded(static_cast<double>(stage.channels) * options.width_factor),
                           block == 0 ? stage.stride : 1, stage.expansion);
    }
  }
  const int64_t last = Rounded(1280 * std::max(1.0, options.width_factor));
  x = ConvNormRelu6(net, absl::StrCat("features.", feature), x, {last, 1});
  x = net.Add("global_avgpool2d", "avgpool", {x});
  if (options.dropout > 0) x = net.Add("dropout", "classifier.0", {x}, {{"rate", options.dropout}});
  x = net.Add("linear", "classifier.1", {x}, {{"out_features", OutputsOr(options.classes, input)}},
              {.init = {{"weight", Normal(0.01)}, {"bias", Constant(0)}}});
  return net.Finish(loss, x);
}

}  // namespace starling::builders
