// The inner loops of DataSet::Gather.
#ifndef STARLING_WORKER_DATA_GATHER_H_
#define STARLING_WORKER_DATA_GATHER_H_

#include <cstdint>

namespace starling {

// out[i] = in[i] * scale + shift, with the product rounded before the addition: the same bits on
// any instruction set. Over bytes the loop converts 16 values per dozen SSE2 instructions, which
// needs about half of one core's memory write bandwidth, so wider vectors would gain little.
void ScaleShift(const uint8_t* in, int64_t n, float scale, float shift, float* out);
void ScaleShift(const float* in, int64_t n, float scale, float shift, float* out);

// Rows are picked at random from tens of megabytes: prefetches the next while this one is
// processed.
template <typename T>
void PrefetchRow(const T* row, int64_t n) {
  constexpr int64_t kLineBytes = 64;
  constexpr int64_t kBytesMax = 4096;  // the hardware prefetches a longer row by itself
  const char* begin = reinterpret_cast<const char*>(row);
  const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
  for (int64_t at = 0; at < bytes && at < kBytesMax; at += kLineBytes)
    __builtin_prefetch(begin + at);
}

}  // namespace starling

#endif  // STARLING_WORKER_DATA_GATHER_H_
