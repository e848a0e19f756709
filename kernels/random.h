// Random numbers inside operators: Random123's Philox4x32-10 (Salmon et al. 2011), a pure function
// of (seed, step, micro-batch, node, element index). The elements of a four-dimensional value
// [N,C,H,W] are indexed channels last, ((n * H + h) * W + w) * C + c, which is close to the layouts
// that devices prefer; other values are indexed row by row.
#ifndef STARLING_KERNELS_RANDOM_H_
#define STARLING_KERNELS_RANDOM_H_

#include <cstdint>

#include "kernels/operator.h"

namespace starling {

// The four words of elements 4 * block .. 4 * block + 3 are Philox4x32-10 of the counter (block,
// node, micro_batch, step) under the key (low and high word of seed).
inline constexpr int kPhiloxRounds = 10;

// An element is dropped if its word is below this: with probability rate, to 2^-32.
inline uint32_t DropThreshold(double rate) { return static_cast<uint32_t>(rate * 4294967296.0); }

// keep[i] = 1 if element i of `count` is kept, else 0. The same bytes on every machine.
void DropoutMask(const RandomKey& key, double rate, int64_t count, uint8_t* keep);

// DropoutMask without AVX-512, starting at element 4 * first_block; exposed for its test.
void PortableDropoutMask(const RandomKey& key, uint32_t threshold, uint32_t first_block,
                         int64_t count, uint8_t* keep);

}  // namespace starling

#endif  // STARLING_KERNELS_RANDOM_H_
