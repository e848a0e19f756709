// Events and actions of a worker's session (docs/protocol.md, section 7). Plain values.
//
// The host (worker/host) turns the outside world into events and carries out actions in order. It
// decides nothing. Payload bytes stay with the host. The session sees BufferIds; it owns a buffer
// from the event that carries it until an action that hands it over (see there).
#ifndef STARLING_WORKER_CORE_EVENTS_H_
#define STARLING_WORKER_CORE_EVENTS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "common/protocol/frame.h"
#include "common/protocol/ids.h"
#include "common/protocol/types.h"
#include "proto/coordinator.pb.h"

namespace starling::session {

// A unit of compute: one item (SSP, async, evaluation), or the subtrees of one step that are
// assigned to this worker (BSP). Ids are never reused within a session.
using UnitId = Id<struct UnitIdTag, uint64_t>;

// Ranges of one unit, or ranges to be read ahead. Usually few enough to need no allocation.
using WorkRanges = absl::InlinedVector<WorkRange, 8>;

// What the session needs to know of one slice of the job's layout.
struct SliceShape {
  PartitionId partition;
  uint32_t elements = 0;
  bool contributes = true;  // false: frozen, so pulled once and never pushed
};

// Which of the executor's two copies of the parameters.
enum class Params : uint8_t {
  kLive,      // trained on; its version is a clock
  kSnapshot,  // the cut of an epoch, for evaluation; its version is that epoch
};

// ---- Events -----------------------------------------------------------------------------------

namespace event {

// The answer to action::Register.
struct Registered {
  WorkerId worker;
  Incarnation incarnation;
  Generation generation;
  uint64_t cluster = 0;
};
struct RegisterFailed {
  // kFailedPrecondition: a permanent refusal (version, name), so the session exits.
  absl::Status status;
};

// The answer to action::Report: exactly one of these two per Report. `incarnation` is the report's.
struct Orders {
  Incarnation incarnation;
  WorkerOrders orders;
};
struct ReportFailed {
  Incarnation incarnation;
  absl::Status status;
};

struct StreamUp {
  ShardId shard;
};
// The stream broke or could not be opened. Nothing arrives from it after this event.
struct StreamDown {
  ShardId shard;
  absl::Status status;
};

// kAck, kValue or kError from a shard. The transport handles kCredit.
struct Frame {
  ShardId shard;
  FrameHeader header;
  BufferId buffer;   // kValue: the slice's values; else 0
  std::string text;  // kError: the shard's message
};

// The answer to action::Prepare.
struct JobPrepared {
  RunId run;
  // kDataLoss, kNotFound: bad data; kResourceExhausted: no memory on this worker; other errors: bad
  // model.
  absl::Status status;
  std::vector<SliceShape> slices;  // by SliceId; partitions as JobDescription.partitions
  bool device_lost = false;        // as in UnitFailed; only with an error
};

// The answer to action::Inspect.
struct Inspected {
  Inspection inspection;
};

// The sum of range `range` (index in Compute.ranges) for `slice` is complete. After the last
// range's sum, the unit does not read the slice's values any more, so InstallValue may overwrite
// them.
struct SliceGradient {
  UnitId unit;
  uint32_t range = 0;
  SliceId slice;
  BufferId buffer;  // the session owns it until ReleaseBuffer
  uint32_t samples = 0;
  // fp16: log2 of the scale of the loss, by which the sum was divided. `skipped`: this sum or
  // another one of the unit overflowed, and this one is zero instead.
  uint8_t loss_scale_log2 = 0;
  bool skipped = false;
};

struct RangeMetrics {
  double loss_sum = 0;
  uint64_t samples = 0;
  uint64_t correct = 0;
};

// The unit's work is done, and all its SliceGradients have been delivered. Or `finite` is false:
// the unit stopped, and no gradient that depends on the bad value was delivered.
struct UnitComputed {
  UnitId unit;
  absl::InlinedVector<RangeMetrics, 8> metrics;  // per Compute.ranges
  bool finite = true;
  std::string bad_layer;  // first layer whose output is not finite; may be empty
};

// The unit cannot be computed: a file is damaged or missing (kDataLoss, kNotFound), or there is an
// error of our own.
struct UnitFailed {
  UnitId unit;
  absl::Status status;
  // This process can compute nothing any more, so the worker leaves and others take over. False:
  // the job cannot continue on this worker.
  bool device_lost = false;
};

// SIGTERM: finish the unit, push, leave, exit.
struct Drain {};

// The passage of time, for retries and deadlines. Should come about every 50 ms.
struct Tick {};

}  // namespace event

using Event = std::variant<event::Registered, event::RegisterFailed, event::Orders,
                           event::ReportFailed, event::StreamUp, event::StreamDown, event::Frame,
                           event::JobPrepared, event::Inspected, event::SliceGradient,
                           event::UnitComputed, event::UnitFailed, event::Drain, event::Tick>;

// ---- Actions ----------------------------------------------------------------------------------

namespace action {

// Calls Coordinator.Register. The nonce depends on the process and `registration` only, so a
// retried call (same number) gets the same answer.
struct Register {
  uint64_t registration = 0;
};

// Calls Coordinator.ReportWorker. The host adds hidden_share and samples_per_second. At most two
// calls are in flight: the coordinator holds one until it has news, and the other carries our news.
struct Report {
  WorkerReport report;
};

// Opens the stream to a shard. Answered by StreamUp or StreamDown. Disconnect has no answer.
struct Connect {
  ShardId shard;
  std::string address;
};
struct Disconnect {
  ShardId shard;
};

// Sends one frame. The host fills in `digest`. The bytes of `buffer` (kPush; else 0) must not
// change until ReleaseBuffer, since the same buffer may be sent again.
struct Send {
  ShardId shard;
  FrameHeader header;
  BufferId buffer;
};

// Opens the data, plans memory and builds the executor. Answered by JobPrepared.
struct Prepare {
  JobDescription job;
};
// Drops everything of the job. Its current unit, if any, was abandoned before.
struct CloseJob {
  RunId run;
};

struct Inspect {
  InspectRequest request;
};

// The complete list of ranges to be computed next, in order, without the current unit. Replaces the
// previous list: the loader reads these ahead and may drop others.
struct Prefetch {
  WorkRanges ranges;
};

// Computes `ranges` one after another. An operator runs as soon as all its slices in `params` have
// version `clock` (InstallValue); a slice that does not contribute may have any version. One unit
// runs at a time, so this one starts after an abandoned one has stopped. kTrain: SliceGradients,
// then UnitComputed. kEvaluate: only UnitComputed.
struct Compute {
  UnitId unit;
  WorkRanges ranges;
  Clock clock = 0;        // kSnapshot: the epoch
  uint64_t job_step = 0;  // random numbers depend on it; kEvaluate: 0
  WorkPurpose purpose = WorkPurpose::kTrain;
  Params params = Params::kLive;
  // SliceGradients are delivered together when all are complete, and if one is skipped, all are.
  bool whole = false;
  WorkerId repeats;  // BSP: another member, whose part of the step it is, too; 0: none
};

// The unit is no longer wanted. Its remaining events are ignored and their buffers released. It may
// still read values for a moment, so an InstallValue into its copy waits in the host until it has
// stopped.
struct Abandon {
  UnitId unit;
};

// The executor takes `buffer` over. It has the values of `slice` at version `clock`.
struct InstallValue {
  SliceId slice;
  BufferId buffer;
  Params params = Params::kLive;
  Clock clock = 0;
  uint8_t loss_scale_log2 = 0;  // fp16, kLossScaleSlice: of gradients computed from this version
};

// The values in the live copy are void: no unit may start on them, no matter which version they
// have. `snapshot_too`: the snapshot's values are void, too.
struct ForgetValues {
  bool snapshot_too = true;
};

// The session is done with these bytes: a push was acked or dropped, or a value came too late. A
// Send of them may still be queued in the host, which may drop that frame or keep the bytes alive.
struct ReleaseBuffer {
  BufferId buffer;
};

// A line for the log about a problem of the job on this worker. Once for each cause.
struct Warn {
  std::string text;
};

// The process ends. Nothing follows.
struct Exit {
  absl::Status status;
};

}  // namespace action

using Action =
    std::variant<action::Register, action::Report, action::Connect, action::Disconnect,
                 action::Send, action::Prepare, action::CloseJob, action::Inspect, action::Prefetch,
                 action::Compute, action::Abandon, action::InstallValue, action::ForgetValues,
                 action::ReleaseBuffer, action::Warn, action::Exit>;
using Actions = std::vector<Action>;

}  // namespace starling::session

#endif  // STARLING_WORKER_CORE_EVENTS_H_
