// Whole random nets through the executor, compared with the same nets in double, operator by
// operator.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>

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
constexpr int64_t kSamples = 6;  // per micro-batch
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
      case 0: layers.push_back({"relu", "", {}}); break;
      case 1: layers.push_back({"dropout", "", {{"rate", 0.3}}}); break;
      case 2: layers.push_back({"batchnorm", "", {}}); break;
      default: break;
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

// Trains two micro-batches once and compares loss and gradients with the reference.
void ExpectAgreement(const Graph& graph, const Samples32& samples) {
  SCOPED_TRACE(graph.ShortDebugString());
  ExecutorOptions options;
  options.global_batch = kGlobal;
  options.micro_batches = 2;
  options.train_samples = {kSamples};
  options.lanes = 2;
  options.seed = kSeed;
  TestModel model = MakeTestModel(graph, options);
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
    // The floor is for gradients that are 0 except for rounding (a bias before batch norm).
    EXPECT_LT(std::sqrt(error), 1e-4 * std::sqrt(norm) + 3e-6 * std::sqrt(whole))
        << model.resolved.parameters[p].name;
  }
}

TEST(ExecutorReferenceTest, RandomNetsAgreeWithTheReference) {
  std::mt19937 random(11);
  int nets = 0;
  for (int round = 0; round < 60; ++round) {
    const bool image = round % 3 != 0;
    const Dims shape = image ? Dims{2, 9, 11} : Dims{24};
    const absl::StatusOr<Graph> graph = BuildLayers({shape, kClasses}, RandomLayers(random, image));
    if (!graph.ok()) continue;  // too many strides for the image
    ++nets;
    ExpectAgreement(*graph, MakeSamples(kGlobal, image ? 2 * 9 * 11 : 24, kClasses, round));
  }
  EXPECT_GT(nets, 40);
}

// Layers that read arbitrary earlier values; values that were not read are joined at the end.
class BranchedNet {
 public:
  explicit BranchedNet(uint32_t seed) : random_(seed) {}

  int64_t Pick(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % (high - low + 1));
  }

  std::string Add(const std::string& op, const std::vector<std::string>& inputs, Dims shape,
                  const std::map<std::string, LayerAttribute>& attributes = {},
                  const std::string& of = "") {
    LayerDescription layer = {op, op + std::to_string(layers_.size()), attributes, inputs, of};
    for (const std::string& input : inputs) unread_.erase(input);
    shapes_[layer.name] = std::move(shape);
    unread_.insert(layer.name);
    names_.push_back(layer.name);
    layers_.push_back(layer);
    return layer.name;
  }

  // A value, of this shape if one is given.
  std::string Any(const Dims* shape = nullptr) {
    std::vector<std::string> fitting;
    for (const std::string& name : names_) {
      if (shape == nullptr || shapes_[name] == *shape) fitting.push_back(name);
    }
    return fitting[random_() % fitting.size()];
  }

  // A value [channels, height, width].
  std::string AnyImage() {
    std::string name;
    do name = Any();
    while (shapes_[name].size() != 3);
    return name;
  }

  const Dims& shape(const std::string& name) { return shapes_[name]; }
  const std::set<std::string>& unread() const { return unread_; }
  const std::vector<LayerDescription>& layers() const { return layers_; }

  std::string Pointwise(const std::string& x) {
    switch (Pick(0, 6)) {
      case 0: return Add("relu", {x}, shape(x));
      case 1: return Add("gelu", {x}, shape(x), {{"approximate", Pick(0, 1)}});
      case 2: return Add("sigmoid", {x}, shape(x));
      case 3: return Add("tanh", {x}, shape(x));
      case 4: return Add("clip", {x}, shape(x), {{"minimum", -0.7}, {"maximum", 1.3}});
      case 5: return Add("dropout", {x}, shape(x), {{"rate", 0.3}});
      default: return Add(Pick(0, 1) == 1 ? "add" : "mul", {x, Any(&shape(x))}, shape(x));
    }
  }

 private:
  std::mt19937 random_;
  std::vector<LayerDescription> layers_;
  std::vector<std::string> names_;
  std::map<std::string, Dims> shapes_;
  std::set<std::string> unread_;
};

void AddImageLayer(BranchedNet& net) {
  const std::string x = net.AnyImage();
  const Dims shape = net.shape(x);
  switch (net.Pick(0, 6)) {
    case 0: {
      const int64_t groups = shape[0] % 2 == 0 ? net.Pick(1, 2) : 1;
      const int64_t dilation = net.Pick(1, 2), channels = 2 * net.Pick(1, 3);
      net.Add("conv2d", {x}, {channels, shape[1], shape[2]},
              {{"out_channels", channels},
               {"kernel", int64_t{3}},
               {"dilation", dilation},
               {"padding", dilation},
               {"groups", groups}});
      return;
    }
    case 1: net.Add("batchnorm", {x}, shape); return;
    case 2: {
      const std::string y = net.AnyImage();
      net.Add("concat", {x, y}, {shape[0] + net.shape(y)[0], shape[1], shape[2]},
              {{"axis", int64_t{0}}});
      return;
    }
    case 3: {
      const int64_t begin = net.Pick(0, shape[0] - 1), length = net.Pick(1, shape[0] - begin);
      net.Add("slice", {x}, {length, shape[1], shape[2]},
              {{"axis", int64_t{0}}, {"begin", begin}, {"length", length}});
      return;
    }
    case 4: {
      if (shape[0] % 2 != 0) return;
      const Dims split = {2, shape[0] / 2, shape[1], shape[2]};
      std::string y = net.Add("reshape", {x}, split, {{"shape", Dims{2, -1, shape[1], shape[2]}}});
      y = net.Add("transpose", {y}, {split[1], 2, shape[1], shape[2]},
                  {{"axes", Dims{1, 0, 2, 3}}});
      net.Add("reshape", {y}, shape, {{"shape", shape}});
      return;
    }
    default: net.Pointwise(x);
  }
}

TEST(ExecutorReferenceTest, BranchedImageNetsAgreeWithTheReference) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    BranchedNet net(seed);
    net.Add("conv2d", {"input"}, {4, 7, 5},
            {{"out_channels", int64_t{4}}, {"kernel", int64_t{3}}, {"padding", int64_t{1}}});
    for (int i = 0; i < 9; ++i) AddImageLayer(net);
    std::vector<std::string> ends;
    const std::set<std::string> unread = net.unread();
    for (const std::string& name : unread) {
      ends.push_back(net.Add("global_avgpool2d", {name}, {net.shape(name)[0]}));
    }
    if (ends.size() > 1) net.Add("concat", ends, {}, {{"axis", int64_t{0}}});
    net.Add("linear", {*net.unread().begin()}, {});
    const absl::StatusOr<Graph> graph = BuildLayers({{2, 7, 5}, kClasses}, net.layers());
    ASSERT_TRUE(graph.ok()) << graph.status();
    ExpectAgreement(*graph, MakeSamples(kGlobal, 2 * 7 * 5, kClasses, seed));
  }
}

constexpr int64_t kPositions = 5, kVocabulary = 7, kFeatures = 6;

void AddSequenceLayer(BranchedNet& net) {
  const Dims shape = {kPositions, kFeatures};
  const std::string x = net.Any(&shape);
  switch (net.Pick(0, 5)) {
    case 0:
      net.Add("linear", {x}, shape, {{"out_features", kFeatures}},
              net.Pick(0, 2) == 0 ? "linear2" : "");
      return;
    case 1: net.Add("layernorm", {x}, shape); return;
    case 2:
      net.Add("attention", {x, net.Any(&shape), net.Any(&shape)}, shape,
              {{"heads", int64_t{2}}, {"causal", net.Pick(0, 1)}});
      return;
    case 3: {
      const std::string scores = net.Add("matmul", {x, net.Any(&shape)}, {kPositions, kPositions},
                                         {{"transpose_b", true}, {"scale", 0.5}});
      net.Add("matmul", {scores, net.Any(&shape)}, shape);
      return;
    }
    default: net.Pointwise(x);
  }
}

TEST(ExecutorReferenceTest, BranchedSequenceNetsWithATiedHeadAgreeWithTheReference) {
  ModelInput input = {.sample_shape = {kPositions}, .classes = kVocabulary};
  input.sample_type = INT32;
  input.label_shape = {kPositions};
  for (uint32_t seed = 0; seed < 30; ++seed) {
    BranchedNet net(seed);
    const Dims shape = {kPositions, kFeatures};
    std::string x =
        net.Add("embedding", {"input"}, shape, {{"rows", kVocabulary}, {"features", kFeatures}});
    x = net.Add("position_embedding", {x}, shape, {{"rows", kPositions + 2}});
    net.Add("linear", {x}, shape, {{"out_features", kFeatures}});
    for (int i = 0; i < 8; ++i) AddSequenceLayer(net);
    while (net.unread().size() > 1) {
      net.Add("add", {*net.unread().begin(), *net.unread().rbegin()}, shape);
    }
    x = net.Add("layernorm", {*net.unread().begin()}, shape);
    net.Add("linear", {x}, {}, {{"out_features", kVocabulary}, {"bias", false}}, "embedding0");
    const absl::StatusOr<Graph> graph = BuildLayers(input, net.layers());
    ASSERT_TRUE(graph.ok()) << graph.status();
    ExpectAgreement(*graph, MakeTokens(kGlobal, kPositions, kVocabulary, seed));
  }
}

TEST(ExecutorReferenceTest, LossesOfNumbersAgreeWithTheReference) {
  for (const char* loss : {"mean_squared_error", "binary_cross_entropy"}) {
    ModelInput input = {.sample_shape = {9}};
    input.label_type = FLOAT32;
    input.label_shape = {3};
    const std::vector<LayerDescription> layers = {
        {"linear", "a", {{"out_features", int64_t{8}}}}, {"tanh", "t", {}}, {"linear", "b", {}}};
    Samples32 samples = MakeSamples(kGlobal, 9, kClasses, 5);
    samples.label_elements = 3;
    for (int i = 0; i < kGlobal * 3; ++i)
      samples.targets.push_back(0.25f * static_cast<float>(i % 5));
    samples.labels.clear();
    ExpectAgreement(BuildLayers(input, layers, loss).value(), samples);
  }
}

TEST(ExecutorReferenceTest, AGptAgreesWithTheReference) {
  BuiltinArguments gpt;
  ModelInput input = {.sample_shape = {kPositions}, .classes = kVocabulary};
  input.sample_type = INT32;
  input.label_shape = {kPositions};
  gpt["depth"].set_i(2);
  gpt["heads"].set_i(3);
  gpt["width"].set_i(12);
  gpt["vocabulary"].set_i(kVocabulary);
  ExpectAgreement(BuildBuiltin("gpt2", gpt, input).value(),
                  MakeTokens(kGlobal, kPositions, kVocabulary, 2));
}

}  // namespace
}  // namespace starling
