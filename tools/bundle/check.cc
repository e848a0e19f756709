#include "tools/bundle/check.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/version/version.h"
#include "kernels/cuda/library.h"
#include "tools/bench/compute_nets.h"
#include "tools/bundle/check_parts.h"

namespace starling {
namespace {

using bundle::Outcome;
using bundle::Site;
using bundle::Where;

// Less than the 8 minutes that a machine is asked for: what is stopped then still has to be told.
constexpr absl::Duration kPatience = absl::Seconds(435);

// The GPU's name, or why there is none. In a process of its own, with which its memory there ends.
int PrintGpu() {
  const auto gpu = OpenCudaDevice("");
  const std::string text =
      gpu.ok() ? absl::StrCat((*gpu)->name(), " (", (*gpu)->instruction_set(), ")")
               : std::string(gpu.status().message());
  std::printf("%s\n", text.c_str());
  return gpu.ok() ? 0 : 1;
}

struct Gpu {
  bool usable = false;
  std::string text;
};

Gpu LookForGpu(const Site& site) {
  const absl::StatusOr<pid_t> pid = bundle::Start(site, "gpu", {"check", "--gpu"});
  if (!pid.ok()) return {false, std::string(pid.status().message())};
  const absl::StatusOr<int> status = bundle::WaitFor(*pid, site.deadline);
  std::string text = bundle::ReadFile(bundle::LogPath(site, "gpu"));
  text = std::string(absl::StripSuffix(text, "\n"));
  return {status.ok() && *status == 0, text.empty() ? "looking for one failed" : text};
}

// Runs parts, and counts.
class Report {
 public:
  void Part(const std::string& name, Where where, const std::function<Outcome()>& part) {
    std::printf("== %s\n", name.c_str());
    std::fflush(stdout);
    const Outcome outcome = part();
    const char* const verdict = outcome.verdict == Outcome::kPassed   ? "passed"
                                : outcome.verdict == Outcome::kFailed ? "FAILED"
                                                                      : "NOT RUN";
    std::printf("%s: %s: %s\n", name.c_str(), verdict, outcome.text.c_str());
    std::fflush(stdout);
    Tally& tally = where == Where::kGpu ? gpu_ : cpu_;
    ++tally[outcome.verdict];
  }

  bool good() const { return cpu_[Outcome::kFailed] + gpu_[Outcome::kFailed] == 0; }

  // "bundle: CPU: 3 passed, 0 failed. GPU: NOT RUN: no driver"
  void Last(const Gpu& gpu) const {
    const bool ran = gpu_[Outcome::kPassed] + gpu_[Outcome::kFailed] > 0;
    const std::string on_gpu =
        gpu.usable || ran ? Text(gpu_) : absl::StrCat("NOT RUN: ", gpu.text);
    std::printf("bundle: %sCPU: %s. GPU: %s\n", good() ? "" : "FAILED: ", Text(cpu_).c_str(),
                on_gpu.c_str());
    std::fflush(stdout);
  }

 private:
  using Tally = int[3];
  static std::string Text(const Tally& tally) {
    return absl::StrFormat("%d passed, %d failed%s", tally[Outcome::kPassed],
                           tally[Outcome::kFailed],
                           tally[Outcome::kNotRun] == 0
                               ? ""
                               : absl::StrFormat(", %d NOT RUN", tally[Outcome::kNotRun]));
  }

  Tally cpu_ = {}, gpu_ = {};
};

Outcome NotRun(const std::string& why) { return {Outcome::kNotRun, why}; }

struct CheckOptions {
  std::string only;  // a part's name; empty: all
  std::string on;    // "cpu" or "gpu"; empty: both
  std::string net;   // of compute and servers on the GPU; empty: all
  bundle::TorchPython torch;
};

// What is kept for the servers behind the table, whose length PyTorch's compiler decides.
constexpr absl::Duration kServersPatience = absl::Seconds(140);

bool Check(const Site& site, const CheckOptions& options) {
  const Gpu gpu = LookForGpu(site);
  std::printf("starling %s, %u cores, GPU: %s\n", std::string(ReleaseVersion()).c_str(),
              std::thread::hardware_concurrency(), gpu.text.c_str());
  Report report;
  const auto part = [&](const char* name, Where where, const std::function<Outcome()>& run) {
    const bool on_gpu = where == Where::kGpu;
    if (!options.only.empty() && options.only != name) return;
    if (!options.on.empty() && options.on != (on_gpu ? "gpu" : "cpu")) return;
    report.Part(absl::StrCat(name, on_gpu ? " gpu" : " cpu"), where,
                [&] { return on_gpu && !gpu.usable ? NotRun(gpu.text) : run(); });
  };
  const bool all = options.only.empty();
  for (const Where where : {Where::kCpu, Where::kGpu}) {
    part("conformance", where, [&] { return CheckConformance(site, where); });
    part("cluster", where, [&] { return CheckCluster(site, where); });
    part("compute", where, [&] {
      if (where == Where::kCpu) return MeasureCpu(site);
      return MeasureGpu(site, {.torch = options.torch,
                               .net = options.net,
                               .until = site.deadline - (all ? kServersPatience
                                                             : absl::ZeroDuration())});
    });
  }
  part("servers", Where::kGpu, [&] { return MeasureServers(site, options.net); });
  if (!report.good()) std::printf("logs are in %s\n", site.folder.c_str());
  report.Last(gpu);
  return report.good();
}

}  // namespace

int CheckMain(int argc, char** argv) {
  CLI::App app("Runs the bundle's programs on this machine, and says what holds.", "check");
  bool print_gpu = false;
  CheckOptions options;
  app.add_flag("--gpu", print_gpu, "only say which GPU is used, or why none; status 0 or 1");
  app.add_option("--only", options.only, "only this part")
      ->check(CLI::IsMember({"conformance", "cluster", "compute", "servers"}));
  app.add_option("--on", options.on, "only there")->check(CLI::IsMember({"cpu", "gpu"}));
  app.add_option("--net", options.net, "only this net, in compute and servers on the GPU")
      ->check(CLI::IsMember(AllComputeNetNames()));
  app.add_option("--torch-python", options.torch.program,
                 "a python3 whose PyTorch sees the GPU, to measure it, too");
  app.add_option("--torch-library-path", options.torch.library_path,
                 "LD_LIBRARY_PATH for that python3 (default: empty)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (print_gpu) return PrintGpu();

  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) {
    std::fprintf(stderr, "check: cannot read /proc/self/exe: expected /proc to be mounted\n");
    return 1;
  }
  const fs::path temporary = fs::temp_directory_path(error);
  std::string folder = (temporary / "starling-check.XXXXXX").string();
  if (error || mkdtemp(folder.data()) == nullptr) {
    std::fprintf(stderr, "check: cannot make a temporary folder: set TMPDIR to where one can be\n");
    return 1;
  }
  const bool good = Check({.program = program.string(),
                           .folder = folder,
                           .deadline = absl::Now() + kPatience},
                          options);
  if (good) fs::remove_all(folder, error);
  return good ? 0 : 1;
}

}  // namespace starling
