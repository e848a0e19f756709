// Counts the allocations of std::pmr containers.
#ifndef STARLING_COMMON_TESTING_COUNTING_MEMORY_H_
#define STARLING_COMMON_TESTING_COUNTING_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <memory_resource>

namespace starling {

// The default memory resource for its lifetime. Containers and pools created meanwhile use it, and
// must be destroyed before it. Only one may exist at a time; counting is thread-safe.
class CountingMemory : public std::pmr::memory_resource {
 public:
  CountingMemory() : before_(std::pmr::set_default_resource(this)) {}
  ~CountingMemory() override { std::pmr::set_default_resource(before_); }
  CountingMemory(const CountingMemory&) = delete;
  CountingMemory& operator=(const CountingMemory&) = delete;

  int allocations() const { return allocations_; }

 private:
  void* do_allocate(size_t bytes, size_t alignment) override {
    ++allocations_;
    return before_->allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, size_t bytes, size_t alignment) override {
    before_->deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  std::pmr::memory_resource* const before_;
  std::atomic<int> allocations_{0};
};

}  // namespace starling

#endif  // STARLING_COMMON_TESTING_COUNTING_MEMORY_H_
