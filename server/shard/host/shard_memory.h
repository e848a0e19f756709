// The memory of a shard's tensors, counted, so that what peers do cannot take more than there is.
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

namespace starling {

// A stream on which values wait to be sent. Thread-safe.
class ValueStream {
 public:
  virtual ~ValueStream() = default;
  struct Load {
    bool reads_only = false;     // a client's: no job waits for it
    bool over = false;           // it is closed, or closing
    uint64_t bytes = 0;          // of values that wait
    double stalled_seconds = 0;  // since when none was sent, though some wait
  };
  virtual Load load() = 0;
  // Drops what waits, and tells the peer why.
  virtual void CloseForMemory(const std::string& why) = 0;
};

// One for all partitions of a process. Thread-safe; made by std::make_shared.
//
// An update of a value that streams have still to send goes to new memory, and the old value stays
// until they have sent it. Old values have a budget of their own, which no job's plan may count on.
// Where it is exceeded, streams are closed, the worst first: those that only read before workers',
// those that stand still before those that get on, and of these the one for which most waits.
// Workers' streams that get on are not closed for it.
class ShardMemory : public std::enable_shared_from_this<ShardMemory> {
 public:
  struct Options {
    uint64_t bytes_max = std::numeric_limits<uint64_t>::max();  // of Allocate
    uint64_t waiting_bytes_max = limits::kParkedBytesPerShardMax;
    uint64_t old_values_bytes_max = 0;                                        // of bytes_max
    std::function<absl::Time()> now = MonotonicNow;                           // thread-safe
    std::function<std::shared_ptr<float>(size_t)> allocate = AllocateFloats;  // thread-safe
  };
  // Of the memory that is available: at the start, what all tensors may take; when a job comes,
  // what its plan may.
  static uint64_t ShareOf(uint64_t available) {
    return static_cast<uint64_t>(0.9 * static_cast<double>(available));
  }

  explicit ShardMemory(const Options& options) : options_(options) {}

  // `elements` floats, not initialised, counted until the last copy is gone. nullptr: the system
  // has no memory, or bytes_max would be exceeded.
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

  // Nobody but streams needs this value, of Allocate, any more. By its owner, who has it still. May
  // close streams.
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

  // Closes streams, the worst first, for which `bytes` or more wait together; `any`: also those of
  // workers that get on. False: there is none for which anything waits. What such a stream was just
  // sending is free after kClosedAfter at most.
  bool CloseWorst(uint64_t bytes, bool any);
  static constexpr absl::Duration kClosedAfter = absl::Seconds(2);

  // Payloads of frames that wait for orders. False: the budget of all partitions together is used
  // up.
  bool ReserveWaiting(uint64_t bytes) { return Take(waiting_, bytes, options_.waiting_bytes_max); }
  void ReturnWaiting(uint64_t bytes) { waiting_ -= bytes; }

  // The values of the partitions that are hosted now, one version each.
  void AddHosted(uint64_t bytes) { hosted_ += bytes; }
  void RemoveHosted(uint64_t bytes) { hosted_ -= bytes; }

  // The same of jobs that are over.
  void AddEnded(uint64_t bytes) {
    hosted_ += bytes;
    ended_ += bytes;
  }
  void RemoveEnded(uint64_t bytes) {
    hosted_ -= bytes;
    ended_ -= bytes;
  }
  uint64_t ended() const { return ended_.load(); }

  // Payload that may wait to be sent on one stream. Who reads asks for a slice again only when it
  // has it, and evaluates and trains on one version each.
  uint64_t StreamQueueBytesMax() const {
    return limits::kStreamInFlightBytesMax + 2 * hosted_.load();
  }

  uint64_t allocated() const { return allocated_.load(); }
  uint64_t old_values() const { return old_.load(); }
  // What old values may take beyond what they take now.
  uint64_t old_values_room() const {
    return options_.old_values_bytes_max - std::min(options_.old_values_bytes_max, old_values());
  }
  // What jobs may still allocate; the system may have less.
  uint64_t room() const {
    const uint64_t taken = allocated() + std::min(options_.bytes_max, old_values_room());
    return options_.bytes_max - std::min(options_.bytes_max, taken);
  }
  uint64_t waiting() const { return waiting_.load(); }

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

  // What streams that were closed a moment ago may still hold: of each the frame that was being
  // sent.
  uint64_t BytesOfClosed();

  static bool Take(std::atomic<uint64_t>& used, uint64_t bytes, uint64_t most) {
    uint64_t before = used.load();
    do {
      if (bytes > most || before > most - bytes) return false;
    } while (!used.compare_exchange_weak(before, before + bytes));
    return true;
  }

  const Options options_;
  std::atomic<uint64_t> allocated_ = 0;
  std::atomic<uint64_t> old_ = 0;  // of allocated_
  std::atomic<uint64_t> waiting_ = 0;
  std::atomic<uint64_t> hosted_ = 0;
  std::atomic<uint64_t> ended_ = 0;  // of hosted_
  Mutex mutex_;
  std::vector<std::weak_ptr<ValueStream>> streams_ ABSL_GUARDED_BY(mutex_);
  uint64_t closed_ ABSL_GUARDED_BY(mutex_) = 0;  // until closed_until_
  absl::Time closed_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_SHARD_MEMORY_H_
