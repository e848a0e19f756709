#include "absl/strings/str_cat.h"
#include "common/graph/builders/conv_net.h"
#include "common/graph/builders/families.h"

namespace starling::builders {
namespace {

// The convolution NAME.at, its batch norm NAME.(at + 1) and, optionally, ReLU.
std::string Layer(GraphBuilder& net, const std::string& name, int at, const std::string& input,
                  const Conv& conv, bool relu) {
  const std::string x =
      ConvNorm(net, absl::StrCat(name, ".", at), absl::StrCat(name, ".", at + 1), input, conv, {});
  return relu ? net.Add("relu", absl::StrCat(name, ".", at + 2), {x}) : x;
}

// 1x1, depthwise 3x3, 1x1.
std::string Branch(GraphBuilder& net, const std::string& name, const std::string& input,
                   int64_t channels, int64_t stride) {
  std::string x = Layer(net, name, 0, input, {channels, 1}, true);
  x = Layer(net, name, 3, x, {channels, 3, stride, channels}, false);
  return Layer(net, name, 5, x, {channels, 1}, true);
}

// Interleaves the two halves of the channels.
std::string Shuffle(GraphBuilder& net, const std::string& name, const std::string& input) {
  const Dims shape = net.shape(input);
  if (shape.size() != 3) return input;
  std::string x = net.Add("reshape", absl::StrCat(name, ".split"), {input},
                          {{"shape", Dims{2, shape[0] / 2, shape[1], shape[2]}}});
  x = net.Add("transpose", absl::StrCat(name, ".shuffle"), {x}, {{"axes", Dims{1, 0, 2, 3}}});
  return net.Add("reshape", absl::StrCat(name, ".join"), {x}, {{"shape", shape}});
}

// Halves the size: both branches see the whole input.
std::string DownBlock(GraphBuilder& net, const std::string& name, const std::string& input,
                      int64_t channels) {
  const Dims shape = net.shape(input);
  const int64_t in_channels = shape.empty() ? 1 : shape[0];
  const std::string first = absl::StrCat(name, ".branch1");
  std::string left = Layer(net, first, 0, input, {in_channels, 3, 2, in_channels}, false);
  left = Layer(net, first, 2, left, {channels, 1}, true);
  const std::string right = Branch(net, absl::StrCat(name, ".branch2"), input, channels, 2);
  return net.Add("concat", absl::StrCat(name, ".concat"), {left, right}, {{"axis", int64_t{0}}});
}

// One half of the channels passes, the other goes through the branch.
std::string Block(GraphBuilder& net, const std::string& name, const std::string& input,
                  int64_t channels) {
  const auto half = [&](const char* part, int64_t begin) {
    return net.Add("slice", absl::StrCat(name, ".", part), {input},
                   {{"axis", int64_t{0}}, {"begin", begin}, {"length", channels}});
  };
  const std::string left = half("left", 0);
  const std::string right =
      Branch(net, absl::StrCat(name, ".branch2"), half("right", channels), channels, 1);
  return net.Add("concat", absl::StrCat(name, ".concat"), {left, right}, {{"axis", int64_t{0}}});
}

}  // namespace

absl::StatusOr<Graph> ShufflenetV2(const ModelInput& input, const ShufflenetV2Options& options,
                                   const std::string& loss) {
  struct Width {
    double factor;
    int64_t channels[4];
  };
  constexpr Width kWidths[] = {{0.5, {48, 96, 192, 1024}},
                               {1.0, {116, 232, 464, 1024}},
                               {1.5, {176, 352, 704, 1024}},
                               {2.0, {244, 488, 976, 2048}}};
  constexpr int kBlocks[] = {4, 8, 4};
  const auto* const width =
      std::find_if(std::begin(kWidths), std::end(kWidths),
                   [&](const Width& w) { return w.factor == options.width_factor; });
  if (width == std::end(kWidths)) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.widthFactor: expected 0.5, 1, 1.5 or 2 for shufflenet_v2, got ",
                     options.width_factor));
  }
  GraphBuilder net("shufflenet_v2", input);
  std::string x = Layer(net, "conv1", 0, kInputName, {24, 3, 2}, true);
  x = net.Add("maxpool2d", "maxpool", {x},
              {{"kernel", int64_t{3}}, {"stride", int64_t{2}}, {"padding", int64_t{1}}});
  for (int stage = 0; stage < 3; ++stage) {
    const int64_t half = width->channels[stage] / 2;
    for (int block = 0; block < kBlocks[stage]; ++block) {
      const std::string name = absl::StrCat("stage", stage + 2, ".", block);
      x = block == 0 ? DownBlock(net, name, x, half) : Block(net, name, x, half);
      x = Shuffle(net, name, x);
    }
  }
  x = Layer(net, "conv5", 0, x, {width->channels[3], 1}, true);
  x = net.Add("global_avgpool2d", "avgpool", {x});
  x = net.Add("linear", "fc", {x}, {{"out_features", OutputsOr(options.classes, input)}});
  return net.Finish(loss, x);
}

}  // namespace starling::builders
