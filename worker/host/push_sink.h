// Turns the executor's gradients into pushes.
#ifndef STARLING_WORKER_HOST_PUSH_SINK_H_
#define STARLING_WORKER_HOST_PUSH_SINK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <memory_resource>
#include <utility>
#include <vector>

#include "common/placement/layout.h"
#include "common/sync/mutex.h"
#include "worker/core/events.h"
#include "worker/executor/executor.h"
#include "worker/host/gradient_pool.h"
#include "worker/host/progress.h"

namespace starling {

// The sink of one training unit. It delivers each gradient as soon as it is ready. If the worker
// clips its whole contribution, or must know that all of it is finite, it delivers all gradients
// when the unit is computed.
class PushSink : public GradientSink {
 public:
  struct Options {
    session::UnitId unit;
    int most = 1;  // maximum buffers on loan per slice (PushBuffersMax)
    // The maximum norm of the trainable part of each range, rescaled to a full batch; 0: none.
    double clip_norm = 0;
    uint32_t batch = 0;  // samples in a full batch
    // fp16: log2 of the loss's scale. Called by several of the executor's threads at once, from the
    // first Ready on. Unset: not fp16.
    std::function<int()> loss_scale_log2 = nullptr;
    bool whole = false;  // fp16: an overflow skips the whole unit, not only later gradients
    Progress* progress = nullptr;  // notified of waits for buffers; may be null; outlives this
    bool spoiled = false;          // injected: each gradient has a value that is not a number
  };
  // Receives a finished sum: the session's event without the buffer's id, and the buffer with its
  // digest. Called by the executor's threads; must be quick.
  using Deliver =
      std::function<void(const session::event::SliceGradient&, std::shared_ptr<GradientBuffer>)>;

  // `layout` and `memory` outlive the sink. `memory` is for its bookkeeping; only the sink uses it
  // while it exists, one thread at a time.
  PushSink(const Layout& layout, std::shared_ptr<GradientPool> pool, const Options& options,
           Deliver deliver, std::pmr::memory_resource* memory = std::pmr::get_default_resource());

  float* Acquire(size_t range, SliceId slice) override;
  void Ready(size_t range, SliceId slice, uint32_t samples) override;
  void Overflowed() override { overflowed_ = true; }

  // The unit is computed and its loss is finite: delivers the gradients that were kept back, in the
  // order in which they became ready. Except in fp16, a gradient that is not finite is delivered
  // unchanged, and the shard names it.
  void Finish();

  // An Acquire found no memory or was cancelled.
  bool failed() const { return failed_; }

 private:
  struct Sum {
    session::event::SliceGradient gradient;
    std::shared_ptr<GradientBuffer> buffer;
  };
  void Send(Sum sum);
  void Unscale(Sum& sum);
  static void Skip(Sum& sum);
  bool Trainable(const Sum& sum) const {
    return layout_.slices[sum.gradient.slice.value].kind == TRAINABLE;
  }
  // The factor for the range's gradients.
  float Shrink(uint32_t range) const;

  const Layout& layout_;
  const std::shared_ptr<GradientPool> pool_;
  const Options options_;
  const Deliver deliver_;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> overflowed_ = false;
  Mutex mutex_;
  std::pmr::map<std::pair<size_t, SliceId>, std::shared_ptr<GradientBuffer>> held_
      ABSL_GUARDED_BY(mutex_);
  std::pmr::vector<Sum> kept_;  // written under mutex_; read in Finish, when no lane runs
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_PUSH_SINK_H_
