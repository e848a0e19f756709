// What a worker's session hears and what it asks for (docs/protocol.md, section 7). Plain values.
//
// The adaptor (worker runtime) turns the outside into events and carries out actions in order. It
// decides nothing. Payload bytes stay with the adaptor: the session sees BufferIds, and owns one
// from the event that carries it until an action that names it (see there).
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

// A unit of compute: one item (SSP, async, evaluation), or the subtrees of one step that this
// worker was assigned (BSP). Never reused within a session.
using UnitId = Id<struct UnitIdTag, uint64_t>;

// Ranges of one unit, or to be read ahead: usually so few that they need no memory of their own.
using WorkRanges = absl::InlinedVector<WorkRange, 8>;

// What the session needs to know of one slice of the job's layout.
struct SliceShape {
  PartitionId partition;
  uint32_t elements = 0;
  bool contributes = true;  // false: frozen: pulled once, never pushed
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
  absl::Status status;  // kFailedPrecondition: refused for good (version, name): the session exits
};

// The answer to action::Report: exactly one of both per Report. `incarnation` is the report's.
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
// The stream broke, or could not be opened. Nothing of it arrives after this event.
struct StreamDown {
  ShardId shard;
  absl::Status status;
};

// kAck, kValue or kError from a shard. kCredit is the adaptor's own business.
struct Frame {
  ShardId shard;
  FrameHeader header;
  BufferId buffer;   // kValue: the slice's values; else 0
  std::string text;  // kError: what the shard says
};

// The answer to action::Prepare.
struct JobPrepared {
  RunId run;
  // kDataLoss, kNotFound: the data's fault; kResourceExhausted: no memory here; else the model's.
  absl::Status status;
  std::vector<SliceShape> slices;  // by SliceId; partitions as JobDescription.partitions
  bool device_lost = false;        // as UnitFailed's, with a status that is not OK
};

// The answer to action::Inspect.
struct Inspected {
  Inspection inspection;
};

// The sum of range `range` (index in Compute.ranges) for `slice` is complete. With the last
// range's, the unit does not read the slice's values any more: they may be overwritten by
// InstallValue.
struct SliceGradient {
  UnitId unit;
  uint32_t range = 0;
  SliceId slice;
  BufferId buffer;  // the session owns it until ReleaseBuffer
  uint32_t samples = 0;
  // fp16: the sum is divided by 2^this, which the loss was scaled by. Skipped: it overflowed, or
  // another sum of the unit did, and is zero instead.
  uint8_t loss_scale_log2 = 0;
  bool skipped = false;
};

struct RangeMetrics {
  double loss_sum = 0;
  uint64_t samples = 0;
  uint64_t correct = 0;
};

// All of the unit's work is done, and all its SliceGradients were delivered before. Or: `finite` is
// false, the unit stopped, and no gradient that depends on the bad value was delivered.
struct UnitComputed {
  UnitId unit;
  absl::InlinedVector<RangeMetrics, 8> metrics;  // per Compute.ranges
  bool finite = true;
  std::string bad_layer;  // first layer whose output is not finite; may be empty
};

// The unit cannot be computed: a file that was good is not any more (kDataLoss, kNotFound), or our
// fault.
struct UnitFailed {
  UnitId unit;
  absl::Status status;
  // Nothing can be computed in this process any more: the worker leaves, so that others may. Else
  // the job cannot go on.
  bool device_lost = false;
};

// SIGTERM: finish the unit, push, leave, exit.
struct Drain {};

// Time passes. Wanted every 50 ms or so; `now` moves retries and deadlines.
struct Tick {};

}  // namespace event

using Event = std::variant<event::Registered, event::RegisterFailed, event::Orders,
                           event::ReportFailed, event::StreamUp, event::StreamDown, event::Frame,
                           event::JobPrepared, event::Inspected, event::SliceGradient,
                           event::UnitComputed, event::UnitFailed, event::Drain, event::Tick>;

// ---- Actions ----------------------------------------------------------------------------------

namespace action {

// Calls Coordinator.Register. The nonce is a function of the process and `registration`, so that a
// retried call (same number) gets the same answer.
struct Register {
  uint64_t registration = 0;
};

// Calls Coordinator.ReportWorker. The adaptor adds hidden_share and samples_per_second. At most
// two are under way: the coordinator holds the first until it has news, the second is news of ours.
struct Report {
  WorkerReport report;
};

// Opens the stream to a shard; answered by StreamUp or StreamDown. Disconnect is not answered.
struct Connect {
  ShardId shard;
  std::string address;
};
struct Disconnect {
  ShardId shard;
};

// Sends one frame. `digest` is the adaptor's to fill in. The bytes of `buffer` (kPush; else 0) stay
// as they are until ReleaseBuffer: the same buffer may be sent again.
struct Send {
  ShardId shard;
  FrameHeader header;
  BufferId buffer;
};

// Opens the data, plans memory, builds the executor; answered by JobPrepared.
struct Prepare {
  JobDescription job;
};
// Drops all of it. The unit under way, if any, was abandoned before.
struct CloseJob {
  RunId run;
};

struct Inspect {
  InspectRequest request;
};

// The whole list of ranges that will be computed next, in order, the unit under way left out.
// Replaces the one before: the loader stages those and may drop others.
struct Prefetch {
  WorkRanges ranges;
};

// Computes `ranges` one after another. An operator runs as soon as all its slices of `params` have
// the version `clock` (InstallValue); a slice that does not contribute: any version. One unit at a
// time: it begins when an abandoned one has stopped. kTrain: SliceGradients, then UnitComputed.
// kEvaluate: only UnitComputed.
struct Compute {
  UnitId unit;
  WorkRanges ranges;
  Clock clock = 0;        // kSnapshot: the epoch
  uint64_t job_step = 0;  // random numbers are drawn for it; kEvaluate: 0
  WorkPurpose purpose = WorkPurpose::kTrain;
  Params params = Params::kLive;
  // SliceGradients come when all are complete, and if one is skipped all are: who takes the first
  // has taken all.
  bool whole = false;
};

// Nobody wants the unit any more. Events of it that still come are ignored (their buffers
// released). It may go on reading values for a moment: an InstallValue into its copy waits in the
// adaptor until it has stopped.
struct Abandon {
  UnitId unit;
};

// The executor takes `buffer` over: the values of `slice`, which have version `clock` now.
struct InstallValue {
  SliceId slice;
  BufferId buffer;
  Params params = Params::kLive;
  Clock clock = 0;
  uint8_t loss_scale_log2 = 0;  // fp16, kLossScaleSlice: of gradients computed from this version
};

// What the live copy of the parameters holds is void: no unit may start on it, whatever its
// version. `snapshot_too`: what the other holds is, too.
struct ForgetValues {
  bool snapshot_too = true;
};

// The session is done with these bytes: a push that was acked or dropped, a value that came too
// late. A Send of them may still be queued in the adaptor (which may drop that frame, or keep the
// bytes alive).
struct ReleaseBuffer {
  BufferId buffer;
};

// A line for the log: what is in the way of the job here. Once for each cause.
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
