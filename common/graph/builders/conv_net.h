// Shared by the builders of convolutional nets. Internal to common/graph/builders.
#ifndef STARLING_COMMON_GRAPH_BUILDERS_CONV_NET_H_
#define STARLING_COMMON_GRAPH_BUILDERS_CONV_NET_H_

#include <algorithm>
#include <cmath>
#include <string>

#include "common/graph/builders/graph_builder.h"

namespace starling::builders {

struct Conv {
  int64_t out_channels = 0;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t groups = 1;
};

// Kaiming-normal by fan-out, as torchvision initializes residual nets (He et al. 2015).
inline Initializer KaimingFanOut(const Conv& conv) {
  return Normal(
      std::sqrt(2.0 / static_cast<double>(conv.out_channels * conv.kernel * conv.kernel)));
}

// A convolution without bias, padded so that only its stride changes the size, then batch norm.
inline std::string ConvNorm(GraphBuilder& net, const std::string& conv_name,
                            const std::string& norm_name, const std::string& input,
                            const Conv& conv, const Parameters& parameters) {
  const std::string x = net.Add("conv2d", conv_name, {input},
                                {{"out_channels", conv.out_channels},
                                 {"kernel", conv.kernel},
                                 {"stride", conv.stride},
                                 {"padding", (conv.kernel - 1) / 2},
                                 {"groups", conv.groups},
                                 {"bias", false}},
                                parameters);
  return net.Add("batchnorm", norm_name, {x});
}

}  // namespace starling::builders

#endif  // STARLING_COMMON_GRAPH_BUILDERS_CONV_NET_H_
