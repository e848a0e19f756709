#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"

namespace starling::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A one-line job file with this data section.
absl::StatusOr<JobSpec> Parse(const std::string& data, const std::string& directory = "/jobs") {
  JobFileOptions options;
  options.directory = directory;
  options.environment = [](const std::string& name) -> std::optional<std::string> {
    if (name == "DATA") return std::string("/data");
    if (name == "HOME") return std::string("/home/me");
    return std::nullopt;
  };
  options.matching_files = [](const std::string& pattern) -> std::vector<std::string> {
    if (pattern == "/jobs/t-*.bin") return {"/jobs/t-b.bin", "/jobs/t-a.bin"};
    if (pattern == "/jobs\\[1]/t-*.bin") return {"/jobs[1]/t-a.bin"};
    if (pattern == "/jobs/l-*.bin") return {"/jobs/l-\xe9.bin"};
    return {};
  };
  return ParseJobFile(absl::StrCat(R"(apiVersion: starling/v1
kind: TrainingJob
metadata: {name: a}
spec:
  model: {builtin: mlp}
  batch: {global: 4}
  optimizer: {sgd: {learningRate: 1}}
  data: )",
                                   data, "\n"),
                      options);
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

std::vector<std::string> CifarFiles(const std::string& files) {
  const auto spec = Parse(absl::StrCat("{train: {cifar: {files: [", files, "]}}}"));
  if (!spec.ok()) return {std::string(spec.status().message())};
  return {spec->train().cifar().files().begin(), spec->train().cifar().files().end()};
}

TEST(DataSection, OnePathStandsForSeveral) {
  EXPECT_THAT(CifarFiles("\"/d/{08..11}.bin\", last.bin"),
              ElementsAre("/d/08.bin", "/d/09.bin", "/d/10.bin", "/d/11.bin", "/jobs/last.bin"));
  EXPECT_THAT(CifarFiles("\"~/{8..10}\""), ElementsAre("/home/me/8", "/home/me/9", "/home/me/10"));
  EXPECT_THAT(CifarFiles("t-*.bin"), ElementsAre("/jobs/t-a.bin", "/jobs/t-b.bin"));
  EXPECT_THAT(CifarFiles("\"~\""), ElementsAre("/home/me"));
  EXPECT_THAT(CifarFiles("\"a{b}.bin\""), ElementsAre("/jobs/a{b}.bin"));
}

// Pattern characters in the name of the job file's folder are literal.
TEST(DataSection, TheJobFilesFolderIsTakenAsItIs) {
  const auto file = Parse("{train: {cifar: {files: [t.bin, t-*.bin]}}}", "/jobs[1]");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->train().cifar().files(), ElementsAre("/jobs[1]/t.bin", "/jobs[1]/t-a.bin"));
}

TEST(DataSection, AMatchIsUtf8) {
  EXPECT_THAT(CifarFiles("l-*.bin"), ElementsAre(HasSubstr("expected paths in UTF-8")));
}

TEST(DataSection, WhatAPathCannotStandFor) {
  EXPECT_THAT(CifarFiles("u-*.bin"),
              ElementsAre(HasSubstr("no file matches /jobs/u-*.bin on this machine")));
  EXPECT_THAT(CifarFiles("~you/a.bin"),
              ElementsAre(HasSubstr("~ stands for your own home folder alone")));
  for (const char* range :
       {"\"{4..1}\"", "\"{a..c}\"", "\"{0..100000}\"", "\"{..4}\"", "\"{-1..4}\""})
    EXPECT_THAT(CifarFiles(range), ElementsAre(HasSubstr("expected a range like {00000..00004}")))
        << range;
}

TEST(DataSection, Cifar) {
  auto spec = Parse(
      R"({train: {cifar: {files: [$DATA/1.bin, 2.bin]}}, test: {cifar: {files: [t.bin], labels: coarse}},
    augment: {cropPadding: 4, horizontalFlip: true}})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->train().cifar().files(0), "/data/1.bin");
  EXPECT_EQ(spec->train().cifar().files(1), "/jobs/2.bin");
  EXPECT_EQ(spec->train().cifar().labels(), DataSource::Cifar::CIFAR10);
  EXPECT_EQ(spec->test().cifar().labels(), DataSource::Cifar::COARSE);
  EXPECT_EQ(spec->augment().crop_padding(), 4u);
  EXPECT_TRUE(spec->augment().horizontal_flip());
  spec = Parse("{train: {cifar: {files: [t.bin], labels: fine}}}");
  EXPECT_EQ(spec->train().cifar().labels(), DataSource::Cifar::FINE);
}

TEST(DataSection, WebDataset) {
  auto spec = Parse(
      R"({train: {webdataset: {shards: [$DATA/a.tar, b.tar], image: png.jpg, label: txt, classes: names.txt,
    size: [32, 48], fit: resize, gray: true, corruptMax: 3}}, test: {webdataset: {shards: [c.tar]}}})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto& web = spec->train().webdataset();
  EXPECT_EQ(web.shards(0), "/data/a.tar");
  EXPECT_EQ(web.shards(1), "/jobs/b.tar");
  EXPECT_EQ(web.image(), "png.jpg");
  EXPECT_EQ(web.label(), "txt");
  EXPECT_EQ(web.classes(), "/jobs/names.txt");
  EXPECT_EQ(web.height(), 32u);
  EXPECT_EQ(web.width(), 48u);
  EXPECT_EQ(web.fit(), DataSource::WebDataset::RESIZE);
  EXPECT_TRUE(web.gray());
  EXPECT_EQ(web.corrupt_max(), 3u);
  const auto& plain = spec->test().webdataset();
  EXPECT_EQ(plain.image(), "jpg");
  EXPECT_EQ(plain.label(), "cls");
  EXPECT_EQ(plain.height(), 0u);
  EXPECT_EQ(plain.fit(), DataSource::WebDataset::EXACT);
  EXPECT_FALSE(plain.gray());
  EXPECT_EQ(plain.corrupt_max(), 100u);
  spec = Parse("{train: {webdataset: {shards: [c.tar], size: [8, 8], fit: crop}}}");
  EXPECT_EQ(spec->train().webdataset().fit(), DataSource::WebDataset::CENTER_CROP);
}

TEST(DataSection, CsvSchema) {
  auto spec = Parse(
      R"({train: {csv: {path: a.csv, header: true, separator: ";", label: [price, rent], features: [area],
    ignore: [id], labelType: number}}, test: {csv: {path: b.csv, label: [5], classes: [cat, dog]}}})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto& csv = spec->train().csv();
  EXPECT_TRUE(csv.header());
  EXPECT_EQ(csv.separator(), ";");
  EXPECT_EQ(csv.label(1), "rent");
  EXPECT_EQ(csv.features(0), "area");
  EXPECT_EQ(csv.ignore(0), "id");
  EXPECT_EQ(csv.label_type(), DataSource::Csv::LABEL_NUMBER);
  EXPECT_FALSE(spec->test().csv().header());
  EXPECT_EQ(spec->test().csv().separator(), ",");
  EXPECT_EQ(spec->test().csv().label(0), "5");
  EXPECT_EQ(spec->test().csv().label_type(), DataSource::Csv::LABEL_CLASS);
  EXPECT_EQ(spec->test().csv().classes(1), "dog");
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
        std::make_tuple("{train: {}}", "expected exactly one of idx, csv, cifar"),
        std::make_tuple("{train: {txt: {path: a}}}", "did you mean \"text\"?"),
        std::make_tuple("{train: {text: {path: a}}}", "\"context\" is missing"),
        std::make_tuple("{train: {text: {context: 8}}}", "\"path\" is missing"),
        std::make_tuple("{train: {text: {path: $X, context: 8}}}", "$X in \"$X\" is not set"),
        std::make_tuple("{train: {text: {path: a, context: 0}}}",
                        "text.context: expected a whole number from 1"),
        std::make_tuple("{train: {text: {path: a, context: 8, stride: 0}}}",
                        "text.stride: expected a whole number from 1"),
        std::make_tuple("{train: {text: {path: a, context: 8, begin: 0.5, end: 0.5}}}",
                        "line 8: spec.data.train.text.end: expected more than begin, which is 0.5, "
                        "got 0.5"),
        std::make_tuple("{train: {text: {path: a, context: 8, begin: 0.5, end: 0}}}",
                        "text.end: expected more than begin, which is 0.5, got 0"),
        std::make_tuple("{train: {tokens: {path: a, context: 8, vocabulary: 9, begin: 1}}}",
                        "line 8: spec.data.train.tokens.end: expected more than begin"),
        std::make_tuple("{train: {text: {path: a, context: 8, end: 1.5}}}",
                        "text.end: expected a finite number from 0 to 1"),
        std::make_tuple(
            "{train: {csv: {path: a, separator: ab}}}",
            "line 8: spec.data.train.csv.separator: expected one character, got \"ab\""),
        std::make_tuple("{train: {csv: {path: a, separator: \"\"}}}",
                        "csv.separator: expected one character"),
        std::make_tuple("{train: {csv: {path: a, part: train}}}",
                        "line 8: spec.data.train.csv.part: with part train or holdout"),
        std::make_tuple("{train: {counter: {samples: 8}}, normalize: {mean: [0], std: [-1]}}",
                        "line 8: spec.data.normalize.std: expected numbers above 0, got -1"),
        std::make_tuple("{train: {counter: {samples: 8}}, normalize: {mean: [0, 1], std: [1]}}",
                        "line 8: spec.data.normalize.std: expected as many numbers as mean"),
        std::make_tuple("{train: {csv: {path: a, labelType: float}}}",
                        "expected class or number, got \"float\""),
        std::make_tuple("{train: {csv: {path: a, label: price}}}",
                        "csv.label: expected list of strings"),
        std::make_tuple("{train: {csv: {path: a, labelType: number, classes: [x]}}}",
                        "expected one of the two"),
        std::make_tuple("{train: {csv: {path: a, classes: [x, x]}}}", "classes of different names"),
        std::make_tuple("{train: {cifar: {files: []}}}", "cifar.files: expected at least one path"),
        std::make_tuple("{train: {cifar: {files: a}}}", "cifar.files: expected list of strings"),
        std::make_tuple("{train: {cifar: {files: [a], labels: cifar11}}}",
                        "expected cifar10, fine or coarse, got \"cifar11\""),
        std::make_tuple("{train: {webdataset: {shards: []}}}",
                        "webdataset.shards: expected at least one path"),
        std::make_tuple("{train: {webdataset: {shards: [$Y/a]}}}", "$Y in"),
        std::make_tuple("{train: {webdataset: {shards: [a], size: [8]}}}",
                        "expected [height, width], got 1 numbers"),
        std::make_tuple("{train: {webdataset: {shards: [a], size: [8, 9000]}}}",
                        "whole numbers from 1 to 8192"),
        std::make_tuple("{train: {webdataset: {shards: [a], size: [8, 16777217]}}}",
                        "got 16777217"),
        std::make_tuple("{train: {webdataset: {shards: [a], fit: stretch}}}",
                        "expected exact, crop or resize"),
        std::make_tuple("{train: {webdataset: {shards: [a], gray: 7}}}", "expected true or false"),
        std::make_tuple("{train: {webdataset: {shards: [a], label: jpg}}}",
                        "different names for image and label"),
        std::make_tuple("{train: {webdataset: {shards: [a], corruptMax: -1}}}",
                        "corruptMax: expected a whole number from 0"),
        std::make_tuple("{train: {counter: {samples: 8}}, augment: {cropPadding: -1}}",
                        "cropPadding: expected a whole number from 0"),
        std::make_tuple("{train: {counter: {samples: 8}}, augment: {flip: true}}",
                        "augment.flip: unknown key"),
        std::make_tuple("{train: {tokens: {path: a, context: 8}}}", "\"vocabulary\" is missing"),
        std::make_tuple("{train: {tokens: {path: a, context: 8, vocabulary: 1}}}",
                        "vocabulary: expected a whole number from 2"),
        std::make_tuple("{train: {text: {path: a, context: 8}}, loading: {threads: 65}}",
                        "loading.threads: expected a whole number from 1 to 64"),
        std::make_tuple("{train: {text: {path: a, context: 8}}, loading: {readAheadMiB: 0}}",
                        "readAheadMiB: expected a whole number from 1"),
        std::make_tuple("{train: {text: {path: a, context: 8}}, loading: {readAhead: 1}}",
                        "did you mean \"readAheadMiB\"?")));

// A client that sends a spec without a job file gets the same limits.
TEST(DataSection, ASpecFromElsewhereIsChecked) {
  const auto good = Parse("{train: {tokens: {path: a, context: 8, vocabulary: 9}}}");
  ASSERT_TRUE(good.ok()) << good.status();
  ASSERT_TRUE(ValidateSpec(*good).ok());
  JobSpec spec = *good;
  spec.mutable_train()->mutable_tokens()->set_context(0);
  EXPECT_THAT(std::string(ValidateSpec(spec).message()),
              HasSubstr("context: expected a whole number from 1"));
  spec.mutable_train()->mutable_tokens()->set_context(16777217);
  EXPECT_THAT(std::string(ValidateSpec(spec).message()),
              HasSubstr("context: expected a whole number from 1 to 16777216, got 16777217"));
  spec = *good;
  spec.mutable_train()->mutable_tokens()->set_vocabulary(0);
  EXPECT_THAT(std::string(ValidateSpec(spec).message()),
              HasSubstr("vocabulary: expected a whole number from 2"));
  spec = *good;
  spec.mutable_train()->mutable_tokens()->set_begin(1);
  EXPECT_THAT(std::string(ValidateSpec(spec).message()),
              HasSubstr("data.train.tokens.end: expected more than begin, which is 1, got 1"));
  spec = *good;
  spec.mutable_train()->mutable_tokens()->set_path(std::string("a\0b", 3));
  EXPECT_THAT(std::string(ValidateSpec(spec).message()), HasSubstr("without a zero byte"));
  spec = *good;
  spec.mutable_loading()->set_threads(65);
  EXPECT_THAT(std::string(ValidateSpec(spec).message()), HasSubstr("data.loading.threads"));
  spec = *good;
  spec.mutable_loading()->set_threads(0);  // the documented zeros
  spec.mutable_loading()->set_read_ahead_bytes(1 << 20);
  spec.mutable_evaluate()->set_every_epochs(0);
  EXPECT_TRUE(ValidateSpec(spec).ok()) << ValidateSpec(spec);
  spec.mutable_batch()->set_kernel_threads(0);  // not one of them
  EXPECT_THAT(std::string(ValidateSpec(spec).message()), HasSubstr("batch.kernelThreads"));
  spec = *good;
  spec.clear_train();
  EXPECT_THAT(std::string(ValidateSpec(spec).message()),
              HasSubstr("data.train: expected exactly one of idx"));
}

}  // namespace
}  // namespace starling::config
