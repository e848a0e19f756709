#include "worker/host/step_recorder.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/data_plan/job_steps.h"
#include "common/safetensors/safetensors.h"
#include "google/protobuf/util/json_util.h"
#include "spdlog/spdlog.h"

namespace starling {
namespace {

std::string Json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string out;
  // Fails only for google.protobuf.Any, which these messages do not contain.
  (void)google::protobuf::util::MessageToJsonString(message, &out, options);
  return out;
}

template <typename T>
absl::Span<const uint8_t> Bytes(const T* data, size_t count) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(data), count * sizeof(T));
}

}  // namespace

void StepRecorder::BeginJob(const JobDescription& description, const Layout& layout) {
  MutexLock lock(&mutex_);
  description_ = description;
  layout_ = layout;
  open_.clear();
  written_.clear();
}

StepRecorder::Step* StepRecorder::Find(Clock clock) {
  if (clock < 0 || clock >= steps_ || written_.count(clock) > 0) return nullptr;
  auto [it, fresh] = open_.try_emplace(clock);
  if (fresh) {
    it->second.values.resize(layout_.elements);
    it->second.gradients.resize(layout_.elements);
    for (const Slice& slice : layout_.slices) {
      it->second.values_missing.insert(slice.id);
      if (slice.kind != FROZEN) it->second.gradients_missing.insert(slice.id);
    }
  }
  return &it->second;
}

void StepRecorder::Value(SliceId slice, Clock clock, absl::Span<const float> value) {
  MutexLock lock(&mutex_);
  Step* step = Find(clock);
  if (step == nullptr) return;
  std::copy(value.begin(), value.end(),
            step->values.begin() + layout_.slices[slice.value].flat_begin);
  step->values_missing.erase(slice);
  WriteIfComplete(clock);
}

void StepRecorder::Gradient(SliceId slice, Clock clock, absl::Span<const float> gradient) {
  MutexLock lock(&mutex_);
  Step* step = Find(clock);
  if (step == nullptr) return;
  std::copy(gradient.begin(), gradient.end(),
            step->gradients.begin() + layout_.slices[slice.value].flat_begin);
  step->gradients_missing.erase(slice);
  WriteIfComplete(clock);
}

void StepRecorder::Batches(const session::action::Compute& compute, const TakenBatches& taken,
                           const UnitResult& result) {
  MutexLock lock(&mutex_);
  Step* step = Find(compute.clock);
  if (step == nullptr) return;
  double loss = 0;
  uint64_t samples = 0;
  for (const RangeResult& range : result.ranges) {
    loss += range.loss_sum;
    samples += range.samples;
  }
  step->loss = samples == 0 ? 0 : loss / static_cast<double>(samples);
  for (const auto& [id, batch] : taken) {
    step->micro_batch_samples.push_back(batch->samples());
    step->inputs.insert(step->inputs.end(), batch->inputs.begin(), batch->inputs.end());
    step->samples += batch->samples();
    step->tokens.insert(step->tokens.end(), batch->tokens.begin(), batch->tokens.end());
    step->labels.insert(step->labels.end(), batch->labels.begin(), batch->labels.end());
    step->targets.insert(step->targets.end(), batch->targets.begin(), batch->targets.end());
  }
  step->batches = true;
  WriteIfComplete(compute.clock);
}

void StepRecorder::WriteIfComplete(Clock clock) {
  const auto it = open_.find(clock);
  const Step& step = it->second;
  if (!step.values_missing.empty() || !step.gradients_missing.empty() || !step.batches) return;
  const absl::Status status = Write(clock, step);
  if (!status.ok()) spdlog::error("step {} was not recorded: {}", clock, status.ToString());
  open_.erase(it);
  written_[clock] = true;
}

absl::Status StepRecorder::Write(Clock clock, const Step& step) {
  using safetensors::DType;
  using safetensors::TensorInfo;
  const JobSpec& spec = description_.spec();
  std::vector<TensorInfo> tensors;
  for (const char* prefix : {"param/", "grad/"}) {
    for (const Parameter& parameter : spec.model().parameters()) {
      tensors.push_back({.name = absl::StrCat(prefix, parameter.name()),
                         .dtype = DType::kF32,
                         .shape = {parameter.shape().begin(), parameter.shape().end()}});
    }
  }
  TensorInfo input{.name = "input",
                   .dtype = step.tokens.empty() ? DType::kF32 : DType::kI32,
                   .shape = {step.samples}};
  if (step.inputs.empty() && step.tokens.empty()) {
    input.shape.push_back(0);
  } else {
    for (int64_t dim : spec.model().input().shape()) input.shape.push_back(dim);
  }
  tensors.push_back(input);
  TensorInfo label{.name = "label",
                   .dtype = step.targets.empty() ? DType::kI32 : DType::kF32,
                   .shape = {step.samples}};
  const size_t elements = step.labels.size() + step.targets.size();
  if (step.samples > 0 && elements != step.samples) label.shape.push_back(elements / step.samples);
  tensors.push_back(label);
  tensors.push_back({.name = "loss", .dtype = DType::kF64, .shape = {}});

  std::map<std::string, std::string> metadata = {
      {"model", Json(spec.model())},
      {"optimizer", Json(spec.optimizer())},
      {"batch", Json(spec.batch())},
      {"steps", absl::StrCat(JobSteps(spec, description_.train_samples()))},
      {"clock", absl::StrCat(clock)},
      {"micro_batch_samples",
       absl::StrCat("[", absl::StrJoin(step.micro_batch_samples, ", "), "]")}};
  if (spec.has_clip()) metadata["clip"] = Json(spec.clip());
  STARLING_ASSIGN_OR_RETURN(
      safetensors::Writer writer,
      safetensors::Writer::Create(absl::StrFormat("%s/step-%06d.safetensors", directory_, clock),
                                  tensors, metadata));
  for (const std::vector<float>* flat : {&step.values, &step.gradients}) {
    for (const ParameterPlace& place : layout_.parameters) {
      STARLING_RETURN_IF_ERROR(writer.AppendFloats(
          absl::MakeConstSpan(*flat).subspan(place.flat_begin, place.elements)));
    }
  }
  STARLING_RETURN_IF_ERROR(writer.AppendFloats(step.inputs));
  STARLING_RETURN_IF_ERROR(writer.Append(Bytes(step.tokens.data(), step.tokens.size())));
  STARLING_RETURN_IF_ERROR(writer.Append(Bytes(step.labels.data(), step.labels.size())));
  STARLING_RETURN_IF_ERROR(writer.AppendFloats(step.targets));
  STARLING_RETURN_IF_ERROR(writer.Append(Bytes(&step.loss, 1)));
  return writer.Finish();
}

}  // namespace starling
