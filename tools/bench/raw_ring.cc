// The limit of shared memory: a ring into which one process copies from 64 MiB of memory, and out
// of which another copies to 64 MiB of its own, pipelined, without any check.
//
//   raw_ring SECONDS      prints {"bytes": B, "seconds": S, "cpu": C}, as raw_tcp's receiver does,
//                         of both
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "absl/strings/numbers.h"
#include "tools/bench/cpu_seconds.h"

namespace starling {
namespace {

using Steady = std::chrono::steady_clock;

constexpr size_t kTensors = size_t{64} << 20;  // on each side, more than a cache holds
constexpr size_t kRing = size_t{4} << 20;
constexpr size_t kPiece = size_t{128} << 10;
constexpr uint64_t kPieces = kRing / kPiece;
constexpr int kSpins = 2000;  // before the processor is left to others

struct Ring {
  alignas(64) std::atomic<uint64_t> written;  // pieces
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) std::atomic<uint64_t> end;  // of them all, once it is known
  double producer_cpu;                    // valid then
  alignas(64) char bytes[kRing];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::exit(1);
}

char* Tensors() {
  auto* const memory = static_cast<char*>(std::aligned_alloc(64, kTensors));
  if (memory == nullptr) Die("memory");
  std::memset(memory, 1, kTensors);
  return memory;
}

// Of the other process.
constexpr std::chrono::seconds kTimeout(30);

template <typename Ready>
void Await(const Ready& ready) {
  Steady::time_point deadline;
  for (int i = 0; !ready(); ++i) {
    if (i < kSpins) continue;
    if (i == kSpins) deadline = Steady::now() + kTimeout;
    if (Steady::now() > deadline) Die("the other process does nothing");
    std::this_thread::yield();
  }
}

char* Place(uint64_t piece, char* tensors) {
  return tensors + piece % (kTensors / kPiece) * kPiece;
}

void Produce(Ring& ring, double seconds) {
  char* const tensors = Tensors();
  const double cpu = CpuSeconds();
  const auto end = Steady::now() + std::chrono::duration<double>(seconds);
  uint64_t piece = 0;
  for (; Steady::now() < end; ++piece) {
    Await([&] { return piece - ring.read.load(std::memory_order_acquire) < kPieces; });
    std::memcpy(ring.bytes + piece % kPieces * kPiece, Place(piece, tensors), kPiece);
    ring.written.store(piece + 1, std::memory_order_release);
  }
  ring.producer_cpu = CpuSeconds() - cpu;
  ring.end.store(piece, std::memory_order_release);
}

void Consume(Ring& ring) {
  char* const tensors = Tensors();
  Await([&] { return ring.written.load(std::memory_order_acquire) > 0; });
  const double cpu = CpuSeconds();
  const auto begin = Steady::now();
  uint64_t piece = 0;
  for (;; ++piece) {
    Await([&] {
      return piece < ring.written.load(std::memory_order_acquire) ||
             piece == ring.end.load(std::memory_order_acquire);
    });
    if (piece == ring.end.load(std::memory_order_acquire)) break;
    std::memcpy(Place(piece, tensors), ring.bytes + piece % kPieces * kPiece, kPiece);
    ring.read.store(piece + 1, std::memory_order_release);
  }
  const double seconds = std::chrono::duration<double>(Steady::now() - begin).count();
  std::printf("{\"bytes\": %llu, \"seconds\": %.6f, \"cpu\": %.6f}\n",
              static_cast<unsigned long long>(piece * kPiece), seconds,
              CpuSeconds() - cpu + ring.producer_cpu);
}

int Main(int argc, char** argv) {
  double seconds = 0;
  if (argc != 2 || !absl::SimpleAtod(argv[1], &seconds) || seconds <= 0) {
    std::fprintf(stderr, "usage: raw_ring SECONDS\n");
    return 2;
  }
  void* const shared =
      mmap(nullptr, sizeof(Ring), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) Die("mmap");
  Ring& ring = *new (shared) Ring;
  ring.end.store(UINT64_MAX);
  const pid_t producer = fork();
  if (producer < 0) Die("fork");
  if (producer == 0) {
    Produce(ring, seconds);
    _exit(0);
  }
  Consume(ring);
  int status = 0;
  if (waitpid(producer, &status, 0) != producer || status != 0) Die("the producer failed");
  return 0;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) { return starling::Main(argc, argv); }
