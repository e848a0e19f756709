// A data race on purpose, through the project's own Mutex: one thread forgets it. ThreadSanitizer
// must say so; if it does not, its other verdicts are worth nothing. Built by tools/accept.sh
// alone.
#include <thread>

#include "common/sync/mutex.h"

int main() {
  starling::Mutex mutex;
  int shared = 0;
  std::thread careful([&] {
    for (int i = 0; i < 1000; ++i) {
      starling::MutexLock lock(&mutex);
      ++shared;
    }
  });
  std::thread careless([&] {
    for (int i = 0; i < 1000; ++i) ++shared;
  });
  careful.join();
  careless.join();
  return shared == 0 ? 1 : 0;
}
