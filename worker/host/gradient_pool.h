// Memory for pushes. Sums of gradients are sent from the buffers into which the executor wrote
// them. The buffers must not change until the shard has acknowledged them and the transport has
// released them.
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

// A buffer on loan. It returns to the pool when the last copy of its shared_ptr is gone, on any
// thread. It keeps the pool alive.
struct GradientBuffer {
  float* data = nullptr;
  uint32_t elements = 0;
  SliceId slice;
  uint64_t digest = 0;  // XXH3-64 of its bytes, set when they are complete
  std::shared_ptr<GradientPool> pool;

  void Recycle();  // for ObjectPool: returns the buffer
};

// How many buffers of a slice may be on loan. In BSP a push stays open until its step is sealed,
// which may need another part of the step from the same worker after a roster change. So all parts
// of a step must fit, at most one per micro-batch, plus the next unit's first part. Under the other
// policies, two units are in progress with one push of the slice each. A job may change its policy.
constexpr int PushBuffersMax(uint32_t micro_batches) { return static_cast<int>(micro_batches) + 1; }

// Thread-safe. Buffers are allocated when first needed and then kept, so a steady state allocates
// nothing.
class GradientPool {
 public:
  // `device` outlives every buffer.
  GradientPool(const Layout& layout, Device* device);
  ~GradientPool();  // no buffer may be on loan

  // Blocks while `most` buffers of the slice are on loan. Null: cancelled, or no memory.
  static std::shared_ptr<GradientBuffer> Acquire(const std::shared_ptr<GradientPool>& pool,
                                                 SliceId slice, int most);

  // Between Cancel and Resume, Acquire does not block and returns null.
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
