#include "kernels/random.h"

#include <algorithm>

namespace starling {
namespace {

constexpr int kLanes = 16;  // blocks at a time, so that the compiler makes vectors of them

// Random123's philox.h, written over lanes: R(A) = mulhilo(A), key bumped between rounds.
__attribute__((always_inline)) inline void Philox(const RandomKey& key, uint32_t first_block,
                                                  uint32_t words[4][kLanes]) {
  uint32_t* c0 = words[0];
  uint32_t* c1 = words[1];
  uint32_t* c2 = words[2];
  uint32_t* c3 = words[3];
  for (int i = 0; i < kLanes; ++i) {
    c0[i] = first_block + static_cast<uint32_t>(i);
    c1[i] = key.node;
    c2[i] = key.micro_batch;
    c3[i] = key.step;
  }
  uint32_t k0 = static_cast<uint32_t>(key.seed);
  uint32_t k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53} * c0[i];
      const uint64_t p1 = uint64_t{0xCD9E8D57} * c2[i];
      const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c1[i] = static_cast<uint32_t>(p1);
      c3[i] = static_cast<uint32_t>(p0);
      c0[i] = n0;
      c2[i] = n2;
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

}  // namespace

// Integers only: every clone gives the same bytes.
#if defined(__x86_64__) && !defined(STARLING_SANITIZED)
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#endif
void DropoutMask(const RandomKey& key, double rate, int64_t count, uint8_t* keep) {
  const uint32_t threshold = DropThreshold(rate);
  uint32_t words[4][kLanes];
  uint8_t tile[kLanes * 4];
  for (int64_t begin = 0; begin < count; begin += kLanes * 4) {
    Philox(key, static_cast<uint32_t>(begin / 4), words);
    for (int i = 0; i < kLanes; ++i) {
      for (int w = 0; w < 4; ++w) tile[4 * i + w] = words[w][i] >= threshold ? 1 : 0;
    }
    std::copy_n(tile, std::min<int64_t>(count - begin, kLanes * 4), keep + begin);
  }
}

}  // namespace starling
