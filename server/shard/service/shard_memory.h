// The memory of a shard's tensors, counted, so that what peers do cannot take more than there is.
#ifndef STARLING_SERVER_SHARD_SERVICE_SHARD_MEMORY_H_
#define STARLING_SERVER_SHARD_SERVICE_SHARD_MEMORY_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>

#include "common/base/memory.h"
#include "common/protocol/limits.h"

namespace starling {

// One for all partitions of a process. Thread-safe; made by std::make_shared.
class ShardMemory : public std::enable_shared_from_this<ShardMemory> {
 public:
  struct Options {
    uint64_t bytes_max = std::numeric_limits<uint64_t>::max();  // of Allocate
    uint64_t waiting_bytes_max = limits::kParkedBytesPerShardMax;
  };
  // Of the memory that is available: at the start, what all tensors may take; when a job comes, what its
  // plan may.
  static uint64_t ShareOf(uint64_t available) {
    return static_cast<uint64_t>(0.9 * static_cast<double>(available));
  }

  explicit ShardMemory(const Options& options) : options_(options) {}

  // `elements` floats, not initialised, counted until the last copy is gone. nullptr: the system has no
  // memory, or bytes_max would be exceeded.
  std::shared_ptr<float> Allocate(size_t elements) {
    const uint64_t bytes = elements * sizeof(float);
    if (!Take(allocated_, bytes, options_.bytes_max)) return nullptr;
    std::shared_ptr<float> memory = AllocateFloats(elements);
    if (memory == nullptr) {
      allocated_ -= bytes;
      return nullptr;
    }
    float* const data = memory.get();
    return std::shared_ptr<float>(
        data, [self = shared_from_this(), memory = std::move(memory), bytes](float*) mutable {
          memory.reset();
          self->allocated_ -= bytes;
        });
  }

  // Payloads of frames that wait for orders. False: the budget of all partitions together is used up.
  bool ReserveWaiting(uint64_t bytes) { return Take(waiting_, bytes, options_.waiting_bytes_max); }
  void ReturnWaiting(uint64_t bytes) { waiting_ -= bytes; }

  // The values of the partitions that are hosted now, one version each.
  void AddHosted(uint64_t bytes) { hosted_ += bytes; }
  void RemoveHosted(uint64_t bytes) { hosted_ -= bytes; }

  // Payload that may wait to be sent on one stream. Who reads asks for a slice again only when it has it,
  // and evaluates and trains on one version each.
  uint64_t StreamQueueBytesMax() const { return limits::kStreamInFlightBytesMax + 2 * hosted_.load(); }

  uint64_t allocated() const { return allocated_.load(); }
  // What may still be allocated; the system may have less.
  uint64_t room() const { return options_.bytes_max - std::min(options_.bytes_max, allocated()); }
  uint64_t waiting() const { return waiting_.load(); }

 private:
  static bool Take(std::atomic<uint64_t>& used, uint64_t bytes, uint64_t most) {
    uint64_t before = used.load();
    do {
      if (bytes > most || before > most - bytes) return false;
    } while (!used.compare_exchange_weak(before, before + bytes));
    return true;
  }

  const Options options_;
  std::atomic<uint64_t> allocated_ = 0;
  std::atomic<uint64_t> waiting_ = 0;
  std::atomic<uint64_t> hosted_ = 0;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_SERVICE_SHARD_MEMORY_H_
