// The random words of kernels/random.h, for host code and kernels alike.
#ifndef STARLING_KERNELS_CUDA_PHILOX_H_
#define STARLING_KERNELS_CUDA_PHILOX_H_

#include <cstdint>

#ifdef __CUDACC__
#define STARLING_HOST_DEVICE __host__ __device__
#else
#define STARLING_HOST_DEVICE
#endif

namespace starling::cuda {

// starling::RandomKey.
struct PhiloxKey {
  uint64_t seed = 0;
  uint32_t step = 0;
  uint32_t micro_batch = 0;
  uint32_t node = 0;
};

// The words of elements 4 * block .. 4 * block + 3: Philox4x32-10 (Salmon et al. 2011).
STARLING_HOST_DEVICE inline void PhiloxWords(const PhiloxKey& key, uint32_t block,
                                             uint32_t words[4]) {
  uint32_t c0 = block, c1 = key.node, c2 = key.micro_batch, c3 = key.step;
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

}  // namespace starling::cuda

#endif  // STARLING_KERNELS_CUDA_PHILOX_H_
