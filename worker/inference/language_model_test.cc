// Token models: what they accept, and whether they look ahead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "common/graph/builders.h"
#include "kernels/cpu/cpu_device.h"
#include "worker/inference/generate.h"
#include "worker/inference/preprocess.h"

namespace starling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kContext = 6;
constexpr int64_t kVocabulary = 8;

// Embeddings, positions, attention with one head, and logits; values without a pattern.
SavedModel TokenModel(bool causal, int64_t rows = kVocabulary, int64_t logits = kVocabulary) {
  ModelInput input{.sample_shape = {kContext}, .classes = kVocabulary, .sample_type = INT32};
  input.label_shape = {kContext};
  input.vocabulary = kVocabulary;
  const std::vector<LayerDescription> layers = {
      {.op = "embedding",
       .name = "table",
       .attributes = {{"rows", rows}, {"features", int64_t{4}}}},
      {.op = "position_embedding", .name = "x", .attributes = {{"rows", kContext}}},
      {.op = "attention",
       .name = "mix",
       .attributes = {{"heads", int64_t{1}}, {"causal", causal}},
       .inputs = {"x", "x", "x"}},
      {.op = "linear", .name = "head", .attributes = {{"out_features", logits}}}};
  JobSpec spec;
  *spec.mutable_model() = *BuildLayers(input, layers);
  SavedModel model = *MakeModel(spec);
  model.values.resize(model.layout.elements);
  for (size_t i = 0; i < model.values.size(); ++i) {
    model.values[i] = static_cast<float>((i * 37) % 17) / 8 - 1;
  }
  return model;
}

class LanguageModelTest : public ::testing::Test {
 protected:
  absl::StatusOr<LanguageModel> Make(const SavedModel& model) {
    predictor_ = *Predictor::Create(model, {.batch = 1}, device_.get());
    return AsLanguageModel(model, predictor_.get());
  }
  std::unique_ptr<Device> device_ = *CreateCpuDevice();
  std::unique_ptr<Predictor> predictor_;
};

TEST_F(LanguageModelTest, ACausalModelGenerates) {
  const auto language = Make(TokenModel(true));
  ASSERT_TRUE(language.ok()) << language.status();
  EXPECT_EQ(language->context, kContext);
  EXPECT_EQ(language->vocabulary, kVocabulary);
  int generated = 0;
  ASSERT_TRUE(Generate(*language, {1, 2}, {.tokens_max = 10}, [&](int32_t token) {
                EXPECT_GE(token, 0);
                EXPECT_LT(token, kVocabulary);
                ++generated;
                return true;
              }).ok());
  EXPECT_EQ(generated, 10);
}

// Tables and heads are padded to round numbers.
TEST_F(LanguageModelTest, KnowsTheTokensOfItsDataNotThePadding) {
  const auto padded = Make(TokenModel(true, kVocabulary, kVocabulary + 3));
  ASSERT_TRUE(padded.ok()) << padded.status();
  EXPECT_EQ(padded->vocabulary, kVocabulary);
  EXPECT_EQ(padded->logits, kVocabulary + 3);

  SavedModel model = TokenModel(true, kVocabulary + 2, kVocabulary + 3);
  EXPECT_EQ(Make(model)->vocabulary, kVocabulary + 2);
  model.preprocessing.mutable_train()->mutable_tokens()->set_vocabulary(kVocabulary);
  EXPECT_EQ(Make(model)->vocabulary, kVocabulary);

  SavedModel text = TokenModel(true, 320, 384);
  text.preprocessing.mutable_train()->mutable_text()->set_context(kContext);
  EXPECT_EQ(Make(text)->vocabulary, kByteVocabulary);
}

TEST_F(LanguageModelTest, AModelThatLooksAheadDoesNot) {
  EXPECT_THAT(std::string(Make(TokenModel(false)).status().message()), HasSubstr("looks ahead"));
}

TEST_F(LanguageModelTest, TokensAreCheckedAgainstTheTable) {
  const auto preprocessor = Preprocessor::Create(TokenModel(true));
  ASSERT_TRUE(preprocessor.ok()) << preprocessor.status();
  EXPECT_EQ(preprocessor->kind(), SampleKind::kTokens);
  EXPECT_EQ(preprocessor->vocabulary(), kVocabulary);
  npy::Array array{npy::DType::kI64, {1, kContext}, std::vector<uint8_t>(kContext * 8)};
  int64_t tokens[kContext] = {0, 7, 3, 2, 1, 7};
  std::memcpy(array.bytes.data(), tokens, sizeof(tokens));
  ASSERT_TRUE(preprocessor->Check(array).ok());
  std::vector<int32_t> out(kContext);
  ASSERT_TRUE(preprocessor->Apply(array, 0, 1, out.data()).ok());
  EXPECT_THAT(out, ElementsAre(0, 7, 3, 2, 1, 7));
  for (int64_t bad : {int64_t{-1}, kVocabulary, int64_t{1} << 33}) {
    tokens[2] = bad;
    std::memcpy(array.bytes.data(), tokens, sizeof(tokens));
    EXPECT_THAT(std::string(preprocessor->Apply(array, 0, 1, out.data()).message()),
                HasSubstr("sample 0: expected tokens in [0, 8), got"));
  }
  const npy::Array floats{npy::DType::kF32, {1, kContext}, std::vector<uint8_t>(kContext * 4)};
  EXPECT_THAT(std::string(preprocessor->Check(floats).message()), HasSubstr("expected integers"));
}

}  // namespace
}  // namespace starling
