#include "worker/host/gradient_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "kernels/testing/memory_only_device.h"

namespace starling {
namespace {

// Counts what is allocated; can run out of memory.
class CountingDevice : public MemoryOnlyDevice {
 public:
  std::string name() const override { return "counting"; }
  bool host_reaches_memory() const override { return true; }
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    if (exhausted) return absl::ResourceExhaustedError("no memory");
    ++allocated;
    return std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  }
  void Free(void* memory) override {
    --allocated;
    std::free(memory);
  }

  std::atomic<int> allocated = 0;
  bool exhausted = false;
};

Layout TwoSlices() {
  Layout layout;
  for (uint32_t i = 0; i < 2; ++i) {
    Slice slice;
    slice.id = SliceId(i);
    slice.elements = 8 + i;
    layout.slices.push_back(slice);
  }
  return layout;
}

TEST(GradientPool, ReusesWhatCameBack) {
  CountingDevice device;
  {
    const auto pool = std::make_shared<GradientPool>(TwoSlices(), &device);
    float* first = nullptr;
    for (int i = 0; i < 5; ++i) {
      const auto buffer = GradientPool::Acquire(pool, SliceId(1), 1);
      ASSERT_NE(buffer, nullptr);
      EXPECT_EQ(buffer->elements, 9u);
      if (i > 0) {
        EXPECT_EQ(buffer->data, first);
      }
      first = buffer->data;
    }
    EXPECT_EQ(device.allocated, 1);
  }
  EXPECT_EQ(device.allocated, 0);
}

// Of three workers one dies. The one that held [2,4) and [4,5) of eight micro-batches gets
// [0,2) besides: neither push is acked before that third one is there, so its buffer must not wait
// for them.
TEST(GradientPool, EveryPartOfABspStepFitsBeforeAnyIsAcked) {
  CountingDevice device;
  const auto pool = std::make_shared<GradientPool>(TwoSlices(), &device);
  const int most = PushBuffersMax(/*micro_batches=*/8);
  std::vector<std::shared_ptr<GradientBuffer>> held;
  std::thread compute([&] {
    for (int part = 0; part <= 8; ++part) {
      auto buffer = GradientPool::Acquire(pool, SliceId(0), most);
      if (buffer == nullptr) return;
      held.push_back(std::move(buffer));
    }
  });
  compute.join();
  EXPECT_EQ(held.size(), 9u);
}

TEST(GradientPool, BlocksUntilABufferComesBack) {
  CountingDevice device;
  const auto pool = std::make_shared<GradientPool>(TwoSlices(), &device);
  auto held = GradientPool::Acquire(pool, SliceId(0), 1);
  float* const data = held->data;
  std::shared_ptr<GradientBuffer> next;
  std::thread waiter([&] { next = GradientPool::Acquire(pool, SliceId(0), 1); });
  held = nullptr;
  waiter.join();
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->data, data);
}

TEST(GradientPool, CancelWakesWaiters) {
  CountingDevice device;
  const auto pool = std::make_shared<GradientPool>(TwoSlices(), &device);
  const auto held = GradientPool::Acquire(pool, SliceId(0), 1);
  std::shared_ptr<GradientBuffer> next = held;
  std::thread waiter([&] { next = GradientPool::Acquire(pool, SliceId(0), 1); });
  pool->Cancel();
  waiter.join();
  EXPECT_EQ(next, nullptr);
  pool->Resume();
  EXPECT_NE(GradientPool::Acquire(pool, SliceId(0), 2), nullptr);
}

TEST(GradientPool, WithoutMemoryNothingIsOnLoan) {
  CountingDevice device;
  const auto pool = std::make_shared<GradientPool>(TwoSlices(), &device);
  device.exhausted = true;
  EXPECT_EQ(GradientPool::Acquire(pool, SliceId(0), 1), nullptr);
  device.exhausted = false;
  EXPECT_NE(GradientPool::Acquire(pool, SliceId(0), 1), nullptr);
}

}  // namespace
}  // namespace starling
