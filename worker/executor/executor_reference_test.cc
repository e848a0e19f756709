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

// The chain rule over a graph, in double.
class ReferenceNet {
 public:
  ReferenceNet(TestModel& model, const MicroBatch& batch, uint32_t id)
      : model_(model), graph_(model.resolved), id_(id), options_{batch.samples, true, 1, kGlobal} {
    values_.resize(graph_.values.size());
    gradients_.resize(graph_.values.size());
    values_[kInputValue] = Read(batch.inputs, kInputValue);
    values_[kLabelValue] = Read(batch.labels, kLabelValue);
  }

  ReferenceResult Compute() {
    for (int i = 0; i < static_cast<int>(graph_.nodes.size()); ++i) {
      values_[graph_.nodes[i].output] =
          ReferenceForward(KernelSpec(graph_, i, options_), Arguments(i)).value();
    }
    ReferenceResult result;
    for (double loss : values_[graph_.nodes.back().output]) result.loss_sum += loss;
    result.gradient.resize(model_.layout.elements);
    for (const BackwardStep& step :
         DeriveBackward(Differentiable(graph_), static_cast<int>(graph_.values.size()))) {
      Backward(step.node, &result);
    }
    return result;
  }

 private:
  Doubles Read(const void* data, int value) const {
    const int64_t count = options_.samples * graph_.values[value].elements;
    if (graph_.values[value].type == INT32) {
      const auto* const integers = static_cast<const int32_t*>(data);
      return Doubles(integers, integers + count);
    }
    const auto* const floats = static_cast<const float*>(data);
    return Doubles(floats, floats + count);
  }

  ReferenceArgs Arguments(int node) const {
    ReferenceArgs out;
    for (int input : graph_.nodes[node].inputs) out.inputs.push_back(values_[input]);
    for (int p : graph_.nodes[node].parameters) {
      const float* const begin = model_.live().data() + model_.layout.parameters[p].flat_begin;
      out.parameters.emplace_back(begin, begin + model_.layout.parameters[p].elements);
    }
    out.random = {kSeed, 0, id_, static_cast<uint32_t>(node)};
    out.global_batch = kGlobal;
    return out;
  }

  void Backward(int index, ReferenceResult* result) {
    const ResolvedNode& node = graph_.nodes[index];
    const ReferenceGradients gradients =
        ReferenceBackward(KernelSpec(graph_, index, options_), Arguments(index),
                          gradients_[node.output])
            .value();
    for (size_t k = 0; k < gradients.parameters.size(); ++k) {
      const int p = node.parameters[k];
      if (graph_.parameters[p].kind == FROZEN) continue;
      Accumulate(gradients.parameters[k],
                 result->gradient.data() + model_.layout.parameters[p].flat_begin);
    }
    for (size_t k = 0; k < gradients.inputs.size() && k < node.inputs.size(); ++k) {
      Doubles& to = gradients_[node.inputs[k]];
      to.resize(values_[node.inputs[k]].size());
      Accumulate(gradients.inputs[k], to.data());
    }
  }

  static void Accumulate(const Doubles& from, double* to) {
    for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
  }

  TestModel& model_;
  const ResolvedGraph& graph_;
  const uint32_t id_;
  const ProgramOptions options_;
  std::vector<Doubles> values_;
  std::vector<Doubles> gradients_;  // by value
};

ReferenceResult ComputeReference(TestModel& model, const MicroBatch& batch, uint32_t id) {
  return ReferenceNet(model, batch, id).Compute();
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
