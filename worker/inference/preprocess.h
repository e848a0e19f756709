// From an array that a user brings to a model's inputs, as training made them from its data.
#ifndef STARLING_WORKER_INFERENCE_PREPROCESS_H_
#define STARLING_WORKER_INFERENCE_PREPROCESS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/npy/npy.h"
#include "worker/inference/saved_model.h"

namespace starling {

// Which numbers the samples of the training data were.
enum class SampleKind : uint8_t {
  kPixels,   // bytes, scaled to [0, 1]: arrays of uint8, or of floats that are scaled already
  kNumbers,  // as they are: any array
  kTokens,   // int32 in [0, vocabulary): arrays of integers
};

// Immutable; safe from any thread.
class Preprocessor {
 public:
  // kInvalidArgument: a model that has no inputs to predict from (`builtin: counter`), or a
  // normalisation that does not fit its input.
  static absl::StatusOr<Preprocessor> Create(const SavedModel& model);

  SampleKind kind() const { return kind_; }
  int64_t vocabulary() const { return vocabulary_; }  // kTokens; 0: not known

  // An array fits if it is [samples, the model's input shape], where dimensions of one may be left
  // out, or [samples, elements] where the job reshapes its samples; and of a type that the kind
  // allows. kInvalidArgument says what was expected and what came.
  absl::Status Check(const npy::Array& array) const;

  // Writes `count` samples from `first` on to `out`: count x elements numbers of four bytes, fp32
  // or, for tokens, int32. Pixels and numbers become (x - mean) / std of their channel, the very
  // bits of training. `array` passed Check. kInvalidArgument: a token beyond the vocabulary.
  absl::Status Apply(const npy::Array& array, int64_t first, int64_t count, void* out) const;

 private:
  Preprocessor() = default;
  absl::Status SetNormalize(const Normalize& normalize);
  absl::Status TakeTokens(const npy::Array& array, int64_t first, int64_t count,
                          int32_t* out) const;
  float Number(const npy::Array& array, int64_t index) const;

  SampleKind kind_ = SampleKind::kNumbers;
  Dims shape_;
  int64_t elements_ = 0;
  bool reshaped_ = false;
  int64_t vocabulary_ = 0;
  std::vector<double> mean_, std_;  // one, or one per channel
};

}  // namespace starling

#endif  // STARLING_WORKER_INFERENCE_PREPROCESS_H_
