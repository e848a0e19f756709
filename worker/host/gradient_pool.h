// Memory for pushes: sums of gradients that leave from where the executor wrote them, and must stay
// as they are until the shard has acknowledged them and the transport has let go.
#ifndef STARLING_WORKER_HOST_GRADIENT_POOL_H_
#define STARLING_WORKER_HOST_GRADIENT_POOL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/base/object_pool.h"
#include "common/placement/layout.h"
#include "common/sync/mutex.h"
#include "kernels/device.h"

namespace starling {

class GradientPool;

// A buffer on loan. Returns to the pool when the last copy of its shared_ptr is gone, on any
// thread; it keeps the pool's memory alive.
struct GradientBuffer {
  float* data = nullptr;
  uint32_t elements = 0;
  SliceId slice;
  uint64_t digest = 0;  // XXH3-64 of its bytes, once they are complete
  std::shared_ptr<GradientPool> pool;

  void Recycle();  // of ObjectPool: returns it
};

// How many buffers of a slice may be on loan. In BSP a push stays until its step is sealed, which
// may need another part of the step from this very worker (a roster change gave it more): all parts
// of a step must fit, at most one per micro-batch, and then the next unit's first. Under the other
// policies two units are under way with one push of the slice each; a job may change between them.
constexpr int PushBuffersMax(uint32_t micro_batches) { return static_cast<int>(micro_batches) + 1; }

// Thread-safe. Buffers are made as they are first needed and kept: a steady state allocates
// nothing.
class GradientPool {
 public:
  // `device` outlives every buffer.
  GradientPool(const Layout& layout, Device* device);
  ~GradientPool();  // no buffer may be on loan

  // Blocks while `most` buffers of the slice are on loan. nullptr: cancelled, or no memory.
  static std::shared_ptr<GradientBuffer> Acquire(const std::shared_ptr<GradientPool>& pool,
                                                 SliceId slice, int most);

  // Between Cancel and Resume nothing blocks and Acquire answers nullptr.
  void Cancel();
  void Resume();

 private:
  friend struct GradientBuffer;
  struct OfSlice {
    uint32_t elements = 0;
    int loaned = 0;
    std::vector<float*> free;
  };

  void Return(SliceId slice, float* data);

  Device* const device_;
  ObjectPool<GradientBuffer> loans_;
  Mutex mutex_;
  CondVar returned_;
  std::vector<OfSlice> slices_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_GRADIENT_POOL_H_
