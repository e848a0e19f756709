// A compute device: memory, streams, operators. The CPU (kernels/cpu) is one; a GPU is a shared
// object that is opened at run time. Both pass kernels/conformance_test.cc.
#ifndef STARLING_KERNELS_DEVICE_H_
#define STARLING_KERNELS_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/operator.h"

namespace starling {

// A mark in a stream's queue, set by Stream::Record. Setting it again moves it to the later place.
// Recorded by one thread at a time; otherwise thread-safe. Valid only with streams of the same
// device.
class Event {
 public:
  virtual ~Event() = default;
  // Blocks, without using CPU time, until the stream has passed the mark; returns at once if the
  // mark was never set. kUnavailable: the device is lost. Any other failure of the work before the
  // mark is reported reliably only by the stream's Synchronize.
  virtual absl::Status Synchronize() = 0;
};

// Captured work of a stream, launched as a whole (a CUDA graph). Used by the thread that uses the
// stream. Outlives its launches; destroyed before the stream, operators and memory that it uses.
class Captured {
 public:
  virtual ~Captured() = default;
};

// An ordered queue of work. Calls on one stream take effect in order, asynchronously; two streams
// are ordered only by events. Used by one thread at a time. On the CPU a call has completed when it
// returns.
class Stream {
 public:
  virtual ~Stream() = default;
  // Sets the mark after all work so far.
  virtual absl::Status Record(Event& event) = 0;
  // Later work on this stream runs once the mark's current place has been passed; setting `event`
  // again does not change that. A no-op if the mark is not set. Does not block the caller.
  virtual absl::Status Wait(Event& event) = 0;
  // Blocks until all work so far has run. kInternal: some of it failed. kOutOfRange: an operator
  // met an index outside its table. kUnavailable: the device is lost, and all later work on it
  // fails.
  virtual absl::Status Synchronize() = 0;

  // The rest is for devices that capture (Device::captures).
  //
  // From here to EndCapture, what the calling thread orders on the stream is captured and does not
  // run: operators, which must have run on this stream before, and the device's Copy, Zero, Add and
  // AddValues. Nothing else may be called on the stream meanwhile. Arguments are captured by value;
  // memory is read at each launch. On an error nothing is captured and the stream is unchanged.
  virtual absl::Status BeginCapture();
  // Ends the capture in any case, even after an operator failed. Slow.
  virtual absl::StatusOr<std::unique_ptr<Captured>> EndCapture();
  // Orders the captured work, which must be this stream's, as if it were one call.
  virtual absl::Status Launch(Captured& captured);
};

// Fused operators that the device computes faster than the separate ones (kernels/geometry.h).
// CreateOperator may return kUnimplemented for one that is not claimed here.
struct Fusions {
  bool batchnorm = false;         // batchnorm with a second input, a ReLU, or both
  bool packed_attention = false;  // attention with query, key and value in one input
  bool linear_gelu = false;       // linear followed by GPT-2's form of GELU
};

// A device's memory.
struct MemoryBytes {
  size_t available = 0;  // approximately what can still be allocated: other processes allocate, too
  size_t total = 0;
};

// What predictions are and when they are correct.
struct Judgement {
  int64_t samples = 0;
  int64_t labels = 0;   // per sample
  int64_t classes = 0;  // unused if binary
  // Binary: labels are float32, above 0.5 or not, each for one logit, which is above 0 or not.
  // Otherwise: labels are int32, each for a row of `classes` logits; correct if it is the index of
  // the greatest one, the first among equals.
  bool binary = false;
  // Of the logits; plain if binary, else an OperatorSpec::judged_output's or plain.
  ValueFormat logits;
};

// Thread-safe. Outlives everything that it creates.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;  // "cpu"
  // "avx512_core_bf16": results are reproducible only for the same one.
  virtual std::string instruction_set() const = 0;
  virtual Fusions fusions() const { return {}; }

  // Whether the host may access device memory directly, between the stream's calls. If not, data
  // passes only through the copies below.
  virtual bool host_reaches_memory() const = 0;

  // Device memory, aligned to 64 bytes, not cleared. kResourceExhausted.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) = 0;  // waits for pending work on all streams
  // kUnavailable: the device is lost.
  virtual absl::StatusOr<MemoryBytes> Memory() = 0;

  // Host memory to and from which copies are fastest, aligned to 64 bytes, not cleared. Slow:
  // allocate once and keep. kResourceExhausted. Ordinary device memory if the host can access that.
  virtual absl::StatusOr<void*> AllocateHost(size_t bytes) { return Allocate(bytes); }
  virtual void FreeHost(void* memory) { Free(memory); }

  // Whether streams can capture work; if so, SetStepValues is implemented.
  virtual bool captures() const { return false; }

  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream() = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;
  // Events that also record when their mark was passed; for devices that run asynchronously.
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateTimedEvent();
  // Microseconds between passing the mark of `from` and that of `to`, negative if `to` came first.
  // Both are from CreateTimedEvent, set, and passed. Does not block.
  virtual absl::StatusOr<double> MicrosBetween(Event& from, Event& to);

  // Host memory must not change until the stream has passed the call.
  virtual absl::Status CopyToDevice(void* to, const void* from, size_t bytes, Stream& stream) = 0;
  virtual absl::Status CopyFromDevice(void* to, const void* from, size_t bytes, Stream& stream) = 0;
  // Copies within the device.
  virtual absl::Status Copy(void* to, const void* from, size_t bytes, Stream& stream) = 0;
  virtual absl::Status Zero(void* to, size_t bytes, Stream& stream) = 0;
  // to[i] += from[i]. Sums gradients of micro-batches (one addition per element, so the order of
  // the operands does not matter).
  virtual absl::Status Add(float* to, const float* from, size_t elements, Stream& stream) = 0;

  // Writes device memory that captured work reads, in stream order. `values` is copied at the call.
  virtual absl::Status SetStepValues(StepValues* to, const StepValues& values, Stream& stream);

  // The type of the numbers in a value of this format; they fill its buffer without gaps.
  virtual DataType TypeOf(ValueFormat format) const = 0;
  // to[i] += from[i] for all numbers of two values of one format, `bytes` each, rounded once. Sums
  // the gradients of a value's consumers.
  virtual absl::Status AddValues(void* to, const void* from, size_t bytes, ValueFormat format,
                                 Stream& stream) = 0;

  // correct[i]: the number of sample i's labels that its logits predict; unspecified if any logit
  // is NaN. All in device memory, so that logits need not leave it.
  virtual absl::Status CountCorrect(const Judgement& judgement, const void* logits,
                                    const void* labels, uint32_t* correct, Stream& stream) = 0;

  // kInvalidArgument: shapes, formats or attributes that the operator does not accept (names the
  // node, what was expected and what came). kUnimplemented: an unknown operator, or a type that
  // this device lacks.
  virtual absl::StatusOr<std::unique_ptr<OperatorKernel>> CreateOperator(
      const OperatorSpec& spec) = 0;
};

}  // namespace starling

#endif  // STARLING_KERNELS_DEVICE_H_
