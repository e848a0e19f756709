// The unit of work of an EventLoop: a function without arguments, called once.
#ifndef STARLING_COMMON_EVENT_LOOP_TASK_H_
#define STARLING_COMMON_EVENT_LOOP_TASK_H_

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace starling {

// Like std::function<void()>, except that its captures need not be copyable, and up to kBytesInline
// of them are stored in the task itself, so that posting a frame with its header does not allocate.
class Task {
 public:
  static constexpr size_t kBytesInline = 384;

  Task() = default;
  template <typename Function, typename Held = std::decay_t<Function>,
            typename = std::enable_if_t<!std::is_same_v<Held, Task> && std::is_invocable_v<Held&>>>
  Task(Function&& function) {  // NOLINT: implicit, as std::function's
    if constexpr (kFits<Held>) {
      new (bytes_) Held(std::forward<Function>(function));
      verbs_ = &kInline<Held>;
    } else {
      new (bytes_) Held*(new Held(std::forward<Function>(function)));
      verbs_ = &kOnHeap<Held>;
    }
  }
  Task(Task&& other) noexcept { Take(other); }
  Task& operator=(Task&& other) noexcept {
    if (this == &other) return *this;
    Drop();
    Take(other);
    return *this;
  }
  ~Task() { Drop(); }

  // Requires a function.
  void operator()() { verbs_->run(bytes_); }

 private:
  struct Verbs {
    void (*run)(void* bytes);
    void (*move)(void* from, void* to);  // and destroys what is at `from`
    void (*drop)(void* bytes);
  };

  template <typename Held>
  static constexpr bool kFits =
      sizeof(Held) <= kBytesInline && alignof(Held) <= alignof(std::max_align_t);

  template <typename Held>
  static constexpr Verbs kInline = {
      [](void* bytes) { (*static_cast<Held*>(bytes))(); },
      [](void* from, void* to) {
        new (to) Held(std::move(*static_cast<Held*>(from)));
        std::destroy_at(static_cast<Held*>(from));
      },
      [](void* bytes) { std::destroy_at(static_cast<Held*>(bytes)); },
  };
  template <typename Held>
  static constexpr Verbs kOnHeap = {
      [](void* bytes) { (**static_cast<Held**>(bytes))(); },
      [](void* from, void* to) { new (to) Held*(*static_cast<Held**>(from)); },
      [](void* bytes) { delete *static_cast<Held**>(bytes); },
  };

  void Take(Task& other) {
    verbs_ = std::exchange(other.verbs_, nullptr);
    if (verbs_ != nullptr) verbs_->move(other.bytes_, bytes_);
  }
  void Drop() {
    if (const Verbs* const verbs = std::exchange(verbs_, nullptr); verbs != nullptr) {
      verbs->drop(bytes_);
    }
  }

  const Verbs* verbs_ = nullptr;  // nullptr: no function
  alignas(std::max_align_t) std::byte bytes_[kBytesInline];
};

}  // namespace starling

#endif  // STARLING_COMMON_EVENT_LOOP_TASK_H_
