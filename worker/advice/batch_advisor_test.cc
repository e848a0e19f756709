#include "worker/advice/batch_advisor.h"

#include <memory>
#include <string>

#include "common/graph/builders.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "worker/data/testing/files.h"

namespace starling {
namespace {

using testing::ElementsAre;

constexpr int64_t kSamples = 1000, kFeatures = 6;

class BatchAdvisorTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string rows;
    for (int64_t i = 0; i < kSamples; ++i) {
      for (int64_t k = 0; k < kFeatures; ++k) rows += std::to_string((i * 7 + k) % 13) + ",";
      rows += std::to_string(i % 3) + "\n";
    }
    spec_.mutable_train()->mutable_csv()->set_path(data_testing::WriteFile("rows.csv", rows));
    DataSetOptions options;
    data_ = DataSet::Open(spec_.train(), Normalize(), options).value();
    *spec_.mutable_model() = BuildMlp({{kFeatures}, 3}, {{64, 64, 64, 64}}).value();
    spec_.mutable_batch()->set_global(32);
    spec_.mutable_batch()->set_micro_batches(4);
    spec_.mutable_batch()->set_kernel_threads(1);
    spec_.mutable_optimizer()->mutable_sgd();
    device_ = CreateCpuDevice().value();
  }

  std::unique_ptr<BatchAdvisor> Advisor(size_t bytes_max) {
    BatchAdvisor::Options options;
    options.lanes = 2;
    options.bytes_max = bytes_max;
    options.time = absl::ZeroDuration();
    return BatchAdvisor::Create(spec_, data_, options, device_.get()).value();
  }

  JobSpec spec_;
  std::shared_ptr<const DataSet> data_;
  std::unique_ptr<Device> device_;
};

TEST_F(BatchAdvisorTest, AmpleMemoryIsBoundedByTheData) {
  const auto largest = Advisor(size_t{1} << 40)->LargestThatFits(Recompute());
  ASSERT_TRUE(largest.ok()) << largest.status();
  EXPECT_EQ(largest->samples, kSamples / 4);
}

TEST_F(BatchAdvisorTest, TheLargestFitsAndOneMoreDoesNot) {
  const size_t ample = Advisor(size_t{1} << 40)->LargestThatFits(Recompute())->planned.bytes;
  const size_t bytes_max = ample * 2 / 3;
  const auto advisor = Advisor(bytes_max);
  const auto largest = advisor->LargestThatFits(Recompute());
  ASSERT_TRUE(largest.ok()) << largest.status();
  EXPECT_GT(largest->samples, 1);
  EXPECT_LT(largest->samples, kSamples / 4);
  EXPECT_LE(largest->planned.bytes, bytes_max);
  EXPECT_TRUE(advisor->SamplesPerSecond(largest->samples, Recompute()).ok());
  EXPECT_EQ(advisor->SamplesPerSecond(largest->samples + 1, Recompute()).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(BatchAdvisorTest, NothingFitsIntoNothing) {
  EXPECT_EQ(Advisor(1)->LargestThatFits(Recompute()).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(BatchAdvisorTest, AStepIsReallyTrained) {
  Recompute recompute;
  recompute.set_every_blocks(1);
  for (const Recompute& policy : {Recompute(), recompute}) {
    const auto speed = Advisor(size_t{1} << 40)->SamplesPerSecond(8, policy);
    ASSERT_TRUE(speed.ok()) << speed.status();
    EXPECT_GT(*speed, 0);
  }
}

TEST_F(BatchAdvisorTest, SizesArePowersOfTwoAndTheJobsOwn) {
  EXPECT_THAT(BatchAdvisor::SizesToTry(20, 12), ElementsAre(1, 2, 4, 8, 12, 16));
  EXPECT_THAT(BatchAdvisor::SizesToTry(8, 8), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(BatchAdvisor::SizesToTry(5, 6), ElementsAre(1, 2, 4));
}

}  // namespace
}  // namespace starling
