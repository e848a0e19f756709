// A pool of objects that are created once and reused, each held by shared_ptrs.
#ifndef STARLING_COMMON_BASE_OBJECT_POOL_H_
#define STARLING_COMMON_BASE_OBJECT_POOL_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "common/sync/mutex.h"

namespace starling {

// T is default-constructible and has `void Recycle()`, which runs when the last shared_ptr to the
// object is gone, on whatever thread: it releases what the object holds, and may keep memory for
// the next user. While an object is free, Get allocates nothing, not even the shared_ptr's control
// block; when none is, the pool doubles. The pool never shrinks: it keeps the larger of its first
// size and (less than) twice the peak in use. Free objects are used in turn, so all of them soon
// have the memory that their users need. Thread-safe. Objects may outlive the pool.
template <typename T>
class ObjectPool {
 public:
  // Creates `at_first` objects at once.
  explicit ObjectPool(size_t at_first = 0) : pool_(std::make_shared<Pool>(at_first)) {}

  // An object as Recycle left it, or a new one. It is free again once no shared_ptr and no weak_ptr
  // to it is left.
  std::shared_ptr<T> Get() {
    Object* const object = pool_->Take();
    return std::shared_ptr<T>(
        &object->value, [](T* value) { value->Recycle(); }, BlockMemory<T>{pool_, object});
  }

 private:
  struct Object {
    T value;
    // The shared_ptr's control block: counts, pointer, deleter and allocator.
    alignas(std::max_align_t) std::byte block[96];
  };

  class Pool {
   public:
    explicit Pool(size_t at_first) {
      MutexLock lock(&mutex_);
      Grow(at_first);
    }

    Object* Take() {
      MutexLock lock(&mutex_);
      if (free_ == 0) Grow(std::max<size_t>(1, all_.size()));
      Object* const object = ring_[next_];
      next_ = (next_ + 1) % ring_.size();
      --free_;
      return object;
    }
    void Put(Object* object) {
      MutexLock lock(&mutex_);
      ring_[(next_ + free_++) % ring_.size()] = object;
    }

   private:
    Mutex mutex_;
    // Called when all objects are in use.
    void Grow(size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      free_ = count;
      next_ = 0;
      ring_.resize(all_.size() + count);
      for (size_t i = 0; i < count; ++i) {
        all_.push_back(std::make_unique<Object>());
        ring_[i] = all_.back().get();
      }
    }

    std::vector<std::unique_ptr<Object>> all_ ABSL_GUARDED_BY(mutex_);
    std::vector<Object*> ring_ ABSL_GUARDED_BY(mutex_);  // as long as all_
    size_t next_ ABSL_GUARDED_BY(mutex_) = 0;            // the next free object to hand out
    size_t free_ ABSL_GUARDED_BY(mutex_) = 0;  // free objects from there on, around the ring
  };

  // Allocates a shared_ptr's control block, which lies beside the object. The object is free when
  // the block is freed, which is after the deleter has run.
  template <typename U>
  struct BlockMemory {
    using value_type = U;
    std::shared_ptr<Pool> pool;
    Object* object = nullptr;

    BlockMemory(std::shared_ptr<Pool> in, Object* of) : pool(std::move(in)), object(of) {}
    template <typename V>
    BlockMemory(const BlockMemory<V>& other) : pool(other.pool), object(other.object) {}

    U* allocate(size_t) {
      static_assert(sizeof(U) <= sizeof(Object::block));
      return reinterpret_cast<U*>(object->block);
    }
    void deallocate(U*, size_t) { pool->Put(object); }
    friend bool operator==(const BlockMemory&, const BlockMemory&) = default;
  };

  const std::shared_ptr<Pool> pool_;
};

}  // namespace starling

#endif  // STARLING_COMMON_BASE_OBJECT_POOL_H_
