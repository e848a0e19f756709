// `starling export` against fake shards.
#include <numeric>

#include "common/safetensors/safetensors.h"
#include "nlohmann/json.hpp"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/testing/cli_fixture.h"

namespace starling::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A model of two parameters and one statistic, whose flat buffer is 0, 1, 2, ...
class ExportTest : public CliTest {
 protected:
  ExportTest() {
    JobStatus status = Running();
    status.set_state(SUCCEEDED);
    reply_ = Reply(status);
    reply_.add_views();
    reply_.add_values();
    Graph* model = reply_.mutable_spec()->mutable_model();
    AddParameter(model, "conv.weight", {2, 3}, TRAINABLE);
    AddParameter(model, "bn.mean", {2}, STATISTIC);
    AddParameter(model, "fc.bias", {4}, TRAINABLE);
    reply_.mutable_spec()->mutable_train()->mutable_csv()->set_path("/d.csv");
    reply_.mutable_spec()->mutable_normalize()->add_mean(8);
    cluster_.jobs = {reply_};
    context_.read_slices = [this](const JobReply&, const Layout& layout, const ReadPoint& point,
                                  absl::Time, const SliceConsumer& consume) -> absl::Status {
      points_.push_back(point);
      for (const Slice& slice : layout.slices) {
        std::vector<float> values(slice.elements);
        std::iota(values.begin(), values.end(), static_cast<float>(slice.flat_begin));
        const absl::Status status = consume(slice, values);
        if (!status.ok()) return status;
        if (!refusals_.empty()) {
          const absl::Status refusal = refusals_.front();
          refusals_.pop_front();
          if (taken_over_) {  // not at once
            cluster_.jobs = {reply_, reply_, reply_};
            cluster_.jobs.back()->mutable_views(0)->set_number(2);
          }
          return refusal;
        }
      }
      return absl::OkStatus();
    };
    path_ = absl::StrCat(std::getenv("TEST_TMPDIR"), "/out.safetensors");
    std::remove(path_.c_str());
  }

  static void AddParameter(Graph* model, const std::string& name, const std::vector<int64_t>& shape,
                           ParameterKind kind) {
    Parameter* parameter = model->add_parameters();
    parameter->set_name(name);
    for (int64_t dim : shape) parameter->add_shape(dim);
    parameter->set_kind(kind);
    if (kind == STATISTIC) parameter->set_statistic_momentum(0.1);
  }

  int Export() { return Run({"export", "digits", "--format", "safetensors", "-o", path_}); }

  JobReply reply_;
  std::string path_;
  std::vector<ReadPoint> points_;
  std::deque<absl::Status> refusals_;
  bool taken_over_ = false;  // meanwhile, by the other copy
};

TEST_F(ExportTest, WritesEveryParameterUnderItsName) {
  ASSERT_EQ(Export(), 0) << err_.str();
  EXPECT_FALSE(points_.at(0).epoch.has_value());
  const auto file = safetensors::Reader::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(*file->ReadFloats("conv.weight"), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(*file->ReadFloats("fc.bias"), ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(*file->ReadFloats("bn.mean"), ElementsAre(10, 11));
  EXPECT_THAT(file->Find("conv.weight")->shape, ElementsAre(2, 3));
  const auto& metadata = file->header().metadata;
  EXPECT_EQ(metadata.at("format"), "pt");
  EXPECT_EQ(metadata.at("job"), "digits");
  EXPECT_EQ(metadata.at("step"), "812");
  const auto model = nlohmann::json::parse(metadata.at("model"));
  EXPECT_EQ(model["parameters"][0]["name"], "conv.weight");
  EXPECT_EQ(model["parameters"][1]["kind"], "STATISTIC");
  const auto preprocessing = nlohmann::json::parse(metadata.at("preprocessing"));
  EXPECT_EQ(preprocessing["train"]["csv"]["path"], "/d.csv");
  EXPECT_EQ(preprocessing["normalize"]["mean"][0], 8);
}

TEST_F(ExportTest, ARunningJobGivesItsNewestEvaluatedEpoch) {
  reply_.mutable_status()->set_state(RUNNING);
  cluster_.jobs = {reply_};
  EXPECT_EQ(Export(), 1);
  EXPECT_THAT(err_.str(), HasSubstr("no complete copy of its parameters yet"));
  EXPECT_TRUE(points_.empty());
  AddEpoch(reply_.mutable_status(), 0.9);
  AddEpoch(reply_.mutable_status(), 0.9);
  cluster_.jobs = {reply_};
  EXPECT_EQ(Export(), 0);
  EXPECT_EQ(points_.at(0).epoch, 1u);
  EXPECT_THAT(err_.str(), HasSubstr("after epoch 2"));
}

// The job file's BSP setting does not matter, nor does the policy at the job's start.
TEST_F(ExportTest, APartitionIsReadAtTheVersionThatTheCoordinatorSays) {
  reply_.mutable_spec()->mutable_policy()->set_kind(Policy::BSP);
  EXPECT_EQ(Export(), 0) << err_.str();
  EXPECT_TRUE(points_.at(0).versions.empty());
  reply_.mutable_spec()->mutable_policy()->set_kind(Policy::SSP);
  reply_.mutable_status()->set_state(FAILED);
  reply_.mutable_values(0)->set_version(411);
  cluster_.jobs = {reply_};
  EXPECT_EQ(Export(), 0) << err_.str();
  EXPECT_EQ(points_.at(1).versions.at(0), 411u);
  const auto file = safetensors::Reader::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header().metadata.at("step"), "411");
}

TEST_F(ExportTest, ItWaitsALittleForShardsThatHaveNotToldTheEnd) {
  JobReply early = reply_;
  early.mutable_values(0)->set_unknown(true);
  cluster_.jobs = {early, early, early, early, early, early, reply_};
  EXPECT_EQ(Export(), 0) << err_.str();
  cluster_.jobs = {early};
  const absl::Time begin = now_;
  EXPECT_EQ(Export(), 1);
  EXPECT_LT(now_ - begin, absl::Seconds(11));
  EXPECT_THAT(err_.str(), HasSubstr("has not told the coordinator of digits's end yet"));
}

TEST_F(ExportTest, LostValuesAreNamedWithTheirShard) {
  reply_.mutable_values(0)->set_gone("lost with shard ps-1 at 127.0.0.1:9");
  cluster_.jobs = {reply_};
  EXPECT_EQ(Export(), 1);
  EXPECT_THAT(
      err_.str(),
      HasSubstr("the values of digits are gone: partition 0 of 1: lost with shard ps-1 at"));
}

TEST_F(ExportTest, AMissingFolderIsNotAMissingJob) {
  EXPECT_EQ(Run({"export", "digits", "--format", "safetensors", "-o", path_ + ".d/x.safetensors"}),
            1);
  EXPECT_THAT(err_.str(), HasSubstr("No such file or directory"));
}

TEST_F(ExportTest, AFolderOrNoNameIsRefusedBeforeAnythingIsRead) {
  for (const char* file : {"", "/tmp/"}) {
    EXPECT_EQ(Run({"export", "digits", "--format", "safetensors", "-o", file}), kExitUsage);
    EXPECT_THAT(err_.str(), HasSubstr("expected the name of a file to write, got "));
  }
  EXPECT_THAT(err_.str(), HasSubstr("got the folder /tmp/: name a file in it"));
  EXPECT_TRUE(points_.empty());
}

TEST_F(ExportTest, ACopyThatIsReplacedIsReadAnew) {
  refusals_ = {absl::AbortedError("that copy is gone")};
  EXPECT_EQ(Export(), 0);
  EXPECT_EQ(points_.size(), 2u);
  refusals_ = {absl::AbortedError("gone"), absl::AbortedError("gone"), absl::AbortedError("gone")};
  EXPECT_EQ(Export(), 1);
  EXPECT_THAT(err_.str(), HasSubstr("cannot export digits: gone"));
}

TEST_F(ExportTest, AShardThatIsGoneIsFollowedByItsOtherCopy) {
  refusals_ = {absl::UnavailableError("shard 2 at 127.0.0.1:9 is not there")};
  taken_over_ = true;
  EXPECT_EQ(Export(), 0) << err_.str();
  EXPECT_EQ(points_.size(), 2u);
}

TEST_F(ExportTest, AFailureLeavesNoFile) {
  refusals_ = {absl::UnavailableError("shard 2 at 127.0.0.1:9 is not there")};
  EXPECT_EQ(Export(), 1);  // the coordinator was reached: not kExitUnreachable
  EXPECT_THAT(err_.str(), HasSubstr("127.0.0.1:9"));
  EXPECT_FALSE(std::ifstream(path_).good());
}

TEST_F(ExportTest, WhatHasNoParametersIsRefused) {
  reply_.clear_views();
  reply_.clear_values();
  reply_.mutable_status()->set_state(PENDING);
  cluster_.jobs = {reply_};
  EXPECT_EQ(Export(), 1);
  EXPECT_THAT(err_.str(), HasSubstr("digits is PENDING and has no parameters"));
  EXPECT_EQ(Run({"export", "digits", "--format", "npz", "-o", path_}), 2);
}

}  // namespace
}  // namespace starling::cli
