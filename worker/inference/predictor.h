// A trained model's forward pass on a device, in inference mode: dropout is the identity, batch
// norm uses its statistics, the loss is not computed.
#ifndef STARLING_WORKER_INFERENCE_PREDICTOR_H_
#define STARLING_WORKER_INFERENCE_PREDICTOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "worker/executor/device_memory.h"
#include "worker/executor/program.h"
#include "worker/inference/saved_model.h"

namespace starling {

struct PredictorOptions {
  int64_t batch = 64;      // samples computed together
  int kernel_threads = 1;  // threads inside a batch; may affect the last bits of results
};

// Used by one thread at a time.
class Predictor {
 public:
  // `device` outlives the predictor; `model` is copied to it. kInvalidArgument: the device refuses
  // an operator. kResourceExhausted: it has too little memory.
  static absl::StatusOr<std::unique_ptr<Predictor>> Create(const SavedModel& model,
                                                           const PredictorOptions& options,
                                                           Device* device);

  int64_t batch() const { return options_.batch; }
  size_t input_elements() const { return input_elements_; }    // per sample
  size_t output_elements() const { return output_elements_; }  // per sample

  // `inputs`: `samples` samples, at most a batch, of four-byte elements, as Preprocessor makes
  // them. `outputs`: samples x output_elements(): the input of the loss (logits).
  absl::Status Predict(const void* inputs, int64_t samples, float* outputs);

 private:
  Predictor(const SavedModel& model, const PredictorOptions& options, Device* device)
      : graph_(model.resolved), options_(options), device_(device) {}
  absl::Status Prepare(const SavedModel& model);

  const ResolvedGraph graph_;
  const PredictorOptions options_;
  Device* const device_;
  size_t input_elements_ = 0;
  size_t output_elements_ = 0;
  int last_node_ = 0;  // the last node that the output depends on
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Program> program_;
  DeviceMemory parameters_;
  DeviceMemory arena_;
  std::vector<float> inputs_;    // a whole batch, padded with zeros
  std::vector<float> outputs_;   // a whole batch
  std::vector<int32_t> labels_;  // zeros, which nothing reads
};

}  // namespace starling

#endif  // STARLING_WORKER_INFERENCE_PREDICTOR_H_
