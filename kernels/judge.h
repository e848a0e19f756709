// Judges predictions on the host, for devices whose memory the host can access.
#ifndef STARLING_KERNELS_JUDGE_H_
#define STARLING_KERNELS_JUDGE_H_

#include <cstdint>

#include "kernels/device.h"

namespace starling {

// As Device::CountCorrect, but synchronous. Pure.
void CountCorrectOnHost(const Judgement& judgement, const float* logits, const void* labels,
                        uint32_t* correct);

}  // namespace starling

#endif  // STARLING_KERNELS_JUDGE_H_
