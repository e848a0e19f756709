// For a whole program: SIGUSR1 starts counting, SIGUSR2 stops it and writes the counts to
// allocations.json in the program's working directory, as one object:
//
//   {"lost": 0, "in_use": [bytes, ...], "calls": [{"owner": "gRPC", "calls": 12, "bytes": 3456,
//    "stack": ["innermost", ...]}, ...]}
//
// in_use: bytes in use, sampled every few milliseconds while counting.
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/debugging/symbolize.h"
#include "nlohmann/json.hpp"
#include "tests/allocations/allocations.h"

namespace starling::allocations {
namespace {

constexpr int64_t kSampleNanos = 5'000'000;
constexpr size_t kSamplesMax = 1 << 17;  // ten minutes

std::atomic<bool> counting{false};
sem_t changed;

void OnSignal(int signal) {
  const int error = errno;
  if (signal == SIGUSR1 && !counting) {
    Arm();
    counting = true;
  } else if (signal == SIGUSR2 && counting) {
    Disarm();
    counting = false;
  }
  sem_post(&changed);
  errno = error;
}

void Write(const std::vector<int64_t>& in_use) {
  const Report report = Read();
  nlohmann::json calls = nlohmann::json::array();
  for (const Calls& of_stack : report.calls) {
    calls.push_back({{"owner", of_stack.owner},
                     {"calls", of_stack.calls},
                     {"bytes", of_stack.bytes},
                     {"stack", of_stack.stack}});
  }
  const nlohmann::json all = {{"lost", report.lost}, {"in_use", in_use}, {"calls", calls}};
  std::ofstream("allocations.json.new") << all << std::endl;
  std::rename("allocations.json.new", "allocations.json");
}

// Samples while counting, and writes the file when counting stops.
void Serve() {
  std::vector<int64_t> in_use;
  in_use.reserve(kSamplesMax);
  for (;;) {
    while (sem_wait(&changed) != 0) {
    }
    in_use.clear();
    while (counting) {
      if (in_use.size() < kSamplesMax) in_use.push_back(BytesInUse());
      const timespec pause = {0, kSampleNanos};
      nanosleep(&pause, nullptr);
    }
    if (!in_use.empty()) Write(in_use);
  }
}

[[maybe_unused]] const bool serving = [] {
  sem_init(&changed, 0, 0);
  std::thread(Serve).detach();
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  sigaction(SIGUSR2, &action, nullptr);
  return true;
}();

}  // namespace
}  // namespace starling::allocations
