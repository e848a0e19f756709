#include "common/base/memory.h"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

namespace starling {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

uint64_t SystemBytes() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  uint64_t kib = 0;
  while (in >> key >> kib) {
    std::getline(in, unit);
    if (key == "MemAvailable:") return kib << 10;
  }
  return kUnknown;
}

uint64_t GroupBytes() {
  std::ifstream limit_file("/sys/fs/cgroup/memory.max");
  std::ifstream used_file("/sys/fs/cgroup/memory.current");
  uint64_t limit = 0, used = 0;
  if (!(limit_file >> limit) || !(used_file >> used)) return kUnknown;  // fails on "max", too
  return limit > used ? limit - used : 0;
}

}  // namespace

uint64_t AvailableMemoryBytes() { return std::min(SystemBytes(), GroupBytes()); }

void ReturnFreedMemory() {
#ifndef STARLING_SANITIZED
  constexpr size_t kKept = 64 << 20;  // for the next messages
  if (mallinfo2().fordblks > kKept) malloc_trim(kKept);
#endif
}

// Allocates nothing: daemons call it all the time.
uint64_t PeakResidentBytes() {
  char text[4096];
  const int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t bytes = read(file, text, sizeof(text) - 1);  // one read gets the whole file
  close(file);
  if (bytes <= 0) return 0;
  text[bytes] = 0;
  constexpr char kKey[] = "\nVmHWM:";
  const char* const line = std::strstr(text, kKey);
  if (line == nullptr) return 0;
  return std::strtoull(line + sizeof(kKey) - 1, nullptr, 10) << 10;  // in kB
}

void ForgetPeakResidentBytes() {
  std::ofstream out("/proc/self/clear_refs");
  out << "5" << std::flush;  // proc(5): resets the peak
}

std::shared_ptr<float> AllocateFloats(size_t n) {
  constexpr size_t kAlignment = 64;
  const size_t bytes =
      (std::max<size_t>(n, 1) * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
  void* const memory = std::aligned_alloc(kAlignment, bytes);
  if (memory == nullptr) return nullptr;
  return std::shared_ptr<float>(static_cast<float*>(memory), std::free);
}

}  // namespace starling
