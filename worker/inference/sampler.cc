#include "worker/inference/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "Random123/philox.h"

namespace starling {

int64_t SampleToken(absl::Span<const float> logits, const SamplerOptions& options, double uniform) {
  std::vector<int64_t> candidates;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) candidates.push_back(static_cast<int64_t>(i));
  }
  if (candidates.empty()) return -1;
  const auto greater = [&](int64_t a, int64_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const int64_t greatest = *std::min_element(candidates.begin(), candidates.end(), greater);
  if (options.temperature <= 0 || std::isinf(logits[greatest])) return greatest;

  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(candidates.size())) {
    std::nth_element(candidates.begin(), candidates.begin() + (options.top_k - 1), candidates.end(),
                     greater);
    candidates.resize(static_cast<size_t>(options.top_k));
    std::sort(candidates.begin(), candidates.end());
  }
  std::vector<double> weights;
  for (int64_t token : candidates) {
    weights.push_back(
        std::exp((double{logits[token]} - double{logits[greatest]}) / options.temperature));
  }
  double left = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (left < weights[i]) return candidates[i];
    left -= weights[i];
  }
  return greatest;  // reached only through rounding
}

double SamplerUniform(uint64_t seed, uint64_t index) {
  const r123::Philox4x32::ctr_type counter = {
      {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0x53414D50}};
  const r123::Philox4x32::key_type key = {
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}};
  const auto words = r123::Philox4x32()(counter, key);
  const uint64_t bits = uint64_t{words[0]} << 32 | words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace starling
