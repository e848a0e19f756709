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
// Of 16 processes under racecheck on one GPU of 80 GB one crashed; alone it did not.
constexpr int kSanitizedProcessesMax = 8;

struct Counts {
  int passed = 0, failed = 0;
  // Of compute-sanitizer: summaries, the errors that they count, and the hazards in kernels that
  // cuDNN generates.
  int summaries = 0, errors = 0, of_cudnn = 0;
};

// Reads GoogleTest's own summary and compute-sanitizer's; prints the failed tests.
//
// Racecheck reports hazards between the asynchronous copies and products of cuDNN's generated
// attention for sm_90, with which no kernel of ours has to do. They are counted, not judged.
Counts ReadCounts(const std::string& log) {
  static const std::regex kPassed(R"(^\[  PASSED  \] (\d+) tests?\.)");
  static const std::regex kFailed(R"(^\[  FAILED  \] (\S+), where)");
  static const std::regex kFailedCount(R"(^ *(\d+) FAILED TESTS?)");
  static const std::regex kSummary(R"(^=+ (ERROR|RACECHECK) SUMMARY: (\d+) .*)");
  static const std::regex kOfCudnn(R"(^=+ Error: Race reported .* at cudnn_generated_\S*$)");
  Counts counts;
  std::istringstream lines(log);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, match, kPassed)) counts.passed += std::stoi(match[1]);
    if (std::regex_search(line, match, kFailedCount)) counts.failed += std::stoi(match[1]);
    if (std::regex_search(line, match, kFailed)) {
      std::printf("  failed: %s\n", match[1].str().c_str());
    }
    if (std::regex_search(line, match, kSummary)) {
      ++counts.summaries;
      counts.errors += std::stoi(match[2]);
    }
    if (std::regex_search(line, match, kOfCudnn)) ++counts.of_cudnn;
  }
  return counts;
}

constexpr int kSanitizerFound = 9;  // exit status

// Runs the suite, spread over one process per core, each started by `prefix` followed by the test's
// command. The logs are named `log`-0 and so on.
Outcome RunSuite(const Site& site, Where where, const std::string& log,
                 const std::vector<std::string>& prefix) {
  const absl::Time begin = absl::Now();
  setenv("STARLING_CONFORMANCE_DEVICE", where == Where::kGpu ? "gpu" : "cpu", /*overwrite=*/1);
  const int processes = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1,
                                   prefix.empty() ? kProcessesMax : kSanitizedProcessesMax);
  setenv("GTEST_TOTAL_SHARDS", absl::StrCat(processes).c_str(), /*overwrite=*/1);
  std::vector<std::string> argv = prefix;
  argv.insert(argv.end(), {site.program, "conformance", "--gtest_brief=1"});
  std::vector<absl::StatusOr<pid_t>> started;
  for (int i = 0; i < processes; ++i) {
    setenv("GTEST_SHARD_INDEX", absl::StrCat(i).c_str(), /*overwrite=*/1);
    started.push_back(StartProgram(site, absl::StrCat(log, "-", i), argv));
  }
  unsetenv("STARLING_CONFORMANCE_DEVICE");
  unsetenv("GTEST_TOTAL_SHARDS");
  unsetenv("GTEST_SHARD_INDEX");
  Counts sum;
  std::string trouble;
  for (int i = 0; i < processes; ++i) {
    const absl::StatusOr<int> status =
        started[i].ok() ? WaitFor(*started[i], site.deadline) : started[i].status();
    const std::string path = LogPath(site, absl::StrCat(log, "-", i));
    const Counts counts = ReadCounts(ReadFile(path));
    sum.passed += counts.passed;
    sum.failed += counts.failed;
    sum.summaries += counts.summaries;
    sum.of_cudnn += counts.of_cudnn;
    if (!status.ok()) {
      trouble = absl::StrCat("; a process: ", std::string(status.status().message()));
    } else if (!prefix.empty() && WIFEXITED(*status) && WEXITSTATUS(*status) == kSanitizerFound) {
      if (counts.of_cudnn == 0 || counts.errors != counts.of_cudnn || counts.passed == 0) {
        trouble = absl::StrCat("; ", prefix[0], " found errors: ", path);
      }
    } else if (*status != 0 && counts.failed == 0) {
      trouble = absl::StrCat("; a process ", local::ExitText(*status));
    }
  }
  if (!prefix.empty() && trouble.empty() && sum.summaries != processes) {
    trouble = absl::StrFormat("; expected a summary of %s from each of %d processes, got %d",
                              prefix[0], processes, sum.summaries);
  }
  const bool good = sum.passed > 0 && sum.failed == 0 && trouble.empty();
  return {
      good ? Outcome::kPassed : Outcome::kFailed,
      absl::StrFormat("%d tests passed, %d failed in %.0f s%s%s", sum.passed, sum.failed,
                      absl::ToDoubleSeconds(absl::Now() - begin),
                      sum.of_cudnn > 0
                          ? absl::StrCat("; ", sum.of_cudnn, " hazards in kernels that cuDNN made")
                          : "",
                      trouble),
      {{.name = log,
        .values = {{"passed", absl::StrCat(sum.passed)}, {"failed", absl::StrCat(sum.failed)}}}}};
}

}  // namespace

Outcome CheckConformance(const Site& site, Where where) {
  return RunSuite(site, where, where == Where::kGpu ? "conformance-gpu" : "conformance-cpu", {});
}

Outcome CheckSanitized(const Site& site, const std::string& sanitizer, const std::string& tool) {
  if (sanitizer.empty()) {
    return {Outcome::kNotRun,
            "no compute-sanitizer: looked on the PATH and in the toolkit (CUDA_HOME)"};
  }
  return RunSuite(site, Where::kGpu, tool,
                  {sanitizer, "--tool", tool, "--error-exitcode", absl::StrCat(kSanitizerFound),
                   "--print-limit", "100000"});
}

}  // namespace starling::bundle
