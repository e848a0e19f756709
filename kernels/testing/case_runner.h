// Runs operator cases on a device and converts the results to plain order.
#ifndef STARLING_KERNELS_TESTING_CASE_RUNNER_H_
#define STARLING_KERNELS_TESTING_CASE_RUNNER_H_

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/device.h"
#include "kernels/reference/reference.h"
#include "kernels/testing/operator_cases.h"

namespace starling {

// Device memory filled with NaN, so that holes and stale reads show.
class Buffer {
 public:
  Buffer(Device& device, Stream& stream, size_t bytes);
  Buffer(const Buffer&) = delete;
  ~Buffer() { device_.Free(data_); }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Device& device_;
  const size_t bytes_;
  void* const data_;
};

using BufferPtr = std::unique_ptr<Buffer>;

// What one operator computed on a device, in plain order.
struct Outcome {
  Doubles output;
  ReferenceGradients gradients;
  friend bool operator==(const Outcome& a, const Outcome& b) {
    return a.output == b.output && a.gradients.inputs == b.gradients.inputs &&
           a.gradients.parameters == b.gradients.parameters;
  }
};

// Which of a case's inputs first go through an identity operator, so that they and their gradients
// have a format of the device's; never labels.
//   kNone    none: as the graph's inputs
//   kStored  all of two dimensions or more, through a reshape: plain, in the case's type
//   kFirst, kAll  through a convolution, which chooses the device's preferred layout; planes only
// With kStored, and in bf16 and fp16 with kAll, the output and its gradient have the device's
// format, too, and are converted to plain order after the operator.
enum class Formatted { kNone, kStored, kFirst, kAll };

// How many of a case's inputs can be formatted.
int PlaneInputs(const OperatorCase& test_case);

// Where calls read what differs from step to step: the step and micro-batch of random numbers, and
// the loss scale. With kMemory the arguments hold other values.
enum class StepValuesIn { kArguments, kMemory };

// Runs one case forward and backward, computed in `type`. `in_place`: in one buffer if the kernel
// allows it.
class CaseRunner {
 public:
  CaseRunner(Device& device, const OperatorCase& test_case, Formatted formatted, int threads,
             bool in_place = false, DataType type = DataType::kFp32);

  const OperatorKernel* kernel() const { return kernel_.get(); }

  // What the operator actually receives: the values that reach it in two bytes are rounded.
  // `plain`: those that reach it in fp32 are rounded, too, for a device that rounds them on entry,
  // so that both mean the same to it. Labels are never rounded.
  ReferenceArgs Given(ReferenceArgs args, bool plain = false) const;
  Doubles GivenGradient(Doubles grad_output, bool plain = false) const;

  // By default they are in the arguments, and the loss is not scaled.
  void SetStepValues(StepValuesIn where, float loss_scale);
  // From here on Run captures the operator's calls, which it has already run once, and launches
  // those.
  void Capture() { captures_ = true; }
  Outcome Run(const ReferenceArgs& args, const Doubles& grad_output);

  // The whole output buffer, padding included, in the operator's preferred layout.
  std::vector<float> RawOutput(const ReferenceArgs& args);

 private:
  // An operator that returns its input in another format.
  struct Identity {
    std::unique_ptr<OperatorKernel> kernel;
    BufferPtr weight, saved, work;  // a reshape has no weight
  };

  Identity MakeConvolution(const Shape& shape);
  Identity MakeReshape(const Shape& shape, ValueFormat format, bool plain_output);
  Identity Complete(const OperatorSpec& spec);
  BufferPtr Through(const Identity& identity, const void* from);
  BufferPtr Back(const Identity& identity, const void* gradient);
  // Rounded to the case's `type`.
  Doubles Rounded(const Doubles& values) const;
  BufferPtr New(size_t bytes) { return std::make_unique<Buffer>(device_, *stream_, bytes); }
  BufferPtr Upload(const Doubles& values, bool integers, size_t offset = 0);
  Doubles Download(const void* data, int64_t count);
  void LoadInputs(const ReferenceArgs& args);
  // Orders one call of the operator.
  absl::Status Order(absl::FunctionRef<absl::Status()> call);
  void Forward(const ReferenceArgs& args, void* output);
  ReferenceGradients Backward(const ReferenceArgs& args, const void* output,
                              const Doubles& grad_output);

  Device& device_;
  const OperatorCase& case_;
  OperatorSpec spec_;
  std::unique_ptr<Stream> stream_;
  const bool in_place_;
  bool captures_ = false;
  std::unique_ptr<OperatorKernel> kernel_;
  std::vector<Identity> identities_;  // one per input; no kernel: plain
  Identity exit_;                     // the output's; no kernel: plain
  BufferPtr work_, saved_, output_;
  StepValues step_values_;
  BufferPtr step_values_there_;  // null: they are in the arguments
  std::vector<BufferPtr> inputs_, parameters_;
  std::vector<const void*> input_data_;
  std::vector<const float*> parameter_data_;
};

// The gradient with which a case starts backward; ignored by losses.
Doubles GradOutput(const OperatorCase& test_case);

}  // namespace starling

#endif  // STARLING_KERNELS_TESTING_CASE_RUNNER_H_
