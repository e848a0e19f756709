#include "common/daemon/node.h"

#include <dlfcn.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/files.h"
#include "common/base/memory.h"

namespace starling {
namespace {

std::string Contents(const std::string& path) { return ReadText(path).value_or(""); }

uint32_t Cores() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus) : 0;
}

// What follows "KEY:" in lines like those of /proc/cpuinfo; empty: no such key.
absl::string_view ValueOf(absl::string_view key, absl::string_view lines) {
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(parts.first) == key) {
      return absl::StripAsciiWhitespace(parts.second);
    }
  }
  return "";
}

// ---- GPUs: from NVIDIA's driver in /proc, else from its library -------------------------------

using Library = std::unique_ptr<void, int (*)(void*)>;  // nullptr: not found

Library OpenFirst(std::initializer_list<const char*> names) {
  void* handle = nullptr;
  for (const char* name : names) {
    if (handle == nullptr) handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  }
  return Library(handle, dlclose);
}

template <typename Function>
Function* Find(const Library& library, const char* symbol) {
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library.get(), symbol));
}

std::vector<std::string> GpusOfProc() {
  std::vector<std::string> gpus;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string information = Contents((it->path() / "information").string());
    const absl::string_view model = ValueOf("Model", information);
    if (!model.empty()) gpus.emplace_back(model);
  }
  std::sort(gpus.begin(), gpus.end());
  return gpus;
}

// Containers may hide /proc/driver.
void AskNvml(NodeReply* node) {
  const Library nvml = OpenFirst({"libnvidia-ml.so.1"});
  auto* const init = Find<int()>(nvml, "nvmlInit_v2");
  auto* const shutdown = Find<int()>(nvml, "nvmlShutdown");
  auto* const count = Find<int(unsigned*)>(nvml, "nvmlDeviceGetCount_v2");
  auto* const handle = Find<int(unsigned, void**)>(nvml, "nvmlDeviceGetHandleByIndex_v2");
  auto* const name = Find<int(void*, char*, unsigned)>(nvml, "nvmlDeviceGetName");
  auto* const driver = Find<int(char*, unsigned)>(nvml, "nvmlSystemGetDriverVersion");
  if (!init || !shutdown || !count || !handle || !name || !driver || init() != 0) return;
  constexpr unsigned kGpusMax = 64;
  unsigned gpus = 0;
  char text[128] = {};
  if (count(&gpus) != 0) gpus = 0;
  for (unsigned i = 0; i < std::min(gpus, kGpusMax); ++i) {
    void* gpu = nullptr;
    if (handle(i, &gpu) == 0 && name(gpu, text, sizeof(text)) == 0) node->add_gpus(text);
  }
  if (node->driver().empty() && driver(text, sizeof(text)) == 0) node->set_driver(text);
  shutdown();
}

void DescribeGpus(NodeReply* node) {
  for (const std::string& gpu : GpusOfProc()) node->add_gpus(gpu);
  node->set_driver(NvidiaDriverOf(Contents("/proc/driver/nvidia/version")));
  if (node->gpus().empty()) AskNvml(node);
  const Library cuda =
      OpenFirst({"libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"});
  int version = 0;
  if (auto* const get = Find<int(int*)>(cuda, "cudaRuntimeGetVersion"); get && get(&version) == 0) {
    node->set_cuda(CudaVersionText(version));
  }
  const Library cudnn = OpenFirst({"libcudnn.so", "libcudnn.so.9", "libcudnn.so.8"});
  if (auto* const get = Find<size_t()>(cudnn, "cudnnGetVersion"))
    node->set_cudnn(CudnnVersionText(get()));
}

// GPUs do not change while a process runs, and the libraries take time to load.
const NodeReply& Gpus() {
  static std::once_flag once;
  static NodeReply* const gpus = new NodeReply();
  std::call_once(once, [] { DescribeGpus(gpus); });
  return *gpus;
}

}  // namespace

std::string CpuModelOf(absl::string_view cpuinfo) {
  return std::string(ValueOf("model name", cpuinfo));
}

uint64_t MeminfoBytes(absl::string_view meminfo, absl::string_view key) {
  const absl::string_view value = ValueOf(key, meminfo);  // "8000 kB"
  uint64_t kib = 0;
  return absl::SimpleAtoi(value.substr(0, value.find(' ')), &kib) ? kib << 10 : 0;
}

std::string NvidiaDriverOf(absl::string_view version) {
  const std::string first(version.substr(0, version.find('\n')));
  for (const absl::string_view word : absl::StrSplit(first, ' ', absl::SkipEmpty())) {
    const bool number = absl::ascii_isdigit(static_cast<unsigned char>(word[0])) != 0;
    if (number && word.find('.') != absl::string_view::npos) return std::string(word);
  }
  return "";
}

std::string CudaVersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

std::string CudnnVersionText(uint64_t version) {
  const uint64_t major = version >= 10000 ? 10000 : 1000;  // since 9.0
  return absl::StrCat(version / major, ".", version % major / 100, ".", version % 100);
}

NodeReply DescribeNode() {
  NodeReply node = Gpus();
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) == 0) node.set_host(host);
  node.set_cpu(CpuModelOf(Contents("/proc/cpuinfo")));
  node.set_cores(Cores());
  node.set_memory_bytes(MeminfoBytes(Contents("/proc/meminfo"), "MemTotal"));
  uint64_t group = 0;
  if (absl::SimpleAtoi(absl::StripAsciiWhitespace(Contents("/sys/fs/cgroup/memory.max")), &group)) {
    node.set_memory_bytes(std::min<uint64_t>(node.memory_bytes(), group));
  }
  const uint64_t available = AvailableMemoryBytes();
  node.set_available_bytes(available == std::numeric_limits<uint64_t>::max() ? 0 : available);
  node.set_open_files(CountEntries("/proc/self/fd"));
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) node.set_open_files_max(files.rlim_cur);
  node.set_congestion_control(std::string(
      absl::StripAsciiWhitespace(Contents("/proc/sys/net/ipv4/tcp_congestion_control"))));
  utsname system = {};
  if (uname(&system) == 0) node.set_kernel(absl::StrCat(system.sysname, " ", system.release));
  return node;
}

}  // namespace starling
