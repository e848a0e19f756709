// Counts the memory of a shard's tensors, so that peers cannot exhaust it.
#ifndef STARLING_SERVER_SHARD_HOST_SHARD_MEMORY_H_
#define STARLING_SERVER_SHARD_HOST_SHARD_MEMORY_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/protocol/limits.h"
#include "common/sync/mutex.h"
#include "common/transport/payload_copies.h"

namespace starling {

// A stream on which values wait to be sent. Thread-safe.
class ValueStream {
 public:
  virtual ~ValueStream() = default;
  struct Load {
    bool reads_only = false;     // a client's stream: no job waits for it
    bool over = false;           // closed or closing
    uint64_t bytes = 0;          // of waiting values
    double stalled_seconds = 0;  // how long none was sent although some wait
  };
  virtual Load load() = 0;
  // Drops waiting values and tells the peer why.
  virtual void CloseForMemory(const std::string& why) = 0;
};

// Shared by all partitions of a process. Thread-safe. Made by std::make_shared.
//
// If streams still have to send a value, its update goes to new memory, and the old value stays
// until they have sent it. Old values have their own budget, which no job's plan may use. If it is
// exceeded, streams are closed, worst first: streams that only read before workers' streams,
// stalled streams before others, then the stream with most bytes waiting. Workers' streams that
// make progress are never closed for this budget.
class ShardMemory : public std::enable_shared_from_this<ShardMemory> {
 public:
  struct Options {
    uint64_t bytes_max = std::numeric_limits<uint64_t>::max();  // of Allocate
    uint64_t waiting_bytes_max = limits::kParkedBytesPerShardMax;
    uint64_t old_values_bytes_max = 0;                                        // of bytes_max
    std::function<absl::Time()> now = MonotonicNow;                           // thread-safe
    std::function<std::shared_ptr<float>(size_t)> allocate = AllocateFloats;  // thread-safe
  };
  // The part of the available memory that may be used: by all tensors, at the start; by a job's
  // plan, when the job comes.
  static uint64_t ShareOf(uint64_t available) {
    return static_cast<uint64_t>(0.9 * static_cast<double>(available));
  }

  explicit ShardMemory(const Options& options) : options_(options) {}

  // `elements` uninitialised floats, counted until the last copy of the pointer is gone. Null: the
  // system has no memory, or bytes_max would be exceeded.
  std::shared_ptr<float> Allocate(size_t elements) {
    const uint64_t bytes = elements * sizeof(float);
    if (!Take(allocated_, bytes, options_.bytes_max)) return nullptr;
    std::shared_ptr<float> memory = options_.allocate(elements);
    if (memory == nullptr) {
      allocated_ -= bytes;
      return nullptr;
    }
    float* const data = memory.get();
    return std::shared_ptr<float>(data,
                                  Counted{shared_from_this(), std::move(memory), bytes, false});
  }

  // Marks a value from Allocate as old: only streams still need it. Called by its owner, which
  // still holds it. May close streams.
  void Retire(const std::shared_ptr<float>& value) {
    Counted* const counted = std::get_deleter<Counted>(value);
    if (counted == nullptr || counted->old) return;
    counted->old = true;
    const uint64_t old = old_ += counted->bytes;
    const uint64_t most = options_.old_values_bytes_max + BytesOfClosed();
    if (old > most) CloseWorst(old - most, /*any=*/false);
  }

  void AddStream(std::weak_ptr<ValueStream> stream) {
    MutexLock lock(&mutex_);
    std::erase_if(streams_, [](const auto& known) { return known.expired(); });
    streams_.push_back(std::move(stream));
  }

  // Closes streams, worst first, until their waiting bytes add up to `bytes`. `any`: also workers'
  // streams that make progress. False: nothing waits on any stream. A frame that a closed stream
  // was sending is freed after kClosedAfter at most.
  bool CloseWorst(uint64_t bytes, bool any);
  static constexpr absl::Duration kClosedAfter = absl::Seconds(2);

  // For payloads of frames that wait for orders. False: the budget of all partitions is used up.
  bool ReserveWaiting(uint64_t bytes) { return Take(waiting_, bytes, options_.waiting_bytes_max); }
  void ReturnWaiting(uint64_t bytes) { waiting_ -= bytes; }

  // The values of the hosted partitions, one version each.
  void AddHosted(uint64_t bytes) { hosted_ += bytes; }
  void RemoveHosted(uint64_t bytes) { hosted_ -= bytes; }

  // The same for ended jobs.
  void AddEnded(uint64_t bytes) {
    hosted_ += bytes;
    ended_ += bytes;
  }
  void RemoveEnded(uint64_t bytes) {
    hosted_ -= bytes;
    ended_ -= bytes;
  }
  uint64_t ended() const { return ended_.load(); }

  // How many payload bytes may wait on one stream. A reader asks for a slice again only after it
  // has received it, and reads at most one version for training and one for evaluation.
  uint64_t StreamQueueBytesMax() const {
    return limits::kStreamInFlightBytesMax + 2 * hosted_.load();
  }

  uint64_t allocated() const { return allocated_.load(); }
  uint64_t old_values() const { return old_.load(); }
  // How many more bytes old values may take.
  uint64_t old_values_room() const {
    return options_.old_values_bytes_max - std::min(options_.old_values_bytes_max, old_values());
  }
  // How many more bytes jobs may allocate; the system may have less.
  uint64_t room() const {
    const uint64_t taken = allocated() + std::min(options_.bytes_max, old_values_room());
    return options_.bytes_max - std::min(options_.bytes_max, taken);
  }
  uint64_t waiting() const { return waiting_.load(); }

  // For pushes that came through shared memory, while Allocate has no memory. As gRPC's memory, it
  // is not counted: credit bounds it.
  PayloadCopies& copies() { return copies_; }

 private:
  struct Counted {  // a deleter
    std::shared_ptr<ShardMemory> self;
    std::shared_ptr<float> memory;
    uint64_t bytes = 0;
    bool old = false;

    void operator()(float*) {
      memory.reset();
      if (old) self->old_ -= bytes;
      self->allocated_ -= bytes;
    }
  };

  // What recently closed streams may still hold: one frame each, which was being sent.
  uint64_t BytesOfClosed();

  static bool Take(std::atomic<uint64_t>& used, uint64_t bytes, uint64_t most) {
    uint64_t before = used.load();
    do {
      if (bytes > most || before > most - bytes) return false;
    } while (!used.compare_exchange_weak(before, before + bytes));
    return true;
  }

  const Options options_;
  PayloadCopies copies_;
  std::atomic<uint64_t> allocated_ = 0;
  std::atomic<uint64_t> old_ = 0;  // of allocated_
  std::atomic<uint64_t> waiting_ = 0;
  std::atomic<uint64_t> hosted_ = 0;
  std::atomic<uint64_t> ended_ = 0;  // of hosted_
  Mutex mutex_;
  std::vector<std::weak_ptr<ValueStream>> streams_ ABSL_GUARDED_BY(mutex_);
  uint64_t closed_ ABSL_GUARDED_BY(mutex_) = 0;  // recently closed streams, until closed_until_
  absl::Time closed_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_SHARD_MEMORY_H_
