// Runs operator cases on a device and brings the results into plain order.
#ifndef STARLING_KERNELS_TESTING_CASE_RUNNER_H_
#define STARLING_KERNELS_TESTING_CASE_RUNNER_H_

#include <memory>
#include <vector>

#include "kernels/device.h"
#include "kernels/reference/reference.h"
#include "kernels/testing/operator_cases.h"

namespace starling {

// Device memory, filled with NaN, so that a hole or a stale read shows.
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

// Runs one case forward and backward. `device_format`: the input first goes through a convolution
// with the identity, so that it has whatever format the device likes, and so does its gradient.
class CaseRunner {
 public:
  CaseRunner(Device& device, const OperatorCase& test_case, bool device_format, int threads);

  const OperatorKernel* kernel() const { return kernel_.get(); }

  Outcome Run(const ReferenceArgs& args, const Doubles& grad_output);

 private:
  void MakeIdentity(int threads);
  BufferPtr New(size_t bytes) { return std::make_unique<Buffer>(device_, *stream_, bytes); }
  BufferPtr Upload(const Doubles& values, bool integers, size_t offset = 0);
  Doubles Download(const void* data, int64_t count);
  void LoadInputs(const ReferenceArgs& args);
  ReferenceGradients Backward(const ReferenceArgs& args, const Doubles& grad_output);
  Doubles InputGradient(Buffer& gradient, int64_t count);

  Device& device_;
  const OperatorCase& case_;
  OperatorSpec spec_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<OperatorKernel> kernel_, identity_;
  BufferPtr identity_weight_, identity_work_, work_, saved_, output_;
  std::vector<BufferPtr> inputs_, parameters_;
  std::vector<const void*> input_data_;
  std::vector<const float*> parameter_data_;
};

// The gradient that a case starts backward with; not read by losses.
Doubles GradOutput(const OperatorCase& test_case);

}  // namespace starling

#endif  // STARLING_KERNELS_TESTING_CASE_RUNNER_H_
