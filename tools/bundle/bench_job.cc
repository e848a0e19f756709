#include "tools/bundle/bench_job.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "common/base/files.h"
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

void PutBigEndian(uint32_t value, std::string* out) {
  for (int shift = 24; shift >= 0; shift -= 8) out->push_back(static_cast<char>(value >> shift));
}

absl::Status WriteImages(const Net& net, const std::string& images, const std::string& labels) {
  const auto count = static_cast<uint32_t>(kSteps * net.batch);
  std::string image_bytes, label_bytes;
  PutBigEndian(0x803, &image_bytes);
  PutBigEndian(count, &image_bytes);
  for (int i = 0; i < 2; ++i) PutBigEndian(static_cast<uint32_t>(net.side), &image_bytes);
  PutBigEndian(0x801, &label_bytes);
  PutBigEndian(count, &label_bytes);
  std::mt19937 random(1);
  for (uint32_t i = 0; i < count; ++i) {
    for (int k = 0; k < net.side * net.side; ++k) {
      image_bytes.push_back(static_cast<char>(random()));
    }
    label_bytes.push_back(static_cast<char>(i % net.classes));
  }
  STARLING_RETURN_IF_ERROR(ReplaceFile(images, {image_bytes}));
  return ReplaceFile(labels, {label_bytes});
}

absl::Status WriteTokens(const Net& net, const std::string& path) {
  std::string bytes;
  std::mt19937 random(1);
  for (int64_t i = 0; i < kSteps * net.batch * net.context + 1; ++i) {
    const auto token = static_cast<uint16_t>(random() % static_cast<uint32_t>(net.classes));
    bytes += {static_cast<char>(token), static_cast<char>(token >> 8)};
  }
  return ReplaceFile(path, {bytes});
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
    const std::string text = absl::Substitute(R"(apiVersion: starling/v1
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
    STARLING_RETURN_IF_ERROR(ReplaceFile(job.file, {text}));
    return job;
  }
  return absl::NotFoundError(absl::StrCat("expected lenet, resnet50 or gpt2, got '", name, "'"));
}

}  // namespace starling
