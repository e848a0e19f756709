// Continues a sequence of tokens, one at a time.
#ifndef STARLING_WORKER_INFERENCE_GENERATE_H_
#define STARLING_WORKER_INFERENCE_GENERATE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/inference/predictor.h"
#include "worker/inference/sampler.h"

namespace starling {

inline constexpr int64_t kByteVocabulary = 256;  // of text at byte level

// What generation needs to know of a model: tokens in, logits over the vocabulary per position out.
struct LanguageModel {
  int64_t context = 0;     // positions
  int64_t vocabulary = 0;  // tokens that it was trained with: [0, vocabulary)
  int64_t logits = 0;      // of one position; those behind the vocabulary are padding
  // `tokens`: context of them. `logits`: context x logits. A position's logits depend on no later
  // position's token.
  std::function<absl::Status(absl::Span<const int32_t> tokens, absl::Span<float> logits)> forward;
};

// kInvalidArgument: the model does not read tokens [T] and give logits [T, V], or it looks ahead
// (found by trying). `predictor` has a batch of one, is of `model`, and outlives the result.
absl::StatusOr<LanguageModel> AsLanguageModel(const SavedModel& model, Predictor* predictor);

struct GenerateOptions {
  int64_t tokens_max = 0;  // to generate
  SamplerOptions sampler;
  uint64_t seed = 0;
};

// Calls `emit` with each new token, as soon as it is known; ends after options.tokens_max of them
// or when `emit` gives false. The model sees the last `context` tokens: a window that slides. The
// same tokens for the same model, prompt and options. kInvalidArgument: an empty prompt, or a token
// of it that the model does not know; kInternal: logits that are all NaN.
absl::Status Generate(const LanguageModel& model, absl::Span<const int32_t> prompt,
                      const GenerateOptions& options, const std::function<bool(int32_t)>& emit);

}  // namespace starling

#endif  // STARLING_WORKER_INFERENCE_GENERATE_H_
