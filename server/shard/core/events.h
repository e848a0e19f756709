// Events and actions of the partition core (docs/protocol.md, section 7). Payload bytes never enter
// the core: the host holds them under BufferIds that it chooses and does not reuse before the core
// releases them.
#ifndef STARLING_SERVER_SHARD_CORE_EVENTS_H_
#define STARLING_SERVER_SHARD_CORE_EVENTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/frame.h"
#include "common/protocol/ids.h"
#include "common/protocol/record.h"
#include "common/protocol/types.h"
#include "server/shard/core/cut_state.h"

namespace starling {

// One stream of one peer. Ids ascend in the order in which streams are opened and are never reused.
using ConnectionId = Id<struct ConnectionIdTag, uint64_t>;

// ---- Events -----------------------------------------------------------------------------------

// A push, close or pull, a report to the deciding partition, or a primary's question. Any other
// frame is answered with kBadFrame. `payload` is 0 if there is none.
struct FrameReceived {
  ConnectionId connection;
  FrameHeader header;
  BufferId payload;
  // False: the host has no memory to keep the payload, so a frame that would have to wait for
  // orders is refused with kOverBudget.
  bool may_wait = true;
};

// The answer to Verify.
struct Verified {
  BufferId payload;
  uint64_t digest = 0;            // XXH3-64 of the bytes
  int64_t first_non_finite = -1;  // element, or -1
};

// The answer to Measure.
struct Measured {
  BufferId payload;
  double norm2 = 0;               // the squared norm
  int64_t first_non_finite = -1;  // element, or -1
};

// The answer to ReportNorm: a decision, or an error with its text. May be lost, repeated or late.
struct DecisionReceived {
  FrameHeader header;
  std::string text;
};

// The answer to ApplyNow: the new value can be read. Or nothing was changed because the merged sum
// is not finite.
struct Applied {
  Lsn lsn;
  int64_t first_non_finite = -1;  // element of the sum, or -1
  uint64_t digest = 0;            // of the slice's newest value and its slots, if asked for
  int64_t new_non_finite = -1;    // if looked for: element whose new value, or slot, is not finite
};

// ---- From the backup, at a primary (docs/protocol.md, section 12) ----

// The answer to AskBackup, Replicate or SendSnapshot: an ack, or an error with its text. It may be
// lost, repeated or late.
struct BackupAnswered {
  FrameHeader header;
  std::string text;
};
// Everything under way to the backup or back is lost, and so is the snapshot that is being sent.
struct BackupDown {
  std::string why;
  absl::Duration retry_after = absl::ZeroDuration();  // ask again no sooner
};
// The answer to TakeSnapshot.
struct SnapshotTaken {
  uint64_t frames = 0;
};

// ---- From the primary, at a backup ----

// A well-formed record, and the payload that it applies, which has the digest in the frame.
struct RecordReceived {
  FrameReceived frame;
  Record record;
  CopyDigests digests;
};
// A frame of a snapshot: a part of the state, or an intact tensor (kDense).
struct SnapshotReceived {
  FrameReceived frame;
  std::string state;
};

// A checkpoint that the partition takes part in. It is answered once, with CaptureCheckpoint or
// MissCheckpoint.
struct CheckpointAt {
  uint64_t number = 0;  // ascending; above 0
  uint64_t step = 0;    // of the job: all below it is in the checkpoint, nothing else
  friend bool operator==(const CheckpointAt&, const CheckpointAt&) = default;
};

// The coordinator's complete orders for this partition. The last ones win. Older generations,
// views, rosters and policies are ignored, and the epoch never goes back.
struct OrdersReceived {
  Generation generation;
  ViewNumber view;
  ShardId primary;
  ShardId backup;  // 0: none
  std::string backup_address;
  RosterList roster;
  PolicyAt policy;  // in force: all partitions have applied everything before its step
  // Its step is decided: everything before it is to be applied.
  std::optional<PolicyAt> next_policy;
  uint32_t epoch = 0;  // the open one
  // From this step on, nothing is done. Its policy is in force.
  std::optional<uint64_t> training_end;
  uint32_t discard_cuts_before = 0;        // copies of epochs below this one may be discarded
  ViewNumber decider;                      // view of the deciding partition, if the job has one
  std::optional<CheckpointAt> checkpoint;  // for a primary
};

struct ConnectionDown {
  ConnectionId connection;
};

struct ShardTick {};  // at least every kShardTickPeriod, for deadlines

using PartitionEvent = std::variant<FrameReceived, Verified, Measured, DecisionReceived, Applied,
                                    BackupAnswered, BackupDown, SnapshotTaken, RecordReceived,
                                    SnapshotReceived, OrdersReceived, ConnectionDown, ShardTick>;

// ---- Actions ----------------------------------------------------------------------------------
// Carried out in order, so an action sees the effects of earlier actions on the same slice.

// Compute the payload's digest and check that it is finite, in one pass. Answer with Verified.
struct Verify {
  SliceId slice;
  BufferId payload;
};

// into[i] += from[i]. `from` is released by a later action.
struct MergeSums {
  SliceId slice;
  BufferId into;
  BufferId from;
};

// Compute the squared norm of a sealed sum and check that it is finite. Answer with Measured.
struct Measure {
  SliceId slice;
  BufferId payload;
};

// Send the report to the deciding partition. Its answer is DecisionReceived. The report may get
// lost.
struct ReportNorm {
  FrameHeader header;
};

// Ask the backup which records it has. Answer with BackupAnswered when the backup answers; like
// every frame to it, the question may be lost. Only in views with a backup.
struct AskBackup {
  FrameHeader header;
};

// Send the record and its payload to the backup. If the merged sum is not finite, send nothing and
// answer with Applied, which says so.
struct Replicate {
  FrameHeader header;
  Record record;
  BufferId payload;  // kApply only
  CopyDigests digests;
};

// Keep the present values, slots and copies, in frames that follow those of `state`, until
// DropSnapshot or the next snapshot. Answer with SnapshotTaken.
struct TakeSnapshot {
  std::string state;
};
// Send frame `header.clock` of the snapshot to the backup.
struct SendSnapshot {
  FrameHeader header;
};
struct DropSnapshot {};

// The tensors of a slice in a snapshot.
enum class TensorPart : uint8_t {
  kVersion0 = 0,  // the value; with two versions: the even one
  kVersion1 = 1,
  kSlot0 = 2,
  kSlot1 = 3,
  kCut = 4  // the copy for evaluation
};

// A snapshot begins: forget all tensors, and keep one or two versions of each value.
struct BeginTensors {
  bool two_versions = false;
};
// Keep the payload beyond this event, in memory of the host's own.
struct KeepPayload {
  BufferId payload;
};

// Use the payload as this tensor. A later action releases it.
struct InstallTensor {
  SliceId slice;
  TensorPart part = TensorPart::kVersion0;
  BufferId payload;
  bool newest = false;  // it is the newest version of the value
};

// Update the slice once. Answer with Applied. BSP: out of place, from value buffer `version % 2`
// into `(version + 1) % 2`. SSP and async: in place (version is 0).
struct ApplyNow {
  Record record;
  BufferId payload;
  uint64_t version = 0;
  bool digest = false;  // answer with the digest, too
  bool looks = false;   // for what is not finite in the new value and slots
};

// A slice's new values are looked at after every so many updates, as what is not finite stays so,
// and after each one in as many last steps of the job.
inline constexpr int64_t kUpdatesToLook = 16;

// The policy is in force from here on, and values are kept as it requires: two versions in BSP,
// where `version` is the newest one and all slices have it; otherwise one. No update is in
// progress.
struct SwitchPolicy {
  PolicyNumber number;
  bool two_versions = false;
  uint64_t version = 0;
};

// Copy all values of the partition for the epoch's cut. There is at most one copy at a time.
struct CopyForCut {
  uint32_t epoch = 0;
};

// Drop the copy of this epoch, which is no longer read. Comes right before the next CopyForCut,
// which needs the memory.
struct DropCopy {
  uint32_t epoch = 0;
};

// Keep the newest values and the slots as they are now, and the copy for evaluation where `state`
// has one, for the checkpoint with this number.
struct CaptureCheckpoint {
  uint64_t number = 0;
  CutState state;
};
// The partition has already gone beyond the step of the checkpoint.
struct MissCheckpoint {
  uint64_t number = 0;
  std::string why;
};

// Send a frame without payload, or with `text` as its payload (kind is kText then). The host fills
// in payload_bytes and digest.
struct SendFrame {
  ConnectionId connection;
  FrameHeader header;
  std::string text;
};

enum class ValueSource : uint8_t {
  kCurrent = 1,  // BSP: value buffer `version % 2`
  kCutCopy = 2,
};

// Send a VALUE frame with the slice's present bytes. The host fills in payload_bytes and digest.
struct SendValue {
  ConnectionId connection;
  FrameHeader header;
  ValueSource source = ValueSource::kCurrent;
  uint64_t version = 0;
};

// The core is done with the buffer.
struct Release {
  BufferId buffer;
};

// The partition has stopped: it refuses all further pushes but still answers pulls. Sent once.
struct ReportFault {
  std::string message;
  Origin origin;  // sender of the update that cannot be applied
};

using PartitionAction =
    std::variant<Verify, MergeSums, Measure, ReportNorm, AskBackup, Replicate, TakeSnapshot,
                 SendSnapshot, DropSnapshot, BeginTensors, KeepPayload, InstallTensor, ApplyNow,
                 SwitchPolicy, CopyForCut, DropCopy, CaptureCheckpoint, MissCheckpoint, SendFrame,
                 SendValue, Release, ReportFault>;

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_EVENTS_H_
