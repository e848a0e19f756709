#include "tests/allocations/allocations.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <malloc.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>

#include "absl/debugging/symbolize.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"

extern "C" {
// glibc's own functions.
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* memory);
}

namespace starling::allocations {
namespace {

constexpr size_t kFramesMax = 40;
constexpr size_t kStacksMax = 1 << 14;

// In static memory, so that counting does not allocate.
struct Stack {
  std::array<void*, kFramesMax> frames;
  int depth = 0;  // 0: free
  uint64_t calls = 0;
  uint64_t bytes = 0;
};
std::array<Stack, kStacksMax> stacks;  // a hash table keyed by frames; under `busy`
uint64_t lost = 0;                     // under `busy`
std::atomic_flag busy = ATOMIC_FLAG_INIT;
std::atomic<bool> armed{false};
std::atomic<int64_t> in_use{0};
thread_local bool inside = false;  // the unwinder's own calls are not counted

class Hold {
 public:
  Hold() {
    while (busy.test_and_set(std::memory_order_acquire)) sched_yield();
  }
  ~Hold() { busy.clear(std::memory_order_release); }
};

size_t HashOf(void* const* frames, int depth) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a over words
  for (int i = 0; i < depth; ++i) {
    hash = (hash ^ reinterpret_cast<uintptr_t>(frames[i])) * 1099511628211u;
  }
  return hash ^ (hash >> 29);
}

__attribute__((noinline)) void Count(size_t bytes) {
  std::array<void*, kFramesMax> frames;
  const int depth = backtrace(frames.data(), kFramesMax);
  if (depth == 0) return;
  const size_t hash = HashOf(frames.data(), depth);
  Hold hold;
  for (size_t i = 0; i < kStacksMax; ++i) {
    Stack& stack = stacks[(hash + i) % kStacksMax];
    const bool free = stack.depth == 0;
    if (free) {
      std::copy_n(frames.begin(), depth, stack.frames.begin());
      stack.depth = depth;
    }
    if (stack.depth != depth ||
        !std::equal(frames.begin(), frames.begin() + depth, stack.frames.begin())) {
      continue;
    }
    ++stack.calls;
    stack.bytes += bytes;
    return;
  }
  ++lost;
}

inline void* Allocated(void* memory) {
  if (memory == nullptr) return memory;
  const size_t bytes = malloc_usable_size(memory);
  in_use.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  if (armed.load(std::memory_order_relaxed) && !inside) {
    inside = true;
    Count(bytes);
    inside = false;
  }
  return memory;
}

inline void Freed(void* memory) {
  if (memory == nullptr) return;
  in_use.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
}

// The unwinder loads a library at its first use, which must not happen inside malloc.
[[maybe_unused]] const bool unwinder_is_loaded = [] {
  void* frame = nullptr;
  return backtrace(&frame, 1) > 0;
}();

struct OfLibrary {
  absl::string_view prefix;  // of the file name
  const char* owner;
};
constexpr OfLibrary kLibraries[] = {
    {"libdnnl", "oneDNN"},        {"libgrpc", "gRPC"},  {"libgpr", "gRPC"},
    {"libprotobuf", "protobuf"},  {"libcudnn", "CUDA"}, {"libcublas", "CUDA"},
    {"libcuda", "CUDA"},          {"libnvrtc", "CUDA"}, {"libturbojpeg", "image decoder"},
    {"libjpeg", "image decoder"},
};
// Our code, with CUDA's runtime and cuDNN's front end compiled in.
constexpr absl::string_view kCudaBackend = "libstarling_cuda";
constexpr absl::string_view kPassedOver[] = {"std::",
                                             "__gnu_cxx::",
                                             "absl::",
                                             "fmt::",
                                             "spdlog::",
                                             "operator new",
                                             "starling::allocations::"};

// True for "starling::WorkerReport::MergeFrom" and other methods that protoc generated.
bool IsGenerated(absl::string_view function) {
  constexpr absl::string_view kOurs = "starling::";
  if (!absl::ConsumePrefix(&function, kOurs)) return false;
  const std::string name = absl::StrCat("starling.", function.substr(0, function.find("::")));
  const auto* const pool = google::protobuf::DescriptorPool::generated_pool();
  return pool->FindMessageTypeByName(name) != nullptr || pool->FindServiceByName(name) != nullptr;
}

struct Frame {
  std::string function;
  const char* owner = nullptr;  // nullptr: skipped
};

const char* OwnerIn(bool executable, absl::string_view file, absl::string_view function) {
  const bool backend = !executable && absl::StartsWith(file, kCudaBackend);
  if (!executable && !backend) {
    for (const OfLibrary& library : kLibraries) {
      if (absl::StartsWith(file, library.prefix)) return library.owner;
    }
    return nullptr;
  }
  for (absl::string_view prefix : kPassedOver) {
    if (absl::StartsWith(function, prefix)) return nullptr;
  }
  if (backend) {  // unnamed frames count as ours, as in the executable
    if (absl::StartsWith(function, "_ZNSt") || absl::StartsWith(function, "_ZSt")) return nullptr;
    const bool ours = absl::StartsWith(function, "starling::") || function == "?" ||
                      absl::StrContains(function, "8starling");
    return ours ? "ours" : "CUDA";
  }
  for (absl::string_view hook :
       {"malloc", "calloc", "realloc", "memalign", "aligned_alloc", "posix_memalign"}) {
    if (function == hook) return nullptr;
  }
  if (absl::StartsWith(function, "grpc::")) return "gRPC";
  if (absl::StartsWith(function, "google::protobuf::")) return "protobuf";
  if (IsGenerated(function)) return "protobuf";
  return "ours";
}

Frame Describe(void* pc) {
  Frame frame;
  Dl_info here = {}, there = {};
  void* const call = static_cast<char*>(pc) - 1;  // the return address may be in the next function
  if (dladdr(call, &there) == 0 || there.dli_fname == nullptr) return frame;
  const bool executable =
      dladdr(reinterpret_cast<void*>(&Describe), &here) != 0 && here.dli_fbase == there.dli_fbase;
  absl::string_view file = there.dli_fname;
  file.remove_prefix(file.rfind('/') + 1);
  std::array<char, 512> name;
  frame.function = absl::Symbolize(call, name.data(), name.size()) ? name.data() : "?";
  frame.owner = OwnerIn(executable, file, frame.function);
  if (!executable) absl::StrAppend(&frame.function, " in ", file);
  return frame;
}

}  // namespace

void Arm() {
  Hold hold;
  for (Stack& stack : stacks) stack = {};
  lost = 0;
  armed = true;
}

void Disarm() { armed = false; }

int64_t BytesInUse() { return in_use.load(std::memory_order_relaxed); }

uint64_t Report::CallsOf(const std::string& owner) const {
  uint64_t sum = 0;
  for (const Calls& of_stack : calls) sum += of_stack.owner == owner ? of_stack.calls : 0;
  return sum;
}

Report Read() {
  Report report;
  report.lost = lost;
  std::map<void*, Frame> known;
  for (const Stack& stack : stacks) {
    if (stack.depth == 0) continue;
    Calls calls{"", {}, stack.calls, stack.bytes};
    for (int i = 0; i < stack.depth; ++i) {
      auto [it, added] = known.try_emplace(stack.frames[i]);
      if (added) it->second = Describe(stack.frames[i]);
      if (calls.owner.empty() && it->second.owner == nullptr) continue;
      if (calls.owner.empty()) calls.owner = it->second.owner;
      calls.stack.push_back(it->second.function);
    }
    if (calls.owner.empty()) {
      calls.owner = "ours";
      for (int i = 0; i < stack.depth; ++i)
        calls.stack.push_back(known.at(stack.frames[i]).function);
    }
    report.calls.push_back(std::move(calls));
  }
  std::sort(report.calls.begin(), report.calls.end(),
            [](const Calls& a, const Calls& b) { return a.calls > b.calls; });
  return report;
}

}  // namespace starling::allocations

// ---- Called by the program and its libraries -------------------------------------------------

extern "C" {

using starling::allocations::Allocated;
using starling::allocations::Freed;

void* malloc(size_t bytes) { return Allocated(__libc_malloc(bytes)); }
void* calloc(size_t count, size_t bytes) { return Allocated(__libc_calloc(count, bytes)); }
void* realloc(void* memory, size_t bytes) {
  const int64_t before = memory == nullptr ? 0 : static_cast<int64_t>(malloc_usable_size(memory));
  void* const moved = __libc_realloc(memory, bytes);
  if (moved != nullptr || bytes == 0) {
    starling::allocations::in_use.fetch_sub(before, std::memory_order_relaxed);
  }
  return Allocated(moved);
}
void* memalign(size_t alignment, size_t bytes) {
  return Allocated(__libc_memalign(alignment, bytes));
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  return Allocated(__libc_memalign(alignment, bytes));
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  if (alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0 || alignment == 0) {
    return EINVAL;
  }
  void* const allocated = Allocated(__libc_memalign(alignment, bytes));
  if (allocated == nullptr) return ENOMEM;
  *memory = allocated;
  return 0;
}
void free(void* memory) {
  Freed(memory);
  __libc_free(memory);
}

}  // extern "C"
