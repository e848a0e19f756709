// A fixed set of threads that run one function at a time, together with the caller.
#ifndef STARLING_WORKER_EXECUTOR_LANES_H_
#define STARLING_WORKER_EXECUTOR_LANES_H_

#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/sync/mutex.h"

namespace starling {

// Run is called by one thread at a time.
class Lanes {
 public:
  explicit Lanes(int count);
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  int count() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(lane) for each lane in [0, count()), lane 0 on the calling thread; returns when all
  // have returned.
  void Run(absl::FunctionRef<void(int)> body);

 private:
  void Loop(int lane);

  Mutex mutex_;
  CondVar changed_;
  const absl::FunctionRef<void(int)>* body_ ABSL_GUARDED_BY(mutex_) = nullptr;
  uint64_t round_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_LANES_H_
