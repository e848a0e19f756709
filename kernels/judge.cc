#include "kernels/judge.h"

#include <algorithm>

namespace starling {

void CountCorrectOnHost(const Judgement& judgement, const float* logits, const void* labels,
                        uint32_t* correct) {
  const int64_t count = judgement.labels;
  for (int64_t sample = 0; sample < judgement.samples; ++sample) {
    uint32_t right = 0;
    for (int64_t i = sample * count; i < (sample + 1) * count; ++i) {
      if (judgement.binary) {
        right += (logits[i] > 0) == (static_cast<const float*>(labels)[i] > 0.5f);
      } else {
        const float* const row = logits + i * judgement.classes;
        const int64_t predicted = std::max_element(row, row + judgement.classes) - row;
        right += predicted == static_cast<const int32_t*>(labels)[i];
      }
    }
    correct[sample] = right;
  }
}

}  // namespace starling
