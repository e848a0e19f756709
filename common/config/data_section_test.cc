#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"

namespace starling::config {
namespace {

using ::testing::HasSubstr;

// A job file around its data section, in one line.
absl::StatusOr<JobSpec> Parse(const std::string& data) {
  JobFileOptions options;
  options.directory = "/jobs";
  options.environment = [](const std::string& name) -> absl::optional<std::string> {
    if (name == "DATA") return std::string("/data");
    return absl::nullopt;
  };
  return ParseJobFile(absl::StrCat(R"(apiVersion: starling/v1
kind: TrainingJob
metadata: {name: a}
spec:
  model: {builtin: mlp}
  batch: {global: 4}
  optimizer: {sgd: {learningRate: 1}}
  data: )", data, "\n"), options);
}

TEST(DataSection, Text) {
  const auto spec = Parse(R"({train: {text: {path: $DATA/a.txt, context: 64, stride: 16, end: 0.9}},
    test: {text: {path: b.txt, context: 32, begin: 0.9}}, loading: {threads: 3, readAheadMiB: 5}})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->train().text().path(), "/data/a.txt");
  EXPECT_EQ(spec->train().text().context(), 64u);
  EXPECT_EQ(spec->train().text().stride(), 16u);
  EXPECT_DOUBLE_EQ(spec->train().text().begin(), 0);
  EXPECT_DOUBLE_EQ(spec->train().text().end(), 0.9);
  EXPECT_EQ(spec->test().text().path(), "/jobs/b.txt");
  EXPECT_EQ(spec->test().text().stride(), 0u);
  EXPECT_DOUBLE_EQ(spec->test().text().begin(), 0.9);
  EXPECT_DOUBLE_EQ(spec->test().text().end(), 1);
  EXPECT_EQ(spec->loading().threads(), 3u);
  EXPECT_EQ(spec->loading().read_ahead_bytes(), 5u << 20);
}

TEST(DataSection, Tokens) {
  const auto spec = Parse("{train: {tokens: {path: t.bin, context: 1024, vocabulary: 50257}}}");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->train().tokens().path(), "/jobs/t.bin");
  EXPECT_EQ(spec->train().tokens().context(), 1024u);
  EXPECT_EQ(spec->train().tokens().vocabulary(), 50257u);
}

class MalformedData : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(MalformedData, IsRefusedByName) {
  const auto& [data, expected] = GetParam();
  const auto spec = Parse(data);
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr(expected));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, MalformedData,
    ::testing::Values(
        std::make_tuple("{}", "\"train\" is missing"),
        std::make_tuple("{train: {}}", "expected exactly one of idx, csv, text"),
        std::make_tuple("{train: {txt: {path: a}}}", "did you mean \"text\"?"),
        std::make_tuple("{train: {text: {path: a}}}", "\"context\" is missing"),
        std::make_tuple("{train: {text: {context: 8}}}", "\"path\" is missing"),
        std::make_tuple("{train: {text: {path: $X, context: 8}}}", "$X in \"$X\" is not set"),
        std::make_tuple("{train: {text: {path: a, context: 0}}}", "text.context: expected a whole number from 1"),
        std::make_tuple("{train: {text: {path: a, context: 8, stride: 0}}}", "text.stride: expected a whole number from 1"),
        std::make_tuple("{train: {text: {path: a, context: 8, begin: 0.5, end: 0.5}}}", "expected more than begin"),
        std::make_tuple("{train: {text: {path: a, context: 8, end: 1.5}}}", "text.end: expected a finite number from 0 to 1"),
        std::make_tuple("{train: {tokens: {path: a, context: 8}}}", "\"vocabulary\" is missing"),
        std::make_tuple("{train: {tokens: {path: a, context: 8, vocabulary: 1}}}", "vocabulary: expected a whole number from 2"),
        std::make_tuple("{train: {text: {path: a, context: 8}}, loading: {threads: 65}}", "loading.threads: expected a whole number from 1 to 64"),
        std::make_tuple("{train: {text: {path: a, context: 8}}, loading: {readAheadMiB: 0}}", "readAheadMiB: expected a whole number from 1"),
        std::make_tuple("{train: {text: {path: a, context: 8}}, loading: {readAhead: 1}}", "did you mean \"readAheadMiB\"?")));

// Whoever speaks to the coordinator without a job file meets the same limits.
TEST(DataSection, ASpecFromElsewhereIsChecked) {
  const auto good = Parse("{train: {tokens: {path: a, context: 8, vocabulary: 9}}}");
  ASSERT_TRUE(good.ok()) << good.status();
  ASSERT_TRUE(ValidateSpec(*good).ok());
  JobSpec spec = *good;
  spec.mutable_train()->mutable_tokens()->set_context(0);
  EXPECT_THAT(std::string(ValidateSpec(spec).message()), HasSubstr("context of at least 1"));
  spec = *good;
  spec.mutable_train()->mutable_tokens()->set_vocabulary(0);
  EXPECT_THAT(std::string(ValidateSpec(spec).message()), HasSubstr("vocabulary of at least 2"));
  spec = *good;
  spec.mutable_train()->mutable_tokens()->set_begin(2);
  EXPECT_THAT(std::string(ValidateSpec(spec).message()), HasSubstr("0 <= begin < end <= 1"));
  spec = *good;
  spec.mutable_train()->mutable_tokens()->set_path(std::string("a\0b", 3));
  EXPECT_THAT(std::string(ValidateSpec(spec).message()), HasSubstr("without a zero byte"));
  spec = *good;
  spec.mutable_loading()->set_threads(65);
  EXPECT_THAT(std::string(ValidateSpec(spec).message()), HasSubstr("data.loading.threads"));
  spec = *good;
  spec.clear_train();
  EXPECT_THAT(std::string(ValidateSpec(spec).message()), HasSubstr("data.train: expected idx"));
}

}  // namespace
}  // namespace starling::config
