#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <regex>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "tools/bundle/check_parts.h"
#include "tools/bundle/images.h"
#include "tools/local/process.h"
#include "tools/local/state_directory.h"

namespace starling::bundle {
namespace {

constexpr int kTrainImages = 2000, kTestImages = 500;
constexpr double kLeastAccuracy = 0.9;  // of ten classes
constexpr absl::Duration kStopPatience = absl::Seconds(15);

// Two residual blocks of few channels: seconds on one core.
constexpr char kCpuModel[] = R"(
    layers:
      - conv2d: {out_channels: 8, kernel: 3, stride: 2, padding: 1, bias: false}
      - batchnorm
      - relu: {name: trunk1}
      - conv2d: {out_channels: 8, kernel: 3, padding: 1, bias: false}
      - batchnorm
      - relu
      - conv2d: {out_channels: 8, kernel: 3, padding: 1, bias: false}
      - batchnorm: {name: branch1}
      - add: {inputs: [branch1, trunk1]}
      - relu
      - conv2d: {out_channels: 16, kernel: 3, stride: 2, padding: 1, bias: false}
      - batchnorm
      - relu: {name: trunk2}
      - conv2d: {out_channels: 16, kernel: 3, padding: 1, bias: false}
      - batchnorm
      - relu
      - conv2d: {out_channels: 16, kernel: 3, padding: 1, bias: false}
      - batchnorm: {name: branch2}
      - add: {inputs: [branch2, trunk2]}
      - relu
      - global_avgpool2d
      - linear
  precision: fp32
  workers: {device: cpu}
)";
constexpr char kGpuModel[] = R"(
    builtin: resnet18
    stem: cifar
  precision: bf16
  workers: {device: gpu}
)";

std::string JobFile(const std::string& folder, Where where) {
  return absl::StrCat(R"(apiVersion: starling/v1
kind: TrainingJob
metadata: {name: check}
spec:
  seed: 1
  data:
    train: {cifar: {files: [)", folder, R"(/train.bin]}}
    test: {cifar: {files: [)", folder, R"(/test.bin]}}
    normalize: {mean: [0.5], std: [0.25]}
  batch: {global: 50, microBatches: 2}
  optimizer:
    nesterov: {learningRate: {cosine: {peak: 0.05, warmupSteps: 20}}, momentum: 0.9}
  consistency: {ssp: {staleness: 1}}
  evaluate: {everyEpochs: 5}
  stop: {epochs: 5}
  model:)", where == Where::kGpu ? kGpuModel : kCpuModel);
}

absl::Status Make(const std::string& folder) {
  if (mkdir(folder.c_str(), 0755) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot make ", folder, ": ", std::strerror(errno)));
}

// The daemons by their names, as `starling local up --bin-dir` looks for them.
absl::Status LinkDaemons(const std::string& program, const std::string& folder) {
  for (const char* name : {"starling-coordinator", "starling-ps", "starling-worker"}) {
    if (symlink(program.c_str(), absl::StrCat(folder, "/", name).c_str()) != 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot make a link in ", folder, ": ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

std::string Find(const std::string& text, const char* pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern)) ? match[1].str() : "";
}

// `starling local up`, which stays in the foreground, and all that it started; stops them.
class LocalCluster {
 public:
  LocalCluster(const Site& site, std::string log) : site_(site), log_(std::move(log)) {}
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;
  ~LocalCluster() {
    if (pid_ <= 0) return;
    kill(pid_, SIGTERM);
    if (!WaitFor(pid_, absl::Now() + kStopPatience).ok()) {
      std::printf("  the cluster did not stop within %s, and was killed\n",
                  absl::FormatDuration(kStopPatience).c_str());
    }
  }

  // Returns the coordinator's address when all have registered.
  absl::StatusOr<std::string> Begin(const std::string& programs, const std::string& state) {
    STARLING_ASSIGN_OR_RETURN(
        pid_, Start(site_, log_, {"starling", "local", "up", "--shards", "2", "--workers", "1",
                                 "--no-restart", "--bin-dir", programs, "--state", state}));
    for (;;) {
      const std::string address = Find(ReadFile(LogPath(site_, log_)), "address=(\\S+)\n");
      if (!address.empty()) return address;
      int status = 0;
      std::string why = "was not there in time";
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        why = local::ExitText(status);
      } else if (absl::Now() < site_.deadline) {
        absl::SleepFor(absl::Milliseconds(50));
        continue;
      }
      return absl::InternalError(absl::StrCat("the cluster ", why, "; its last words:\n",
                                              local::LastLines(LogPath(site_, log_), 8)));
    }
  }

 private:
  const Site& site_;
  const std::string log_;
  pid_t pid_ = -1;
};

absl::StatusOr<std::string> Train(const Site& site, Where where) {
  const std::string name = where == Where::kGpu ? "cluster-gpu" : "cluster-cpu";
  const std::string folder = absl::StrCat(site.folder, "/", name);
  const std::string programs = absl::StrCat(folder, "/programs");
  STARLING_RETURN_IF_ERROR(Make(folder));
  STARLING_RETURN_IF_ERROR(Make(programs));
  STARLING_RETURN_IF_ERROR(LinkDaemons(site.program, programs));
  STARLING_RETURN_IF_ERROR(WriteImages(absl::StrCat(folder, "/train.bin"), kTrainImages, 1));
  STARLING_RETURN_IF_ERROR(WriteImages(absl::StrCat(folder, "/test.bin"), kTestImages, 2));
  const std::string job = absl::StrCat(folder, "/job.yaml");
  std::ofstream(job) << JobFile(folder, where);

  LocalCluster cluster(site, name);
  STARLING_ASSIGN_OR_RETURN(const std::string address,
                            cluster.Begin(programs, absl::StrCat(folder, "/state")));
  const absl::Time begin = absl::Now();
  const std::string log = absl::StrCat(name, "-client");
  STARLING_ASSIGN_OR_RETURN(
      const pid_t client,
      Start(site, log, {"starling", "submit", "-f", job, "--watch", "--coordinator", address}));
  STARLING_RETURN_IF_ERROR(Succeeded(site, log, client));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  const std::string accuracy = Find(ReadFile(LogPath(site, log)), "test_accuracy=([0-9.]+)");
  const std::string text = absl::StrFormat(
      "the job succeeded in %.0f s, test accuracy %s (expected %.2f or more)", seconds,
      accuracy.empty() ? "unknown" : accuracy, kLeastAccuracy);
  if (accuracy.empty() || std::stod(accuracy) < kLeastAccuracy) return absl::InternalError(text);
  return text;
}

}  // namespace

Outcome CheckCluster(const Site& site, Where where) {
  const absl::StatusOr<std::string> trained = Train(site, where);
  if (trained.ok()) return {Outcome::kPassed, *trained};
  return {Outcome::kFailed, std::string(trained.status().message())};
}

}  // namespace starling::bundle
