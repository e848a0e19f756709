#include "common/base/memory.h"

#include <algorithm>
#include <cstdlib>
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
  if (!(limit_file >> limit) || !(used_file >> used)) return kUnknown;  // also for "max"
  return limit > used ? limit - used : 0;
}

}  // namespace

uint64_t AvailableMemoryBytes() { return std::min(SystemBytes(), GroupBytes()); }

uint64_t PeakResidentBytes() {
  std::ifstream in("/proc/self/status");
  std::string line;
  while (std::getline(in, line)) {
    constexpr char kKey[] = "VmHWM:";
    if (line.rfind(kKey, 0) != 0) continue;
    return std::strtoull(line.c_str() + sizeof(kKey) - 1, nullptr, 10) << 10;  // in kB
  }
  return 0;
}

void ForgetPeakResidentBytes() {
  std::ofstream out("/proc/self/clear_refs");
  out << "5" << std::flush;  // proc(5): resets the peak
}

std::shared_ptr<float> AllocateFloats(size_t n) {
  constexpr size_t kAlignment = 64;
  const size_t bytes = (std::max<size_t>(n, 1) * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
  void* const memory = std::aligned_alloc(kAlignment, bytes);
  if (memory == nullptr) return nullptr;
  return std::shared_ptr<float>(static_cast<float*>(memory), std::free);
}

}  // namespace starling
