#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/median.h"
#include "common/base/status_macros.h"
#include "tools/bench/compute_nets.h"
#include "tools/bundle/check_parts.h"
#include "tools/bundle/contender.h"

namespace starling::bundle {
namespace {

constexpr int kThreadsMax = 8;  // compute_bench's limit

// compute_bench requires a power of two.
int Threads() {
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  int threads = 1;
  while (2 * threads <= std::min(cores, kThreadsMax)) threads *= 2;
  return threads;
}

absl::StatusOr<std::string> MeasureNets(const Site& site) {
  std::vector<std::string> precisions = {"fp32"};
  if (__builtin_cpu_supports("avx512bf16")) precisions.push_back("bf16");
  STARLING_ASSIGN_OR_RETURN(
      const std::unique_ptr<Contender> bench,
      Contender::Start(site, "compute-cpu",
                       {site.program, "compute_bench", absl::StrCat(Threads())}));
  std::printf("  %d threads, %s\n", Threads(),
              bench->about().at("instruction_set").get<std::string>().c_str());
  std::vector<std::string> figures;
  for (const std::string& precision : precisions) {
    STARLING_ASSIGN_OR_RETURN(const double ceiling,
                              bench->Rate(absl::StrCat("matmul ", precision, " 2")));
    std::printf("  %-12s %12s %9s   share of the %.0f GFLOP/s of oneDNN's matrix product\n",
                precision.c_str(), "samples/s", "GFLOP/s", ceiling / 1e9);
    for (const std::string& net : ComputeNetNames()) {
      const std::string request = absl::StrCat(net, " ", precision);
      STARLING_RETURN_IF_ERROR(bench->Rate(absl::StrCat(request, " 0.5")).status());  // warms up
      STARLING_ASSIGN_OR_RETURN(const double rate, bench->Rate(absl::StrCat(request, " 4")));
      const double flops = rate * bench->about().at("flops").at(net).get<double>();
      std::printf("  %-12s %12.1f %9.0f   %.2f\n", net.c_str(), rate, flops / 1e9, flops / ceiling);
      figures.push_back(absl::StrFormat("%s %s %.1f", net, precision, rate));
    }
  }
  return absl::StrCat("samples/s: ", absl::StrJoin(figures, ", "));
}

// ---- On the GPU, beside PyTorch -----------------------------------------------------------------

struct GpuFigure {
  const char* net;
  const char* precision;
  const char* layout;  // PyTorch's
};
// In order of importance: time may not suffice for all, but the first kFirst are started anyway.
constexpr int kFirst = 2;
constexpr GpuFigure kGpuFigures[] = {
    {"resnet50", "bf16", "channels_last"}, {"gpt2", "bf16", "contiguous"},
    {"resnet18", "bf16", "channels_last"}, {"gpt", "bf16", "contiguous"},
    {"lenet", "bf16", "channels_last"},    {"resnet50", "fp32", "channels_last"},
    {"gpt2", "fp32", "contiguous"},        {"resnet18", "fp32", "channels_last"},
    {"gpt", "fp32", "contiguous"},         {"lenet", "fp32", "channels_last"},
};
constexpr int kTurns = 3;
constexpr double kTurnSeconds = 3, kWarmUpSeconds = 1;
// The time limit of a figure, mostly for PyTorch's compiler. With less time left, it is not
// started.
constexpr absl::Duration kFigurePatience = absl::Seconds(100);

// PyTorch brings its own libraries, and needs its own library path.
absl::StatusOr<std::unique_ptr<Contender>> StartTorch(const Site& site, const TorchPython& python,
                                                      const std::string& log) {
  const char* const set = std::getenv("LD_LIBRARY_PATH");
  const std::string ours = set == nullptr ? "" : set;
  setenv("LD_LIBRARY_PATH", python.library_path.c_str(), /*overwrite=*/1);
  const std::string peer =
      absl::StrCat(site.program.substr(0, site.program.rfind('/')), "/torch_peer.py");
  absl::StatusOr<std::unique_ptr<Contender>> torch =
      Contender::Start(site, log, {python.program, peer, absl::StrCat(Threads()), "cuda"});
  setenv("LD_LIBRARY_PATH", ours.c_str(), /*overwrite=*/1);
  return torch;
}

absl::StatusOr<std::unique_ptr<Contender>> WarmTorch(const Site& site, const TorchPython& python,
                                                     const std::string& name,
                                                     const std::string& asked) {
  STARLING_ASSIGN_OR_RETURN(std::unique_ptr<Contender> torch,
                            StartTorch(site, python, absl::StrCat("torch-", name)));
  STARLING_RETURN_IF_ERROR(torch->Rate(absl::StrCat(asked, kWarmUpSeconds)).status());
  return torch;
}

// Measures both sides in turns, each in its own process, whose end frees its GPU memory.
absl::StatusOr<Figure> MeasureGpuFigure(const Site& site, const TorchPython& python,
                                        const GpuFigure& figure) {
  const std::string name = absl::StrCat(figure.net, "-", figure.precision);
  const std::string ours_asked = absl::StrCat(figure.net, " ", figure.precision, " ");
  const std::string torch_asked = absl::StrCat(ours_asked, "compiled ", figure.layout, " ");
  STARLING_ASSIGN_OR_RETURN(const std::unique_ptr<Contender> starling,
                            Contender::Start(site, absl::StrCat("compute-", name),
                                             {site.program, "compute_bench", "gpu"}));
  STARLING_RETURN_IF_ERROR(starling->Rate(absl::StrCat(ours_asked, kWarmUpSeconds)).status());
  std::unique_ptr<Contender> torch;
  if (!python.program.empty()) {
    absl::StatusOr<std::unique_ptr<Contender>> peer = WarmTorch(site, python, name, torch_asked);
    if (peer.ok()) {
      torch = *std::move(peer);
    } else {  // it may lack a compiler or memory: our figure counts without it, too
      std::printf("  %s: no PyTorch: %s\n", name.c_str(),
                  std::string(peer.status().message()).c_str());
    }
  }
  std::vector<double> ours, theirs, ratios;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (const bool second : {false, true}) {
      const bool is_torch = (turn % 2 == 1) != second;
      if (is_torch && torch == nullptr) continue;
      STARLING_ASSIGN_OR_RETURN(const double rate,
                                is_torch ? torch->Rate(absl::StrCat(torch_asked, kTurnSeconds))
                                         : starling->Rate(absl::StrCat(ours_asked, kTurnSeconds)));
      (is_torch ? theirs : ours).push_back(rate);
    }
    if (torch != nullptr) ratios.push_back(ours.back() / theirs.back());
  }
  const double rate = Median(ours);
  const double flops = rate * starling->about().at("flops").at(figure.net).get<double>();
  Figure measured = {.name = name,
                     .values = {{"ours", absl::StrFormat("%.1f", rate)},
                                {"tflops", absl::StrFormat("%.1f", flops / 1e12)}}};
  auto& values = measured.values;
  if (torch == nullptr) {
    values.insert(values.end(), {{"torch", "none"}, {"ratio", "none"}});
    return measured;
  }
  std::sort(ratios.begin(), ratios.end());
  values.insert(values.end(), {{"torch", absl::StrFormat("%.1f", Median(theirs))},
                               {"ratio", absl::StrFormat("%.3f", Median(ratios))},
                               {"least", absl::StrFormat("%.3f", ratios.front())},
                               {"greatest", absl::StrFormat("%.3f", ratios.back())},
                               {"version", torch->about().at("version").get<std::string>()}});
  return measured;
}

}  // namespace

Outcome MeasureCpu(const Site& site) { return OutcomeOf(MeasureNets(site)); }

Outcome MeasureGpu(const Site& site, const GpuBench& bench) {
  int begun = 0, left_out = 0;
  std::vector<std::string> failures;
  Outcome outcome = {Outcome::kPassed, ""};
  for (const GpuFigure& figure : kGpuFigures) {
    if (!bench.nets.empty() && !absl::c_linear_search(bench.nets, figure.net)) continue;
    if (begun >= kFirst && absl::Now() + kFigurePatience > bench.until) {
      std::printf("  %s-%s: NOT RUN: no time for it\n", figure.net, figure.precision);
      ++left_out;
      continue;
    }
    ++begun;
    absl::StatusOr<Figure> measured = MeasureGpuFigure(site, bench.torch, figure);
    if (measured.ok()) {
      Print(*measured);
      outcome.figures.push_back(*std::move(measured));
    } else {  // it may be too large for this GPU while the next one fits
      failures.push_back(absl::StrCat(figure.net, " ", figure.precision, ": ",
                                      std::string(measured.status().message())));
    }
  }
  if (!failures.empty()) {
    outcome.verdict = Outcome::kFailed;
    outcome.text = absl::StrJoin(failures, "; ");
    return outcome;
  }
  outcome.text = absl::StrFormat(
      "%d figures%s%s", begun, left_out == 0 ? "" : absl::StrFormat(", %d NOT RUN", left_out),
      bench.torch.program.empty() ? "; no PyTorch: there is no python3 whose PyTorch sees the GPU"
                                  : "");
  return outcome;
}

}  // namespace starling::bundle
