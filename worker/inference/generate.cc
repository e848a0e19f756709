#include "worker/inference/generate.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {

absl::Status Generate(const LanguageModel& model, absl::Span<const int32_t> prompt,
                      const GenerateOptions& options, const std::function<bool(int32_t)>& emit) {
  if (prompt.empty()) return absl::InvalidArgumentError("expected a prompt of at least one token");
  for (int32_t token : prompt) {
    if (token >= 0 && token < model.vocabulary) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("expected tokens in [0, ", model.vocabulary, "), got ", token));
  }
  const size_t context = static_cast<size_t>(model.context);
  const size_t vocabulary = static_cast<size_t>(model.vocabulary);
  // The newest tokens, then zeros, which no earlier position depends on.
  std::vector<int32_t> window(context, 0);
  size_t used = std::min(prompt.size(), context);
  std::copy(prompt.end() - static_cast<ptrdiff_t>(used), prompt.end(), window.begin());
  const size_t row = static_cast<size_t>(model.logits);
  std::vector<float> logits(context * row);
  for (int64_t i = 0; i < options.tokens_max; ++i) {
    STARLING_RETURN_IF_ERROR(model.forward(window, absl::MakeSpan(logits)));
    const int64_t token =
        SampleToken({logits.data() + (used - 1) * row, vocabulary}, options.sampler,
                    SamplerUniform(options.seed, static_cast<uint64_t>(i)));
    if (token < 0) {
      return absl::InternalError("the model's logits are not numbers: did its training diverge?");
    }
    if (!emit(static_cast<int32_t>(token))) return absl::OkStatus();
    if (used == context) {
      std::copy(window.begin() + 1, window.end(), window.begin());
      --used;
    }
    window[used++] = static_cast<int32_t>(token);
  }
  return absl::OkStatus();
}

}  // namespace starling
