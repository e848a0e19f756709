// A model as a language model, once a trial has shown that it does not look ahead.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/inference/generate.h"

namespace starling {
namespace {

// More than rounding, less than the effect of one token on logits.
constexpr double kSameLogits = 1e-3;

// Whether the first position's logits stay the same when all later tokens change.
absl::Status LooksNotAhead(const LanguageModel& model) {
  if (model.context < 2) return absl::OkStatus();
  const size_t row = static_cast<size_t>(model.logits);
  std::vector<int32_t> tokens(static_cast<size_t>(model.context), 0);
  std::vector<float> before(tokens.size() * row), after(tokens.size() * row);
  STARLING_RETURN_IF_ERROR(model.forward(tokens, absl::MakeSpan(before)));
  for (size_t i = 1; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(i % static_cast<size_t>(model.vocabulary));
  }
  STARLING_RETURN_IF_ERROR(model.forward(tokens, absl::MakeSpan(after)));
  for (size_t i = 0; i < row; ++i) {
    if (std::isnan(before[i])) break;  // not an error here: generation reports it
    if (std::abs(before[i] - after[i]) <= kSameLogits * (1 + std::abs(before[i]))) continue;
    return absl::InvalidArgumentError(
        "the model looks ahead: a position's output changes with later tokens, so it cannot "
        "continue "
        "a text; expected attention with `causal` in every layer");
  }
  return absl::OkStatus();
}

// A table or a head may have more rows than there are tokens, to make their number round.
int64_t KnownTokens(const SavedModel& model, int64_t logits) {
  int64_t known = logits;
  for (const ResolvedNode& node : model.resolved.nodes) {
    if (node.kind == OpKind::kEmbedding && node.inputs[0] == kInputValue)
      known = std::min(known, node.attributes.rows);
  }
  const DataSource& train = model.preprocessing.train();
  if (train.has_text()) known = std::min(known, kByteVocabulary);
  const int64_t stated = train.tokens().vocabulary();
  return stated > 0 ? std::min(known, stated) : known;
}

}  // namespace

absl::StatusOr<LanguageModel> AsLanguageModel(const SavedModel& model, Predictor* predictor) {
  const Dims& input = model.resolved.values[kInputValue].shape;
  const Dims& output = model.resolved.values[model.resolved.logits].shape;
  if (model.graph.input().type() != INT32 || input.size() != 1 || output.size() != 2 ||
      output[0] != input[0]) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a model that reads tokens [T] and gives logits [T, V] to generate with, got one "
        "from ",
        model.graph.input().type() == INT32 ? "tokens " : "numbers ", DimsToString(input), " to ",
        DimsToString(output), " (see: starling predict)"));
  }
  LanguageModel out{
      .context = output[0], .vocabulary = KnownTokens(model, output[1]), .logits = output[1]};
  out.forward = [predictor](absl::Span<const int32_t> tokens, absl::Span<float> logits) {
    return predictor->Predict(tokens.data(), 1, logits.data());
  };
  STARLING_RETURN_IF_ERROR(LooksNotAhead(out));
  return out;
}

}  // namespace starling
