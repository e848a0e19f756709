#include "common/admin/process_metrics.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <fstream>

#include "common/base/descriptors.h"
#include "common/base/files.h"

namespace starling::admin {
namespace {

double CpuSeconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

double ResidentBytes() {
  std::ifstream in("/proc/self/statm");
  double total_pages = 0, resident_pages = 0;
  in >> total_pages >> resident_pages;
  return resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double OpenFilesMax() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<double>(limit.rlim_cur);
}

}  // namespace

void AddProcessMetrics(MetricsText& metrics) {
  metrics.Counter("starling_process_cpu_seconds_total", "CPU time of the process.", {},
                  CpuSeconds());
  metrics.Gauge("starling_process_resident_memory_bytes", "Memory of the process that is in RAM.",
                {}, ResidentBytes());
  metrics.Gauge(
      "starling_process_open_files", "Open file descriptors of the process.", {},
      static_cast<double>(CountEntries("/proc/self/fd")) - 1);  // less the one open for counting
  metrics.Gauge("starling_process_open_files_limit", "How many file descriptors it may have.", {},
                OpenFilesMax());
  metrics.Gauge("starling_connections_held_back",
                "1 while new connections wait, since file descriptors are short.", {},
                WhyNoDescriptors().empty() ? 0 : 1);
  metrics.Gauge("starling_process_threads", "Threads of the process.", {},
                static_cast<double>(CountEntries("/proc/self/task")));
}

}  // namespace starling::admin
