// Whole random nets through the executor, against the same nets in double, operator by operator.
#include <algorithm>
#include <cmath>
#include <random>

#include "common/graph/backward.h"
#include "common/graph/builders.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "worker/executor/executor.h"
#include "worker/executor/program.h"
#include "worker/executor/testing/harness.h"

namespace starling {
namespace {

constexpr int64_t kClasses = 4;
constexpr int64_t kSamples = 6;  // of a micro-batch
constexpr int64_t kGlobal = 12;
constexpr uint64_t kSeed = 3;

struct ReferenceResult {
  double loss_sum = 0;
  std::vector<double> gradient;  // flat, in the layout's order
};

// The chain rule over a graph whose nodes each read the one before.
ReferenceResult ComputeReference(TestModel& model, const MicroBatch& batch, uint32_t id) {
  const ResolvedGraph& graph = model.resolved;
  const ProgramOptions options = {batch.samples, true, 1, kGlobal};
  const int64_t inputs = batch.samples * graph.values[kInputValue].elements;
  std::vector<Doubles> values(graph.values.size());
  values[kInputValue].assign(batch.inputs, batch.inputs + inputs);
  values[kLabelValue].assign(batch.labels, batch.labels + batch.samples);
  auto args = [&](int node) {
    ReferenceArgs out;
    for (int input : graph.nodes[node].inputs) out.inputs.push_back(values[input]);
    for (int p : graph.nodes[node].parameters) {
      const float* const begin = model.live().data() + model.layout.parameters[p].flat_begin;
      out.parameters.emplace_back(begin, begin + model.layout.parameters[p].elements);
    }
    out.random = {kSeed, 0, id, static_cast<uint32_t>(node)};
    out.global_batch = kGlobal;
    return out;
  };
  const int nodes = static_cast<int>(graph.nodes.size());
  for (int i = 0; i < nodes; ++i) {
    values[graph.nodes[i].output] =
        ReferenceForward(KernelSpec(graph, i, options), args(i)).value();
  }
  ReferenceResult result;
  for (double loss : values[graph.nodes.back().output]) result.loss_sum += loss;
  result.gradient.resize(model.layout.elements);
  Doubles output_gradient;
  for (int i = nodes - 1; i >= 0; --i) {
    ReferenceGradients gradients =
        ReferenceBackward(KernelSpec(graph, i, options), args(i), output_gradient).value();
    for (size_t k = 0; k < gradients.parameters.size(); ++k) {
      const int p = graph.nodes[i].parameters[k];
      std::copy(gradients.parameters[k].begin(), gradients.parameters[k].end(),
                result.gradient.begin() + model.layout.parameters[p].flat_begin);
    }
    output_gradient = gradients.inputs[0];
  }
  return result;
}

std::vector<LayerDescription> RandomLayers(std::mt19937& random, bool image) {
  auto pick = [&random](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % (high - low + 1));
  };
  std::vector<LayerDescription> layers;
  auto add_any = [&] {
    switch (pick(0, 3)) {
      case 0:
        layers.push_back({"relu", "", {}});
        break;
      case 1:
        layers.push_back({"dropout", "", {{"rate", 0.3}}});
        break;
      case 2:
        layers.push_back({"batchnorm", "", {}});
        break;
      default:
        break;
    }
  };
  for (int64_t i = image ? pick(1, 2) : 0; i > 0; --i) {
    layers.push_back({"conv2d",
                      "",
                      {{"out_channels", pick(1, 20)},
                       {"kernel", pick(1, 3)},
                       {"padding", pick(0, 1)},
                       {"stride", pick(1, 2)},
                       {"bias", pick(0, 1) == 1}}});
    add_any();
    add_any();
    if (pick(0, 1) == 1) {
      layers.push_back({pick(0, 1) == 1 ? "maxpool2d" : "avgpool2d",
                        "",
                        {{"kernel", int64_t{2}}, {"stride", pick(1, 2)}}});
    }
    add_any();
  }
  if (image) layers.push_back({"flatten", "", {}});
  for (int64_t i = pick(0, 2); i > 0; --i) {
    layers.push_back({"linear", "", {{"out_features", pick(3, 30)}, {"bias", pick(0, 1) == 1}}});
    add_any();
    add_any();
  }
  layers.push_back({"linear", "", {}});
  return layers;
}

TEST(ExecutorReferenceTest, RandomNetsAgreeWithTheReference) {
  std::mt19937 random(11);
  int nets = 0;
  for (int round = 0; round < 60; ++round) {
    const bool image = round % 3 != 0;
    const Dims shape = image ? Dims{2, 9, 11} : Dims{24};
    absl::StatusOr<Graph> graph = BuildLayers({shape, kClasses}, RandomLayers(random, image));
    if (!graph.ok()) continue;  // too many strides for the image
    ++nets;
    SCOPED_TRACE(graph->ShortDebugString());
    ExecutorOptions options;
    options.global_batch = kGlobal;
    options.micro_batches = 2;
    options.train_samples = {kSamples};
    options.lanes = 2;
    options.seed = kSeed;
    TestModel model = MakeTestModel(*graph, options);
    const int64_t elements = model.resolved.values[kInputValue].elements;
    const Samples32 samples = MakeSamples(kGlobal, elements, kClasses, round);
    MemoryBatches batches(&samples, kSamples);
    const TrainOutput output = TrainOnce(model, batches, {TrainRange(0, 2)});

    ReferenceResult expected = ComputeReference(model, *batches.Get({}, 0), 0);
    const ReferenceResult second = ComputeReference(model, *batches.Get({}, 1), 1);
    expected.loss_sum += second.loss_sum;
    double whole = 0;
    for (size_t i = 0; i < expected.gradient.size(); ++i) {
      expected.gradient[i] += second.gradient[i];
      whole += expected.gradient[i] * expected.gradient[i];
    }
    EXPECT_NEAR(output.result.ranges[0].loss_sum, expected.loss_sum, 1e-5 * kGlobal);
    for (size_t p = 0; p < model.resolved.parameters.size(); ++p) {
      double error = 0, norm = 0;
      const ParameterPlace& place = model.layout.parameters[p];
      for (uint64_t i = place.flat_begin; i < place.flat_begin + place.elements; ++i) {
        error += std::pow(output.gradients[0][i] - expected.gradient[i], 2);
        norm += expected.gradient[i] * expected.gradient[i];
      }
      // The floor is for gradients that are 0 but for rounding (a bias before batch norm).
      EXPECT_LT(std::sqrt(error), 1e-4 * std::sqrt(norm) + 1e-6 * std::sqrt(whole))
          << model.resolved.parameters[p].name;
    }
  }
  EXPECT_GT(nets, 40);
}

}  // namespace
}  // namespace starling
