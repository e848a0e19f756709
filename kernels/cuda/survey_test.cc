#include "kernels/cuda/survey.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling::cuda {
namespace {

using ::testing::HasSubstr;

Survey Good() {
  return {.toolkit = 13000, .driver = 13010, .gpus = 1, .name = "NVIDIA H100", .compute_major = 9};
}

std::string Refusal(const Survey& survey) {
  const absl::Status status = CheckSurvey(survey);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  return std::string(status.message());
}

TEST(SurveyTest, AGpuThatCanBeUsed) {
  EXPECT_TRUE(CheckSurvey(Good()).ok());
  Survey newer = Good();
  newer.driver = 14020;
  newer.compute_major = 10;
  EXPECT_TRUE(CheckSurvey(newer).ok());
}

TEST(SurveyTest, AnOlderDriverOfTheSameMajorVersionDoes) {
  Survey survey = Good();
  survey.toolkit = 13020;
  survey.driver = 13000;
  EXPECT_TRUE(CheckSurvey(survey).ok());
}

TEST(SurveyTest, SaysWhatIsMissing) {
  Survey survey = Good();
  survey.driver = 0;
  survey.error = "cudaErrorInsufficientDriver";
  EXPECT_THAT(Refusal(survey), HasSubstr("no NVIDIA driver is installed"));

  survey = Good();
  survey.driver = 12040;
  survey.error = "cudaErrorInsufficientDriver";
  EXPECT_THAT(Refusal(survey),
              HasSubstr("too old: it knows CUDA up to 12.4, expected 13.0 or newer"));

  survey = Good();
  survey.error = "cudaErrorNoDevice: no CUDA-capable device is detected";
  EXPECT_THAT(Refusal(survey), HasSubstr("shows no GPU: cudaErrorNoDevice"));

  survey = Good();
  survey.gpus = 0;
  EXPECT_THAT(Refusal(survey), HasSubstr("CUDA_VISIBLE_DEVICES"));

  survey = Good();
  survey.name = "NVIDIA A100";
  survey.compute_major = 8;
  EXPECT_THAT(Refusal(survey),
              HasSubstr("NVIDIA A100 of compute capability 8.0, expected 9.0 (Hopper) or newer"));
}

}  // namespace
}  // namespace starling::cuda
