// Computes units of work on one device: forward and backward of micro-batches, several at once, and
// the sums of their gradients along the tree of the micro-batch ids (docs/protocol.md, section 2).
//
// The bits of a range's gradient do not depend on the number of lanes, nor on which lane computed
// what; a range's sum is the tree sum of its halves' sums. They do depend on kernel_threads, the
// seed, the device and its instruction set.
//
// Everything is planned in Create. A unit allocates no tensor memory.
#ifndef STARLING_WORKER_EXECUTOR_EXECUTOR_H_
#define STARLING_WORKER_EXECUTOR_EXECUTOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/graph/graph.h"
#include "common/placement/layout.h"
#include "common/protocol/ids.h"
#include "common/protocol/types.h"
#include "common/trace/span_ring.h"
#include "kernels/device.h"
#include "proto/job.pb.h"
#include "worker/executor/replay.h"

namespace starling {

// The samples of one micro-batch, in host memory, valid until the unit ends. None at all where the
// epoch's last batch is short.
struct MicroBatch {
  int64_t samples = 0;
  // [samples, shape], of the types that the graph's input and labels have (fp32 or int32); not read
  // where the graph does not.
  const void* inputs = nullptr;
  const void* labels = nullptr;
};

// Called by several lanes at once.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // Blocks until the micro-batch is there. kCancelled: the unit was abandoned. Where the host does
  // not reach device memory, each lane asks for its next one when it has ordered the one before.
  virtual absl::StatusOr<MicroBatch> Get(const WorkRange& range, uint64_t id) = 0;
};

// Says when parameters may be read. Called by several lanes at once, before each operator, for the
// slices of its own parameters (where work is captured, before a segment of operators, for those of
// all of them); not again for a slice that was ready in the same unit.
class SliceGate {
 public:
  virtual ~SliceGate() = default;
  // Blocks until the slice has the value that the unit is to be computed from. False: abandoned.
  // `*held_us`: for so much of the wait somebody held the value back, who could have sent it; for
  // the rest it was on its way, or not asked for.
  virtual bool Wait(SliceId slice, uint64_t* held_us) = 0;
  // What a training unit's loss is multiplied by, a power of two; the same throughout the unit.
  // Asked in fp16 alone, after Wait for all slices.
  virtual double LossScale() { return 1; }
};

// Training without a server: changes the device's own values by gradients that never leave it.
class DeviceUpdate {
 public:
  virtual ~DeviceUpdate() = default;
  // Orders on `stream` what turns `values`, the slice's in device memory, into those of the next
  // unit. `gradient`, in device memory, too, is over `samples` samples. As soon as it is complete:
  // this unit does not read the slice's parameters any more.
  virtual absl::Status Update(SliceId slice, const float* gradient, float* values, uint32_t samples,
                              Stream& stream) = 0;
};

// Takes gradients, per range of the unit and slice; of frozen slices none. Called by several lanes
// at once, Ready by other threads as well.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // Host memory for the slice's elements, 64-byte aligned, best of Device::AllocateHost; the
  // executor's until Ready. Once per range and slice, before the first write; blocks until there is
  // some (an earlier push was acked). nullptr: abandoned.
  virtual float* Acquire(size_t range, SliceId slice) = 0;
  // The buffer from Acquire holds the range's sum, over `samples` samples. Called at once, while
  // backward of earlier layers goes on. With the last range's, this unit does not read the slice's
  // parameters any more. In fp16 the gradients of trainable parameters are those of the loss times
  // SliceGate::LossScale(), and any element may have overflowed.
  virtual void Ready(size_t range, SliceId slice, uint32_t samples) = 0;
  // fp16: a loss is not finite. Its micro-batch adds zeros, but no sum of the unit is worth
  // anything. Called before the micro-batch's share in a sum.
  virtual void Overflowed() {}
  // Not null: takes the gradients instead of Acquire and Ready; units have one micro-batch each.
  virtual DeviceUpdate* device_update() { return nullptr; }
};

// In which type a job's values are computed.
DataType TypeOf(Precision precision);

struct ExecutorOptions {
  int64_t global_batch = 1;    // samples of a whole step: gradients are scaled by one over it
  uint32_t micro_batches = 1;  // of a whole step: a training unit has no more
  std::vector<int64_t> train_samples;     // sizes of micro-batches that training meets, > 0
  std::vector<int64_t> evaluate_samples;  // the same for evaluation; empty: it does not evaluate
  int lanes = 1;                          // micro-batches computed at once, each by a thread
  int kernel_threads = 1;                 // threads inside one micro-batch
  uint64_t seed = 0;                      // of dropout
  DataType type = DataType::kFp32;        // of values but for inputs, labels, logits and losses
  bool tf32 = false;                      // with kFp32: OperatorSpec::tf32 of every operator
  size_t bytes_max = std::numeric_limits<size_t>::max();  // of device memory that may be planned
  Recompute recompute;  // of what training computes again; changes no bit
  bool tune = false;    // as OperatorSpec::tune: of jobs that need not be reproducible
  // Where the device captures work, forward and backward are launched in large pieces (CUDA
  // graphs); changes no bit.
  bool capture = true;
  // Lanes wait instead of computing: every gradient is 0, a sample's loss 1, no prediction right.
  std::optional<ReplayedCompute> replay;
};

struct Unit {
  absl::Span<const WorkRange> ranges;  // aligned, disjoint
  uint64_t job_step = 0;               // random numbers are drawn for it
  Clock clock = 0;                     // for spans
  // When true, the unit ends soon: no operator is started any more. May be null. Whoever sets it
  // also makes blocked Get, Wait and Acquire return.
  const std::atomic<bool>* cancelled = nullptr;
  // Called when a segment is done on the host, by any lane's thread. May be null.
  std::function<void()> moved;
  // The device has newer values than live_parameters(), of a DeviceUpdate: none is copied there.
  bool values_on_device = false;
};

struct RangeResult {
  double loss_sum = 0;  // over samples; micro-batches summed in the order of their ids
  uint64_t samples = 0;
  // Labels, JudgedLabels() of them per sample, that the greatest logit (the first of equals) or,
  // for binary cross-entropy, the logit's sign predicts.
  uint64_t correct = 0;
};

struct UnitResult {
  absl::InlinedVector<RangeResult, 8> ranges;  // usually so few that they need no memory
  // False: a loss was NaN or infinite, and the unit stopped before anything of it reached a
  // gradient. Always true where an fp16 unit trains: see GradientSink::Overflowed. Micro-batches
  // with such a loss count for no samples then.
  bool finite = true;
  std::string bad_layer;          // "conv2 (conv2d)": the first whose output is not finite
  uint64_t bad_micro_batch = 0;   // its id
  double slice_wait_seconds = 0;  // that lanes waited in SliceGate, on average over lanes
  double ack_wait_seconds = 0;    // ... in GradientSink::Acquire
};

// Where the time of training units went since the executor was made, in seconds, as means over its
// lanes. Numbers only grow, but for `pending`. What lanes wait for each other at a unit's end is in
// `total` alone.
struct ExecutorTimes {
  double total = 0;     // from a unit's begin to its end
  double data = 0;      // in BatchSource, also while the device computes
  double forward = 0;   // where the device runs behind the host: until the loss is there
  double backward = 0;  // with the sums
  double values = 0;    // in SliceGate, less `held`
  double held = 0;
  double push = 0;     // for GradientSink::Acquire
  double pending = 0;  // in what is under way, which is counted when it is over
};

// How many lanes a worker that may have `lanes` of them uses for a job on `device`: no more than it
// has micro-batches, and few where another processor than the host's computes.
int LanesOn(const Device& device, int lanes, uint32_t micro_batches);

// What a job may plan on `device`, where nobody says: nine tenths of what is available now. The
// rest is for what is not planned: libraries, batches that are staged, values under way.
absl::StatusOr<size_t> BytesToPlan(Device& device);

// Train and Evaluate: one call at a time, by any thread, which is lane 0.
class Executor {
 public:
  virtual ~Executor() = default;

  // `device` and `spans` outlive the executor. kInvalidArgument: the device refuses an operator;
  // kResourceExhausted: it has not enough memory, or bytes_max would be exceeded (says what is
  // planned, and which recomputing and which batch would fit).
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const ResolvedGraph& graph,
                                                          const Layout& layout,
                                                          const ExecutorOptions& options,
                                                          Device* device, SpanRing* spans);

  // The flat buffers that training and evaluation read (layout.elements, host memory). Written by
  // the owner, slice by slice, under the rules of SliceGate. Snapshot: null without evaluation.
  // Where the host does not reach device memory, a unit copies each slice there once it is ready.
  virtual float* live_parameters() = 0;
  virtual float* snapshot_parameters() = 0;

  // kCancelled: abandoned; buffers that were acquired, but not Ready, are the sink's again.
  // kInvalidArgument: a micro-batch of a size that was not announced.
  virtual absl::Status Train(const Unit& unit, BatchSource& batches, SliceGate& gate,
                             GradientSink& sink, UnitResult* result) = 0;
  virtual absl::Status Evaluate(const Unit& unit, BatchSource& batches, SliceGate& gate,
                                UnitResult* result) = 0;

  virtual size_t planned_bytes() const = 0;  // of device memory, in all
  // Of it, of one lane: a micro-batch's activations, their gradients, scratch; without the
  // gradients of parameters that several nodes share. What recompute.activationBytes bounds.
  virtual size_t planned_activation_bytes() const = 0;
  // The most device memory that the job took so far, libraries and captured work included, as the
  // device says: what less of it was available than before Create, so others' share, too. 0 where
  // the host reaches device memory. Thread-safe.
  virtual size_t device_peak_bytes() const = 0;
  // Of host memory that copies run fastest from and to, without the sink's; 0 where the host
  // reaches device memory.
  virtual size_t pinned_bytes() const = 0;
  // For logs: a line for each reason why operators of training (where there is none: of evaluation)
  // are computed more slowly than the device could (OperatorKernel::slower_because).
  virtual std::vector<std::string> slower_operators() const = 0;
  virtual ExecutorTimes times() const = 0;  // thread-safe, also while a unit runs
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_EXECUTOR_H_
