#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "tools/bundle/check_parts.h"
#include "tools/local/process.h"

namespace starling::bundle {
namespace {

constexpr int kProcessesMax = 16;

struct Counts {
  int passed = 0, failed = 0;
};

// GoogleTest's own summary; prints which failed.
Counts ReadCounts(const std::string& log) {
  static const std::regex kPassed(R"(^\[  PASSED  \] (\d+) tests?\.)");
  static const std::regex kFailed(R"(^\[  FAILED  \] (\S+), where)");
  static const std::regex kFailedCount(R"(^ *(\d+) FAILED TESTS?)");
  Counts counts;
  std::istringstream lines(log);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, match, kPassed)) counts.passed += std::stoi(match[1]);
    if (std::regex_search(line, match, kFailedCount)) counts.failed += std::stoi(match[1]);
    if (std::regex_search(line, match, kFailed)) {
      std::printf("  failed: %s\n", match[1].str().c_str());
    }
  }
  return counts;
}

}  // namespace

Outcome CheckConformance(const Site& site, Where where) {
  const absl::Time begin = absl::Now();
  setenv("STARLING_CONFORMANCE_DEVICE", where == Where::kGpu ? "gpu" : "cpu", /*overwrite=*/1);
  const std::string log = where == Where::kGpu ? "conformance-gpu" : "conformance-cpu";
  const int processes =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kProcessesMax);
  setenv("GTEST_TOTAL_SHARDS", absl::StrCat(processes).c_str(), /*overwrite=*/1);
  std::vector<absl::StatusOr<pid_t>> started;
  for (int i = 0; i < processes; ++i) {
    setenv("GTEST_SHARD_INDEX", absl::StrCat(i).c_str(), /*overwrite=*/1);
    started.push_back(Start(site, absl::StrCat(log, "-", i),
                            {"conformance", "--gtest_brief=1"}));
  }
  unsetenv("STARLING_CONFORMANCE_DEVICE");
  unsetenv("GTEST_TOTAL_SHARDS");
  unsetenv("GTEST_SHARD_INDEX");
  Counts sum;
  std::string trouble;
  for (int i = 0; i < processes; ++i) {
    const absl::StatusOr<int> status =
        started[i].ok() ? WaitFor(*started[i], site.deadline) : started[i].status();
    const Counts counts = ReadCounts(ReadFile(LogPath(site, absl::StrCat(log, "-", i))));
    sum.passed += counts.passed;
    sum.failed += counts.failed;
    if (!status.ok()) {
      trouble = absl::StrCat("; a process: ", std::string(status.status().message()));
    } else if (*status != 0 && counts.failed == 0) {
      trouble = absl::StrCat("; a process ", local::ExitText(*status));
    }
  }
  const bool good = sum.passed > 0 && sum.failed == 0 && trouble.empty();
  return {good ? Outcome::kPassed : Outcome::kFailed,
          absl::StrFormat("%d tests passed, %d failed in %.0f s%s", sum.passed, sum.failed,
                          absl::ToDoubleSeconds(absl::Now() - begin), trouble)};
}

}  // namespace starling::bundle
