// Copies of shared payloads in memory of our own.
#ifndef STARLING_COMMON_TRANSPORT_PAYLOAD_COPIES_H_
#define STARLING_COMMON_TRANSPORT_PAYLOAD_COPIES_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/memory.h"
#include "common/base/object_pool.h"
#include "common/protocol/limits.h"
#include "common/sync/mutex.h"
#include "common/transport/payload.h"

namespace starling {

// Copies a shared payload to `to`, run by run, and calls see(ReceivedPayload::Piece) with each run
// of the copy, in order, while it is in the cache.
template <typename See>
void CopyOut(const ReceivedPayload& payload, void* to, const See& see) {
  constexpr size_t kRunBytes = 16 << 10;  // well within the first-level cache
  auto* const out = static_cast<uint8_t*>(to);
  for (size_t begin = 0; begin < payload.size(); begin += kRunBytes) {
    const size_t size = std::min(kRunBytes, payload.size() - begin);
    payload.CopyTo(begin, size, out + begin);
    // The sender may write meanwhile: no compiler may read the segment again instead of the copy.
    asm volatile("" ::: "memory");
    see(ReceivedPayload::Piece(out + begin, size));
  }
}

// Thread-safe. Copies may outlive it. Keeps memory of copies that are gone, the last first, as much
// as a stream's credit, for the next ones.
class PayloadCopies {
 public:
  // CopyOut to memory of its own. The copy holds the payload's credit, and the payload, as the
  // payload did.
  template <typename See>
  ReceivedPayload Take(ReceivedPayload payload, const See& see) {
    const std::shared_ptr<Copy> copy = copies_.Get();
    copy->pool = pool_;
    copy->bytes = pool_->Take(payload.size());
    CopyOut(payload, copy->bytes.data(), see);
    copy->piece = ReceivedPayload::Piece(copy->bytes.data(), payload.size());
    copy->from = std::move(payload);
    return ReceivedPayload(absl::MakeConstSpan(&copy->piece, 1), copy);
  }

 private:
  // Grows, and is not initialised.
  class Bytes {
   public:
    size_t capacity() const { return capacity_; }
    void Reserve(size_t size) {
      if (size <= capacity_) return;
      data_ = AllocateFloats((size + sizeof(float) - 1) / sizeof(float));
      STARLING_CHECK(data_ != nullptr, "no memory for a frame's payload");
      capacity_ = size;
    }
    uint8_t* data() { return reinterpret_cast<uint8_t*>(data_.get()); }

   private:
    std::shared_ptr<float> data_;
    size_t capacity_ = 0;
  };

  class Pool {
   public:
    Bytes Take(size_t size) {
      Bytes bytes;
      {
        MutexLock lock(&mutex_);
        if (!free_.empty()) {
          bytes = std::move(free_.back());
          free_.pop_back();
          free_bytes_ -= bytes.capacity();
        }
      }
      bytes.Reserve(size);
      return bytes;
    }
    void Put(Bytes bytes) {
      MutexLock lock(&mutex_);
      if (free_bytes_ + bytes.capacity() > limits::kStreamInFlightBytesMax) return;
      free_bytes_ += bytes.capacity();
      free_.push_back(std::move(bytes));
    }

   private:
    Mutex mutex_;
    std::vector<Bytes> free_ ABSL_GUARDED_BY(mutex_);
    size_t free_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  };

  struct Copy {
    Bytes bytes;
    ReceivedPayload::Piece piece;
    ReceivedPayload from;
    std::shared_ptr<Pool> pool;

    void Recycle() {
      // In this order, so that what credit lets in finds the memory.
      std::exchange(pool, nullptr)->Put(std::exchange(bytes, {}));
      from = ReceivedPayload();
    }
  };

  const std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
  ObjectPool<Copy> copies_;
};

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_PAYLOAD_COPIES_H_
