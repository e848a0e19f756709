// Geometry of the operators on planes: [N, C, H, W].
#include <tuple>

#include "kernels/resolver.h"

namespace starling {

void GeometryResolver::Windows(int64_t* out_height, int64_t* out_width) {
  Geometry2d& p = g_.plane;
  auto windows = [this](int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                        int64_t dilation, const char* what) -> int64_t {
    const int64_t reach = size + 2 * padding - dilation * (kernel - 1) - 1;
    if (reach < 0) {
      Fail("the kernel does not fit: it spans ", dilation * (kernel - 1) + 1, " of a ", what,
           " of ", size, " with ", padding, " of padding on both sides");
      return 1;
    }
    return reach / stride + 1;
  };
  *out_height = windows(p.in_height, p.kernel_height, p.stride_height, p.padding_height,
                        p.dilation_height, "height");
  *out_width = windows(p.in_width, p.kernel_width, p.stride_width, p.padding_width,
                       p.dilation_width, "width");
}

void GeometryResolver::Conv() {
  ExpectRank("the input", input(), 4);
  const Shape& weight = spec_.parameter_shapes[0];
  ExpectRank("the weight", weight, 4);
  if (!status_.ok()) return;
  Geometry2d& p = g_.plane;
  p.batch = input()[0];
  p.in_channels = input()[1];
  p.in_height = input()[2];
  p.in_width = input()[3];
  p.out_channels = weight[0];
  p.kernel_height = weight[2];
  p.kernel_width = weight[3];
  std::tie(p.stride_height, p.stride_width) = Pair("stride", {1, 1}, 1);
  std::tie(p.padding_height, p.padding_width) = Pair("padding", {0, 0}, 0);
  std::tie(p.dilation_height, p.dilation_width) = Pair("dilation", {1, 1}, 1);
  p.groups = Int("groups", 1, 1);
  p.bias = spec_.parameter_shapes.size() == 2;
  if (p.in_channels % p.groups != 0 || p.out_channels % p.groups != 0) {
    Fail("groups = ", p.groups, " does not divide ", p.in_channels, " input and ", p.out_channels,
         " output channels");
    return;
  }
  ExpectShape("the weight", weight,
              {p.out_channels, p.in_channels / p.groups, p.kernel_height, p.kernel_width});
  if (p.bias) ExpectShape("the bias", spec_.parameter_shapes[1], {p.out_channels});
  Windows(&p.out_height, &p.out_width);
  ExpectShape("the output", spec_.output_shape,
              {p.batch, p.out_channels, p.out_height, p.out_width});
}

void GeometryResolver::Pool() {
  ExpectRank("the input", input(), 4);
  if (!status_.ok()) return;
  Geometry2d& p = g_.plane;
  p.batch = input()[0];
  p.in_channels = p.out_channels = input()[1];
  p.in_height = input()[2];
  p.in_width = input()[3];
  if (!spec_.attributes.contains("kernel")) Fail("needs the attribute 'kernel'");
  std::tie(p.kernel_height, p.kernel_width) = Pair("kernel", {1, 1}, 1);
  std::tie(p.stride_height, p.stride_width) = Pair("stride", {p.kernel_height, p.kernel_width}, 1);
  std::tie(p.padding_height, p.padding_width) = Pair("padding", {0, 0}, 0);
  if (p.padding_height > p.kernel_height / 2 || p.padding_width > p.kernel_width / 2) {
    Fail("padding (", p.padding_height, ", ", p.padding_width,
         ") is more than half of the kernel (", p.kernel_height, ", ", p.kernel_width, ")");
  }
  Windows(&p.out_height, &p.out_width);
  ExpectShape("the output", spec_.output_shape,
              {p.batch, p.out_channels, p.out_height, p.out_width});
}

void GeometryResolver::BatchNorm() {
  if (input().size() != 2 && input().size() != 4) {
    Fail("the input has shape ", ShapeText(input()), ", expected [N, C] or [N, C, H, W]");
    return;
  }
  g_.inputs = input()[1];
  g_.spatial = input().size() == 4 ? input()[2] * input()[3] : 1;
  const char* names[] = {"the weight", "the bias", "the mean", "the variance"};
  for (int i = 0; i < 4; ++i) ExpectShape(names[i], spec_.parameter_shapes[i], {g_.inputs});
  g_.epsilon = Epsilon();
  g_.relu = Flag("relu");
  ExpectSameInputs();
  ExpectShape("the output", spec_.output_shape, input());
}

void GeometryResolver::GlobalAvgPool() {
  ExpectRank("the input", input(), 4);
  if (!status_.ok()) return;
  g_.inputs = g_.outputs = input()[1];
  g_.spatial = input()[2] * input()[3];
  ExpectShape("the output", spec_.output_shape, {g_.batch, g_.outputs});
}

}  // namespace starling
