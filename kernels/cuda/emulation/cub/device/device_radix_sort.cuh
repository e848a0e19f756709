// Stands in for cub's: called without memory it returns the size that it needs; the sort is stable.
#ifndef STARLING_KERNELS_CUDA_EMULATION_CUB_DEVICE_DEVICE_RADIX_SORT_CUH_
#define STARLING_KERNELS_CUDA_EMULATION_CUB_DEVICE_DEVICE_RADIX_SORT_CUH_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/cuda/emulation/runtime.h"

namespace cub {

struct DeviceRadixSort {
  static cudaError_t SortPairs(void* memory, size_t& bytes, const uint32_t* keys,
                               uint32_t* sorted_keys, const uint32_t* values,
                               uint32_t* sorted_values, int64_t count, int begin_bit, int end_bit,
                               cudaStream_t stream = nullptr) {
    const size_t needed = 1027 + static_cast<size_t>(count) * 8;
    if (memory == nullptr) {
      bytes = needed;
      return cudaSuccess;
    }
    if (bytes < needed || begin_bit != 0 || end_bit > 32) return cudaErrorInvalidValue;
    return stream->Order([=] {
      std::memset(memory, 0xff, needed);
      const uint32_t mask = static_cast<uint32_t>((uint64_t{1} << end_bit) - 1);
      std::vector<int64_t> order(static_cast<size_t>(count));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t a, int64_t b) { return (keys[a] & mask) < (keys[b] & mask); });
      for (int64_t i = 0; i < count; ++i) {
        sorted_keys[i] = keys[order[i]];
        sorted_values[i] = values[order[i]];
      }
    });
  }
};

}  // namespace cub

#endif  // STARLING_KERNELS_CUDA_EMULATION_CUB_DEVICE_DEVICE_RADIX_SORT_CUH_
