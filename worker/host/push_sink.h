// Where the executor's gradients become pushes.
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

// The sink of one training unit. Delivers each gradient as soon as it is ready. Where the worker
// clips its whole contribution, or must know that all of it is finite, it delivers all of them when
// the unit is computed.
class PushSink : public GradientSink {
 public:
  struct Options {
    session::UnitId unit;
    int most = 1;  // buffers of a slice that may be on loan (PushBuffersMax)
    // Of the trainable part of each range, rescaled to a full batch; 0: none.
    double clip_norm = 0;
    uint32_t batch = 0;  // samples of a full one
    // fp16: the logarithm to base 2 of what the loss is scaled by. Called by the executor's
    // threads, several at once, from the first Ready on. Unset: not fp16.
    std::function<int()> loss_scale_log2 = nullptr;
    bool whole = false;  // fp16: an overflow skips all of the unit, not only what comes after it
    Progress* progress = nullptr;  // told of waits for buffers; may be null; outlives the sink
  };
  // Takes a finished sum: the session's event, but for its buffer's id, and the buffer with its
  // digest. Called by the executor's threads; must be quick.
  using Deliver =
      std::function<void(const session::event::SliceGradient&, std::shared_ptr<GradientBuffer>)>;

  // `layout` outlives the sink, and so does `memory`, for what it notes: used by one thread at a
  // time, and by the sink alone while there is one.
  PushSink(const Layout& layout, std::shared_ptr<GradientPool> pool, const Options& options,
           Deliver deliver, std::pmr::memory_resource* memory = std::pmr::get_default_resource());

  float* Acquire(size_t range, SliceId slice) override;
  void Ready(size_t range, SliceId slice, uint32_t samples) override;
  void Overflowed() override { overflowed_ = true; }

  // The unit is computed, and its loss was finite: what was kept back is delivered, in the order in
  // which it became ready. A gradient that is not finite is left as it is, but in fp16: the shard
  // names it.
  void Finish();

  // Some Acquire had no memory to give, or was cancelled.
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
  // What multiplies the range's gradients.
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
  std::pmr::vector<Sum> kept_;  // written under mutex_, read in Finish when no lane runs
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_PUSH_SINK_H_
