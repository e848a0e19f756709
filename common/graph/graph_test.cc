#include "common/graph/graph.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "common/graph/builders.h"
#include "gmock/gmock.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Graph SmallNet() {
  const std::vector<LayerDescription> layers = {
      {"conv2d", "conv", {{"out_channels", int64_t{2}}, {"kernel", int64_t{3}}}},
      {"batchnorm", "norm", {}},
      {"relu", "relu", {}},
      {"flatten", "flat", {}},
      {"linear", "fc", {}},
  };
  return BuildLayers({{1, 5, 5}, 3}, layers).value();
}

std::string Error(const Graph& graph) {
  const absl::StatusOr<ResolvedGraph> resolved = Validate(graph);
  if (resolved.ok()) return "accepted";
  EXPECT_EQ(resolved.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(resolved.status().message());
}

TEST(ValidateTest, ResolvesNamesShapesAndCounts) {
  const ResolvedGraph graph = Validate(SmallNet()).value();
  ASSERT_EQ(graph.nodes.size(), 6u);
  ASSERT_EQ(graph.values.size(), 8u);
  EXPECT_EQ(graph.values[OutputValue(0)].shape, (Dims{2, 3, 3}));
  EXPECT_EQ(graph.values[OutputValue(3)].elements, 18);
  EXPECT_EQ(graph.values[kInputValue].consumers, (std::vector<int>{0}));
  EXPECT_EQ(graph.values[kLabelValue].consumers, (std::vector<int>{5}));
  EXPECT_EQ(graph.nodes[5].inputs, (std::vector<int>{OutputValue(4), kLabelValue}));
  EXPECT_EQ(graph.logits, OutputValue(4));
  EXPECT_EQ(graph.classes, 3);
  EXPECT_EQ(graph.parameter_elements, 2 * 9 + 2 + 4 * 2 + 3 * 18 + 3);
  EXPECT_EQ(graph.parameters[4].name, "norm.running_mean");
  EXPECT_EQ(graph.parameters[4].kind, STATISTIC);
  EXPECT_EQ(graph.parameters[4].statistic_momentum, 0.1);
  EXPECT_EQ(graph.nodes[1].parameters, (std::vector<int>{2, 3, 4, 5}));
}

TEST(ValidateTest, ErrorsNameNodeOperatorExpectedAndGiven) {
  Graph graph = SmallNet();
  graph.mutable_nodes(0)->set_op("conv4d");
  EXPECT_THAT(Error(graph),
              AllOf(HasSubstr("node \"conv\" (conv4d)"), HasSubstr("one of conv2d,")));

  graph = SmallNet();
  graph.mutable_nodes(2)->set_inputs(0, "fc");  // a cycle
  EXPECT_THAT(Error(graph), HasSubstr("node \"relu\" (relu): input \"fc\" is neither"));

  graph = SmallNet();
  graph.mutable_nodes(2)->set_name("norm");
  EXPECT_THAT(Error(graph), HasSubstr("the name is taken"));

  graph = SmallNet();
  graph.mutable_nodes(2)->set_name("labels");
  EXPECT_THAT(Error(graph), HasSubstr("the name is taken"));

  graph = SmallNet();
  graph.mutable_nodes(2)->set_name("a\nb");
  EXPECT_THAT(Error(graph), HasSubstr("printable ASCII"));

  graph = SmallNet();
  graph.mutable_nodes(2)->add_inputs("norm");
  EXPECT_THAT(Error(graph), HasSubstr("expected 1 inputs, got 2"));

  graph = SmallNet();
  graph.mutable_nodes(2)->set_inputs(0, "labels");
  EXPECT_THAT(Error(graph), HasSubstr("expected a tensor of numbers"));

  graph = SmallNet();
  graph.mutable_nodes(5)->set_inputs(1, "fc");
  EXPECT_THAT(Error(graph), HasSubstr("expected \"labels\" that are classes, got \"fc\""));

  graph = SmallNet();
  graph.mutable_nodes(2)->set_inputs(0, "conv");  // norm's output has no reader
  EXPECT_THAT(Error(graph), HasSubstr("node \"norm\" (batchnorm): nothing reads"));
}

TEST(ValidateTest, LossAndLogitsMustFit) {
  Graph graph = SmallNet();
  graph.mutable_nodes()->RemoveLast();
  EXPECT_THAT(Error(graph), HasSubstr("the last node must be a loss"));

  graph = SmallNet();
  graph.set_classes(10);
  EXPECT_THAT(Error(graph), HasSubstr("its 3 outputs are the logits, but the data has 10"));

  graph = SmallNet();
  graph.set_logits("flat");
  EXPECT_THAT(Error(graph), HasSubstr("expected logits to be \"fc\""));

  EXPECT_THAT(Error(Graph()), HasSubstr("no nodes"));
}

TEST(ValidateTest, ParametersMustBeUsedExactlyAsDeclared) {
  Graph graph = SmallNet();
  graph.mutable_parameters(0)->set_shape(1, 3);
  EXPECT_THAT(Error(graph), AllOf(HasSubstr("parameter \"conv.weight\" (weight)"),
                                  HasSubstr("expected the shape [2, 1, 3, 3], got [2, 3, 3, 3]")));

  graph = SmallNet();
  graph.mutable_parameters(4)->set_kind(TRAINABLE);
  EXPECT_THAT(Error(graph), HasSubstr("expected the kind STATISTIC, got TRAINABLE"));

  graph = SmallNet();
  graph.mutable_parameters(4)->set_statistic_momentum(0.5);
  EXPECT_THAT(Error(graph), HasSubstr("expected the statistic_momentum 0.1"));

  graph = SmallNet();
  graph.mutable_parameters(0)->mutable_init()->set_value(std::numeric_limits<double>::infinity());
  EXPECT_THAT(Error(graph), HasSubstr("expected an initialiser"));

  graph = SmallNet();
  graph.mutable_nodes(1)->set_parameters(0, "conv.bias");
  EXPECT_THAT(Error(graph), AllOf(HasSubstr("parameter \"norm.bias\" (bias)"),
                                  HasSubstr("expected \"norm.bias\" at position 2, got it at 3")));

  graph = SmallNet();
  graph.mutable_nodes(1)->set_parameters(1, "norm.weight");
  EXPECT_THAT(Error(graph), HasSubstr("the same node uses it already"));

  graph = SmallNet();
  graph.mutable_parameters()->SwapElements(0, 1);
  EXPECT_THAT(Error(graph), HasSubstr("declared in forward order"));

  graph = SmallNet();
  *graph.add_parameters() = graph.parameters(0);
  EXPECT_THAT(Error(graph), HasSubstr("two parameters are named"));

  graph = SmallNet();
  graph.add_parameters()->set_name("stray");
  EXPECT_THAT(Error(graph), HasSubstr("\"stray\" is declared, but no node uses it"));

  graph = SmallNet();
  graph.mutable_nodes(4)->mutable_parameters()->RemoveLast();
  EXPECT_THAT(Error(graph), HasSubstr("expected 2 parameters (weight [3, 18], bias [3]), got 1"));

  graph = SmallNet();
  graph.mutable_nodes(4)->set_parameters(1, "missing");
  EXPECT_THAT(Error(graph), HasSubstr("not declared"));
}

TEST(ValidateTest, AParameterMayHaveSeveralUsers) {
  const std::vector<LayerDescription> layers = {
      {"linear", "a", {{"out_features", int64_t{4}}}},
      {"relu", "r", {}},
      {"linear", "b", {{"out_features", int64_t{4}}}, {}, "a"},
      {"linear", "fc", {}},
  };
  const Graph graph = BuildLayers({{4}, 3}, layers).value();
  EXPECT_EQ(graph.parameters_size(), 4);
  const ResolvedGraph resolved = Validate(graph).value();
  EXPECT_EQ(resolved.parameters[0].users, (std::vector<int>{0, 2}));
  EXPECT_EQ(resolved.nodes[2].parameters, (std::vector<int>{0, 1}));
  EXPECT_EQ(resolved.parameter_elements, 4 * 4 + 4 + 3 * 4 + 3);

  Graph wrong = graph;
  (*wrong.mutable_nodes(2)->mutable_attributes())["out_features"].set_i(5);
  EXPECT_THAT(Error(wrong), HasSubstr("expected the shape [5, 4], got [4, 4]"));
}

TEST(ValidateTest, StatisticsAreNotShared) {
  const std::vector<LayerDescription> layers = {
      {"batchnorm", "a", {}}, {"batchnorm", "b", {}, {}, "a"}, {"linear", "fc", {}}};
  EXPECT_THAT(BuildLayers({{4}, 3}, layers).status().message(), HasSubstr("cannot be shared"));
}

TEST(ValidateTest, TypesOfSamplesAndLabelsMustFit) {
  Graph graph = SmallNet();
  graph.mutable_input()->set_type(INT32);
  EXPECT_THAT(Error(graph), AllOf(HasSubstr("node \"conv\" (conv2d)"), HasSubstr("embedding")));
  graph = SmallNet();
  graph.mutable_labels()->set_type(FLOAT32);
  EXPECT_THAT(Error(graph), HasSubstr("got the labels (fp32)"));
  graph = SmallNet();
  graph.mutable_labels()->add_shape(2);
  EXPECT_THAT(Error(graph), HasSubstr("for each of the labels [2]"));
  graph = SmallNet();
  graph.mutable_input()->set_type(static_cast<ElementType>(7));
  EXPECT_THAT(Error(graph), HasSubstr("FLOAT32 or INT32, got 7"));
}

void Freeze(Graph* graph, int begin, int end) {
  for (int p = begin; p < end; ++p) graph->mutable_parameters(p)->set_kind(FROZEN);
}

TEST(ValidateTest, FrozenParametersStandForAnyKind) {
  Graph graph = SmallNet();
  Freeze(&graph, 0, 6);  // conv and norm
  const ResolvedGraph resolved = Validate(graph).value();
  EXPECT_TRUE(UsesFrozenStatistics(resolved, 1));
  EXPECT_FALSE(UsesFrozenStatistics(resolved, 0));
  Freeze(&graph, 6, 8);
  EXPECT_THAT(Error(graph), HasSubstr("nothing to train"));
  graph = SmallNet();
  Freeze(&graph, 0, 2);  // conv only: norm trains, and keeps its statistics
  EXPECT_FALSE(UsesFrozenStatistics(Validate(graph).value(), 1));
  graph = SmallNet();
  Freeze(&graph, 2, 6);  // norm only: conv's gradient would have to pass
  EXPECT_THAT(Error(graph), AllOf(HasSubstr("\"norm\""), HasSubstr("its statistics are frozen")));
}

TEST(ValidateTest, FirstValuesInAFileNeedAFile) {
  Graph graph = SmallNet();
  graph.mutable_parameters(1)->mutable_init()->set_kind(Initializer::FILE);
  EXPECT_THAT(Error(graph), AllOf(HasSubstr(graph.parameters(1).name()), HasSubstr("init_file")));
  graph.set_init_file("/data/start.safetensors");
  EXPECT_TRUE(Validate(graph).ok());
}

TEST(ValidateTest, CraftedSizesAreRefused) {
  Graph graph = SmallNet();
  graph.mutable_input()->set_shape(0, std::numeric_limits<int64_t>::max());
  EXPECT_THAT(Error(graph), HasSubstr("elements"));
  graph = SmallNet();
  graph.mutable_input()->set_shape(0, -1);
  EXPECT_THAT(Error(graph), HasSubstr("at least 1"));
  graph = SmallNet();
  (*graph.mutable_nodes(0)->mutable_attributes())["padding"].set_i(
      std::numeric_limits<int64_t>::max());
  EXPECT_THAT(Error(graph), HasSubstr("padding"));
}

// Damages one field of any message in the tree: sets it to an extreme or to another field's value.
void Damage(google::protobuf::Message* message, std::mt19937& random) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  if (fields.empty()) return;
  const auto* const field = fields[random() % fields.size()];
  const int size = field->is_repeated() ? reflection.FieldSize(*message, field) : 0;
  const int index = size > 0 ? static_cast<int>(random() % size) : 0;
  constexpr int64_t kInts[] = {0, -1, 1, 2, 1 << 16, int64_t{1} << 33, INT64_MAX, INT64_MIN};
  switch (field->cpp_type()) {
    case google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE:
      if (!field->is_repeated()) return Damage(reflection.MutableMessage(message, field), random);
      if (random() % 8 == 0) return reflection.RemoveLast(message, field);
      return Damage(reflection.MutableRepeatedMessage(message, field, index), random);
    case google::protobuf::FieldDescriptor::CPPTYPE_INT64:
      if (field->is_repeated()) {
        return reflection.SetRepeatedInt64(message, field, index, kInts[random() % 8]);
      }
      return reflection.SetInt64(message, field, kInts[random() % 8]);
    case google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.SetDouble(message, field, random() % 2 == 0 ? NAN : -1e308);
    case google::protobuf::FieldDescriptor::CPPTYPE_STRING:
      if (field->is_repeated()) {
        return reflection.SetRepeatedString(message, field, index, random() % 2 ? "conv" : "\xff");
      }
      return reflection.SetString(message, field, random() % 2 ? "relu" : "");
    default: return reflection.ClearField(message, field);
  }
}

TEST(ValidateTest, DamagedGraphsAreRefusedOrHarmless) {
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    Graph graph = SmallNet();
    for (uint32_t times = 1 + random() % 3; times > 0; --times) Damage(&graph, random);
    const absl::StatusOr<ResolvedGraph> resolved = Validate(graph);
    if (!resolved.ok()) {
      EXPECT_EQ(resolved.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_FALSE(resolved.status().message().empty());
      ++refused;
      continue;
    }
    for (const ResolvedValue& value : resolved->values) EXPECT_GE(value.elements, 1);
    for (const ResolvedParameter& parameter : resolved->parameters) {
      EXPECT_GE(parameter.elements, 1);
      EXPECT_TRUE(std::isfinite(parameter.init.value()));
    }
  }
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace starling
