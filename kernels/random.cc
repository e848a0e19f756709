#include "kernels/random.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstring>

namespace starling {
namespace {

static_assert(std::endian::native == std::endian::little, "four mask bytes are made as one word");

constexpr int kLanes = 16;  // blocks at a time, so that the compiler vectorizes

// Random123's philox.h, written over lanes: R(A) = mulhilo(A), key bumped between rounds.
void Philox(const RandomKey& key, uint32_t first_block, uint32_t words[4][kLanes]) {
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

// Integers only: every path gives the same bytes.

#if defined(__x86_64__)
// Eight blocks in the low halves of 64-bit lanes: one vpmuludq is eight products, and leftovers in
// the high halves are never read.
__attribute__((target("avx512f"))) void MaskAvx512(const RandomKey& key, uint32_t threshold,
                                                   int64_t tiles, uint8_t* keep) {
  const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
  const __m512i low = _mm512_set1_epi64(0xFFFFFFFF);
  const __m512i limit = _mm512_set1_epi64(threshold);
  __m512i block = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    __m512i c0 = block, c1 = _mm512_set1_epi64(key.node);
    __m512i c2 = _mm512_set1_epi64(key.micro_batch), c3 = _mm512_set1_epi64(key.step);
    uint32_t k0 = static_cast<uint32_t>(key.seed);
    uint32_t k1 = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const __m512i p0 = _mm512_mul_epu32(c0, m0), p1 = _mm512_mul_epu32(c2, m1);
      c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), c1, _mm512_set1_epi64(k0), 0x96);
      c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), c3, _mm512_set1_epi64(k1), 0x96);
      c1 = p1;
      c3 = p0;
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    auto kept = [&](__m512i word, int shift) __attribute__((target("avx512f"))) {
      const __mmask8 over = _mm512_cmpge_epu64_mask(_mm512_and_si512(word, low), limit);
      return _mm512_maskz_set1_epi64(over, int64_t{1} << shift);
    };
    const __m512i bytes = _mm512_or_si512(_mm512_or_si512(kept(c0, 0), kept(c1, 8)),
                                          _mm512_or_si512(kept(c2, 16), kept(c3, 24)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(keep + 32 * tile), _mm512_cvtepi64_epi32(bytes));
    block = _mm512_add_epi64(block, _mm512_set1_epi64(8));
  }
}
#endif

}  // namespace

void PortableDropoutMask(const RandomKey& key, uint32_t threshold, uint32_t first_block,
                         int64_t count, uint8_t* keep) {
  uint32_t words[4][kLanes];
  uint32_t tile[kLanes];
  for (int64_t begin = 0; begin < count; begin += kLanes * 4) {
    Philox(key, first_block + static_cast<uint32_t>(begin / 4), words);
    for (int i = 0; i < kLanes; ++i) {
      tile[i] = 0;
      for (int w = 0; w < 4; ++w) tile[i] |= (words[w][i] >= threshold ? 1u : 0u) << (8 * w);
    }
    std::memcpy(keep + begin, tile, std::min<int64_t>(count - begin, sizeof(tile)));
  }
}

void DropoutMask(const RandomKey& key, double rate, int64_t count, uint8_t* keep) {
  const uint32_t threshold = DropThreshold(rate);
  int64_t done = 0;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    done = count / 32 * 32;
    MaskAvx512(key, threshold, count / 32, keep);
  }
#endif
  PortableDropoutMask(key, threshold, static_cast<uint32_t>(done / 4), count - done, keep + done);
}

}  // namespace starling
