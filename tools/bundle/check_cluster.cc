#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "tools/bundle/check_parts.h"
#include "tools/bundle/images.h"
#include "tools/bundle/local_cluster.h"

namespace starling::bundle {
namespace {

constexpr int kTrainImages = 2000, kTestImages = 500;
constexpr double kLeastAccuracy = 0.9;  // over ten classes

// Two residual blocks with few channels: takes seconds on one core.
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
    train: {cifar: {files: [)",
                      folder, R"(/train.bin]}}
    test: {cifar: {files: [)",
                      folder, R"(/test.bin]}}
    normalize: {mean: [0.5], std: [0.25]}
  batch: {global: 50, microBatches: 2}
  optimizer:
    nesterov: {learningRate: {cosine: {peak: 0.05, warmupSteps: 20}}, momentum: 0.9}
  consistency: {bsp: {}}
  evaluate: {everyEpochs: 5}
  stop: {epochs: 5}
  model:)",
                      where == Where::kGpu ? kGpuModel : kCpuModel);
}

absl::StatusOr<std::string> Train(const Site& site, Where where) {
  const std::string name = where == Where::kGpu ? "cluster-gpu" : "cluster-cpu";
  const std::string folder = absl::StrCat(site.folder, "/", name);
  STARLING_RETURN_IF_ERROR(MakeFolder(folder));
  STARLING_RETURN_IF_ERROR(WriteImages(absl::StrCat(folder, "/train.bin"), kTrainImages, 1));
  STARLING_RETURN_IF_ERROR(WriteImages(absl::StrCat(folder, "/test.bin"), kTestImages, 2));
  const std::string job = absl::StrCat(folder, "/job.yaml");
  std::ofstream(job) << JobFile(folder, where);

  LocalCluster cluster(site, name);
  STARLING_ASSIGN_OR_RETURN(const std::string address, cluster.Begin(folder));
  const absl::Time begin = absl::Now();
  const std::string log = absl::StrCat(name, "-client");
  STARLING_ASSIGN_OR_RETURN(
      const std::string said,
      Run(site, log, {"starling", "submit", "-f", job, "--watch", "--coordinator", address}));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  const std::string accuracy = Find(said, "test_accuracy=([0-9.]+)");
  const std::string text =
      absl::StrFormat("the job succeeded in %.0f s, test accuracy %s (expected %.2f or more)",
                      seconds, accuracy.empty() ? "unknown" : accuracy, kLeastAccuracy);
  if (accuracy.empty() || std::stod(accuracy) < kLeastAccuracy) return absl::InternalError(text);
  return text;
}

}  // namespace

Outcome CheckCluster(const Site& site, Where where) { return OutcomeOf(Train(site, where)); }

}  // namespace starling::bundle
