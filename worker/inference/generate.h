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

inline constexpr int64_t kByteVocabulary = 256;  // byte-level text

// What generation needs of a model: tokens in, logits over the vocabulary per position out.
struct LanguageModel {
  int64_t context = 0;     // positions
  int64_t vocabulary = 0;  // the trained tokens: [0, vocabulary)
  int64_t logits = 0;      // per position; those beyond the vocabulary are padding
  // `tokens`: context of them. `logits`: context x logits. A position's logits must not depend on
  // later positions' tokens.
  std::function<absl::Status(absl::Span<const int32_t> tokens, absl::Span<float> logits)> forward;
};

// kInvalidArgument: the model does not map tokens [T] to logits [T, V], or it looks ahead (which is
// tested by running it). `predictor` must have a batch of one and be for `model`; it outlives the
// result.
absl::StatusOr<LanguageModel> AsLanguageModel(const SavedModel& model, Predictor* predictor);

struct GenerateOptions {
  int64_t tokens_max = 0;  // how many to generate
  SamplerOptions sampler;
  uint64_t seed = 0;
};

// Calls `emit` with each new token as soon as it is known; stops after options.tokens_max tokens or
// when `emit` returns false. The model sees the last `context` tokens: a sliding window.
// Deterministic for the same model, prompt and options. kInvalidArgument: an empty prompt, or one
// with a token that the model does not know. kInternal: all logits are NaN.
absl::Status Generate(const LanguageModel& model, absl::Span<const int32_t> prompt,
                      const GenerateOptions& options, const std::function<bool(int32_t)>& emit);

}  // namespace starling

#endif  // STARLING_WORKER_INFERENCE_GENERATE_H_
