// A table's gradient without atomic additions, whose order would differ between runs: positions are
// sorted by index (stably, so that those of one row stay in order), and one block sums each row's.
#include <cub/device/device_radix_sort.cuh>

#include <cmath>

#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/tables.h"

namespace starling::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kNan = NAN;

template <typename T>
__global__ void GatherKernel(const int32_t* indices, const float* table, int64_t count,
                             int64_t rows, int64_t width, T* y, uint64_t* bad) {
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const int32_t index = indices[i];
    const bool good = index >= 0 && index < rows;
    // A single store, so that position and index belong to the same element.
    if (!good && bad != nullptr && threadIdx.x == 0) {
      *static_cast<volatile uint64_t*>(bad) =
          static_cast<uint64_t>(i + 1) << 32 | static_cast<uint32_t>(index);
    }
    for (int64_t k = threadIdx.x; k < width; k += blockDim.x) {
      y[i * width + k] = FromFloat<T>(good ? table[index * width + k] : kNan);
    }
  }
}

// keys: the rows; those out of range come last, as `rows`.
__global__ void KeysKernel(const int32_t* indices, int64_t count, int64_t rows, uint32_t* keys,
                           uint32_t* positions) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const int32_t index = indices[i];
    const bool good = index >= 0 && index < rows;
    keys[i] = good ? static_cast<uint32_t>(index) : static_cast<uint32_t>(rows);
    positions[i] = static_cast<uint32_t>(i);
  }
}

// The block at a run's first position sums the run; the others exit.
template <typename T>
__global__ void RunsKernel(const uint32_t* keys, const uint32_t* positions, const T* dy,
                           int64_t count, int64_t rows, int64_t width, float* table) {
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const uint32_t key = keys[i];
    if (key >= rows || (i > 0 && keys[i - 1] == key)) continue;
    for (int64_t k = threadIdx.x; k < width; k += blockDim.x) {
      float sum = 0;
      for (int64_t j = i; j < count && keys[j] == key; ++j) {
        sum += ToFloat(dy[int64_t{positions[j]} * width + k]);
      }
      table[int64_t{key} * width + k] = sum;
    }
  }
}

template <typename T>
__global__ void AddToEachKernel(const T* x, const float* table, int64_t samples, int64_t count,
                                T* y) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < samples * count;
       i += stride) {
    y[i] = FromFloat<T>(ToFloat(x[i]) + table[i % count]);
  }
}

// Four arrays of `count` words, each aligned to 256 bytes, then cub's.
struct Scratch {
  size_t array_bytes, sort_bytes;
  size_t total() const { return 4 * array_bytes + sort_bytes; }
};

// How many bits distinguish 0..rows.
int KeyBits(int64_t rows) {
  int bits = 1;
  while (bits < 32 && (int64_t{1} << bits) <= rows) ++bits;
  return bits;
}

cudaError_t PlanScratch(int64_t count, int64_t rows, Scratch* scratch) {
  scratch->array_bytes = (static_cast<size_t>(count) * sizeof(uint32_t) + 255) / 256 * 256;
  scratch->sort_bytes = 0;
  const uint32_t* no_input = nullptr;
  uint32_t* no_output = nullptr;
  return cub::DeviceRadixSort::SortPairs(nullptr, scratch->sort_bytes, no_input, no_output,
                                         no_input, no_output, count, 0, KeyBits(rows));
}

}  // namespace

cudaError_t LaunchGather(Element element, const int32_t* indices, const float* table, int64_t count,
                         int64_t rows, int64_t width, void* y, uint64_t* bad, cudaStream_t stream) {
  const int threads = width >= 128 ? 128 : 32;
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    GatherKernel<T><<<BlocksFor(count, 1), threads, 0, stream>>>(indices, table, count, rows, width,
                                                                 static_cast<T*>(y), bad);
    return cudaGetLastError();
  });
}

cudaError_t ScatterWorkspaceBytes(int64_t count, int64_t rows, size_t* bytes) {
  Scratch scratch;
  const cudaError_t error = PlanScratch(count, rows, &scratch);
  *bytes = scratch.total();
  return error;
}

cudaError_t LaunchScatter(Element element, const int32_t* indices, const void* dy, int64_t count,
                          int64_t rows, int64_t width, float* table, void* workspace,
                          size_t workspace_bytes, cudaStream_t stream) {
  Scratch scratch;
  if (const cudaError_t error = PlanScratch(count, rows, &scratch); error != cudaSuccess) {
    return error;
  }
  if (scratch.total() > workspace_bytes) return cudaErrorInvalidValue;
  char* const base = static_cast<char*>(workspace);
  uint32_t* arrays[4];
  for (int i = 0; i < 4; ++i) {
    arrays[i] = reinterpret_cast<uint32_t*>(base + i * scratch.array_bytes);
  }
  uint32_t *const keys = arrays[0], *const positions = arrays[1];
  uint32_t *const sorted_keys = arrays[2], *const sorted_positions = arrays[3];
  cudaError_t error =
      cudaMemsetAsync(table, 0, static_cast<size_t>(rows * width) * sizeof(float), stream);
  if (error != cudaSuccess) return error;
  KeysKernel<<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(indices, count, rows, keys,
                                                                  positions);
  error = cub::DeviceRadixSort::SortPairs(base + 4 * scratch.array_bytes, scratch.sort_bytes,
                                          static_cast<const uint32_t*>(keys), sorted_keys,
                                          static_cast<const uint32_t*>(positions), sorted_positions,
                                          count, 0, KeyBits(rows), stream);
  if (error != cudaSuccess) return error;
  const int threads = width >= 128 ? 128 : 32;
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    RunsKernel<T><<<BlocksFor(count, 1), threads, 0, stream>>>(
        sorted_keys, sorted_positions, static_cast<const T*>(dy), count, rows, width, table);
    return cudaGetLastError();
  });
}

cudaError_t LaunchAddToEach(Element element, const void* x, const float* table, int64_t samples,
                            int64_t count, void* y, cudaStream_t stream) {
  return WithType(element, [&](auto zero) {
    using T = decltype(zero);
    AddToEachKernel<T><<<BlocksFor(samples * count, kThreads), kThreads, 0, stream>>>(
        static_cast<const T*>(x), table, samples, count, static_cast<T*>(y));
    return cudaGetLastError();
  });
}

}  // namespace starling::cuda
