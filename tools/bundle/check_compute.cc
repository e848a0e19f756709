#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/bench/compute_nets.h"
#include "tools/bundle/check_parts.h"

namespace starling::bundle {
namespace {

using Json = nlohmann::json;

constexpr int kThreadsMax = 8;  // of compute_bench

// What is asked, one line each; the first answer of a net is its warm-up.
absl::Status WriteRequests(const std::string& path, const std::vector<std::string>& requests) {
  std::ofstream file(path);
  for (const std::string& request : requests) file << request << "\n";
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path));
}

// The JSON lines among what a process printed: the first says what it is, the rest are answers.
absl::StatusOr<std::vector<Json>> Answers(const std::string& path, size_t expected) {
  std::vector<Json> answers;
  std::istringstream lines(ReadFile(path));
  for (std::string line; std::getline(lines, line);) {
    if (!absl::StartsWith(line, "{")) continue;
    Json answer = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!answer.is_discarded()) answers.push_back(std::move(answer));
  }
  if (answers.size() == expected) return answers;
  return absl::InternalError(
      absl::StrCat(path, " has ", answers.size(), " answers, expected ", expected));
}

double Rate(const Json& answer) {
  return answer.at("units").get<double>() / answer.at("seconds").get<double>();
}

// A power of two, as the bench wants it.
int Threads() {
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  int threads = 1;
  while (2 * threads <= std::min(cores, kThreadsMax)) threads *= 2;
  return threads;
}

absl::StatusOr<std::string> MeasureNets(const Site& site) {
  const std::vector<std::string> nets = ComputeNetNames();
  std::vector<std::string> precisions = {"fp32"};
  if (__builtin_cpu_supports("avx512bf16")) precisions.push_back("bf16");
  std::vector<std::string> requests;
  for (const std::string& precision : precisions) {
    requests.push_back(absl::StrCat("matmul ", precision, " 2"));
    for (const std::string& net : nets) {
      requests.push_back(absl::StrCat(net, " ", precision, " 0.5"));
      requests.push_back(absl::StrCat(net, " ", precision, " 4"));
    }
  }
  const std::string input = absl::StrCat(site.folder, "/compute-cpu.requests");
  STARLING_RETURN_IF_ERROR(WriteRequests(input, requests));
  STARLING_ASSIGN_OR_RETURN(
      const pid_t bench,
      Start(site, "compute-cpu", {"compute_bench", absl::StrCat(Threads())}, input));
  STARLING_RETURN_IF_ERROR(Succeeded(site, "compute-cpu", bench));
  STARLING_ASSIGN_OR_RETURN(const std::vector<Json> answers,
                            Answers(LogPath(site, "compute-cpu"), requests.size() + 1));
  std::printf("  %d threads, %s\n", Threads(),
              answers[0].at("instruction_set").get<std::string>().c_str());
  std::vector<std::string> figures;
  size_t next = 1;
  for (const std::string& precision : precisions) {
    const double ceiling = Rate(answers[next++]);
    std::printf("  %-12s %12s %9s   share of the %.0f GFLOP/s of oneDNN's matrix product\n",
                precision.c_str(), "samples/s", "GFLOP/s", ceiling / 1e9);
    for (const std::string& net : nets) {
      const double rate = Rate(answers[next + 1]);  // behind the warm-up's
      next += 2;
      const double flops = rate * answers[0].at("flops").at(net).get<double>();
      std::printf("  %-12s %12.1f %9.0f   %.2f\n", net.c_str(), rate, flops / 1e9,
                  flops / ceiling);
      figures.push_back(absl::StrFormat("%s %s %.1f", net, precision, rate));
    }
  }
  return absl::StrCat("samples/s: ", absl::StrJoin(figures, ", "));
}

struct TorchNet {
  const char* name;
  const char* layout;
};
constexpr TorchNet kTorchNets[] = {{"resnet50", "channels_last"}, {"gpt2", "contiguous"}};

absl::StatusOr<std::string> AskTorch(const Site& site, const TorchPython& python) {
  std::vector<std::string> requests;
  for (const TorchNet& net : kTorchNets) {
    requests.push_back(absl::StrCat(net.name, " bf16 compiled ", net.layout, " 10"));
  }
  const std::string input = absl::StrCat(site.folder, "/torch-gpu.requests");
  STARLING_RETURN_IF_ERROR(WriteRequests(input, requests));
  const std::string peer =
      absl::StrCat(site.program.substr(0, site.program.rfind('/')), "/torch_peer.py");
  const std::vector<std::string> argv = {python.program, peer, absl::StrCat(Threads()), "cuda"};
  STARLING_ASSIGN_OR_RETURN(const pid_t torch, StartProgram(site, "torch-gpu", argv, input));
  STARLING_RETURN_IF_ERROR(Succeeded(site, "torch-gpu", torch));
  STARLING_ASSIGN_OR_RETURN(const std::vector<Json> answers,
                            Answers(LogPath(site, "torch-gpu"), requests.size() + 1));
  std::vector<std::string> figures;
  for (size_t i = 0; i < requests.size(); ++i) {
    figures.push_back(absl::StrFormat("%s %.1f", kTorchNets[i].name, Rate(answers[i + 1])));
  }
  return absl::StrCat("PyTorch ", answers[0].at("version").get<std::string>(),
                      ", bf16, compiled, samples/s: ", absl::StrJoin(figures, ", "));
}

Outcome OutcomeOf(const absl::StatusOr<std::string>& text) {
  if (text.ok()) return {Outcome::kPassed, *text};
  return {Outcome::kFailed, std::string(text.status().message())};
}

}  // namespace

Outcome MeasureCpu(const Site& site) { return OutcomeOf(MeasureNets(site)); }

Outcome MeasureTorch(const Site& site, const TorchPython& python) {
  setenv("LD_LIBRARY_PATH", python.library_path.c_str(), /*overwrite=*/1);
  return OutcomeOf(AskTorch(site, python));
}

}  // namespace starling::bundle
