// Picks the next token from a model's logits. Pure functions; safe from any thread.
#ifndef STARLING_WORKER_INFERENCE_SAMPLER_H_
#define STARLING_WORKER_INFERENCE_SAMPLER_H_

#include <cstdint>

#include "absl/types/span.h"

namespace starling {

struct SamplerOptions {
  double temperature = 1;  // logits are divided by it; 0: always the greatest
  int64_t top_k = 0;       // draw only from the k greatest; 0: from all
};

// Draws from the softmax of logits / temperature over the top_k greatest, by inversion: candidates
// in ascending order share [0, 1) by their probabilities, and the one whose share contains
// `uniform` is drawn. Of equal logits the lower token counts as greater. NaN logits are never
// drawn; if all are NaN, returns -1. `logits` is not empty, `uniform` is in [0, 1).
int64_t SampleToken(absl::Span<const float> logits, const SamplerOptions& options, double uniform);

// Element `index` of the sequence of `seed`, uniform in [0, 1): the upper 53 bits of the first two
// words (high, then low) of Philox4x32-10 (Salmon et al. 2011) of the counter (index low, index
// high, 0, 0x53414D50) under the key (seed low, seed high).
double SamplerUniform(uint64_t seed, uint64_t index);

}  // namespace starling

#endif  // STARLING_WORKER_INFERENCE_SAMPLER_H_
