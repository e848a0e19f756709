// starling predict: applies a model to an array of samples.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/npy/npy.h"
#include "kernels/cpu/cpu_device.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/use_model.h"
#include "tools/cli/verbs.h"
#include "worker/inference/predictor.h"
#include "worker/inference/preprocess.h"

namespace starling::cli {
namespace {

constexpr int64_t kBatchBytes = 64 << 20;  // limit of inputs or outputs per batch
constexpr int64_t kBatchMax = 64;

// The outputs of all samples, concatenated.
absl::StatusOr<std::vector<float>> Outputs(const SavedModel& model, const npy::Array& input,
                                           int threads) {
  STARLING_ASSIGN_OR_RETURN(const Preprocessor preprocessor, Preprocessor::Create(model));
  STARLING_RETURN_IF_ERROR(preprocessor.Check(input));
  STARLING_ASSIGN_OR_RETURN(const auto device, CreateCpuDevice());
  const int64_t samples = input.shape[0];
  const int64_t elements = model.resolved.values[kInputValue].elements;
  const int64_t largest = std::max(elements, model.resolved.values[model.resolved.logits].elements);
  const int64_t fitting = std::max<int64_t>(1, kBatchBytes / (4 * largest));
  PredictorOptions options;
  options.batch = std::clamp<int64_t>(samples, 1, std::min(fitting, kBatchMax));
  options.kernel_threads = ComputeThreads(threads);
  STARLING_ASSIGN_OR_RETURN(const auto predictor, Predictor::Create(model, options, device.get()));
  std::vector<float> outputs(static_cast<size_t>(samples) * predictor->output_elements());
  std::vector<float> batch(static_cast<size_t>(options.batch * elements));
  for (int64_t first = 0; first < samples; first += options.batch) {
    const int64_t count = std::min(options.batch, samples - first);
    STARLING_RETURN_IF_ERROR(preprocessor.Apply(input, first, count, batch.data()));
    STARLING_RETURN_IF_ERROR(predictor->Predict(
        batch.data(), count,
        outputs.data() + static_cast<size_t>(first) * predictor->output_elements()));
  }
  return outputs;
}

void Softmax(float* row, size_t classes) {
  const float greatest = *std::max_element(row, row + classes);
  double sum = 0;
  for (size_t i = 0; i < classes; ++i) sum += std::exp(double{row[i]} - greatest);
  for (size_t i = 0; i < classes; ++i)
    row[i] = static_cast<float>(std::exp(double{row[i]} - greatest) / sum);
}

bool HasClasses(const SavedModel& model) {
  return model.resolved.nodes.back().kind == OpKind::kSoftmaxCrossEntropy;
}

npy::Array Floats(std::vector<int64_t> shape, const std::vector<float>& values) {
  npy::Array array{npy::DType::kF32, std::move(shape),
                   std::vector<uint8_t>(values.size() * sizeof(float))};
  std::memcpy(array.bytes.data(), values.data(), array.bytes.size());
  return array;
}

// The index of each row's greatest value; the first of equals, as accuracy counts.
npy::Array Classes(std::vector<int64_t> shape, const std::vector<float>& values, size_t classes) {
  shape.pop_back();
  npy::Array array{npy::DType::kI64, std::move(shape), {}};
  array.bytes.resize(values.size() / classes * sizeof(int64_t));
  for (size_t row = 0; row < values.size() / classes; ++row) {
    const float* const begin = values.data() + row * classes;
    const int64_t greatest = std::max_element(begin, begin + classes) - begin;
    std::memcpy(array.bytes.data() + row * sizeof(int64_t), &greatest, sizeof(greatest));
  }
  return array;
}

absl::StatusOr<npy::Array> Predict(const PredictOptions& options, const Connector& connect,
                                   Context& context) {
  STARLING_ASSIGN_OR_RETURN(const npy::Array input, npy::ReadFile(options.input));
  const std::vector<int64_t> sample(input.shape.begin() + (input.shape.empty() ? 0 : 1),
                                    input.shape.end());
  STARLING_ASSIGN_OR_RETURN(const SavedModel model,
                            UseModel(options.choice, sample, connect, context));
  if (options.as != PredictAs::kOutputs && !HasClasses(model)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's loss is ", Rule(model.resolved.nodes.back().kind).name,
                     ": it has no classes to give probabilities of; expected --as outputs"));
  }
  auto outputs = Outputs(model, input, options.threads);
  if (!outputs.ok()) {
    return absl::Status(outputs.status().code(),
                        absl::StrCat(options.input, ": ", outputs.status().message()));
  }
  std::vector<int64_t> shape = model.resolved.values[model.resolved.logits].shape;
  const size_t classes = shape.empty() ? 1 : static_cast<size_t>(shape.back());
  shape.insert(shape.begin(), input.shape[0]);
  if (options.as == PredictAs::kClasses) return Classes(shape, *outputs, classes);
  if (options.as == PredictAs::kProbabilities) {
    for (size_t row = 0; row < outputs->size() / classes; ++row)
      Softmax(outputs->data() + row * classes, classes);
  }
  return Floats(shape, *outputs);
}

}  // namespace

int RunPredict(const PredictOptions& options, const Connector& connect, Context& context) {
  const auto array = Predict(options, connect, context);
  if (!array.ok()) return Fail(array.status(), context);
  const absl::Status status = npy::WriteFile(options.output, *array);
  if (!status.ok()) return Fail(absl::InternalError(status.message()), context);
  context.err << "wrote " << CountText(static_cast<uint64_t>(array->shape[0])) << " predictions, "
              << npy::DTypeWords(array->dtype) << " " << DimsToString(array->shape) << ", to "
              << options.output << "\n";
  return kExitOk;
}

}  // namespace starling::cli
