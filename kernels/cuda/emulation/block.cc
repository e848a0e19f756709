#include "kernels/cuda/emulation/block.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace starling::emulation {
namespace {

constexpr int kThreadsMax = 1024, kWarp = 32;
constexpr size_t kStackBytes = 128 << 10;
constexpr size_t kPage = 4096;

// `bytes` before a page that ends the process when touched.
char* MapWithGuard(size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::perror("mmap"), std::abort();
  mprotect(static_cast<char*>(memory) + bytes, kPage, PROT_NONE);
  return static_cast<char*>(memory);
}

// Contexts are entered once; after that _setjmp and _longjmp switch without a system call.
struct Fiber {
  jmp_buf at;
  ucontext_t context;
  bool entered = false;
};

struct Warp {
  // This shuffle's and the previous one's, which some lanes have yet to read.
  uint64_t values[2][kWarp];
  int turn = 0, arrived = 0, line = 0;
};

struct SharedVariable {
  const char* file;
  int line;
  char* memory;
  char* begin;
};

// The block that a host thread runs. A thread's rank is its position in the launch's order.
class Machine {
 public:
  void Run(const char* kernel, dim3 grid, dim3 block, const std::function<void()>& body) {
    kernel_ = kernel;
    body_ = &body;
    place.grid_size = grid;
    place.block_size = block;
    threads_ = static_cast<int>(block.x * block.y * block.z);
    const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
    std::vector<uint32_t> order(blocks);
    std::iota(order.begin(), order.end(), 0u);
    ChooseOrder(order);
    for (uint32_t at : order) {
      place.block = {at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y};
      RunBlock();
    }
    kernel_ = nullptr;
  }

  void Barrier(const char* file, int line) {
    if (at_barrier_++ == 0) {
      barrier_file_ = file;
      barrier_line_ = line;
    }
    if (barrier_line_ != line || std::strcmp(barrier_file_, file) != 0) {
      Fail("waits at the barrier in line " + std::to_string(line) + ", others at that in line " +
           std::to_string(barrier_line_));
    }
    CheckEnded();
    if (at_barrier_ == threads_) {
      at_barrier_ = 0;
      for (int rank = 0; rank < threads_; ++rank) SetReady(rank);
    } else {
      ClearReady(rank_);
    }
    Reschedule();
  }

  uint64_t ShuffleXor(uint32_t mask, uint64_t value, int lane_mask, int line) {
    const int thread = order_[rank_], first = thread / kWarp * kWarp, lane = thread - first;
    if (mask != ~0u || first + kWarp > threads_) {
      Fail("shuffles in line " + std::to_string(line) +
           ": only among the 32 lanes of a whole warp is this emulated");
    }
    Warp& warp = warps_[thread / kWarp];
    const int turn = warp.turn;
    warp.values[turn][lane] = value;
    if (warp.arrived++ == 0) warp.line = line;
    if (warp.line != line) {
      Fail("shuffles in line " + std::to_string(line) + ", other lanes of its warp in line " +
           std::to_string(warp.line));
    }
    if (warp.arrived == kWarp) {
      warp.arrived = 0;
      warp.turn ^= 1;
      for (int i = 0; i < kWarp; ++i) SetReady(rank_of_[first + i]);
    } else {
      ClearReady(rank_);
    }
    Reschedule();
    return warp.values[turn][lane ^ lane_mask];
  }

  void* SharedMemory(size_t bytes, const char* file, int line) {
    for (size_t i = 0; i < shared_count_; ++i) {
      if (shared_[i].line == line && shared_[i].file == file) return shared_[i].begin;
    }
    if (shared_count_ == shared_.size()) {
      shared_.push_back({.memory = MapWithGuard(kSharedBytesMax)});
    }
    shared_bytes_ += bytes;
    if (shared_bytes_ > kSharedBytesMax) Fail("declares more than 48 KiB of shared memory");
    SharedVariable& variable = shared_[shared_count_++];
    variable.file = file;
    variable.line = line;
    variable.begin = variable.memory + kSharedBytesMax - (bytes + 15) / 16 * 16;
    std::memset(variable.begin, 0xff, bytes);
    return variable.begin;
  }

  // Called in a signal handler.
  void Report(const char* what, const void* address) const {
    if (kernel_ == nullptr) return;
    char text[512];
    const int length =
        std::snprintf(text, sizeof(text), "%s%s, at %p\n", Where().data(), what, address);
    static_cast<void>(!write(STDERR_FILENO, text, static_cast<size_t>(length)));
  }

  Place place;

 private:
  void ChooseOrder(std::vector<uint32_t>& blocks) {
    static std::atomic<uint32_t> launches = 0;
    const char* const fixed = std::getenv("STARLING_EMULATION_ORDER");
    const uint32_t number = fixed != nullptr ? static_cast<uint32_t>(std::atoi(fixed))
                                             : launches.fetch_add(1, std::memory_order_relaxed);
    order_.resize(threads_);
    std::iota(order_.begin(), order_.end(), 0);
    const int kind = fixed != nullptr ? std::min<int>(number, 2) : static_cast<int>(number % 3);
    if (kind == 1) {
      std::reverse(order_.begin(), order_.end());
      std::reverse(blocks.begin(), blocks.end());
    } else if (kind == 2) {
      std::mt19937 random(number);
      std::shuffle(blocks.begin(), blocks.end(), random);
      // Warps stay together, so that one of them can get ahead.
      std::vector<uint64_t> keys(threads_), warp_keys(threads_ / kWarp + 1);
      for (uint64_t& key : warp_keys) key = random() >> 1;
      for (int i = 0; i < threads_; ++i) keys[i] = warp_keys[i / kWarp] << 32 | random();
      std::sort(order_.begin(), order_.end(), [&](int a, int b) { return keys[a] < keys[b]; });
    }
    for (int rank = 0; rank < threads_; ++rank) rank_of_[order_[rank]] = rank;
  }

  void RunBlock() {
    ready_.fill(0);
    for (int rank = 0; rank < threads_; ++rank) SetReady(rank);
    fiber_of_.assign(threads_, nullptr);
    for (int i = 0; i < (threads_ + kWarp - 1) / kWarp; ++i) warps_[i] = Warp();
    ended_ = at_barrier_ = 0;
    shared_count_ = shared_bytes_ = 0;
    Go(0);
  }

  void SetReady(int rank) { ready_[rank / 64] |= uint64_t{1} << rank % 64; }
  void ClearReady(int rank) { ready_[rank / 64] &= ~(uint64_t{1} << rank % 64); }
  int FirstReady() const {
    for (int i = 0; i * 64 < threads_; ++i) {
      if (ready_[i] != 0) return i * 64 + std::countr_zero(ready_[i]);
    }
    return -1;
  }

  void Become(int rank) {
    rank_ = rank;
    const auto thread = static_cast<unsigned>(order_[rank]);
    const dim3& size = place.block_size;
    place.thread = {thread % size.x, thread / size.x % size.y, thread / size.x / size.y};
  }

  void Go(int rank) {
    Become(rank);
    if (fiber_of_[rank] == nullptr) fiber_of_[rank] = TakeFiber();
    SwitchTo(fiber_of_[rank]);
  }

  // The current thread waits, or one of lower rank is ready.
  void Reschedule() {
    const int next = FirstReady();
    if (next < 0) Deadlock();
    if (next != rank_) Go(next);
  }

  // A fiber's body: runs unstarted threads, one after the other.
  void Loop() {
    for (;;) {
      (*body_)();
      ClearReady(rank_);
      ++ended_;
      CheckEnded();
      const int next = FirstReady();
      if (next >= 0 && fiber_of_[next] == nullptr) {
        fiber_of_[next] = current_;
        Become(next);
        continue;
      }
      if (next < 0 && ended_ < threads_) Deadlock();
      free_.push_back(current_);
      if (next >= 0) Go(next);
      if (next < 0) SwitchTo(&main_);
    }
  }
  static void Enter();

  Fiber* TakeFiber() {
    if (!free_.empty()) {
      Fiber* const fiber = free_.back();
      free_.pop_back();
      return fiber;
    }
    fibers_.push_back(std::make_unique<Fiber>());
    Fiber* const fiber = fibers_.back().get();
    Prepare(*fiber);
    return fiber;
  }
  // These two functions return twice, so they must not keep values in registers across the call.
  [[gnu::noinline]] static void Prepare(Fiber& fiber) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = MapWithGuard(kStackBytes);
    fiber.context.uc_stack.ss_size = kStackBytes;
    makecontext(&fiber.context, &Machine::Enter, 0);
  }

  [[gnu::noinline]] void SwitchTo(Fiber* next) {
    Fiber* const from = current_;
    current_ = next;
    if (_setjmp(from->at) != 0) return;
    if (next->entered) _longjmp(next->at, 1);
    next->entered = true;
    setcontext(&next->context);
  }

  void CheckEnded() const {
    if (at_barrier_ == 0 || ended_ == 0) return;
    Fail(std::to_string(ended_) + " threads have ended, " + std::to_string(at_barrier_) +
         " wait at the barrier in line " + std::to_string(barrier_line_));
  }
  [[noreturn]] void Deadlock() const {
    std::string text = "no thread can go on: " + std::to_string(ended_) + " have ended, " +
                       std::to_string(at_barrier_) + " wait at a barrier";
    for (int i = 0; i * kWarp < threads_; ++i) {
      if (warps_[i].arrived == 0) continue;
      text += ", " + std::to_string(warps_[i].arrived) + " lanes of warp " + std::to_string(i) +
              " in the shuffle of line " + std::to_string(warps_[i].line);
    }
    Fail(text);
  }
  std::array<char, 256> Where() const {
    std::array<char, 256> text;
    std::snprintf(text.data(), text.size(),
                  "emulated CUDA: kernel %s, block (%u, %u, %u), thread (%u, %u, %u): ", kernel_,
                  place.block.x, place.block.y, place.block.z, place.thread.x, place.thread.y,
                  place.thread.z);
    return text;
  }
  [[noreturn]] void Fail(const std::string& what) const {
    std::fprintf(stderr, "%s%s\n", Where().data(), what.c_str());
    std::abort();
  }

  const char* kernel_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  int threads_ = 0;
  std::vector<int> order_;  // threads by rank
  std::array<int, kThreadsMax> rank_of_ = {};
  std::array<uint64_t, kThreadsMax / 64> ready_ = {};
  std::array<Warp, kThreadsMax / kWarp> warps_ = {};
  int rank_ = 0, ended_ = 0, at_barrier_ = 0, barrier_line_ = 0;
  const char* barrier_file_ = nullptr;
  Fiber main_ = {.entered = true};
  Fiber* current_ = &main_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> fiber_of_, free_;  // by rank; idle ones
  std::vector<SharedVariable> shared_;
  size_t shared_count_ = 0, shared_bytes_ = 0;
};

// Never freed: fibers hold stacks, and few host threads launch.
thread_local Machine* machine = nullptr;

Machine& TheMachine() {
  if (machine == nullptr) machine = new Machine();
  return *machine;
}

void Machine::Enter() { machine->Loop(); }

void OnSignal(int signal, siginfo_t* info, void*) {
  if (machine != nullptr) {
    const bool memory = signal == SIGSEGV || signal == SIGBUS;
    machine->Report(memory ? "touches memory outside its allocation"
                           : "does what is undefined: misaligned, an index out of range, overflow",
                    info->si_addr);
  }
  ::signal(signal, SIG_DFL);  // the instruction runs again and ends the process
}

void WatchSignals() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = OnSignal;
    action.sa_flags = SA_SIGINFO;
    for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) sigaction(signal, &action, nullptr);
  });
}

}  // namespace

Place& Here() { return TheMachine().place; }

void RunGrid(const char* kernel, dim3 grid, dim3 block, const std::function<void()>& body) {
  WatchSignals();
  TheMachine().Run(kernel, grid, block, body);
}

void Barrier(const char* file, int line) { machine->Barrier(file, line); }

uint64_t ShuffleXor(uint32_t mask, uint64_t value, int lane_mask, int line) {
  return machine->ShuffleXor(mask, value, lane_mask, line);
}

void* SharedMemory(size_t bytes, const char* file, int line) {
  return machine->SharedMemory(bytes, file, line);
}

}  // namespace starling::emulation
