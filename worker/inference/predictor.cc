#include "worker/inference/predictor.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace starling {

absl::StatusOr<std::unique_ptr<Predictor>> Predictor::Create(const SavedModel& model,
                                                             const PredictorOptions& options,
                                                             Device* device) {
  if (options.batch < 1 || options.kernel_threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a batch and threads of at least 1, got ", options.batch, " and ",
                     options.kernel_threads));
  }
  std::unique_ptr<Predictor> predictor(new Predictor(model, options, device));
  STARLING_RETURN_IF_ERROR(predictor->Prepare(model));
  return predictor;
}

absl::Status Predictor::Prepare(const SavedModel& model) {
  if (model.values.size() != model.layout.elements) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", model.layout.elements, " values, got ", model.values.size()));
  }
  ProgramOptions options;
  options.samples = options_.batch;
  options.training = false;
  options.kernel_threads = options_.kernel_threads;
  options.host_reads_logits = true;
  STARLING_ASSIGN_OR_RETURN(stream_, device_->CreateStream());
  STARLING_ASSIGN_OR_RETURN(program_, Program::Create(graph_, device_, options));
  STARLING_RETURN_IF_ERROR(arena_.Allocate(device_, program_->arena_bytes(), *stream_));
  const size_t bytes = model.values.size() * sizeof(float);
  STARLING_RETURN_IF_ERROR(parameters_.Allocate(device_, bytes, *stream_));
  STARLING_RETURN_IF_ERROR(
      device_->CopyToDevice(parameters_.as<float>(), model.values.data(), bytes, *stream_));
  STARLING_RETURN_IF_ERROR(stream_->Synchronize());
  program_->Bind(arena_.as<char>(), model.layout, parameters_.as<float>(), nullptr);

  const size_t batch = static_cast<size_t>(options_.batch);
  input_elements_ = static_cast<size_t>(graph_.values[kInputValue].elements);
  output_elements_ = static_cast<size_t>(graph_.values[graph_.logits].elements);
  last_node_ = graph_.values[graph_.logits].producer;
  inputs_.resize(batch * input_elements_);
  outputs_.resize(batch * output_elements_);
  labels_.resize(batch * static_cast<size_t>(graph_.values[kLabelValue].elements));
  return absl::OkStatus();
}

absl::Status Predictor::Predict(const void* inputs, int64_t samples, float* outputs) {
  const size_t given = static_cast<size_t>(samples) * input_elements_;
  std::memcpy(inputs_.data(), inputs, given * sizeof(float));
  std::fill(inputs_.begin() + static_cast<ptrdiff_t>(given), inputs_.end(), 0.0f);
  STARLING_RETURN_IF_ERROR(program_->Load(inputs_.data(), labels_.data(), *stream_));
  for (int node = 0; node <= last_node_; ++node) {
    STARLING_RETURN_IF_ERROR(program_->Forward(node, RandomKey{}, *stream_));
  }
  STARLING_RETURN_IF_ERROR(device_->CopyFromDevice(outputs_.data(), program_->logits(),
                                                   outputs_.size() * sizeof(float), *stream_));
  STARLING_RETURN_IF_ERROR(stream_->Synchronize());
  std::memcpy(outputs, outputs_.data(),
              static_cast<size_t>(samples) * output_elements_ * sizeof(float));
  return absl::OkStatus();
}

}  // namespace starling
