// Geometry of the losses: one number per sample.
#include "kernels/resolver.h"

namespace starling {

void GeometryResolver::SoftmaxCrossEntropy() {
  if (input().size() != 2 && input().size() != 3) {
    Fail("the logits have shape ", ShapeText(input()), ", expected [N, K] or [N, T, K]");
    return;
  }
  g_.outputs = input().back();
  g_.rows = ElementCount(input()) / g_.outputs;
  Shape labels = input();
  labels.pop_back();
  ExpectShape("the labels", spec_.input_shapes[1], labels);
  ExpectShape("the output", spec_.output_shape, {g_.batch});
  g_.mean_reduction = MeanReduction(true);
  g_.labels_input = true;
}

void GeometryResolver::ElementwiseLoss() {
  ExpectSameInputs();
  ExpectShape("the output", spec_.output_shape, {g_.batch});
  g_.mean_reduction = MeanReduction(true);
  g_.labels_input = true;
}

void GeometryResolver::NegativeSum() {
  ExpectShape("the output", spec_.output_shape, {g_.batch});
  g_.mean_reduction = MeanReduction(false);
}

}  // namespace starling
