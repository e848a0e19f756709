#include "worker/inference/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace starling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// After token t always comes t + 1; records the windows that it was given.
class Counting {
 public:
  LanguageModel model() {
    LanguageModel out{.context = 4, .vocabulary = 10, .logits = 10};
    out.forward = [this](absl::Span<const int32_t> tokens, absl::Span<float> logits) {
      windows_.emplace_back(tokens.begin(), tokens.end());
      std::fill(logits.begin(), logits.end(), -100.0f);
      for (size_t i = 0; i < tokens.size(); ++i) logits[i * 10 + (tokens[i] + 1) % 10] = 100;
      return absl::OkStatus();
    };
    return out;
  }
  std::vector<std::vector<int32_t>> windows_;
};

std::vector<int32_t> Continue(const LanguageModel& model, std::vector<int32_t> prompt,
                              const GenerateOptions& options) {
  std::vector<int32_t> out;
  const absl::Status status = Generate(model, prompt, options, [&](int32_t token) {
    out.push_back(token);
    return true;
  });
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

TEST(Generate, TheWindowFillsAndThenSlides) {
  Counting counting;
  EXPECT_THAT(Continue(counting.model(), {1, 2}, {.tokens_max = 4}), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(counting.windows_, ElementsAre(ElementsAre(1, 2, 0, 0), ElementsAre(1, 2, 3, 0),
                                             ElementsAre(1, 2, 3, 4), ElementsAre(2, 3, 4, 5)));
}

TEST(Generate, ALongPromptCountsByItsEnd) {
  Counting counting;
  EXPECT_THAT(Continue(counting.model(), {1, 2, 3, 4, 5, 6}, {.tokens_max = 2}), ElementsAre(7, 8));
  EXPECT_THAT(counting.windows_, ElementsAre(ElementsAre(3, 4, 5, 6), ElementsAre(4, 5, 6, 7)));
}

TEST(Generate, WhatOnlyFillsTheLogitsUpIsNeverGiven) {
  LanguageModel padded{.context = 2, .vocabulary = 3, .logits = 5};
  padded.forward = [](absl::Span<const int32_t> tokens, absl::Span<float> logits) {
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = i % 5 < 3 ? 0 : 50;
    for (size_t i = 0; i < tokens.size(); ++i) logits[i * 5 + (tokens[i] + 1) % 3] = 40;
    return absl::OkStatus();
  };
  EXPECT_THAT(Continue(padded, {0}, {.tokens_max = 4}), ElementsAre(1, 2, 0, 1));
  const auto beyond = Generate(padded, {3}, {.tokens_max = 1}, [](int32_t) { return true; });
  EXPECT_THAT(std::string(beyond.message()), HasSubstr("[0, 3), got 3"));
}

TEST(Generate, EndsWhenNobodyListens) {
  Counting counting;
  int emitted = 0;
  ASSERT_TRUE(Generate(counting.model(), {1}, {.tokens_max = 100}, [&](int32_t) {
                return ++emitted < 3;
              }).ok());
  EXPECT_EQ(emitted, 3);
  EXPECT_EQ(counting.windows_.size(), 3u);
}

TEST(Generate, TheSeedDecides) {
  LanguageModel uniform{.context = 2, .vocabulary = 50, .logits = 50};
  uniform.forward = [](absl::Span<const int32_t>, absl::Span<float> logits) {
    std::fill(logits.begin(), logits.end(), 0.0f);
    return absl::OkStatus();
  };
  const auto first = Continue(uniform, {0}, {.tokens_max = 20, .seed = 1});
  EXPECT_EQ(Continue(uniform, {0}, {.tokens_max = 20, .seed = 1}), first);
  EXPECT_NE(Continue(uniform, {0}, {.tokens_max = 20, .seed = 2}), first);
}

TEST(Generate, RefusesWhatTheModelDoesNotKnow) {
  Counting counting;
  const auto ignore = [](int32_t) { return true; };
  const auto empty = Generate(counting.model(), {}, {.tokens_max = 1}, ignore);
  EXPECT_TRUE(absl::IsInvalidArgument(empty));
  const auto beyond = Generate(counting.model(), {3, 10}, {.tokens_max = 1}, ignore);
  EXPECT_THAT(std::string(beyond.message()), HasSubstr("[0, 10), got 10"));
  EXPECT_TRUE(counting.windows_.empty());
}

TEST(Generate, LogitsThatAreNoNumbersAreAnError) {
  LanguageModel broken{.context = 1, .vocabulary = 2, .logits = 2};
  broken.forward = [](absl::Span<const int32_t>, absl::Span<float> logits) {
    std::fill(logits.begin(), logits.end(), std::nanf(""));
    return absl::OkStatus();
  };
  const auto status = Generate(broken, {0}, {.tokens_max = 1}, [](int32_t) { return true; });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace starling
