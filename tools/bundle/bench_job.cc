#include "tools/bundle/bench_job.h"

#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

struct Net {
  const char* name;
  const char* model;
  int64_t batch;
  int side;     // of an image; 0: tokens
  int classes;  // of labels, which are bytes; or distinct tokens
  int context;
  const char* optimizer;
};
constexpr char kMomentum[] = "momentum: {learningRate: 0.001, momentum: 0.9}";
constexpr char kAdamW[] = "adamw: {learningRate: 0.0001, beta2: 0.95, weightDecay: 0.1}";
constexpr Net kNets[] = {
    {"lenet", "builtin: lenet", 128, 28, 10, 0, kMomentum},
    {"resnet50", "builtin: resnet50, classes: 1000", 256, 224, 256, 0, kMomentum},
    {"gpt2", "builtin: gpt2", 16, 0, 50257, 1024, kAdamW}};
constexpr int64_t kSteps = 4;  // per epoch

void PutBigEndian(uint32_t value, std::ofstream& file) {
  for (int shift = 24; shift >= 0; shift -= 8) file.put(static_cast<char>(value >> shift));
}

absl::Status Written(std::ofstream& file, const std::string& path) {
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::Status WriteImages(const Net& net, const std::string& images, const std::string& labels) {
  const auto count = static_cast<uint32_t>(kSteps * net.batch);
  std::ofstream image_file(images, std::ios::binary), label_file(labels, std::ios::binary);
  PutBigEndian(0x803, image_file);
  PutBigEndian(count, image_file);
  for (int i = 0; i < 2; ++i) PutBigEndian(static_cast<uint32_t>(net.side), image_file);
  PutBigEndian(0x801, label_file);
  PutBigEndian(count, label_file);
  std::mt19937 random(1);
  for (uint32_t i = 0; i < count; ++i) {
    for (int k = 0; k < net.side * net.side; ++k) image_file.put(static_cast<char>(random()));
    label_file.put(static_cast<char>(i % net.classes));
  }
  STARLING_RETURN_IF_ERROR(Written(image_file, images));
  return Written(label_file, labels);
}

absl::Status WriteTokens(const Net& net, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  std::mt19937 random(1);
  for (int64_t i = 0; i < kSteps * net.batch * net.context + 1; ++i) {
    const auto token = static_cast<uint16_t>(random() % static_cast<uint32_t>(net.classes));
    file.put(static_cast<char>(token)).put(static_cast<char>(token >> 8));
  }
  return Written(file, path);
}

// Writes the data, and returns the job file's description of it.
absl::StatusOr<std::string> WriteData(const Net& net, const std::string& prefix) {
  if (net.side == 0) {
    const std::string tokens = absl::StrCat(prefix, "-tokens.bin");
    STARLING_RETURN_IF_ERROR(WriteTokens(net, tokens));
    return absl::Substitute("train: {tokens: {path: $0, context: $1, vocabulary: $2}}", tokens,
                            net.context, net.classes);
  }
  const std::string images = absl::StrCat(prefix, "-images.idx");
  const std::string labels = absl::StrCat(prefix, "-labels.idx");
  STARLING_RETURN_IF_ERROR(WriteImages(net, images, labels));
  return absl::Substitute(
      "train: {idx: {images: $0, labels: $1}}\n    normalize: {mean: [0.5], std: [0.25]}", images,
      labels);
}

}  // namespace

absl::StatusOr<BenchJob> WriteBenchJob(absl::string_view name, const std::string& folder) {
  for (const Net& net : kNets) {
    if (name != net.name) continue;
    BenchJob job;
    job.name = absl::StrCat("bench-", net.name);
    job.batch = net.batch;
    const std::string prefix = absl::StrCat(folder, "/", net.name);
    job.file = absl::StrCat(prefix, ".yaml");
    STARLING_ASSIGN_OR_RETURN(const std::string data, WriteData(net, prefix));
    std::ofstream file(job.file);
    file << absl::Substitute(R"(apiVersion: starling/v1
kind: TrainingJob
metadata: {name: $0}
spec:
  seed: 1
  model: {$1}
  data:
    $2
  batch: {global: $3, microBatches: 1}
  optimizer:
    $4
  precision: bf16
  consistency: {ssp: {staleness: 1}}
  workers: {min: 1, max: 1, device: gpu}
  stop: {epochs: 100000}
)",
                             job.name, net.model, data, net.batch, net.optimizer);
    STARLING_RETURN_IF_ERROR(Written(file, job.file));
    return job;
  }
  return absl::NotFoundError(absl::StrCat("expected lenet, resnet50 or gpt2, got '", name, "'"));
}

}  // namespace starling
