#include "worker/data/gather.h"

namespace starling {

void ScaleShift(const uint8_t* __restrict in, int64_t n, float scale, float shift,
                float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(in[i]) * scale + shift;
}

void ScaleShift(const float* __restrict in, int64_t n, float scale, float shift,
                float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = in[i] * scale + shift;
}

}  // namespace starling
