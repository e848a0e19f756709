// Operators on a device: what an operator is, and what a device must provide to run it.
//
// A value (an operator's input or output) is a block of device memory whose first dimension is the
// micro-batch. The device chooses its *format*: plain means row-major float32 of the value's shape;
// any other (blocked channels, channels last, bf16, ...) is opaque outside the device, where only
// its size in bytes is known. The producer chooses; every operator of a device accepts what any
// other of its operators produces; a value's gradient has the value's format. Graph inputs and
// labels are always plain. OperatorSpec::plain_output makes a value plain if something outside the
// device reads it.
//
// Parameters and their gradients are always plain float32, at any 4-byte aligned address.
#ifndef STARLING_KERNELS_OPERATOR_H_
#define STARLING_KERNELS_OPERATOR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/step_values.h"

namespace starling {

class Stream;

// The type in which an operator multiplies, or at least stores its results: its output and the
// gradients of inputs stored in that type. Sums, statistics, losses and parameters stay fp32.
enum class DataType : uint8_t { kFp32 = 1, kBf16 = 2, kFp16 = 3 };

// "fp32", "bf16", "fp16".
const char* DataTypeName(DataType type);

using Shape = std::vector<int64_t>;

// An operator's attribute; kernels/geometry.h lists which ones each operator accepts. For a pair
// (height, width), one integer means both.
using AttributeValue = std::variant<int64_t, double, std::string, std::vector<int64_t>>;
using AttributeMap = std::map<std::string, AttributeValue>;

// The layout of a value: 0 is plain, any other number is private to the device.
struct ValueFormat {
  uint32_t id = 0;
  bool plain() const { return id == 0; }
  friend bool operator==(const ValueFormat&, const ValueFormat&) = default;
};

// Everything that is fixed before the first step.
struct OperatorSpec {
  std::string name;  // the node's, for error messages
  std::string op;    // "conv2d", "linear", ...: see kernels/geometry.h
  AttributeMap attributes;
  DataType type = DataType::kFp32;
  // With kFp32: linear, matmul, attention and conv2d may round what they multiply to tf32 (8 bits
  // of exponent, 10 of fraction) if that is faster on the device. Values and sums stay fp32.
  bool tf32 = false;
  // If false: no Backward; dropout is the identity, batch norm uses its statistics.
  bool training = true;
  // Threads inside one call. Results may depend on this thread count, but on no other.
  int kernel_threads = 1;
  std::vector<Shape> input_shapes;         // micro-batch is the first dimension
  std::vector<ValueFormat> input_formats;  // one per input; empty: all plain
  std::vector<Shape> parameter_shapes;     // in the operator's order (weight, bias, mean, variance)
  Shape output_shape;                      // micro-batch first; checked against the operator's rule
  bool plain_output = false;               // the output must be plain; a loss's output always is
  // The output (logits, one row per label) must have a format that Device::CountCorrect reads.
  bool judged_output = false;
  // The device may time several algorithms and use the fastest, so results may differ in the last
  // bits between processes. The CPU has no such choice and ignores this.
  bool tune = false;
};

// The key of one call's random numbers. They are a pure function of this key and the element's
// index (kernels/random.h), so they do not depend on threads, formats, workers or order.
struct RandomKey {
  uint64_t seed = 0;
  uint32_t step = 0;         // within the whole job
  uint32_t micro_batch = 0;  // its id
  uint32_t node = 0;         // the operator's index in the graph
};

// Pointers are device memory of the sizes given by the spec and the kernel; 64-byte aligned, except
// parameters. Labels and indices are int32, except for mean_squared_error and binary_cross_entropy
// (kernels/geometry.h).
struct ForwardArgs {
  absl::Span<const void* const> inputs;
  absl::Span<const float* const> parameters;
  void* output = nullptr;
  void* saved = nullptr;      // saved_bytes(): written here, for the matching Backward
  void* workspace = nullptr;  // workspace_bytes(): scratch, does not survive the call
  RandomKey random;
  // If not null, its step and micro_batch replace those of `random`.
  const StepValues* values = nullptr;
};

struct BackwardArgs {
  absl::Span<const void* const> inputs;  // may be null where backward_reads_input() is false
  absl::Span<const float* const> parameters;
  const void* output = nullptr;              // may be null unless backward_reads_output()
  const void* grad_output = nullptr;         // null for a loss, where the gradient starts
  absl::Span<void* const> grad_inputs;       // null: not wanted. Overwritten, in the input's format
  absl::Span<float* const> grad_parameters;  // null: not wanted. Overwritten, never added to; plain
  void* saved = nullptr;  // Forward's. Not read after this call, so it may be overwritten
  void* workspace = nullptr;
  // Samples in the whole step, not in this micro-batch. A loss with reduction "mean" scales by
  // 1 / global_batch; batch norm weights its statistics by n / global_batch (n: this micro-batch).
  int64_t global_batch = 1;
  // Multiplies the gradient of a loss; other operators ignore it. A power of two.
  double loss_scale = 1;
  // If not null, its loss_scale replaces the one above.
  const StepValues* values = nullptr;
};

// One operator, bound to shapes and formats. Created by Device::CreateOperator; must not outlive
// its device. One call at a time: concurrent lanes have their own kernels. A call allocates none of
// our memory and only orders work on the stream: arguments must stay valid until the stream has
// passed it. Errors: kInternal: the device failed. kOutOfRange: embedding was given an index
// outside its table (an asynchronous device may report this in the stream's Synchronize).
class OperatorKernel {
 public:
  virtual ~OperatorKernel() = default;

  ValueFormat output_format() const { return output_format_; }
  // Size of the output's buffer and of its gradient's; elements that pad a format are zero.
  size_t output_bytes() const { return output_bytes_; }
  // Size of input i's buffer and of its gradient's.
  size_t input_bytes(size_t i) const { return input_bytes_[i]; }
  size_t saved_bytes() const { return saved_bytes_; }
  size_t workspace_bytes() const { return workspace_bytes_; }

  // Whether `output` may be the same buffer as inputs[0] (equal sizes; the input is overwritten).
  bool forward_in_place_ok() const { return forward_in_place_ok_; }
  // Whether grad_inputs[0] may be the same buffer as grad_output.
  bool backward_in_place_ok() const { return backward_in_place_ok_; }
  // What Backward reads from the forward pass, so what must be kept until then.
  bool backward_reads_input(size_t i) const { return backward_reads_input_[i]; }
  bool backward_reads_output() const { return backward_reads_output_; }
  // Why this operator does not use the device's faster path for its kind. Empty: it does, or there
  // is none.
  const std::string& slower_because() const { return slower_because_; }

  virtual absl::Status Forward(const ForwardArgs& args, Stream& stream) = 0;
  // Only if spec.training. Pairs with the latest Forward that wrote `saved`.
  virtual absl::Status Backward(const BackwardArgs& args, Stream& stream) = 0;

 protected:
  // Set by the kernel's constructor, constant afterwards.
  ValueFormat output_format_;
  size_t output_bytes_ = 0;
  std::vector<size_t> input_bytes_;
  size_t saved_bytes_ = 0;
  size_t workspace_bytes_ = 0;
  bool forward_in_place_ok_ = false;
  bool backward_in_place_ok_ = false;
  std::vector<bool> backward_reads_input_;
  bool backward_reads_output_ = false;
  std::string slower_because_;
};

}  // namespace starling

#endif  // STARLING_KERNELS_OPERATOR_H_
