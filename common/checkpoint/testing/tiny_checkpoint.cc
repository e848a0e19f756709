#include "common/checkpoint/testing/tiny_checkpoint.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/reader.h"
#include "common/checkpoint/shard_file.h"
#include "common/checkpoint/store.h"

namespace starling {
namespace {

void AddParameter(Graph* model, const std::string& name, const std::vector<int64_t>& shape,
                  ParameterKind kind) {
  Parameter* const parameter = model->add_parameters();
  parameter->set_name(name);
  for (const int64_t dim : shape) parameter->add_shape(dim);
  parameter->set_kind(kind);
  if (kind == STATISTIC) parameter->set_statistic_momentum(0.1);
}

uint64_t Elements(const Parameter& parameter) {
  uint64_t elements = 1;
  for (const int64_t dim : parameter.shape()) elements *= static_cast<uint64_t>(dim);
  return elements;
}

std::vector<BlockPart> PartsOf(const Parameter& parameter) {
  if (parameter.kind() == TRAINABLE) return {BlockPart::kValue, BlockPart::kSlot0};
  return {BlockPart::kValue};
}

}  // namespace

JobDescription TinyJob(JobUid uid) {
  JobDescription job;
  job.mutable_run()->set_job_uid(uid.value);
  job.mutable_run()->set_era(1);
  job.set_train_samples(100);
  job.set_partitions(4);
  JobSpec* const spec = job.mutable_spec();
  spec->set_name("digits");
  spec->mutable_batch()->set_global(8);
  spec->mutable_stop()->set_epochs(3);
  AddParameter(spec->mutable_model(), "conv.weight", {2, 2, 4}, TRAINABLE);
  AddParameter(spec->mutable_model(), "conv@2", {2}, TRAINABLE);
  AddParameter(spec->mutable_model(), "norm.mean", {5}, STATISTIC);
  AddParameter(spec->mutable_model(), "table", {3}, FROZEN);
  return job;
}

float TinyValue(uint64_t step, absl::string_view parameter, BlockPart part, uint64_t index) {
  const uint64_t place = 100 * parameter.size() + 20 * static_cast<uint64_t>(part) + index;
  return static_cast<float>(10'000 * step + place) + 0.25f;
}

std::vector<CapturedBlock> TinyBlocks(uint64_t step, uint32_t shard, uint32_t shards,
                                      uint64_t elements_max) {
  std::vector<CapturedBlock> blocks;
  uint32_t next = 0;
  const Graph model = TinyJob().spec().model();
  for (const Parameter& parameter : model.parameters()) {
    for (uint64_t begin = 0; begin < Elements(parameter); begin += elements_max) {
      if (next++ % shards != shard) continue;
      const uint64_t count = std::min(elements_max, Elements(parameter) - begin);
      for (const BlockPart part : PartsOf(parameter)) {
        auto values = std::make_shared<std::vector<float>>();
        for (uint64_t i = begin; i < begin + count; ++i)
          values->push_back(TinyValue(step, parameter.name(), part, i));
        blocks.push_back({{parameter.name(), begin, part}, *values, values});
      }
    }
  }
  return blocks;
}

CheckpointManifest TinyManifest(const CheckpointId& id, uint64_t step) {
  CheckpointManifest manifest;
  manifest.set_format(kManifestFormat);
  manifest.set_id(ToString(id));
  *manifest.mutable_job() = TinyJob(id.job);
  manifest.set_step(step);
  manifest.mutable_policy()->set_kind(Policy::BSP);
  manifest.set_created("2024-01-02T03:04:05Z");
  return manifest;
}

absl::Status WriteTinyCheckpoint(CheckpointDisk& disk, const CheckpointId& id, uint64_t step,
                                 uint32_t shards) {
  STARLING_RETURN_IF_ERROR(BeginCheckpoint(disk, id, kTinyNonce));
  CheckpointManifest manifest = TinyManifest(id, step);
  for (uint32_t shard = 0; shard < shards; ++shard) {
    CheckpointCapture capture;
    capture.Add(TinyBlocks(step, shard, shards));
    STARLING_ASSIGN_OR_RETURN(
        *manifest.add_files(),
        WriteShardFile(disk, id, kTinyNonce, step, ShardId(shard + 1), capture, [](uint64_t) {}));
  }
  return SealCheckpoint(disk, id, manifest).status();
}

absl::Status CheckTinyCheckpoint(std::shared_ptr<CheckpointDisk> disk, const CheckpointId& id,
                                 uint64_t step) {
  STARLING_ASSIGN_OR_RETURN(const auto reader,
                            CheckpointReader::Open(std::move(disk), id, std::nullopt));
  STARLING_RETURN_IF_ERROR(reader->VerifyAll([](uint64_t) { return true; }));
  const Graph model = TinyJob().spec().model();
  for (const Parameter& parameter : model.parameters()) {
    for (const BlockPart part : PartsOf(parameter)) {
      std::vector<float> values(Elements(parameter));
      STARLING_RETURN_IF_ERROR(reader->Read(parameter.name(), 0, part, absl::MakeSpan(values)));
      for (uint64_t i = 0; i < values.size(); ++i) {
        const float expected = TinyValue(step, parameter.name(), part, i);
        if (values[i] == expected) continue;
        return absl::DataLossError(absl::StrCat(ToString(BlockName{parameter.name(), i, part}),
                                                ": expected ", expected, ", got ", values[i]));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace starling
