// Computes units of work on one device: forward and backward of micro-batches, several
// concurrently, and the sums of their gradients along the tree of the micro-batch ids
// (docs/protocol.md, section 2).
//
// The bits of a range's gradient do not depend on the number of lanes or on which lane computed
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
#include "worker/executor/executor_times.h"
#include "worker/executor/replay.h"

namespace starling {

// The samples of one micro-batch, in host memory, valid until the unit ends. There may be none if
// the epoch's last batch is short.
struct MicroBatch {
  int64_t samples = 0;
  // [samples, shape], of the types of the graph's input and labels (fp32 or int32); ignored if the
  // graph does not read them.
  const void* inputs = nullptr;
  const void* labels = nullptr;
  bool pinned = false;  // both lie in memory of Device::AllocateHost: copied from there
};

// Called by several lanes concurrently.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // Blocks until the micro-batch is available. kCancelled: the unit was abandoned. If the host
  // cannot access device memory, each lane requests its next micro-batch once it has ordered the
  // one before; after the unit's last also that of Unit::next, where an error is no failure.
  virtual absl::StatusOr<MicroBatch> Get(const WorkRange& range, uint64_t id) = 0;
};

// Says when parameters may be read. Called by several lanes concurrently, before each operator, for
// the slices of its parameters (if work is captured: before each graph segment, for those of all
// its operators). Not called again for a slice that was ready earlier in the same unit.
class SliceGate {
 public:
  virtual ~SliceGate() = default;
  // Blocks until the slice has the value from which the unit is to be computed. False: abandoned.
  // `*held_us`: the part of the wait during which the shard withheld the value; during the rest it
  // was in transit or not yet requested.
  virtual bool Wait(SliceId slice, uint64_t* held_us) = 0;
  // Multiplies a training unit's loss; a power of two, constant throughout the unit. Called only in
  // fp16, after Wait for all slices.
  virtual double LossScale() { return 1; }
};

// Training without a server: updates the device's own values with gradients that stay on the
// device.
class DeviceUpdate {
 public:
  virtual ~DeviceUpdate() = default;
  // Orders work on `stream` that turns `values`, the slice's in device memory, into those of the
  // next unit. `gradient`, also in device memory, is over `samples` samples. Called as soon as it
  // is complete: this unit no longer reads the slice's parameters.
  virtual absl::Status Update(SliceId slice, const float* gradient, float* values, uint32_t samples,
                              Stream& stream) = 0;
};

// Takes gradients, per range of the unit and slice. Not called for frozen slices. Called by several
// lanes concurrently, Ready by other threads as well.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // Host memory for the slice's elements, 64-byte aligned, ideally from Device::AllocateHost; the
  // executor owns it until Ready. Called once per range and slice, before the first write. Blocks
  // until a buffer is free (an earlier push was acked). nullptr: abandoned.
  virtual float* Acquire(size_t range, SliceId slice) = 0;
  // The buffer from Acquire holds the range's sum, over `samples` samples. Called at once, while
  // backward of earlier layers continues. After the last range's call, this unit no longer reads
  // the slice's parameters. In fp16 the gradients of trainable parameters are those of the loss
  // times SliceGate::LossScale(), and any element may have overflowed.
  virtual void Ready(size_t range, SliceId slice, uint32_t samples) = 0;
  // fp16: a loss is not finite. Its micro-batch adds zeros, and all sums of the unit are invalid.
  // Called before the micro-batch is added to any sum.
  virtual void Overflowed() {}
  // If not null, it receives the gradients instead of Acquire and Ready; each unit has one
  // micro-batch.
  virtual DeviceUpdate* device_update() { return nullptr; }
};

// The type in which a job's values are computed.
DataType TypeOf(Precision precision);

struct ExecutorOptions {
  int64_t global_batch = 1;    // samples of a whole step: gradients are scaled by its reciprocal
  uint32_t micro_batches = 1;  // of a whole step, so the maximum for a training unit
  std::vector<int64_t> train_samples;     // sizes of micro-batches in training, > 0
  std::vector<int64_t> evaluate_samples;  // the same for evaluation; empty: no evaluation
  int lanes = 1;                          // micro-batches computed concurrently, each by a thread
  int kernel_threads = 1;                 // threads inside one micro-batch
  uint64_t seed = 0;                      // for dropout
  DataType type = DataType::kFp32;        // of values except inputs, labels, logits and losses
  bool tf32 = false;                      // with kFp32: OperatorSpec::tf32 of every operator
  size_t bytes_max = std::numeric_limits<size_t>::max();  // device memory that may be planned
  Recompute recompute;  // what training recomputes in backward; changes no bit
  bool tune = false;    // as OperatorSpec::tune, for jobs that need not be reproducible
  // If the device captures work, forward and backward are launched in graph segments (CUDA graphs);
  // changes no bit.
  bool capture = true;
  // Lanes wait instead of computing: gradients are 0, each sample's loss is 1, no prediction is
  // correct.
  std::optional<ReplayedCompute> replay;
};

struct Unit {
  absl::Span<const WorkRange> ranges;  // aligned, disjoint
  uint64_t job_step = 0;               // keys the random numbers
  Clock clock = 0;                     // for spans
  // Once true, the unit ends soon: no further operator starts. May be null. The thread that sets it
  // must also make blocked Get, Wait and Acquire return.
  const std::atomic<bool>* cancelled = nullptr;
  // Called by any lane's thread when a graph segment is done on the host. May be null.
  std::function<void()> moved;
  // The device has newer values than live_parameters(), from a DeviceUpdate: none are copied to it.
  bool values_on_device = false;
  // In training with one lane, asked once all work of the unit is ordered: the range with which
  // the next unit will probably begin. Its first micro-batch is then requested, and copied to the
  // device while this unit is computed. May be null.
  std::function<std::optional<WorkRange>()> next;
};

struct RangeResult {
  double loss_sum = 0;  // over samples; micro-batches are summed along the tree of their ids
  uint64_t samples = 0;
  // The number of labels, out of JudgedLabels() per sample, that are predicted by the greatest
  // logit (the first among equals) or, for binary cross-entropy, by the logit's sign.
  uint64_t correct = 0;
};

struct UnitResult {
  absl::InlinedVector<RangeResult, 8> ranges;  // usually few enough to be stored inline
  // False: a loss was NaN or infinite, and the unit stopped before it affected a gradient. Always
  // true when an fp16 unit trains: see GradientSink::Overflowed. Micro-batches with such a loss
  // then count as no samples.
  bool finite = true;
  std::string bad_layer;          // "conv2 (conv2d)": the first layer whose output is not finite
  uint64_t bad_micro_batch = 0;   // its id
  double slice_wait_seconds = 0;  // spent in SliceGate, averaged over lanes
  double ack_wait_seconds = 0;    // likewise, in GradientSink::Acquire
};

// How many of `lanes` lanes a worker uses for a job on `device`: at most one per micro-batch, and
// few if a processor other than the host's computes.
int LanesOn(const Device& device, int lanes, uint32_t micro_batches);

// The default budget for a job's plan on `device`: nine tenths of what is available now. The rest
// is for what is not planned: libraries, staged batches, values in transit.
absl::StatusOr<size_t> BytesToPlan(Device& device);

// Train and Evaluate: one call at a time, from any thread, which acts as lane 0.
class Executor {
 public:
  virtual ~Executor() = default;

  // `device` and `spans` outlive the executor. kInvalidArgument: the device refuses an operator.
  // kResourceExhausted: it has too little memory, or bytes_max would be exceeded (the message says
  // what is planned, and which recomputation and which batch would fit).
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const ResolvedGraph& graph,
                                                          const Layout& layout,
                                                          const ExecutorOptions& options,
                                                          Device* device, SpanRing* spans);

  // The flat buffers that training and evaluation read (layout.elements, host memory). Written by
  // their owner, slice by slice, under the rules of SliceGate. Snapshot: null without evaluation.
  // If the host cannot access device memory, a unit copies each slice to the device once it is
  // ready.
  virtual float* live_parameters() = 0;
  virtual float* snapshot_parameters() = 0;

  // kCancelled: abandoned; buffers that were acquired, but not Ready, belong to the sink again.
  // kInvalidArgument: a micro-batch of a size that was not announced.
  virtual absl::Status Train(const Unit& unit, BatchSource& batches, SliceGate& gate,
                             GradientSink& sink, UnitResult* result) = 0;
  virtual absl::Status Evaluate(const Unit& unit, BatchSource& batches, SliceGate& gate,
                                UnitResult* result) = 0;

  virtual size_t planned_bytes() const = 0;  // device memory, in total
  // One lane's part of it: a micro-batch's activations, their gradients, scratch; without the
  // gradients of parameters that several nodes share. Bounded by recompute.activationBytes.
  virtual size_t planned_activation_bytes() const = 0;
  // The most device memory that the job has used so far, including libraries and captured work,
  // according to the device: the drop in available memory since before Create, so other processes'
  // share, too. 0 if the host can access device memory. Thread-safe.
  virtual size_t device_peak_bytes() const = 0;
  // Pinned host memory, without the sink's; 0 if the host can access device memory.
  virtual size_t pinned_bytes() const = 0;
  // For logs: a line for each reason why operators of training (or of evaluation, if there is no
  // training) do not use the device's faster path (OperatorKernel::slower_because).
  virtual std::vector<std::string> slower_operators() const = 0;
  virtual ExecutorTimes times() const = 0;  // thread-safe, even while a unit runs
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_EXECUTOR_H_
