// A deliberate data race through the project's own Mutex: one thread does not lock it.
// ThreadSanitizer must report it; otherwise its other verdicts are worthless. Built only by
// tools/accept.sh.
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
