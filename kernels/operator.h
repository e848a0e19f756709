// Operators on a device: what one is, and what a device must offer to run it.
//
// A value (an operator's input or output) is a block of device memory whose first dimension is the
// micro-batch. Its *format* is the device's choice: plain means row-major float32 of the value's
// shape; any other is opaque outside the device (blocked channels, channels last, bf16, ...) and
// known only by its size in bytes. The producer chooses, every operator of the same device accepts
// whatever another one of it produced, and a value's gradient has the format of the value.
// Graph inputs and labels are always plain. A value that something outside the device reads is made
// plain by OperatorSpec::plain_output.
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

// In what type an operator multiplies, or at least stores what it computes: its output and, of
// inputs that are stored so, their gradients. Sums, statistics, losses and parameters stay fp32.
enum class DataType : uint8_t { kFp32 = 1, kBf16 = 2, kFp16 = 3 };

// "fp32", "bf16", "fp16".
const char* DataTypeName(DataType type);

using Shape = std::vector<int64_t>;

// An operator's attribute; what each operator takes is listed in kernels/geometry.h. Where a pair
// (height, width) is meant, one integer means both.
using AttributeValue = std::variant<int64_t, double, std::string, std::vector<int64_t>>;
using AttributeMap = std::map<std::string, AttributeValue>;

// The layout of a value: 0 is plain, every other number is private to the device.
struct ValueFormat {
  uint32_t id = 0;
  bool plain() const { return id == 0; }
  friend bool operator==(const ValueFormat&, const ValueFormat&) = default;
};

// Everything that is fixed before the first step.
struct OperatorSpec {
  std::string name;  // the node's, for errors
  std::string op;    // "conv2d", "linear", ...: see kernels/geometry.h
  AttributeMap attributes;
  DataType type = DataType::kFp32;
  // With kFp32: linear, matmul, attention and conv2d may round what they multiply to tf32 (8 bits
  // of exponent, 10 of fraction) if the device is faster so. Values and sums stay fp32.
  bool tf32 = false;
  // False: no Backward; dropout is the identity, batch norm uses its statistics.
  bool training = true;
  // Threads inside one call: results may depend on it, and on no other thread count.
  int kernel_threads = 1;
  std::vector<Shape> input_shapes;         // micro-batch first
  std::vector<ValueFormat> input_formats;  // of each input; empty: all plain
  std::vector<Shape> parameter_shapes;     // in the operator's order (weight, bias, mean, variance)
  Shape output_shape;         // micro-batch first; checked against the operator's own rule
  bool plain_output = false;  // the output must be plain (logits); a loss's is in any case
  // The device may time several algorithms and take the fastest: results may then differ in the
  // last bits from one process to another. The CPU has none to choose from, and ignores it.
  bool tune = false;
};

// Where the random numbers of one call come from: a pure function of this key and of the element's
// index (kernels/random.h), so they do not depend on threads, formats, workers or order.
struct RandomKey {
  uint64_t seed = 0;
  uint32_t step = 0;         // of the whole job
  uint32_t micro_batch = 0;  // its id
  uint32_t node = 0;         // the operator's index in the graph
};

// Pointers are device memory of the sizes that the spec and the kernel say; 64-byte aligned but for
// parameters. Labels and indices are int32, but for the losses between values (kernels/geometry.h).
struct ForwardArgs {
  absl::Span<const void* const> inputs;
  absl::Span<const float* const> parameters;
  void* output = nullptr;
  void* saved = nullptr;      // saved_bytes(): written here for the matching Backward
  void* workspace = nullptr;  // workspace_bytes(): scratch, nothing in it survives the call
  RandomKey random;
  // Not null: its step and micro_batch count instead of `random`'s.
  const StepValues* values = nullptr;
};

struct BackwardArgs {
  absl::Span<const void* const> inputs;  // entries that backward_reads_input() denies may be null
  absl::Span<const float* const> parameters;
  const void* output = nullptr;              // may be null unless backward_reads_output()
  const void* grad_output = nullptr;         // null for a loss: its gradient starts here
  absl::Span<void* const> grad_inputs;       // null: not wanted. Overwritten, in the input's format
  absl::Span<float* const> grad_parameters;  // null: not wanted. Overwritten, never added to; plain
  void* saved = nullptr;  // Forward's. Nobody reads it afterwards: scratch, once it was read
  void* workspace = nullptr;
  // Samples in the whole step, not in this micro-batch. A loss with reduction "mean" scales by
  // 1 / global_batch; batch norm weights its statistics by n / global_batch (n: this micro-batch).
  int64_t global_batch = 1;
  // Read by losses alone, whose gradient it multiplies: a power of two.
  double loss_scale = 1;
  // Not null: its loss_scale counts instead.
  const StepValues* values = nullptr;
};

// One operator, bound to shapes and formats. Made by Device::CreateOperator; lives no longer than
// its device. One call at a time: lanes that run concurrently have kernels of their own. A call
// allocates no memory of ours and only orders work on the stream: arguments must stay valid until
// the stream has passed it. Errors: kInternal, the device failed; kOutOfRange, an index that
// embedding was given lies outside its table (a device that runs behind the host may say so in the
// stream's Synchronize).
class OperatorKernel {
 public:
  virtual ~OperatorKernel() = default;

  ValueFormat output_format() const { return output_format_; }
  // Size of the output's buffer (and of its gradient's); elements that pad a format are zero.
  size_t output_bytes() const { return output_bytes_; }
  // Size of input i's buffer (and of its gradient's).
  size_t input_bytes(size_t i) const { return input_bytes_[i]; }
  size_t saved_bytes() const { return saved_bytes_; }
  size_t workspace_bytes() const { return workspace_bytes_; }

  // Whether `output` may be the very buffer of inputs[0] (same size; the input is then gone).
  bool forward_in_place_ok() const { return forward_in_place_ok_; }
  // Whether grad_inputs[0] may be the very buffer of grad_output.
  bool backward_in_place_ok() const { return backward_in_place_ok_; }
  // What Backward reads of the forward pass, so must be kept until then.
  bool backward_reads_input(size_t i) const { return backward_reads_input_[i]; }
  bool backward_reads_output() const { return backward_reads_output_; }
  // Why a faster way, which the device has for such operators, is not taken for this one. Empty: it
  // is, or there is none.
  const std::string& slower_because() const { return slower_because_; }

  virtual absl::Status Forward(const ForwardArgs& args, Stream& stream) = 0;
  // Only for spec.training. Pairs with the latest Forward that wrote `saved`.
  virtual absl::Status Backward(const BackwardArgs& args, Stream& stream) = 0;

 protected:
  // Set by the constructor of the kernel, constant afterwards.
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
