#include "server/coordinator/core/resolve_model.h"

#include <string>

#include "common/graph/graph.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling::coordinator {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Inspection Images() {
  Inspection inspection;
  inspection.set_train_samples(100);
  for (int64_t dim : {3, 8, 8}) inspection.add_sample_shape(dim);
  inspection.set_sample_type(FLOAT32);
  inspection.set_label_type(INT32);
  inspection.set_classes(10);
  return inspection;
}

Inspection Text() {
  Inspection inspection;
  inspection.set_train_samples(100);
  inspection.add_sample_shape(16);
  inspection.set_sample_type(INT32);
  inspection.add_label_shape(16);
  inspection.set_label_type(INT32);
  inspection.set_classes(256);
  inspection.set_vocabulary(256);
  return inspection;
}

ModelSource::Layer& AddLayer(JobSpec& spec, const std::string& op, const std::string& name,
                             const std::vector<std::string>& inputs = {}) {
  ModelSource::Layer& layer = *spec.mutable_model_source()->add_layers();
  layer.set_op(op);
  layer.set_name(name);
  for (const std::string& input : inputs) layer.add_inputs(input);
  return layer;
}

std::string Error(const Inspection& inspection, JobSpec spec) {
  const absl::Status status = ResolveModel(inspection, spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

JobSpec Branches() {
  JobSpec spec;
  (*AddLayer(spec, "conv2d", "stem").mutable_attributes())["out_channels"].set_i(3);
  (*spec.mutable_model_source()->mutable_layers(0)->mutable_attributes())["kernel"].set_i(3);
  (*spec.mutable_model_source()->mutable_layers(0)->mutable_attributes())["padding"].set_i(1);
  AddLayer(spec, "batchnorm", "norm");
  AddLayer(spec, "add", "sum", {"norm", "input"});
  AddLayer(spec, "flatten", "flat");
  AddLayer(spec, "linear", "fc");
  return spec;
}

TEST(ResolveModelTest, BranchesOfTheJobFileBecomeTheGraph) {
  JobSpec spec = Branches();
  ASSERT_TRUE(ResolveModel(Images(), spec).ok());
  EXPECT_EQ(spec.model().nodes(2).inputs(1), "input");
  EXPECT_EQ(spec.model().classes(), 10);
  spec = Branches();
  spec.mutable_model_source()->mutable_layers(2)->set_inputs(1, "nowhere");
  spec.mutable_model_source()->mutable_layers(2)->set_line(17);
  EXPECT_THAT(Error(Images(), spec), AllOf(HasSubstr("line 17"), HasSubstr("got \"nowhere\"")));
}

TEST(ResolveModelTest, RunsOfBlocksThatTheModelHasNotAreRefused) {
  JobSpec spec = Branches();  // the convolution's block, and the classifier
  spec.mutable_recompute()->set_every_blocks(1);
  EXPECT_TRUE(ResolveModel(Images(), spec).ok());
  spec.mutable_recompute()->set_every_blocks(2);
  EXPECT_THAT(Error(Images(), spec), AllOf(HasSubstr("recompute.everyBlocks"),
                                           HasSubstr("has 2 blocks"), HasSubstr("got 2")));
}

TEST(ResolveModelTest, ArgumentsReachTheBuiltin) {
  JobSpec spec;
  spec.mutable_model_source()->set_builtin("resnet18");
  (*spec.mutable_model_source()->mutable_arguments())["stem"].set_s("cifar");
  ASSERT_TRUE(ResolveModel(Images(), spec).ok());
  EXPECT_EQ(spec.model().parameters(0).shape(2), 3);  // the stem's kernel
  (*spec.mutable_model_source()->mutable_arguments())["stem"].set_s("mnist");
  EXPECT_THAT(Error(Images(), spec), HasSubstr("model.stem"));
}

TEST(ResolveModelTest, TokensMakeALanguageModel) {
  JobSpec spec;
  spec.mutable_model_source()->set_builtin("gpt2");
  auto& arguments = *spec.mutable_model_source()->mutable_arguments();
  arguments["depth"].set_i(1);
  arguments["width"].set_i(24);
  ASSERT_TRUE(ResolveModel(Text(), spec).ok());
  EXPECT_EQ(spec.model().input().type(), INT32);
  EXPECT_EQ(spec.model().labels().shape(0), 16);
  EXPECT_EQ(spec.model().classes(), 256);
  EXPECT_EQ(JudgedLabels(spec.model()), 16);
  EXPECT_THAT(Error(Images(), spec), HasSubstr("int32 tokens"));
}

TEST(ResolveModelTest, TheLossFollowsTheLabels) {
  Inspection numbers = Images();
  numbers.set_label_type(FLOAT32);
  numbers.add_label_shape(4);
  JobSpec spec = Branches();
  EXPECT_THAT(Error(numbers, spec), HasSubstr("labels are numbers"));
  spec.mutable_model_source()->set_loss("mean_squared_error");
  ASSERT_TRUE(ResolveModel(numbers, spec).ok());
  EXPECT_EQ(spec.model().nodes().rbegin()->op(), "mean_squared_error");
  EXPECT_EQ(spec.model().labels().type(), FLOAT32);
  EXPECT_EQ(JudgedLabels(spec.model()), 0);
  EXPECT_EQ(spec.model().parameters().rbegin()->shape(0), 4);  // fc's bias: one per number
}

JobSpec Mlp() {
  JobSpec spec;
  spec.mutable_model_source()->set_builtin("mlp");
  auto& hidden = (*spec.mutable_model_source()->mutable_arguments())["hidden"];
  hidden.mutable_ints()->add_values(4);
  return spec;
}

TEST(ResolveModelTest, GlobsFreeze) {
  JobSpec spec = Mlp();
  spec.mutable_model_source()->add_freeze("fc1.*");
  ASSERT_TRUE(ResolveModel(Images(), spec).ok());
  EXPECT_EQ(spec.model().parameters(0).kind(), FROZEN);
  EXPECT_EQ(spec.model().parameters(1).kind(), FROZEN);
  EXPECT_EQ(spec.model().parameters(2).kind(), TRAINABLE);
  spec = Mlp();
  spec.mutable_model_source()->add_freeze("stem.*");
  EXPECT_THAT(Error(Images(), spec), AllOf(HasSubstr("\"stem.*\" matches no parameter"),
                                           HasSubstr("fc1.weight, fc1.bias")));
  spec = Mlp();
  spec.mutable_model_source()->add_freeze("*");
  EXPECT_THAT(Error(Images(), spec), HasSubstr("nothing to train"));
}

void AddTensor(JobSpec& spec, const std::string& name, const std::vector<int64_t>& shape,
               uint64_t offset, const std::string& type = "F32") {
  InitFile::Tensor& tensor = *spec.mutable_model_source()->mutable_init()->add_tensors();
  tensor.set_name(name);
  tensor.set_type(type);
  for (int64_t dim : shape) tensor.add_shape(dim);
  tensor.set_offset(offset);
  tensor.set_digest(offset + 1);
}

TEST(ResolveModelTest, AFileGivesFirstValues) {
  JobSpec spec = Mlp();
  spec.mutable_model_source()->mutable_init()->set_path("/data/start.safetensors");
  AddTensor(spec, "fc2.bias", {10}, 64);
  AddTensor(spec, "fc1.bias", {4}, 128);
  AddTensor(spec, "fc1.weight", {4, 192}, 256);
  AddTensor(spec, "fc2.weight", {10, 4}, 8192);
  AddTensor(spec, "bn.num_batches_tracked", {}, 9000, "I64");
  ASSERT_TRUE(ResolveModel(Images(), spec).ok());
  EXPECT_EQ(spec.model().init_file(), "/data/start.safetensors");
  EXPECT_EQ(spec.model().parameters(0).init().kind(), Initializer::FILE);
  EXPECT_EQ(spec.model().parameters(0).init().file_offset(), 256u);
  EXPECT_EQ(spec.model().parameters(3).init().file_digest(), 65u);
}

TEST(ResolveModelTest, AllMismatchesOfTheFileAreSaidAtOnce) {
  JobSpec spec = Mlp();
  spec.mutable_model_source()->mutable_init()->set_path("/data/start.safetensors");
  AddTensor(spec, "fc1.weight", {4, 191}, 0);
  AddTensor(spec, "fc1.bias", {4}, 0, "F16");
  AddTensor(spec, "fc2.weight", {10, 4}, 0);
  AddTensor(spec, "head.bias", {10}, 0);
  EXPECT_THAT(Error(Images(), spec),
              AllOf(HasSubstr("in 4 tensors"),
                    HasSubstr("fc1.weight: expected F32 [4, 192], got F32 [4, 191]"),
                    HasSubstr("fc1.bias: expected F32 [4], got F16 [4]"),
                    HasSubstr("fc2.bias: expected F32 [10], got nothing"),
                    HasSubstr("head.bias: the model has no such parameter")));
}

TEST(ResolveModelTest, MoreClassesThanTheModelHasAreRefused) {
  JobSpec spec;
  spec.mutable_model_source()->set_builtin("mlp");
  ASSERT_TRUE(ResolveModel(Images(), spec).ok());
  spec.clear_model_source();  // a spec that comes with a graph
  Inspection more = Images();
  more.set_classes(11);
  EXPECT_THAT(Error(more, spec), HasSubstr("labels up to 10"));
}

}  // namespace
}  // namespace starling::coordinator
