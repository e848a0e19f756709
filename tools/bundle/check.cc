#include "tools/bundle/check.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/version/version.h"
#include "kernels/cuda/library.h"
#include "nlohmann/json.hpp"
#include "tools/bench/compute_nets.h"
#include "tools/bundle/check_parts.h"

namespace starling {
namespace {

using bundle::Outcome;
using bundle::Site;
using bundle::Where;

using Json = nlohmann::ordered_json;

// For all parts together: less than the 8 minutes requested of a machine, since stopped parts still
// have to be reported. Parts that are named have only their own limits.
constexpr absl::Duration kPatience = absl::Seconds(435);
// Reserved for the servers after the table, whose duration depends on PyTorch's compiler.
constexpr absl::Duration kServersPatience = absl::Seconds(140);

// Prints lines `NAME: TEXT`. Run in a separate process, whose end frees its memory on the GPU.
int PrintGpu() {
  const auto gpu = OpenCudaDevice("");
  const bundle::GpuVersions versions = bundle::LookAtVersions();
  const auto print = [](const char* name, const std::string& text) {
    std::printf("%s: %s\n", name, text.empty() ? "not found" : text.c_str());
  };
  print("gpu", gpu.ok() ? absl::StrCat((*gpu)->name(), " (", (*gpu)->instruction_set(), ")")
                        : std::string(gpu.status().message()));
  print("driver", versions.driver);
  print("cudnn", versions.cudnn);
  print("cublas", versions.cublas);
  return gpu.ok() ? 0 : 1;
}

struct Gpu {
  bool usable = false;
  std::string text;  // its name, or why there is none
  bundle::GpuVersions versions;
  std::string VersionsText() const {
    return absl::StrCat("driver ", versions.driver, ", cuDNN ", versions.cudnn, ", cuBLAS ",
                        versions.cublas);
  }
};

Gpu LookForGpu(const Site& site) {
  const absl::StatusOr<pid_t> pid = bundle::Start(site, "gpu", {"check", "--gpu"});
  if (!pid.ok()) return {false, std::string(pid.status().message()), {}};
  const absl::StatusOr<int> status = bundle::WaitFor(*pid, site.deadline);
  const std::string log = bundle::ReadFile(bundle::LogPath(site, "gpu"));
  const auto line = [&log](const std::string& name) {
    const std::string start = absl::StrCat(name, ": ");
    std::vector<std::string> lines = absl::StrSplit(log, '\n');
    const auto found = absl::c_find_if(
        lines, [&](const std::string& text) { return absl::StartsWith(text, start); });
    return found == lines.end() ? std::string("not found") : found->substr(start.size());
  };
  Gpu gpu = {.usable = status.ok() && *status == 0,
             .text = line("gpu"),
             .versions = {line("driver"), line("cudnn"), line("cublas")}};
  if (!status.ok()) gpu.text = absl::StrCat("looking for one: ", status.status().message());
  return gpu;
}

constexpr const char* kVerdicts[] = {"passed", "FAILED", "NOT RUN"};  // by Outcome::Verdict
static_assert(std::size(kVerdicts) == Outcome::kNotRun + 1);

// Runs parts, counts their outcomes, and keeps the results so far in a file, so that a killed run
// has still reported its finished parts.
class Report {
 public:
  Report(const Gpu& gpu, const std::string& commit, std::string json_path)
      : gpu_(gpu),
        path_(std::move(json_path)),
        json_({{"version", ReleaseVersion()},
               {"commit", commit},
               {"cores", std::thread::hardware_concurrency()},
               {"gpu",
                {{"usable", gpu.usable},
                 {"name", gpu.text},
                 {"driver", gpu.versions.driver},
                 {"cudnn", gpu.versions.cudnn},
                 {"cublas", gpu.versions.cublas}}},
               {"parts", Json::array()}}) {}

  void Part(const std::string& name, Where where, absl::Duration limit,
            const std::function<Outcome()>& part) {
    std::printf("== %s (%.0f s at most)\n", name.c_str(), absl::ToDoubleSeconds(limit));
    const absl::Time begin = absl::Now();
    const Outcome outcome = part();
    const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    const char* const verdict = kVerdicts[outcome.verdict];
    std::printf("%s: %s: %s\n", name.c_str(), verdict, outcome.text.c_str());
    ++(where == Where::kGpu ? on_gpu_ : on_cpu_)[outcome.verdict];
    Json figures = Json::object();
    for (const bundle::Figure& figure : outcome.figures) {
      for (const auto& [key, value] : figure.values) figures[figure.name][key] = value;
    }
    json_["parts"].push_back({{"name", name},
                              {"verdict", verdict},
                              {"text", outcome.text},
                              {"seconds", seconds},
                              {"limit_seconds", absl::ToDoubleSeconds(limit)},
                              {"figures", std::move(figures)}});
    WriteJson();
  }

  bool good() const { return on_cpu_[Outcome::kFailed] + on_gpu_[Outcome::kFailed] == 0; }

  // "bundle: CPU: 3 passed, 0 failed. GPU: NOT RUN: no driver"
  void Last() {
    const bool ran = on_gpu_[Outcome::kPassed] + on_gpu_[Outcome::kFailed] > 0;
    const std::string on_gpu =
        gpu_.usable || ran ? Text(on_gpu_) : absl::StrCat("NOT RUN: ", gpu_.text);
    const std::string last = absl::StrCat(
        "bundle: ", good() ? "" : "FAILED: ", "CPU: ", Text(on_cpu_), ". GPU: ", on_gpu);
    json_["last"] = last;
    WriteJson();
    std::printf("%s\n", last.c_str());
  }

 private:
  using Tally = int[3];
  static std::string Text(const Tally& tally) {
    return absl::StrFormat(
        "%d passed, %d failed%s", tally[Outcome::kPassed], tally[Outcome::kFailed],
        tally[Outcome::kNotRun] == 0 ? ""
                                     : absl::StrFormat(", %d NOT RUN", tally[Outcome::kNotRun]));
  }

  void WriteJson() const {
    if (path_.empty()) return;
    std::ofstream file(path_);
    // A path or a program's last output may contain bytes that are not UTF-8.
    file << json_.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    file.close();
    if (!file) std::fprintf(stderr, "check: cannot write %s\n", path_.c_str());
  }

  const Gpu& gpu_;
  const std::string path_;
  Json json_;
  Tally on_cpu_ = {}, on_gpu_ = {};
};

// A part named on the command line: "compute resnet50" is {"compute", {"resnet50"}}.
struct Wanted {
  std::string name;
  std::vector<std::string> nets;
};

struct CheckOptions {
  std::vector<Wanted> parts;  // empty: all except those that run only if named
  std::string on;             // "cpu" or "gpu"; empty: both
  bundle::TorchPython torch;
  std::string sanitizer;  // path of compute-sanitizer; empty: none
  std::string json;       // output file; empty: none
};

// A part that `check` can run, with its time limit.
struct PartKind {
  const char* name;
  absl::Duration limit;
  bool on_cpu;
  bool nets;     // may be followed by nets
  bool by_name;  // runs only if named
};
constexpr PartKind kParts[] = {
    {"check", absl::Seconds(75), false, false, false},
    {"conformance", absl::Seconds(300), true, false, false},
    {"cluster", absl::Seconds(120), true, false, false},
    {"compute", absl::Seconds(300), true, true, false},
    {"servers", absl::Seconds(300), false, true, false},
    {"memcheck", absl::Seconds(540), false, false, true},
    {"racecheck", absl::Seconds(540), false, false, true},
};

absl::StatusOr<std::vector<Wanted>> ReadParts(const std::vector<std::string>& words) {
  std::vector<Wanted> wanted;
  const std::vector<std::string> nets = AllComputeNetNames();
  const PartKind* last = nullptr;
  for (const std::string& word : words) {
    const auto* const kind =
        absl::c_find_if(kParts, [&](const PartKind& part) { return part.name == word; });
    if (kind != std::end(kParts)) {
      last = kind;
      wanted.push_back({word, {}});
    } else if (last != nullptr && last->nets && absl::c_linear_search(nets, word)) {
      wanted.back().nets.push_back(word);
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", word, "\": expected parts (",
          absl::StrJoin(kParts, ", ",
                        [](std::string* out, const PartKind& part) { *out += part.name; }),
          "), compute and servers perhaps followed by nets (", absl::StrJoin(nets, ", "), ")"));
    }
  }
  return wanted;
}

Outcome RunPart(const Site& site, const PartKind& kind, Where where, const Gpu& gpu,
                const std::vector<std::string>& nets, absl::Time compute_until,
                const CheckOptions& options) {
  const std::string name = kind.name;
  if (where == Where::kGpu && !gpu.usable) return {Outcome::kNotRun, gpu.text};
  if (name == "check") {
    return {Outcome::kPassed, absl::StrCat(gpu.text, ", ", gpu.VersionsText())};
  }
  if (name == "conformance") return bundle::CheckConformance(site, where);
  if (name == "cluster") return bundle::CheckCluster(site, where);
  if (name == "servers") return bundle::MeasureServers(site, nets);
  if (name == "compute") {
    if (where == Where::kCpu) return bundle::MeasureCpu(site);
    return bundle::MeasureGpu(site, {.torch = options.torch, .nets = nets, .until = compute_until});
  }
  return bundle::CheckSanitized(site, options.sanitizer, name);
}

bool Check(Site site, const CheckOptions& options) {
  const absl::Time begin = absl::Now();
  site.deadline = begin + kParts[0].limit;
  const Gpu gpu = LookForGpu(site);
  std::printf("starling %s, %u cores, GPU: %s\n", std::string(ReleaseVersion()).c_str(),
              std::thread::hardware_concurrency(), gpu.text.c_str());
  std::printf("%s\n", gpu.VersionsText().c_str());
  // tools/gpu_bundle.sh writes it next to the program.
  std::string commit =
      bundle::ReadFile(site.program.substr(0, site.program.rfind('/')) + "/COMMIT");
  absl::StripTrailingAsciiWhitespace(&commit);
  Report report(gpu, commit, options.json);
  const bool all = options.parts.empty();
  const absl::Time end = all ? begin + kPatience : absl::InfiniteFuture();
  const auto run = [&](const PartKind& kind, Where where, const std::vector<std::string>& nets) {
    const bool on_gpu = where == Where::kGpu;
    if (!options.on.empty() && options.on != (on_gpu ? "gpu" : "cpu")) return;
    if (!on_gpu && (!kind.on_cpu || !nets.empty())) return;  // nets are measured on the GPU only
    site.deadline = std::min(absl::Now() + kind.limit, end);
    const absl::Time until = all ? std::min(site.deadline, end - kServersPatience) : site.deadline;
    std::string name = kind.name;
    for (const std::string& net : nets) absl::StrAppend(&name, " ", net);
    report.Part(absl::StrCat(name, on_gpu ? " gpu" : " cpu"), where, site.deadline - absl::Now(),
                [&] { return RunPart(site, kind, where, gpu, nets, until, options); });
  };
  for (const Where where : {Where::kCpu, Where::kGpu}) {
    for (const PartKind& kind : kParts) {
      if (all && !kind.by_name) run(kind, where, {});
      for (const Wanted& wanted : options.parts) {
        if (wanted.name == kind.name) run(kind, where, wanted.nets);
      }
    }
  }
  if (!report.good()) std::printf("logs are in %s\n", site.folder.c_str());
  report.Last();
  return report.good();
}

}  // namespace

int CheckMain(int argc, char** argv) {
  CLI::App app("Runs the bundle's programs on this machine, and says what holds.", "check");
  bool print_gpu = false;
  CheckOptions options;
  std::vector<std::string> words;
  app.add_flag("--gpu", print_gpu, "only say which GPU is used, or why none; status 0 or 1");
  app.add_option("PART", words,
                 "only these: check, conformance, cluster, compute [NET...], servers [NET...], "
                 "memcheck, racecheck; the last two run only when they are named");
  app.add_option("--on", options.on, "only there")->check(CLI::IsMember({"cpu", "gpu"}));
  app.add_option("--json", options.json, "a file for what is printed, as JSON");
  app.add_option("--sanitizer", options.sanitizer, "compute-sanitizer, for memcheck, racecheck");
  app.add_option("--torch-python", options.torch.program,
                 "a python3 whose PyTorch sees the GPU, to measure it, too");
  app.add_option("--torch-library-path", options.torch.library_path,
                 "LD_LIBRARY_PATH for that python3 (default: empty)");
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (print_gpu) return PrintGpu();
  absl::StatusOr<std::vector<Wanted>> parts = ReadParts(words);
  if (!parts.ok()) {
    std::fprintf(stderr, "check: %s\n", std::string(parts.status().message()).c_str());
    return 2;
  }
  options.parts = *std::move(parts);

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
  const bool good = Check({.program = program.string(), .folder = folder}, options);
  if (good) fs::remove_all(folder, error);
  return good ? 0 : 1;
}

}  // namespace starling
