// Converts a user's array to a model's inputs, as training converted its data.
#ifndef STARLING_WORKER_INFERENCE_PREPROCESS_H_
#define STARLING_WORKER_INFERENCE_PREPROCESS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/npy/npy.h"
#include "worker/inference/saved_model.h"

namespace starling {

// What kind of numbers the training samples were.
enum class SampleKind : uint8_t {
  kPixels,   // bytes, scaled to [0, 1]: arrays of uint8, or of floats already scaled
  kNumbers,  // used unchanged: any array
  kTokens,   // int32 in [0, vocabulary): arrays of integers
};

// Immutable; safe from any thread.
class Preprocessor {
 public:
  // kInvalidArgument: a model without inputs to predict from (`builtin: counter`), or a
  // normalisation that does not fit its input.
  static absl::StatusOr<Preprocessor> Create(const SavedModel& model);

  SampleKind kind() const { return kind_; }
  int64_t vocabulary() const { return vocabulary_; }  // kTokens; 0: unknown

  // An array fits if it is [samples, the model's input shape], where dimensions of 1 may be
  // omitted, or [samples, elements] if the job reshapes its samples; and if the kind allows its
  // type. kInvalidArgument says what was expected and what came.
  absl::Status Check(const npy::Array& array) const;

  // Writes `count` samples, starting at `first`, to `out`: count x elements four-byte numbers, fp32
  // or, for tokens, int32. Pixels and numbers become (x - mean) / std of their channel, with
  // exactly the bits of training. `array` must have passed Check. kInvalidArgument: a token beyond
  // the vocabulary.
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
