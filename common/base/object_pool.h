// Objects that are made once and used again and again, each by shared_ptrs.
#ifndef STARLING_COMMON_BASE_OBJECT_POOL_H_
#define STARLING_COMMON_BASE_OBJECT_POOL_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "common/sync/mutex.h"

namespace starling {

// T is made by T(), and has `void Recycle()`: called when the last shared_ptr to the object is
// gone, on whatever thread; it lets go of what the object holds, and may keep memory for its next
// user. While there are enough, Get allocates nothing, the shared_ptr's own block included. Where
// there are not, their number doubles, so that what is seldom needed beyond the usual is there.
// Nothing is given back before the end: those made at first are kept, or less than twice as many as
// were in use at one time, whichever are more. They take turns, so that all of them soon have the
// memory that their users want. Thread-safe. Objects may outlive the object_pool.
template <typename T>
class ObjectPool {
 public:
  // `at_first` objects are made at once.
  explicit ObjectPool(size_t at_first = 0) : pool_(std::make_shared<Pool>(at_first)) {}

  // An object as Recycle left it, or a new one. Free again when no shared_ptr and no weak_ptr to it
  // is left.
  std::shared_ptr<T> Get() {
    Object* const object = pool_->Take();
    return std::shared_ptr<T>(
        &object->value, [](T* value) { value->Recycle(); }, BlockMemory<T>{pool_, object});
  }

 private:
  struct Object {
    T value;
    // Of the shared_ptr: the counts, the pointer, the deleter and the allocator.
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
    // All are in use.
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
    size_t next_ ABSL_GUARDED_BY(mutex_) = 0;            // the free one that is taken next
    size_t free_ ABSL_GUARDED_BY(mutex_) = 0;            // from there on, around the ring
  };

  // The allocator of a shared_ptr's block, which lies beside the object: when the block is freed,
  // which is after the deleter has run, the object is free.
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
