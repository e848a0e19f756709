// The emulation finds the errors that it is meant to find, and computes correctly.
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/device_math.cuh"

namespace starling::cuda {
namespace {

constexpr int kThreads = 256;

struct SumAll {
  template <typename T>
  T operator()(T value) const {
    return WarpSum(value);
  }
};

// y = x, reversed through shared memory.
__global__ void ReverseKernel(const float* x, float* y, bool barrier) {
  __shared__ float tile[kThreads];
  tile[threadIdx.x] = x[threadIdx.x];
  if (barrier) __syncthreads();
  y[threadIdx.x] = tile[kThreads - 1 - threadIdx.x];
}

// sums[k] = sum of (k + 1) * x. Without a barrier after each use, a warp that is ahead overwrites
// what others have yet to read.
__global__ void SumsKernel(const float* x, float* sums, bool barrier) {
  __shared__ float scratch[32];
  for (int k = 0; k < 3; ++k) {
    float sum = WarpSum(x[threadIdx.x] * (k + 1));
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < kThreads / 32; ++i) sum += scratch[i];
    if (barrier) __syncthreads();
    if (threadIdx.x == kThreads - 1) sums[k] = sum;
  }
}

__global__ void BlockReduceKernel(const float* x, float* sums) {
  __shared__ float scratch[32];
  const float sum = BlockReduce(x[blockIdx.x * blockDim.x + threadIdx.x], 0.0f, scratch, SumAll{});
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

__global__ void CountKernel(uint32_t* counts) { atomicAdd(counts + threadIdx.y, 1u); }

__global__ void StoreKernel(float* y, int64_t i) { y[i] = 1; }
__global__ void SharedKernel(float* y, int64_t i) {
  __shared__ float tile[4];
  float* const all = tile;
  all[i] = 1;
  y[0] = all[i];
}
__global__ void PackKernel(const float* x, float* y) {
  y[0] = reinterpret_cast<const Pack<float>*>(x)->at[0];
}
__global__ void HalfABarrierKernel() {
  if (threadIdx.x < 16) __syncthreads();
}
__global__ void TwoBarriersKernel() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void EndedLaneKernel(float* y) {
  if (threadIdx.x == 7) return;
  y[threadIdx.x] = WarpSum(1.0f);
}

class EmulationTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, 0), cudaSuccess); }
  void TearDown() override {
    for (float* memory : memory_) EXPECT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    unsetenv("STARLING_EMULATION_ORDER");
  }

  float* New(size_t count) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, count * sizeof(float)), cudaSuccess);
    memory_.push_back(static_cast<float*>(memory));
    return memory_.back();
  }
  float* New(const std::vector<float>& values) {
    float* const memory = New(values.size());
    EXPECT_EQ(cudaMemcpyAsync(memory, values.data(), values.size() * sizeof(float),
                              cudaMemcpyHostToDevice, stream_),
              cudaSuccess);
    return memory;
  }
  std::vector<float> Read(const float* memory, size_t count) {
    std::vector<float> values(count);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), memory, count * sizeof(float), cudaMemcpyDeviceToHost,
                              stream_),
              cudaSuccess);
    return values;
  }
  static void Fix(int order) {
    setenv("STARLING_EMULATION_ORDER", std::to_string(order).c_str(), 1);
  }

  cudaStream_t stream_ = nullptr;
  std::vector<float*> memory_;
};

std::vector<float> Numbers(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

TEST_F(EmulationTest, AMissingBarrierShows) {
  const std::vector<float> numbers = Numbers(kThreads);
  const std::vector<float> turned(numbers.rbegin(), numbers.rend());
  float *const x = New(numbers), *const y = New(kThreads);
  for (int order = 0; order < 6; ++order) {
    Fix(order);
    ReverseKernel<<<1, kThreads, 0, stream_>>>(x, y, true);
    EXPECT_EQ(Read(y, kThreads), turned) << order;
    ReverseKernel<<<1, kThreads, 0, stream_>>>(x, y, false);
    EXPECT_NE(Read(y, kThreads), turned) << order;
  }
}

TEST_F(EmulationTest, AWarpThatIsAheadShows) {
  const float total = kThreads * (kThreads + 1) / 2;
  const std::vector<float> expected = {total, 2 * total, 3 * total};
  float *const x = New(Numbers(kThreads)), *const sums = New(3);
  int shown = 0;
  for (int order = 0; order < 6; ++order) {
    Fix(order);
    SumsKernel<<<1, kThreads, 0, stream_>>>(x, sums, true);
    EXPECT_EQ(Read(sums, 3), expected) << order;
    SumsKernel<<<1, kThreads, 0, stream_>>>(x, sums, false);
    shown += Read(sums, 3) != expected ? 1 : 0;
  }
  EXPECT_GT(shown, 0);
}

TEST_F(EmulationTest, BlocksReduce) {
  for (int threads : {32, 96, 1024}) {
    const std::vector<float> numbers = Numbers(2 * threads);
    float *const x = New(numbers), *const sums = New(numbers.size());
    BlockReduceKernel<<<2, threads, 0, stream_>>>(x, sums);
    ASSERT_EQ(cudaGetLastError(), cudaSuccess);
    const std::vector<float> got = Read(sums, numbers.size());
    for (int i = 0; i < 2 * threads; ++i) {
      const auto first = numbers.begin() + i / threads * threads;
      EXPECT_EQ(got[i], std::accumulate(first, first + threads, 0.0f)) << i;
    }
  }
}

TEST_F(EmulationTest, AtomicsAdd) {
  auto* const counts = reinterpret_cast<uint32_t*>(New(std::vector<float>(3)));
  CountKernel<<<dim3(5, 2, 3), dim3(7, 3), 0, stream_>>>(counts);
  uint32_t got[3];
  ASSERT_EQ(cudaMemcpyAsync(got, counts, sizeof(got), cudaMemcpyDeviceToHost, stream_),
            cudaSuccess);
  for (uint32_t count : got) EXPECT_EQ(count, 5u * 2 * 3 * 7);
}

TEST_F(EmulationTest, WhatIsNotWrittenIsNan) { EXPECT_TRUE(std::isnan(Read(New(1), 1)[0])); }

using EmulationDeathTest = EmulationTest;

TEST_F(EmulationDeathTest, MemoryOutsideOfAnAllocation) {
  float* const y = New(16);
  EXPECT_DEATH((StoreKernel<<<1, 1, 0, stream_>>>(y, 16)), "StoreKernel.*outside its allocation");
  EXPECT_DEATH((StoreKernel<<<1, 1, 0, stream_>>>(y, -1024)), "outside its allocation");
  EXPECT_DEATH((SharedKernel<<<1, 1, 0, stream_>>>(y, 4)), "SharedKernel.*outside its allocation");
  const auto write_and_free = [&](int64_t i) {
    void* memory = nullptr;
    static_cast<void>(cudaMalloc(&memory, 15 * sizeof(float)));
    StoreKernel<<<1, 1, 0, stream_>>>(static_cast<float*>(memory), i);
    static_cast<void>(cudaFree(memory));
  };
  EXPECT_DEATH(write_and_free(15), "something wrote");  // too close for the guard page
  EXPECT_DEATH(write_and_free(-1), "something wrote");
}

TEST_F(EmulationDeathTest, MisalignedAccess) {
  float *const x = New(8), *const y = New(1);
  PackKernel<<<1, 1, 0, stream_>>>(x, y);
  EXPECT_DEATH((PackKernel<<<1, 1, 0, stream_>>>(x + 1, y)), "PackKernel.*misaligned");
}

TEST_F(EmulationDeathTest, BarriersAndShufflesThatNotAllReach) {
  EXPECT_DEATH((HalfABarrierKernel<<<1, 32, 0, stream_>>>()),
               "threads have ended, .* wait at the barrier");
  EXPECT_DEATH((TwoBarriersKernel<<<1, 32, 0, stream_>>>()), "others at that in line");
  float* const y = New(32);
  EXPECT_DEATH((EndedLaneKernel<<<1, 32, 0, stream_>>>(y)),
               "no thread can go on: 1 have ended.*31 lanes of warp 0");
}

TEST_F(EmulationTest, CallsThatTheRuntimeRefuses) {
  float* const device = New(4);
  float host[4] = {};
  EXPECT_EQ(cudaMemcpyAsync(host, device, 16, cudaMemcpyHostToDevice, stream_),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device, host, 16, cudaMemcpyDeviceToDevice, stream_),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device + 1, host, 16, cudaMemcpyHostToDevice, stream_),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(device + 4, 0, 0, stream_), cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
  StoreKernel<<<0, 1, 0, stream_>>>(device, 0);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  StoreKernel<<<1, 1025, 0, stream_>>>(device, 0);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(EmulationTest, AGraphRunsAgainWhatWasCaptured) {
  float* const y = New(std::vector<float>(2));
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  StoreKernel<<<1, 1, 0, stream_>>>(y, 1);
  void* refused = nullptr;
  EXPECT_EQ(cudaMalloc(&refused, 1), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cudaMemsetAsync(y, 0, 8, stream_), cudaSuccess);
    EXPECT_EQ(Read(y, 2)[1], 0);
    ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    EXPECT_EQ(Read(y, 2)[1], 1);
  }
  ASSERT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);

  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
}

}  // namespace
}  // namespace starling::cuda
