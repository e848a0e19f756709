// The builtins: published parameter counts, names, shapes, and the effect of their arguments.
#include <cmath>
#include <set>
#include <string>

#include "common/graph/backward.h"
#include "common/graph/builders.h"
#include "common/graph/graph.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

const ModelInput kImagenet = {.sample_shape = {3, 224, 224}, .classes = 1000};
const ModelInput kCifar = {.sample_shape = {3, 32, 32}, .classes = 10};

ModelInput Tokens(int64_t positions, int64_t vocabulary) {
  ModelInput input = {.sample_shape = {positions}, .classes = vocabulary};
  input.sample_type = INT32;
  input.label_shape = {positions};
  input.vocabulary = vocabulary;
  return input;
}

struct Arguments {
  BuiltinArguments map;
  Arguments& Int(const char* name, int64_t value) { return map[name].set_i(value), *this; }
  Arguments& Float(const char* name, double value) { return map[name].set_f(value), *this; }
  Arguments& Text(const char* name, const char* value) { return map[name].set_s(value), *this; }
};

Graph Build(const char* name, const ModelInput& input, const Arguments& arguments = {}) {
  absl::StatusOr<Graph> graph = BuildBuiltin(name, arguments.map, input);
  EXPECT_TRUE(graph.ok()) << name << ": " << graph.status();
  return graph.ok() ? *graph : Graph();
}

std::string Error(const char* name, const ModelInput& input, const Arguments& arguments) {
  return std::string(BuildBuiltin(name, arguments.map, input).status().message());
}

// Published counts exclude batch norm's statistics.
int64_t Trainable(const Graph& graph) {
  int64_t elements = 0;
  const absl::StatusOr<ResolvedGraph> resolved = Validate(graph);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  if (!resolved.ok()) return -1;
  for (const ResolvedParameter& parameter : resolved->parameters) {
    if (parameter.kind == TRAINABLE) elements += parameter.elements;
  }
  return elements;
}

std::set<std::string> Names(const Graph& graph) {
  std::set<std::string> names;
  for (const Parameter& parameter : graph.parameters()) names.insert(parameter.name());
  return names;
}

const Parameter& Find(const Graph& graph, const std::string& name) {
  for (const Parameter& parameter : graph.parameters()) {
    if (parameter.name() == name) return parameter;
  }
  ADD_FAILURE() << "no parameter " << name;
  return Parameter::default_instance();
}

TEST(ModelsTest, ParameterCountsAreThePublishedOnes) {
  EXPECT_EQ(Trainable(Build("resnet18", kImagenet)), 11'689'512);
  EXPECT_EQ(Trainable(Build("resnet34", kImagenet)), 21'797'672);
  EXPECT_EQ(Trainable(Build("resnet50", kImagenet)), 25'557'032);
  EXPECT_EQ(Trainable(Build("mobilenet_v2", kImagenet)), 3'504'872);
  EXPECT_EQ(Trainable(Build("shufflenet_v2", kImagenet)), 2'278'604);
  EXPECT_EQ(Trainable(Build("shufflenet_v2", kImagenet, Arguments().Float("widthFactor", 0.5))),
            1'366'792);
  EXPECT_EQ(Trainable(Build("shufflenet_v2", kImagenet, Arguments().Float("widthFactor", 1.5))),
            3'503'624);
  EXPECT_EQ(Trainable(Build("shufflenet_v2", kImagenet, Arguments().Int("widthFactor", 2))),
            7'393'996);
  EXPECT_EQ(Trainable(Build("gpt2", Tokens(1024, 50257))), 124'439'808);
  // GPT-2 medium.
  EXPECT_EQ(Trainable(Build("gpt2", Tokens(1024, 50257),
                            Arguments().Int("depth", 24).Int("heads", 16).Int("width", 1024))),
            354'823'168);
}

TEST(ModelsTest, ShapesAreThoseOfThePapers) {
  const auto before_pooling = [](const Graph& graph) {
    const ResolvedGraph resolved = Validate(graph).value();
    for (const ResolvedNode& node : resolved.nodes) {
      if (node.kind == OpKind::kGlobalAvgPool2d) return resolved.values[node.inputs[0]].shape;
    }
    return Dims();
  };
  EXPECT_EQ(before_pooling(Build("resnet18", kImagenet)), (Dims{512, 7, 7}));
  EXPECT_EQ(before_pooling(Build("resnet50", kImagenet)), (Dims{2048, 7, 7}));
  EXPECT_EQ(before_pooling(Build("mobilenet_v2", kImagenet)), (Dims{1280, 7, 7}));
  EXPECT_EQ(before_pooling(Build("shufflenet_v2", kImagenet)), (Dims{1024, 7, 7}));
  EXPECT_EQ(before_pooling(Build("resnet18", kCifar, Arguments().Text("stem", "cifar"))),
            (Dims{512, 4, 4}));
  EXPECT_EQ(before_pooling(Build("resnet18", kCifar)), (Dims{512, 1, 1}));
}

TEST(ModelsTest, NamesAreTorchvisionsAndGpt2s) {
  EXPECT_THAT(Names(Build("resnet18", kImagenet)),
              AllOf(Contains("conv1.weight"), Contains("bn1.running_var"),
                    Contains("layer2.0.downsample.0.weight"), Contains("layer4.1.bn2.bias"),
                    Contains("fc.bias")));
  EXPECT_EQ(Names(Build("resnet18", kImagenet)).size(), 102u);
  EXPECT_EQ(Names(Build("resnet50", kImagenet)).size(), 267u);
  EXPECT_THAT(
      Names(Build("mobilenet_v2", kImagenet)),
      AllOf(Contains("features.0.0.weight"), Contains("features.1.conv.0.1.bias"),
            Contains("features.1.conv.2.weight"), Contains("features.2.conv.3.running_mean"),
            Contains("features.18.0.weight"), Contains("classifier.1.weight")));
  EXPECT_EQ(Names(Build("mobilenet_v2", kImagenet)).size(), 262u);
  EXPECT_THAT(Names(Build("shufflenet_v2", kImagenet)),
              AllOf(Contains("conv1.0.weight"), Contains("stage2.0.branch1.2.weight"),
                    Contains("stage4.3.branch2.5.weight"), Contains("conv5.1.bias"),
                    Contains("fc.weight")));
  EXPECT_EQ(Names(Build("shufflenet_v2", kImagenet)).size(), 282u);
  EXPECT_THAT(Names(Build("gpt2", Tokens(16, 50), Arguments().Int("depth", 2))),
              AllOf(Contains("wte.weight"), Contains("wpe.weight"), Contains("h.1.ln_1.bias"),
                    Contains("h.0.attn.c_attn.weight"), Contains("h.1.mlp.c_proj.bias"),
                    Contains("ln_f.weight"), testing::Not(Contains("lm_head.weight"))));
}

TEST(ModelsTest, InitialisationIsTorchvisionsAndGpt2s) {
  const Graph resnet = Build("resnet18", kImagenet);
  EXPECT_EQ(Find(resnet, "conv1.weight").init().kind(), Initializer::NORMAL);
  EXPECT_DOUBLE_EQ(Find(resnet, "conv1.weight").init().value(), std::sqrt(2.0 / (64 * 49)));
  EXPECT_DOUBLE_EQ(Find(resnet, "fc.weight").init().value(), 1 / std::sqrt(512.0));
  const Graph mobile = Build("mobilenet_v2", kImagenet);
  EXPECT_DOUBLE_EQ(Find(mobile, "features.1.conv.0.0.weight").init().value(),
                   std::sqrt(2.0 / (32 * 9)));  // depthwise: PyTorch's fan-out ignores groups
  EXPECT_DOUBLE_EQ(Find(mobile, "classifier.1.weight").init().value(), 0.01);
  const Graph gpt = Build("gpt2", Tokens(16, 50), Arguments().Int("depth", 8));
  EXPECT_DOUBLE_EQ(Find(gpt, "wte.weight").init().value(), 0.02);
  EXPECT_DOUBLE_EQ(Find(gpt, "h.0.attn.c_attn.weight").init().value(), 0.02);
  EXPECT_DOUBLE_EQ(Find(gpt, "h.0.attn.c_proj.weight").init().value(), 0.02 / 4);
  EXPECT_DOUBLE_EQ(Find(gpt, "h.3.mlp.c_proj.weight").init().value(), 0.02 / 4);
  EXPECT_EQ(Find(gpt, "h.0.mlp.c_fc.bias").init().kind(), Initializer::CONSTANT);
  EXPECT_EQ(Find(gpt, "h.0.mlp.c_fc.bias").init().value(), 0);
}

TEST(ModelsTest, ATiedHeadIsOneParameterWithTwoUsers) {
  const ResolvedGraph tied =
      Validate(Build("gpt2", Tokens(16, 50), Arguments().Int("depth", 1))).value();
  const int last = static_cast<int>(tied.nodes.size()) - 2;  // the head
  EXPECT_EQ(tied.parameters[0].name, "wte.weight");
  EXPECT_EQ(tied.parameters[0].users, (std::vector<int>{0, last}));
  EXPECT_EQ(tied.nodes[last].parameters, (std::vector<int>{0}));
  EXPECT_EQ(tied.classes, 50);
  const Graph apart = Build("gpt2", Tokens(16, 50), Arguments().Int("depth", 1).Int("tiedHead", 0));
  EXPECT_EQ(Trainable(apart), tied.parameter_elements + 50 * 768);
  EXPECT_EQ(Find(apart, "lm_head.weight").shape(0), 50);
}

TEST(ModelsTest, MoreNodesThanAModelMayHaveAreRefused) {
  EXPECT_GT(Build("gpt2", Tokens(16, 50), Arguments().Int("depth", 300)).nodes_size(), 3900);
  EXPECT_THAT(Error("gpt2", Tokens(16, 50), Arguments().Int("depth", 400)),
              HasSubstr("expected at most 4000 nodes and 100000 parameters, got "));
}

TEST(ModelsTest, ArgumentsChangeTheModel) {
  const auto nodes = [](const Arguments& arguments) {
    return Build("gpt2", Tokens(16, 50), arguments).nodes_size();
  };
  EXPECT_EQ(nodes(Arguments().Int("depth", 3)) - nodes(Arguments().Int("depth", 2)), 13);
  // Dropout after the embeddings and twice in each block.
  EXPECT_EQ(nodes(Arguments().Int("depth", 2).Float("dropout", 0.1)),
            nodes(Arguments().Int("depth", 2)) + 5);
  const Graph large = Build("gpt2", Tokens(16, 50),
                            Arguments().Int("context", 64).Int("vocabulary", 100).Int("depth", 1));
  EXPECT_EQ(Find(large, "wpe.weight").shape(0), 64);
  EXPECT_EQ(Find(large, "wte.weight").shape(0), 100);
  EXPECT_EQ(large.classes(), 100);  // more than the data shows
  EXPECT_EQ(Find(Build("resnet18", kCifar, Arguments().Int("classes", 1000)), "fc.weight").shape(0),
            1000);
  EXPECT_EQ(Find(Build("mobilenet_v2", kCifar, Arguments().Float("widthFactor", 0.5)),
                 "features.0.0.weight")
                .shape(0),
            16);
}

TEST(ModelsTest, BadArgumentsAreNamed) {
  EXPECT_THAT(Error("resnet19", kCifar, {}),
              AllOf(HasSubstr("resnet18"), HasSubstr("got \"resnet19\"")));
  EXPECT_THAT(Error("resnet18", kCifar, Arguments().Int("depth", 3)),
              HasSubstr("model.depth: builtin resnet18 takes stem, classes"));
  EXPECT_THAT(Error("resnet18", kCifar, Arguments().Text("stem", "mnist")),
              HasSubstr("expected one of imagenet, cifar"));
  EXPECT_THAT(Error("gpt2", Tokens(16, 50), Arguments().Int("depth", 0)),
              HasSubstr("expected an integer in [1, 1000]"));
  EXPECT_THAT(Error("gpt2", Tokens(16, 50), Arguments().Int("heads", 7)),
              HasSubstr("7 heads for 768 features"));
  EXPECT_THAT(Error("gpt2", Tokens(16, 50), Arguments().Int("vocabulary", 40)),
              HasSubstr("at least 50"));
  EXPECT_THAT(Error("gpt2", Tokens(16, 50), Arguments().Int("context", 8)),
              HasSubstr("at most 8 positions"));
  EXPECT_THAT(Error("gpt2", kCifar, {}), HasSubstr("int32 tokens"));
  EXPECT_THAT(Error("shufflenet_v2", kCifar, Arguments().Float("widthFactor", 0.7)),
              HasSubstr("expected 0.5, 1, 1.5 or 2"));
  EXPECT_THAT(Error("resnet18", {.sample_shape = {64}, .classes = 10}, {}),
              HasSubstr("\"conv1\" (conv2d)"));
}

TEST(ModelsTest, DefaultsInTheTableAreTheBuilders) {
  for (const Builtin& builtin : Builtins()) {
    if (std::string(builtin.name) == "counter") continue;
    const ModelInput input = std::string(builtin.name) == "gpt2" ? Tokens(16, 50)
                             : std::string(builtin.name) == "lenet"
                                 ? ModelInput{.sample_shape = {1, 28, 28}, .classes = 10}
                                 : kCifar;
    BuiltinArguments written;
    for (const BuiltinArgument& argument : builtin.arguments) {
      const std::string text = argument.default_text;
      Attribute value;
      if (text.empty()) continue;
      if (argument.type == BuiltinArgument::Type::kText)
        value.set_s(text);
      else if (argument.type == BuiltinArgument::Type::kBoolean)
        value.set_i(text == "true");
      else if (argument.type == BuiltinArgument::Type::kNumber)
        value.set_f(std::stod(text));
      else if (argument.type == BuiltinArgument::Type::kInteger)
        value.set_i(std::stoll(text));
      else {
        value.mutable_ints()->add_values(128);
        value.mutable_ints()->add_values(64);
      }
      written[argument.name] = value;
    }
    EXPECT_EQ(BuildBuiltin(builtin.name, written, input)->DebugString(),
              BuildBuiltin(builtin.name, {}, input)->DebugString())
        << builtin.name;
  }
}

}  // namespace
}  // namespace starling
