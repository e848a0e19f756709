// A device that computes: memory, streams, operators. The CPU (kernels/cpu) is one; a GPU is a
// shared object opened at run time. Both pass kernels/conformance_test.cc.
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

// A mark in a stream's queue, set by Stream::Record; set again, it stands for the later place
// alone. Recorded by one thread at a time; all else is thread-safe. Of use to streams of its device
// only.
class Event {
 public:
  virtual ~Event() = default;
  // Blocks, without taking processor time, until the stream has passed the mark; at once where none
  // was ever set. kUnavailable: the device is lost. That work in front of the mark failed
  // otherwise, only the stream's Synchronize is sure to say.
  virtual absl::Status Synchronize() = 0;
};

// Work that a stream has captured, to be launched as a whole (a CUDA graph). Used by the thread
// that uses the stream. Outlives its launches, and is gone before that stream, the operators and
// the memory that its work uses.
class Captured {
 public:
  virtual ~Captured() = default;
};

// An ordered queue of work. Calls on one stream take effect in order, asynchronously; two streams
// are unordered, but for events. Used by one thread at a time. On the CPU a call has run when it
// returns.
class Stream {
 public:
  virtual ~Stream() = default;
  // Sets the mark behind all work so far.
  virtual absl::Status Record(Event& event) = 0;
  // Work that comes later runs once the mark was passed that `event` has now: setting it again
  // changes nothing for it. Nothing to wait for where none was set. Does not block the caller.
  virtual absl::Status Wait(Event& event) = 0;
  // Blocks until all work so far has run. kInternal: some of it failed. kOutOfRange: an operator
  // met an index outside its table. kUnavailable: the device is lost, and nothing works on it any
  // more.
  virtual absl::Status Synchronize() = 0;

  // The rest is for devices that capture (Device::captures).
  //
  // What the calling thread orders on the stream from here to EndCapture is captured, and does not
  // run: operators, which have run on this stream before, and the device's Copy, Zero, Add and
  // AddValues. Nothing else is called on the stream meanwhile. Arguments are taken as they are now,
  // and what lies in memory is read at each launch. An error: nothing is captured, and the stream
  // is as it was.
  virtual absl::Status BeginCapture();
  // Ends it in any case, also after an operator that failed; slow.
  virtual absl::StatusOr<std::unique_ptr<Captured>> EndCapture();
  // Orders the captured work, of this stream, as if it were one call.
  virtual absl::Status Launch(Captured& captured);
};

// Operators that one kernel of a device computes faster than several do, as kernels/geometry.h
// says. CreateOperator may answer kUnimplemented to one that is not claimed here.
struct Fusions {
  bool batchnorm = false;         // batchnorm with a second input, with a ReLU, or both
  bool packed_attention = false;  // attention with query, key and value in one input
  bool linear_gelu = false;       // linear with GPT-2's form of GELU behind it
};

// Of a device's memory.
struct MemoryBytes {
  size_t available = 0;  // that may still be allocated, about: other processes take some, too
  size_t total = 0;
};

// What predictions are and when they are right.
struct Judgement {
  int64_t samples = 0;
  int64_t labels = 0;   // of each sample
  int64_t classes = 0;  // not of binary ones
  // Labels are float32, above 0.5 or not, each for one logit, which is above 0 or not. Otherwise
  // they are int32, each for a row of `classes` logits: it is right where it is the greatest one's
  // index, the first of equals.
  bool binary = false;
};

// Thread-safe. Outlives everything that it made.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;  // "cpu"
  // "avx512_core_bf16": part of what is reproducible.
  virtual std::string instruction_set() const = 0;
  virtual Fusions fusions() const { return {}; }

  // Whether the host may read and write device memory as its own, between the stream's calls. Where
  // it may not, all that passes between them are the copies below.
  virtual bool host_reaches_memory() const = 0;

  // Device memory, aligned to 64 bytes, not cleared. kResourceExhausted.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) = 0;  // waits for what was ordered on any stream
  // kUnavailable: the device is lost.
  virtual absl::StatusOr<MemoryBytes> Memory() = 0;

  // Host memory from and to which copies run fastest, aligned to 64 bytes, not cleared. Slow: to be
  // kept. kResourceExhausted. Where the host reaches device memory it is just that.
  virtual absl::StatusOr<void*> AllocateHost(size_t bytes) { return Allocate(bytes); }
  virtual void FreeHost(void* memory) { Free(memory); }

  // Whether streams capture work, and SetStepValues is there.
  virtual bool captures() const { return false; }

  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream() = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;
  // Events whose marks also say when they were passed; for devices that run behind the host.
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateTimedEvent();
  // Microseconds from when the mark of `from` was passed to when that of `to` was, negative where
  // that was earlier; of CreateTimedEvent, set, and passed. Does not block.
  virtual absl::StatusOr<double> MicrosBetween(Event& from, Event& to);

  // Host memory must stay as it is until the stream has passed the call.
  virtual absl::Status CopyToDevice(void* to, const void* from, size_t bytes, Stream& stream) = 0;
  virtual absl::Status CopyFromDevice(void* to, const void* from, size_t bytes, Stream& stream) = 0;
  // Between two places on the device.
  virtual absl::Status Copy(void* to, const void* from, size_t bytes, Stream& stream) = 0;
  virtual absl::Status Zero(void* to, size_t bytes, Stream& stream) = 0;
  // to[i] += from[i]. Sums gradients of micro-batches (one addition per element, so the order of
  // the operands does not matter).
  virtual absl::Status Add(float* to, const float* from, size_t elements, Stream& stream) = 0;

  // Writes device memory that captured work reads, in the stream's order: `values` need not stay.
  virtual absl::Status SetStepValues(StepValues* to, const StepValues& values, Stream& stream);

  // The type of the numbers in a value of this format, which fill its buffer one after the other.
  virtual DataType TypeOf(ValueFormat format) const = 0;
  // to[i] += from[i] for all numbers of two values of one format, `bytes` each, rounded once. Sums
  // gradients of one value's consumers.
  virtual absl::Status AddValues(void* to, const void* from, size_t bytes, ValueFormat format,
                                 Stream& stream) = 0;

  // correct[i]: how many of sample i's labels its logits predict; anything where some are NaN. All
  // in device memory: logits are many, and stay there.
  virtual absl::Status CountCorrect(const Judgement& judgement, const float* logits,
                                    const void* labels, uint32_t* correct, Stream& stream) = 0;

  // kInvalidArgument: shapes, formats or attributes that the operator does not take (says node,
  // expected, given). kUnimplemented: an unknown operator, or a type that this device lacks.
  virtual absl::StatusOr<std::unique_ptr<OperatorKernel>> CreateOperator(
      const OperatorSpec& spec) = 0;
};

}  // namespace starling

#endif  // STARLING_KERNELS_DEVICE_H_
