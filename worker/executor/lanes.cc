#include "worker/executor/lanes.h"

namespace starling {

Lanes::Lanes(int count) {
  for (int lane = 1; lane < count; ++lane) threads_.emplace_back([this, lane] { Loop(lane); });
}

Lanes::~Lanes() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Lanes::Run(absl::FunctionRef<void(int)> body) {
  {
    MutexLock lock(&mutex_);
    body_ = &body;
    running_ = static_cast<int>(threads_.size());
    ++round_;
    changed_.SignalAll();
  }
  body(0);
  MutexLock lock(&mutex_);
  while (running_ > 0) changed_.Wait(&mutex_);
}

void Lanes::Loop(int lane) {
  uint64_t seen = 0;
  for (;;) {
    const absl::FunctionRef<void(int)>* body = nullptr;
    {
      MutexLock lock(&mutex_);
      while (!stop_ && round_ == seen) changed_.Wait(&mutex_);
      if (stop_) return;
      seen = round_;
      body = body_;
    }
    (*body)(lane);
    MutexLock lock(&mutex_);
    if (--running_ == 0) changed_.SignalAll();
  }
}

}  // namespace starling
