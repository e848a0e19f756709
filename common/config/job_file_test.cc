#include "common/config/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <map>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/config/bytes.h"
#include "common/config/duration.h"
#include "common/config/schema.h"

namespace starling::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr char kGood[] = R"(apiVersion: starling/v1
kind: TrainingJob
metadata: {name: digits, labels: {team: vision}}
spec:
  seed: 7
  model: {builtin: mlp, hidden: [32, 16]}
  data:
    train: {csv: {path: $DATA/digits.csv.gz, part: train, holdoutFraction: 0.2, holdoutSeed: 3}}
    test: {csv: {path: $DATA/digits.csv.gz, part: holdout, holdoutFraction: 0.2, holdoutSeed: 3}}
    normalize: {mean: [8], std: [6]}
  batch: {global: 64, microBatches: 4, kernelThreads: 2}
  optimizer: {adamw: {learningRate: {cosine: {peak: 0.001, floor: 0.0001, warmupSteps: 20}}, weightDecay: 0.05}}
  consistency: {ssp: {staleness: 2}}
  workers: {min: 1, max: 2, device: cpu}
  evaluate: {everyEpochs: 2}
  stop: {epochs: 5, wallTime: 30m}
  tensorboard: runs/$DATA
)";

absl::StatusOr<JobSpec> Parse(const std::string& text, std::vector<std::string> overrides = {}) {
  JobFileOptions options;
  options.directory = "/jobs";
  options.environment = [](const std::string& name) -> std::optional<std::string> {
    if (name == "DATA") return std::string("/data");
    return std::nullopt;
  };
  options.overrides = std::move(overrides);
  return ParseJobFile(text, options);
}

std::string Replaced(const std::string& from, const std::string& to) {
  const std::string text = absl::StrReplaceAll(kGood, {{from, to}});
  EXPECT_NE(text, kGood) << from;
  return text;
}

TEST(JobFile, ReadsEveryKey) {
  const auto spec = Parse(kGood);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "digits");
  EXPECT_EQ(spec->labels().at("team"), "vision");
  EXPECT_EQ(spec->seed(), 7u);
  EXPECT_EQ(spec->model_source().builtin(), "mlp");
  EXPECT_EQ(spec->model_source().arguments().at("hidden").ints().values(1), 16);
  EXPECT_EQ(spec->train().csv().path(), "/data/digits.csv.gz");
  EXPECT_EQ(spec->train().csv().part(), DataSource::Csv::PART_TRAIN);
  EXPECT_EQ(spec->test().csv().part(), DataSource::Csv::PART_HOLDOUT);
  EXPECT_EQ(spec->test().csv().holdout_seed(), 3u);
  EXPECT_DOUBLE_EQ(spec->test().csv().holdout_fraction(), 0.2);
  EXPECT_DOUBLE_EQ(spec->normalize().mean(0), 8);
  EXPECT_DOUBLE_EQ(spec->normalize().std(0), 6);
  EXPECT_EQ(spec->batch().global(), 64u);
  EXPECT_EQ(spec->batch().micro_batches(), 4u);
  EXPECT_EQ(spec->batch().kernel_threads(), 2u);
  EXPECT_DOUBLE_EQ(spec->optimizer().learning_rate().cosine().peak(), 0.001);
  EXPECT_DOUBLE_EQ(spec->optimizer().learning_rate().cosine().floor(), 0.0001);
  EXPECT_EQ(spec->optimizer().learning_rate().warmup_steps(), 20);
  EXPECT_DOUBLE_EQ(spec->optimizer().weight_decay(), 0.05);
  EXPECT_DOUBLE_EQ(spec->optimizer().adamw().beta2(), 0.999);
  EXPECT_EQ(spec->policy().kind(), Policy::SSP);
  EXPECT_EQ(spec->policy().staleness(), 2u);
  EXPECT_EQ(spec->workers_min(), 1u);
  EXPECT_EQ(spec->workers_max(), 2u);
  EXPECT_EQ(spec->device(), DEVICE_CPU);
  EXPECT_EQ(Parse(kGood, {"workers.device=gpu"})->device(), DEVICE_GPU);
  EXPECT_EQ(Parse(kGood, {"workers.device=auto"})->device(), DEVICE_AUTO);
  EXPECT_EQ(spec->evaluate().every_epochs(), 2u);
  EXPECT_EQ(spec->stop().epochs(), 5u);
  EXPECT_DOUBLE_EQ(spec->stop().wall_time_seconds(), 1800);
  EXPECT_EQ(spec->tensorboard(), "/jobs/runs/data");
}

TEST(JobFile, DefaultsAreTheSchemas) {
  const auto spec = Parse(R"(apiVersion: starling/v1
kind: TrainingJob
metadata: {name: a}
spec:
  model: {builtin: counter}
  data: {train: {counter: {samples: 12}}}
  batch: {global: 4}
  optimizer: {sgd: {learningRate: 1}}
)");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->policy().kind(), Policy::BSP);
  EXPECT_EQ(spec->batch().micro_batches(), 4u);
  EXPECT_EQ(spec->workers_max(), 1u);
  EXPECT_EQ(spec->stop().epochs(), 1u);
  EXPECT_EQ(spec->evaluate().every_epochs(), 0u);
  EXPECT_DOUBLE_EQ(spec->optimizer().learning_rate().constant(), 1);
}

constexpr char kAdamW[] =
    "{adamw: {learningRate: {cosine: {peak: 0.001, floor: 0.0001, warmupSteps: 20}}, weightDecay: "
    "0.05}}";

Optimizer ParsedOptimizer(const std::string& text) {
  const auto spec = Parse(Replaced(kAdamW, text));
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? spec->optimizer() : Optimizer();
}

TEST(JobFile, ReadsEveryOptimizer) {
  EXPECT_DOUBLE_EQ(ParsedOptimizer("{nesterov: {learningRate: 0.1}}").nesterov().momentum(), 0.9);
  EXPECT_DOUBLE_EQ(
      ParsedOptimizer("{nesterov: {learningRate: 0.1, momentum: 0.8}}").nesterov().momentum(), 0.8);
  const Optimizer adagrad =
      ParsedOptimizer("{adagrad: {learningRate: 0.1, initialAccumulator: 0.5}}");
  EXPECT_DOUBLE_EQ(adagrad.adagrad().epsilon(), 1e-10);
  EXPECT_DOUBLE_EQ(adagrad.adagrad().initial_accumulator(), 0.5);
  EXPECT_DOUBLE_EQ(adagrad.weight_decay(), 0);
  const Optimizer lamb = ParsedOptimizer("{lamb: {learningRate: 0.1, beta1: 0.8}}");
  EXPECT_DOUBLE_EQ(lamb.lamb().beta1(), 0.8);
  EXPECT_DOUBLE_EQ(lamb.lamb().epsilon(), 1e-6);
  EXPECT_DOUBLE_EQ(lamb.weight_decay(), 0.01);
}

TEST(JobFile, AnAlternativeMayHaveAKeyOfItsName) {
  EXPECT_DOUBLE_EQ(
      ParsedOptimizer("{momentum: {learningRate: 1, momentum: 0.5}}").momentum().momentum(), 0.5);
}

TEST(JobFile, AConstantRateWarmsUpByTheKeyBesideIt) {
  const Schedule rate =
      ParsedOptimizer("{sgd: {learningRate: {constant: 0.1, warmupSteps: 30}}}").learning_rate();
  EXPECT_DOUBLE_EQ(rate.constant(), 0.1);
  EXPECT_EQ(rate.warmup_steps(), 30);
}

TEST(JobFile, ReadsGroups) {
  const Optimizer optimizer = ParsedOptimizer(R"({lamb: {learningRate: 0.1}, groups: [
    {match: ["*.bias", "h?.ln*"], weightDecay: 0, trustRatio: false}, {vectors: true, rateScale: 2}]})");
  ASSERT_EQ(optimizer.groups_size(), 2);
  EXPECT_EQ(optimizer.groups(0).match(1), "h?.ln*");
  EXPECT_FALSE(optimizer.groups(0).vectors());
  EXPECT_TRUE(optimizer.groups(0).has_weight_decay());
  EXPECT_DOUBLE_EQ(optimizer.groups(0).weight_decay(), 0);
  EXPECT_FALSE(optimizer.groups(0).has_rate_scale());
  EXPECT_TRUE(optimizer.groups(0).no_trust_ratio());
  EXPECT_TRUE(optimizer.groups(1).vectors());
  EXPECT_DOUBLE_EQ(optimizer.groups(1).rate_scale(), 2);
  EXPECT_FALSE(optimizer.groups(1).no_trust_ratio());
}

TEST(JobFile, AnotherOptimizerLeavesTheGroups) {
  const auto spec = Parse(kGood, {"optimizer.groups=[{vectors: true, weightDecay: 0}]",
                                  "optimizer.sgd.learningRate=0.5"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->optimizer().has_sgd());
  EXPECT_EQ(spec->optimizer().groups_size(), 1);
}

TEST(JobFile, ReadsClip) {
  const auto spec = Parse(kGood, {"clip={norm: 0.5, scope: parameter}"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->clip().scope(), Clip::PARAMETER);
  EXPECT_DOUBLE_EQ(spec->clip().norm(), 0.5);
  EXPECT_FALSE(Parse(kGood)->has_clip());
  EXPECT_EQ(Parse(kGood, {"clip={norm: 0.5, scope: global}", "consistency.bsp={}"})->clip().scope(),
            Clip::GLOBAL);
}

TEST(JobFile, AClipThatThePolicyCannotDoIsRefusedWithTheReason) {
  const auto refusal = [](const char* scope, const char* policy) {
    return std::string(Parse(kGood, {absl::StrCat("clip={norm: 1, scope: ", scope, "}"), policy})
                           .status()
                           .message());
  };
  EXPECT_THAT(refusal("global", "consistency.async={}"), HasSubstr("only BSP has a step"));
  EXPECT_THAT(refusal("global", "consistency.ssp.staleness=1"), HasSubstr("only BSP has a step"));
  EXPECT_THAT(refusal("worker", "consistency.bsp={}"),
              HasSubstr("depends on the number of workers"));
  EXPECT_EQ(refusal("worker", "consistency.async={}"), "");
}

TEST(JobFile, ReadsWhenToTakeCheckpoints) {
  EXPECT_FALSE(Parse(kGood)->has_checkpoint());
  const auto with = [](const std::string& rule) {
    return Parse(absl::StrCat(kGood, "  checkpoint: {", rule, "}\n"));
  };
  const auto by_time = with("every: 10m");
  ASSERT_TRUE(by_time.ok()) << by_time.status();
  EXPECT_EQ(by_time->checkpoint().every_seconds(), 600);
  EXPECT_EQ(by_time->checkpoint().every_steps(), 0u);
  EXPECT_EQ(by_time->checkpoint().keep(), 2u);
  const auto by_steps = with("everySteps: 500, keep: 7");
  ASSERT_TRUE(by_steps.ok()) << by_steps.status();
  EXPECT_EQ(by_steps->checkpoint().every_steps(), 500u);
  EXPECT_EQ(by_steps->checkpoint().every_seconds(), 0);
  EXPECT_EQ(by_steps->checkpoint().keep(), 7u);
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"keep: 3", "spec.checkpoint: "},
      {"every: 10m, everySteps: 5", "spec.checkpoint: "},
      {"every: 0.5s", "checkpoint.every: expected a duration of at least 1s"},
      {"every: soon", "checkpoint.every"},
      {"everySteps: 0", "checkpoint.everySteps: expected a whole number of at least 1"},
      {"every: 10m, keep: 0", "checkpoint.keep: expected a whole number from 1 to 1000"},
      {"every: 10m, path: a", "path"}};
  for (const auto& [rule, text] : wrong)
    EXPECT_THAT(std::string(with(rule).status().message()), HasSubstr(text)) << rule;
  JobSpec sent = *by_time;  // by another client
  sent.mutable_checkpoint()->set_every_steps(5);
  EXPECT_THAT(std::string(ValidateSpec(sent).message()), HasSubstr("got both"));
  sent.mutable_checkpoint()->Clear();
  sent.mutable_checkpoint()->set_keep(1);
  EXPECT_THAT(std::string(ValidateSpec(sent).message()), HasSubstr("got none"));
  sent.mutable_checkpoint()->set_every_seconds(-5);
  EXPECT_THAT(std::string(ValidateSpec(sent).message()), HasSubstr("got -5 s"));
}

TEST(JobFile, ReadsHowOftenToGoBack) {
  EXPECT_FALSE(Parse(kGood)->has_restarts_max()) << "the coordinator has a default";
  const auto with = [](const std::string& text) {
    return Parse(absl::StrCat(kGood, "  maxRestarts: ", text, "\n"));
  };
  EXPECT_EQ(with("7")->restarts_max(), 7u);
  ASSERT_TRUE(with("0").ok());
  EXPECT_TRUE(with("0")->has_restarts_max());
  for (const char* wrong : {"-1", "1001", "often", "1.5"})
    EXPECT_THAT(std::string(with(wrong).status().message()), HasSubstr("maxRestarts")) << wrong;
  JobSpec sent = *Parse(kGood);
  sent.set_restarts_max(1001);  // by another client
  EXPECT_THAT(std::string(ValidateSpec(sent).message()), HasSubstr("maxRestarts"));
}

TEST(JobFile, ReadsWhetherToGoBackIfValuesAreNotFinite) {
  EXPECT_FALSE(Parse(kGood)->go_back_if_not_finite());
  EXPECT_TRUE(Parse(absl::StrCat(kGood, "  goBackIfNotFinite: true\n"))->go_back_if_not_finite());
  const auto wrong = Parse(absl::StrCat(kGood, "  goBackIfNotFinite: maybe\n"));
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("goBackIfNotFinite"));
}

TEST(JobFile, ReadsWhatToRecompute) {
  EXPECT_FALSE(Parse(kGood)->has_recompute());
  const auto with = [](const char* policy) {
    return Parse(absl::StrCat(kGood, "  recompute: {", policy, "}\n"));
  };
  EXPECT_EQ(with("none: {}")->recompute().policy_case(), Recompute::POLICY_NOT_SET);
  EXPECT_EQ(with("everyBlocks: 3")->recompute().every_blocks(), 3u);
  EXPECT_EQ(with("activationBytes: 8589934592")->recompute().activation_bytes(), 8589934592u);
  for (const auto& [policy, error] : std::map<const char*, const char*>{
           {"everyBlocks: 0", "recompute.everyBlocks"},
           {"activationBytes: 0", "recompute.activationBytes"},
           {"activationBytes: 4GiB", "expected integer, got \"4GiB\""},
           {"everyBlocks: 1, activationBytes: 5", "got everyBlocks and activationBytes"}}) {
    const auto spec = with(policy);
    ASSERT_FALSE(spec.ok()) << policy;
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr(error));
  }
  JobSpec sent = *Parse(kGood);
  sent.mutable_recompute()->set_every_blocks(0);  // by another client
  EXPECT_FALSE(ValidateSpec(sent).ok());
}

TEST(JobFile, ReadsLayers) {
  const auto spec = Parse(Replaced("{builtin: mlp, hidden: [32, 16]}", R"({layers: [
    {conv2d: {out_channels: 8, kernel: [3, 5], bias: false, name: stem}}, relu, {dropout: {rate: 0.5}}]})"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  const ModelSource& model = spec->model_source();
  ASSERT_EQ(model.layers_size(), 3);
  EXPECT_EQ(model.layers(0).name(), "stem");
  EXPECT_EQ(model.layers(0).attributes().at("kernel").ints().values(1), 5);
  EXPECT_EQ(model.layers(0).attributes().at("bias").i(), 0);
  EXPECT_EQ(model.layers(1).op(), "relu");
  EXPECT_DOUBLE_EQ(model.layers(2).attributes().at("rate").f(), 0.5);
  EXPECT_GT(model.layers(2).line(), model.layers(0).line() - 1);
}

TEST(JobFile, ReadsBranches) {
  const auto spec = Parse(Replaced("{builtin: mlp, hidden: [32, 16]}", R"({layers: [
    {linear: {out_features: 8, name: a}}, {linear: {inputs: input, parametersOf: a}},
    {add: {inputs: [a, linear1]}}]})"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  const ModelSource& model = spec->model_source();
  EXPECT_EQ(model.layers(0).inputs_size(), 0);
  EXPECT_EQ(model.layers(1).inputs(0), "input");
  EXPECT_EQ(model.layers(1).parameters_of(), "a");
  EXPECT_TRUE(model.layers(1).attributes().empty());
  ASSERT_EQ(model.layers(2).inputs_size(), 2);
  EXPECT_EQ(model.layers(2).inputs(1), "linear1");
}

TEST(JobFile, ReadsArgumentsOfBuiltins) {
  const auto spec = Parse(Replaced("{builtin: mlp, hidden: [32, 16]}",
                                   "{builtin: gpt2, depth: 4, heads: 2, width: 64, tiedHead: "
                                   "false, dropout: 0.1, context: 32}"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto& arguments = spec->model_source().arguments();
  EXPECT_EQ(arguments.at("depth").i(), 4);
  EXPECT_EQ(arguments.at("tiedHead").i(), 0);
  EXPECT_EQ(arguments.at("dropout").f(), 0.1);
  EXPECT_EQ(arguments.size(), 6u);
  const auto resnet =
      Parse(Replaced("{builtin: mlp, hidden: [32, 16]}", "{builtin: resnet18, stem: cifar}"));
  ASSERT_TRUE(resnet.ok()) << resnet.status();
  EXPECT_EQ(resnet->model_source().arguments().at("stem").s(), "cifar");
}

TEST(JobFile, ReadsWhereToStartAndWhatStays) {
  const auto spec = Parse(
      Replaced("hidden: [32, 16]", "init: $DATA/a.safetensors, freeze: [\"fc1.*\", fc2.bias]"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->model_source().init().path(), "/data/a.safetensors");
  ASSERT_EQ(spec->model_source().freeze_size(), 2);
  EXPECT_EQ(spec->model_source().freeze(0), "fc1.*");
  EXPECT_FALSE(Parse(kGood)->model_source().has_init());
}

TEST(JobFile, ReadsTheLoss) {
  for (const auto& [written, op] : {std::make_pair("softmaxCrossEntropy", ""),
                                    std::make_pair("meanSquaredError", "mean_squared_error"),
                                    std::make_pair("binaryCrossEntropy", "binary_cross_entropy")}) {
    const auto spec =
        Parse(Replaced("  seed: 7\n", absl::StrCat("  seed: 7\n  loss: ", written, "\n")));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->model_source().loss(), op);
  }
}

TEST(JobFile, ReadsThePrecision) {
  EXPECT_EQ(Parse(kGood)->precision(), PRECISION_FP32);
  EXPECT_EQ(Parse(kGood, {"precision=fp32"})->precision(), PRECISION_FP32);
  const auto spec = Parse(kGood, {"precision=bf16"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->precision(), PRECISION_BF16);
  EXPECT_EQ(Parse(kGood, {"precision=fp16"})->precision(), PRECISION_FP16);
  JobSpec unknown = *spec;
  unknown.set_precision(static_cast<Precision>(7));
  EXPECT_THAT(std::string(ValidateSpec(unknown).message()),
              HasSubstr("expected fp32, bf16 or fp16, got number 7"));
}

TEST(JobFile, Tf32IsHowFp32IsMultiplied) {
  EXPECT_FALSE(Parse(kGood)->tf32());
  const auto spec = Parse(kGood, {"tf32=true"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->tf32());
  EXPECT_TRUE(Parse(kGood, {"precision=bf16", "tf32=false"}).ok());
  for (const char* precision : {"precision=bf16", "precision=fp16"}) {
    EXPECT_THAT(std::string(Parse(kGood, {precision, "tf32=true"}).status().message()),
                HasSubstr("tf32: is how fp32 values are multiplied, and has nothing to do in "
                          "precision bf16 or fp16"));
  }
}

TEST(JobFile, RelativePathsStartAtTheFile) {
  const auto spec = Parse(absl::StrReplaceAll(kGood, {{"$DATA/", "../d/"}}));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->train().csv().path(), "/d/digits.csv.gz");
}

TEST(JobFile, OverridesReplaceAndSwitchAlternatives) {
  const auto spec = Parse(kGood, {"consistency.bsp={}", "spec.seed=9", "metadata.name=other",
                                  "optimizer.sgd.learningRate=0.5", "stop.steps=12"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->policy().kind(), Policy::BSP);
  EXPECT_EQ(spec->seed(), 9u);
  EXPECT_EQ(spec->name(), "other");
  EXPECT_TRUE(spec->optimizer().has_sgd());
  EXPECT_DOUBLE_EQ(spec->optimizer().learning_rate().constant(), 0.5);
  EXPECT_EQ(spec->stop().steps(), 12u);
}

TEST(JobFile, IntegersAreReadAlikeEverywhere) {
  for (const auto& [text, value] : {std::pair("010", 10u), std::pair("0o10", 8u),
                                    std::pair("0x10", 16u), std::pair("+10", 10u)}) {
    const auto spec = Parse(
        Replaced("builtin: mlp, hidden: [32, 16]", absl::StrCat("builtin: gpt2, depth: ", text)),
        {absl::StrCat("batch.kernelThreads=", text), absl::StrCat("data.shape=[", text, "]"),
         absl::StrCat("data.normalize.mean=[", text, "]"),
         absl::StrCat("optimizer.sgd.learningRate=", text)});
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->model_source().arguments().at("depth").i(), value);
    EXPECT_EQ(spec->batch().kernel_threads(), value);
    EXPECT_THAT(spec->sample_shape(), ElementsAre(value));
    EXPECT_THAT(spec->normalize().mean(), ElementsAre(value));
    EXPECT_DOUBLE_EQ(spec->optimizer().learning_rate().constant(), value);
  }
  for (const char* text : {"0x", "0o8", "-0x5", "+-5", "0x-5", "5 5", "7.0", "9223372036854775808"})
    EXPECT_THAT(std::string(Parse(kGood, {absl::StrCat("seed=", text)}).status().message()),
                HasSubstr("expected integer, got"))
        << text;
}

TEST(JobFile, OverridesAreAsStrictAsTheFile) {
  EXPECT_THAT(std::string(Parse(kGood, {"seed"}).status().message()), HasSubstr("KEY.KEY=VALUE"));
  EXPECT_THAT(std::string(Parse(kGood, {"sede=1"}).status().message()),
              HasSubstr("did you mean \"seed\""));
  EXPECT_THAT(std::string(Parse(kGood, {"seed=[1"}).status().message()), HasSubstr("not YAML"));
  EXPECT_THAT(std::string(Parse(kGood, {"batch.global=0"}).status().message()),
              StartsWith("spec.batch.global: expected"))
      << "not of the file's first line";
}

// What is replaced, by what, and what the error must contain.
class Malformed
    : public ::testing::TestWithParam<std::tuple<const char*, const char*, const char*>> {};

TEST_P(Malformed, IsRefusedByName) {
  const auto& [from, to, expected] = GetParam();
  const auto spec = Parse(Replaced(from, to));
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr(expected));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Malformed,
    ::testing::Values(
        std::make_tuple("seed: 7", "sede: 7",
                        "line 5: spec.sede: unknown key; did you mean \"seed\"?"),
        std::make_tuple("seed: 7", "zzzzzzzzzz: 7", "known here: seed, model"),
        std::make_tuple("seed: 7", "seed: seven",
                        "line 5: spec.seed: expected integer, got \"seven\""),
        std::make_tuple("seed: 7", "seed: -1", "whole number of at least 0"),
        std::make_tuple("seed: 7", "seed: 7\n  seed: 8", "given twice"),
        std::make_tuple("staleness: 2", "staleness: -1",
                        "spec.consistency.ssp.staleness: expected a whole number from 0"),
        std::make_tuple("{ssp: {staleness: 2}}", "{ssp: {staleness: 2}, bsp: {}}",
                        "exactly one of bsp, ssp, async"),
        std::make_tuple("{ssp: {staleness: 2}}", "{guard: {}}",
                        "exactly one of bsp, ssp, async, got none"),
        std::make_tuple("{ssp: {staleness: 2}}", "{async: {}, guard: {windows: 8}}",
                        "did you mean \"window\"?"),
        std::make_tuple("{ssp: {staleness: 2}}", "{async: {}, guard: {window: 3}}",
                        "guard.window: expected a whole number from 4"),
        std::make_tuple("{ssp: {staleness: 2}}", "{async: {}, guard: {lossFactor: 1}}",
                        "guard.lossFactor: expected a finite number above 1"),
        std::make_tuple("{ssp: {staleness: 2}}", "{async: {}, guard: {lossFactor: .inf}}",
                        "lossFactor"),
        std::make_tuple("{ssp: {staleness: 2}}", "{async: {}, guard: {lag: 0}}",
                        "guard.lag: expected a whole number of at least 1"),
        std::make_tuple("{ssp: {staleness: 2}}", "{async: {}, guard: {staleness: -1}}",
                        "guard.staleness: expected a whole number from 0"),
        std::make_tuple("{ssp: {staleness: 2}}", "{ssp: {}}", "\"staleness\" is missing"),
        std::make_tuple("min: 1, max: 2", "min: 0, max: 2",
                        "workers.min: expected a whole number from 1"),
        std::make_tuple("min: 1, max: 2", "min: 3, max: 2",
                        "line 14: spec.workers: expected 1 <= min <= max <= "),
        std::make_tuple("min: 1, max: 2", "min: 2, max: 2, backup: 2",
                        "line 14: spec.workers.backup: expected fewer than workers.max, 2, got 2"),
        std::make_tuple("min: 1, max: 2", "backup: 1", "fewer than workers.max, 1, got 1"),
        std::make_tuple("device: cpu", "device: tpu", "expected auto, cpu or gpu"),
        std::make_tuple("microBatches: 4", "microBatches: 3", "expected a power of two"),
        std::make_tuple("global: 64", "global: 66", "do not divide a global batch of 66"),
        std::make_tuple("global: 64", "global: 0", "batch.global"),
        std::make_tuple("kernelThreads: 2", "kernelThreads: 0", "batch.kernelThreads"),
        std::make_tuple("builtin: mlp, ", "builtin: mpl, ", "did you mean \"mlp\"?"),
        std::make_tuple("builtin: mlp, hidden: [32, 16]", "hidden: [32]",
                        "either builtin or layers"),
        std::make_tuple("hidden: [32, 16]", "hidden: [32.5]", "expected whole numbers"),
        std::make_tuple(
            "hidden: [32, 16]", "stem: cifar",
            "line 6: spec.model.stem: goes with builtin: resnet18, resnet34, resnet50 only"),
        std::make_tuple("builtin: mlp, hidden: [32, 16]", "layers: [relu], hidden: [3]",
                        "goes with builtin: mlp only"),
        std::make_tuple("hidden: [32, 16]", "tiedHed: true", "did you mean \"tiedHead\"?"),
        std::make_tuple("builtin: mlp, hidden: [32, 16]", "layers: [{add: {inputs: {a: b}}}]",
                        "expected names of layers"),
        std::make_tuple("builtin: mlp, hidden: [32, 16]", "layers: [{linear: {parametersOf: [a]}}]",
                        "expected a layer's name"),
        std::make_tuple("seed: 7", "loss: hinge", "meanSquaredError or binaryCrossEntropy"),
        std::make_tuple("seed: 7", "precision: fp8",
                        "spec.precision: expected fp32, bf16 or fp16, got \"fp8\""),
        std::make_tuple("builtin: mlp, hidden: [32, 16]", "layers: []", "at least one layer"),
        std::make_tuple("builtin: mlp, hidden: [32, 16]", "layers: [{a: {}, b: {}}]",
                        "expected one operator"),
        std::make_tuple("evaluate: {everyEpochs: 2}", "evaluate: {everyEpochs: 2, keep: best}",
                        "spec.evaluate.keep: unknown key; known here: everyEpochs"),
        std::make_tuple("wallTime: 30m", "wallTime: soon", "expected duration, like 90s"),
        std::make_tuple("epochs: 5", "epochs: 0", "stop.epochs"),
        std::make_tuple("train: {csv: {path: $DATA/", "train: {csv: {path: $NOPE/", "$NOPE in"),
        std::make_tuple("part: train,", "part: some,", "expected all, train or holdout"),
        std::make_tuple("train: {csv", "train: {cvs", "did you mean \"csv\"?"),
        std::make_tuple("mean: [8]", "mean: [8, 9]", "as many numbers as mean"),
        std::make_tuple("std: [6]", "std: [0]", "above 0"),
        std::make_tuple("peak: 0.001", "peak: .nan", "finite"),
        std::make_tuple("{cosine: {peak: 0.001, floor: 0.0001, warmupSteps: 20}}", "fast",
                        "expected a number or a map with exactly one of constant, step, cosine, "
                        "got \"fast\""),
        std::make_tuple("{cosine: {peak: 0.001, floor: 0.0001, warmupSteps: 20}}", "",
                        "expected a number or a map with exactly one of constant, step, cosine, "
                        "got nothing"),
        std::make_tuple("floor: 0.0001", "floor: 0.1", "floor is above peak"),
        std::make_tuple("warmupSteps: 20}", "warmupSteps: 20}, warmupSteps: 30",
                        "learningRate.warmupSteps: belongs inside cosine"),
        std::make_tuple("warmupSteps: 20}", "warmupSteps: 0}, warmupSteps: 30",
                        "line 12: spec.optimizer.adamw.learningRate.warmupSteps: belongs inside "
                        "cosine"),
        std::make_tuple("warmupSteps: 20}", "}, warmupSteps: 30", "belongs inside cosine"),
        std::make_tuple("cosine: {peak: 0.001, floor: 0.0001, warmupSteps: 20}",
                        "step: {initial: 1, everySteps: 5}, warmupSteps: 30",
                        "belongs inside step"),
        std::make_tuple("weightDecay: 0.05}}", "weightDecay: 0.05}, groups: {}}",
                        "spec.optimizer.groups: expected list of maps"),
        std::make_tuple("weightDecay: 0.05}}", "weightDecay: 0.05}, groups: [5]}",
                        "groups[0]: expected map"),
        std::make_tuple("weightDecay: 0.05}}", "weightDecay: 0.05}, groups: [{mach: [a]}]}",
                        "groups[0].mach: unknown key; did you mean \"match\"?"),
        std::make_tuple("weightDecay: 0.05}}", "weightDecay: 0.05}, groups: [{match: a}]}",
                        "expected list of strings"),
        std::make_tuple("weightDecay: 0.05}}", "weightDecay: 0.05}, groups: [{weightDecay: 0}]}",
                        "groups[0]: which parameters?"),
        std::make_tuple("weightDecay: 0.05}}",
                        "weightDecay: 0.05}, groups: [{match: [\"\"], weightDecay: 0}]}",
                        "got an empty one"),
        std::make_tuple("weightDecay: 0.05}}", "weightDecay: 0.05}, groups: [{vectors: true}]}",
                        "what is special"),
        std::make_tuple("weightDecay: 0.05}}",
                        "weightDecay: 0.05}, groups: [{vectors: true, trustRatio: false}]}",
                        "goes with lamb only"),
        std::make_tuple("weightDecay: 0.05}}",
                        "weightDecay: 0.05}, groups: [{vectors: true, rateScale: -1}]}",
                        "groups[0].rateScale"),
        std::make_tuple("weightDecay: 0.05}}", "weightDecay: 0.05}, sgd: {learningRate: 1}}",
                        "got sgd and adamw"),
        std::make_tuple("seed: 7", "clip: {norm: 0, scope: parameter}", "spec.clip.norm"),
        std::make_tuple("seed: 7", "clip: {norm: 1}", "\"scope\" is missing"),
        std::make_tuple("seed: 7", "clip: {norm: 1, scope: layer}",
                        "expected parameter, worker or global"),
        std::make_tuple("runs/$DATA", "$NOPE", "$NOPE in"),
        std::make_tuple("tensorboard: runs/$DATA", "tensorboard: [a]",
                        "spec.tensorboard: expected string"),
        std::make_tuple("name: digits", "name: Digits!", "line 3: metadata.name: expected 1 to "),
        std::make_tuple("kind: TrainingJob", "kind: Job", "expected TrainingJob"),
        std::make_tuple("starling/v1", "starling/v2", "expected starling/v1"),
        std::make_tuple("builtin: mlp, hidden: [32, 16]", "builtin: counter", "go together"),
        std::make_tuple("spec:", "spec: [", "not YAML")));

TEST(JobFile, AGuardStandsBesideThePolicy) {
  const auto plain = Parse(Replaced("{ssp: {staleness: 2}}", "{async: {}, guard: {}}"));
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->policy().kind(), Policy::ASYNC);
  EXPECT_EQ(plain->policy().guard().window(), 16u);
  EXPECT_DOUBLE_EQ(plain->policy().guard().loss_factor(), 2.5);
  EXPECT_EQ(plain->policy().guard().lag(), 0u);
  EXPECT_EQ(plain->policy().guard().staleness(), 1u);
  const auto all =
      Parse(Replaced("{ssp: {staleness: 2}}",
                     "{async: {}, guard: {window: 8, lossFactor: 3, lag: 12, staleness: 0}}"));
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->policy().guard().window(), 8u);
  EXPECT_DOUBLE_EQ(all->policy().guard().loss_factor(), 3);
  EXPECT_EQ(all->policy().guard().lag(), 12u);
  EXPECT_EQ(all->policy().guard().staleness(), 0u);
  EXPECT_FALSE(Parse(kGood)->policy().has_guard());
  const auto kept =
      Parse(Replaced("{ssp: {staleness: 2}}", "{async: {}, guard: {}}"), {"consistency.bsp={}"});
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->policy().kind(), Policy::BSP);
  EXPECT_TRUE(kept->policy().has_guard());
}

TEST(JobFile, AGuardThatCouldNotEndInBspIsRefused) {
  const auto spec = Parse(Replaced("{ssp: {staleness: 2}}",
                                   "{async: {}, guard: {}}\n  clip: {norm: 1, scope: worker}"));
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr("consistency.guard: it ends in bsp"));
}

std::string ErrorOf(const std::string& text) { return std::string(Parse(text).status().message()); }

TEST(JobFile, ANullMapLacksItsRequiredKeys) {
  EXPECT_THAT(
      ErrorOf(Replaced("{ssp: {staleness: 2}}", "{ssp: }")),
      HasSubstr("line 13: spec.consistency.ssp: key \"staleness\" is missing (0 or more): expected "
                "integer, got nothing; write ssp: {staleness: ...}"));
  EXPECT_THAT(
      ErrorOf(Replaced("{peak: 0.001, floor: 0.0001, warmupSteps: 20}", "")),
      HasSubstr("line 12: spec.optimizer.adamw.learningRate.cosine: key \"peak\" is missing"));
  EXPECT_THAT(ErrorOf(Replaced("{global: 64, microBatches: 4, kernelThreads: 2}", "")),
              HasSubstr("line 11: spec.batch: key \"global\" is missing"));
  EXPECT_THAT(ErrorOf(Replaced("{name: digits, labels: {team: vision}}", "")),
              HasSubstr("line 3: metadata: key \"name\" is missing"));
  EXPECT_THAT(ErrorOf(Replaced("seed: 7", "seed:")),
              HasSubstr("line 5: spec.seed: expected integer, got nothing"));
}

// The good file with nothing behind this key of `around`, the groups around it.
std::string WithNothing(const std::vector<const Field*>& around, const std::string& key) {
  YAML::Node root = YAML::Load(kGood);
  YAML::Node at = root;
  for (const Field* field : around) {
    YAML::Node group = at[field->key];
    if (field->type == FieldType::kMapList) {
      group = YAML::Node(YAML::NodeType::Sequence);
      group.push_back(YAML::Node(YAML::NodeType::Map));
      at.reset(group[0]);
      continue;
    }
    if (!group.IsMap()) group = YAML::Node(YAML::NodeType::Map);
    at.reset(group);
  }
  at[key] = YAML::Node(YAML::NodeType::Null);
  return YAML::Dump(root);
}

void ExpectNothingIsRefused(const Field& group, std::vector<const Field*> around, int& keys) {
  if (!group.key.empty()) around.push_back(&group);
  for (const Field& child : group.children) {
    ++keys;
    EXPECT_THAT(ErrorOf(WithNothing(around, child.key)),
                AllOf(HasSubstr(absl::StrCat(child.key, ": ")), HasSubstr("got nothing")));
    ExpectNothingIsRefused(child, around, keys);
  }
}

TEST(JobFile, AKeyWithoutAValueIsRefusedWhateverItIs) {
  int keys = 0;
  ExpectNothingIsRefused(JobFileSchema(), {}, keys);
  EXPECT_GT(keys, 200);
  EXPECT_THAT(ErrorOf(Replaced("{ssp: {staleness: 2}}", "{bsp: }")),
              HasSubstr("line 13: spec.consistency.bsp: expected map, got nothing: write bsp: {}"));
  EXPECT_THAT(ErrorOf(Replaced("microBatches: 4", "microBatches: ~")),
              HasSubstr("spec.batch.microBatches: expected integer, got nothing: write a value, or "
                        "leave it out, which means 4"));
  EXPECT_THAT(ErrorOf(Replaced("{everyEpochs: 2}", "null")),
              HasSubstr("got nothing: write evaluate: {}, or leave it out"));
  for (const char* bad : {"mean: [8]", "team: vision", "seed: 7"}) {
    const std::string key(bad, std::string(bad).find(':'));
    EXPECT_NE(ErrorOf(Replaced(bad, key + ": [null]")), "") << bad;
    EXPECT_NE(ErrorOf(Replaced(bad, key + ": null")), "") << bad;
  }
  EXPECT_THAT(
      ErrorOf(Replaced("{builtin: mlp, hidden: [32, 16]}", "{layers: [flatten, {relu: }]}")),
      HasSubstr("expected attributes behind \"relu:\", got nothing: write relu without"));
  EXPECT_THAT(std::string(Parse(kGood, {"consistency.bsp="}).status().message()),
              HasSubstr("spec.consistency.bsp: expected map, got nothing: write bsp: {}"));
}

TEST(JobFile, AVariableOutsideOfAPathIsSaid) {
  EXPECT_THAT(ErrorOf(Replaced("global: 64", "global: $BATCH")),
              HasSubstr("$VAR is expanded in paths alone: write the value out, or give it as --set "
                        "spec.batch.global=VALUE"));
}

TEST(JobFile, AnOutputThatWouldMakeAFolderOfAnUnexpandedNameIsRefused) {
  for (const auto& [bad, better] : {std::pair("~/x.safetensors", ": write x.safetensors, or have"),
                                    std::pair("$HOME/a/x.safetensors", ": write a/x.safetensors,"),
                                    std::pair("~x.safetensors", ": write NAME.safetensors,"),
                                    std::pair("~/x", ": write NAME.safetensors,")}) {
    EXPECT_THAT(std::string(Parse(kGood, {absl::StrCat("output=", bad)}).status().message()),
                AllOf(HasSubstr("where ~ and $VAR are not expanded"), HasSubstr(better)));
  }
}

TEST(JobFile, TextThatIsNotUtf8IsRefusedByKey) {
  EXPECT_THAT(ErrorOf(Replaced("team: vision", "team: vi\xffsion")),
              HasSubstr("line 3: expected UTF-8, got the byte \\xff after `metadata: {name: "
                        "digits, labels: {team: vi`"));
}

TEST(JobFile, ASecondDocumentIsRefused) {
  EXPECT_THAT(ErrorOf(Replaced("  tensorboard: runs/$DATA", "---\nkind: TrainingJob")),
              HasSubstr("expected one YAML document, got 2"));
}

TEST(JobFile, ATabIsNamed) {
  EXPECT_THAT(ErrorOf(Replaced("  seed: 7", "  seed:\n\t- 7")),
              HasSubstr("line 6 is indented with a TAB, and YAML wants spaces"));
}

TEST(JobFile, ADeepNestIsSaid) {
  const std::string deep = absl::StrCat(std::string(5000, '['), std::string(5000, ']'));
  EXPECT_THAT(ErrorOf(Replaced("seed: 7", absl::StrCat("seed: ", deep))),
              HasSubstr(": the job file nests hundreds of maps or lists: expected a few levels"));
  EXPECT_THAT(std::string(Parse(kGood, {absl::StrCat("seed=", deep)}).status().message()),
              HasSubstr(": value nests hundreds of maps or lists"));
}

TEST(JobFile, ADocumentMayEndWithItsMark) {
  EXPECT_TRUE(Parse(absl::StrCat("---\n", kGood, "---\n# no more\n")).ok());
}

TEST(JobFile, OverridesAreUtf8) {
  EXPECT_THAT(std::string(Parse(kGood, {"metadata.labels.team=\xff"}).status().message()),
              HasSubstr("--set metadata.labels.team=\\xff: line 1: expected UTF-8"));
}

TEST(JobFile, SaysWhatNothingReads) {
  EXPECT_THAT(UnusedKeys(*Parse(kGood)), IsEmpty());
  EXPECT_THAT(UnusedKeys(*Parse(Replaced("  evaluate: {everyEpochs: 2}\n", ""))),
              ElementsAre(HasSubstr("data.test is not used")));
  EXPECT_THAT(UnusedKeys(*Parse(Replaced("part: train, ", ""))),
              ElementsAre(HasSubstr("data.train.csv.holdoutFraction is not used")));
  EXPECT_THAT(UnusedKeys(*Parse(Replaced("seed: 7", "tf32: true"))),
              ElementsAre(HasSubstr("tf32 is not used")));
  EXPECT_THAT(UnusedKeys(*Parse(kGood, {"workers.backup=1"})),
              ElementsAre(HasSubstr("workers.backup is not used until the job changes to bsp")));
  EXPECT_THAT(UnusedKeys(*Parse(kGood, {"workers.backup=1", "consistency.bsp={}"})), IsEmpty());
}

TEST(JobFile, EvaluateNeedsTestData) {
  YAML::Node node = YAML::Load(kGood);
  node["spec"]["data"].remove("test");
  EXPECT_THAT(std::string(Parse(YAML::Dump(node)).status().message()),
              HasSubstr("data.test is missing"));
}

TEST(JobFile, ACounterCountsInFp32) {
  constexpr char kCounter[] = R"(apiVersion: starling/v1
kind: TrainingJob
metadata: {name: a}
spec:
  model: {builtin: counter}
  data: {train: {counter: {samples: 12}}}
  batch: {global: 4}
  optimizer: {sgd: {learningRate: 1}}
)";
  EXPECT_TRUE(Parse(kCounter, {"precision=fp32"}).ok());
  for (const char* precision : {"precision=bf16", "precision=fp16"})
    EXPECT_THAT(std::string(Parse(kCounter, {precision}).status().message()),
                HasSubstr("remove precision"));
}

TEST(JobFile, ACounterIsWholeBatches) {
  const std::string text = R"(
apiVersion: starling/v1
kind: TrainingJob
metadata: {name: counter}
spec:
  model: {builtin: counter}
  data: {train: {counter: {samples: 100}}}
  batch: {global: 64, microBatches: 4}
  optimizer: {sgd: {learningRate: 1}}
  stop: {epochs: 1}
)";
  EXPECT_THAT(std::string(Parse(text).status().message()),
              HasSubstr("multiple of batch.global 64, got 100"));
  std::string whole = text;
  whole.replace(whole.find("100"), 3, "128");
  EXPECT_TRUE(Parse(whole).ok()) << Parse(whole).status();
}

TEST(JobFile, RandomDamageNeverCrashes) {
  const std::string good = kGood;
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char c : {'\0', '{', ':', '-', '9'}) {
      std::string text = good;
      text[i] = c;
      Parse(text).IgnoreError();
    }
    Parse(good.substr(0, i)).IgnoreError();
  }
}

TEST(Schema, TextNamesEveryKeyOfAGoodFile) {
  const std::string text = SchemaText(JobFileSchema());
  for (const char* key : {"apiVersion:", "staleness:", "microBatches:", "warmupSteps:"}) {
    EXPECT_THAT(text, HasSubstr(key));
  }
}

TEST(Duration, Units) {
  EXPECT_DOUBLE_EQ(*ParseDuration("90"), 90);
  EXPECT_DOUBLE_EQ(*ParseDuration("1.5m"), 90);
  EXPECT_DOUBLE_EQ(*ParseDuration("2h"), 7200);
  for (const char* bad : {"", "s", "-1s", "0s", "nan", "1d", "1 m x", "0x5s", "1e300s", "1.2.3s"}) {
    EXPECT_THAT(std::string(ParseDuration(bad).status().message()),
                HasSubstr("expected a duration above 0 like 90s, 30m or 2h, got"))
        << bad;
  }
  EXPECT_FALSE(ParseDuration(std::string(400, '9')).ok());
}

TEST(Bytes, Units) {
  EXPECT_EQ(*ParseBytes("9007199254740993"), 9007199254740993);
  EXPECT_EQ(*ParseBytes("1GB"), 1'000'000'000);
  EXPECT_EQ(*ParseBytes("1.5 MiB"), 3 << 19);
  EXPECT_EQ(*ParseBytes("2Gi"), int64_t{2} << 30);
  EXPECT_EQ(*ParseBytes("7b"), 7);
  for (const char* bad : {"", "0", "GB", "-1", "1XB", "1e9", "99999999TB", "nan"}) {
    EXPECT_THAT(std::string(ParseBytes(bad).status().message()), HasSubstr("like 1073741824, 1GiB"))
        << bad;
  }
}

}  // namespace
}  // namespace starling::config
