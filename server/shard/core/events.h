// What the partition core is told and what it asks for (docs/protocol.md, section 7). Payload bytes
// never enter the core: the adaptor holds them under BufferIds of its own choice, which it does not
// use again before it was told to Release them.
#ifndef STARLING_SERVER_SHARD_CORE_EVENTS_H_
#define STARLING_SERVER_SHARD_CORE_EVENTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/protocol/frame.h"
#include "common/protocol/ids.h"
#include "common/protocol/record.h"
#include "common/protocol/types.h"

namespace starling {

// One stream of one peer. Ids grow in the order in which streams are opened, and are never used
// again.
using ConnectionId = Id<struct ConnectionIdTag, uint64_t>;

// ---- Events -----------------------------------------------------------------------------------

// A push, close or pull, or a report to the partition that decides; anything else is answered with
// kBadFrame. `payload` is 0 where there is
// none.
struct FrameReceived {
  ConnectionId connection;
  FrameHeader header;
  BufferId payload;
  // False: the adaptor has no memory to keep the payload for later; where it would have to wait for
  // orders it is refused with kOverBudget.
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

// The answer to ReportNorm: a decision, or an error with its text. May be lost, come twice or late.
struct DecisionReceived {
  FrameHeader header;
  std::string text;
};

// The answer to ApplyNow: the new value can be read. Or nothing was changed, since the sum that was
// merged for it is not finite.
struct Applied {
  Lsn lsn;
  int64_t first_non_finite = -1;  // element of the sum, or -1
};

// The backup holds all records up to and including `lsn`.
struct BackupHas {
  Lsn lsn;
};

// All that the coordinator wants of this partition. The last one wins; older generations, views,
// rosters and policies are ignored, and an epoch never goes back.
struct OrdersReceived {
  Generation generation;
  ViewNumber view;
  ShardId primary;
  ShardId backup;  // 0: none
  RosterList roster;
  PolicyAt policy;                      // in force: all partitions have applied all before its step
  std::optional<PolicyAt> next_policy;  // its step is decided: all before it is to be applied
  uint32_t epoch = 0;                   // the open one
  // With a policy that is in force: none of its steps is done.
  std::optional<uint64_t> training_end;
  uint32_t discard_cuts_before = 0;  // the memory of copies of epochs below may be used again
  ViewNumber decider;                // of the partition that decides, where the job has one
};

struct ConnectionDown {
  ConnectionId connection;
};

struct ShardTick {};  // at least every kShardTickPeriod, so that deadlines are kept

using PartitionEvent = std::variant<FrameReceived, Verified, Measured, DecisionReceived, Applied,
                                    BackupHas, OrdersReceived, ConnectionDown, ShardTick>;

// ---- Actions ----------------------------------------------------------------------------------
// Carried out in order, so that an action sees the effects of those before it on the same slice.

// Digest and finite check of the payload in one pass; answer with Verified.
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

// Squared norm and finite check of a sealed sum; answer with Measured.
struct Measure {
  SliceId slice;
  BufferId payload;
};

// Take it to the partition that decides; what comes back is DecisionReceived. It may get lost.
struct ReportNorm {
  FrameHeader header;
};

// Send the record and its payload to the backup; answer with BackupHas. Only in views with a
// backup.
struct Replicate {
  Record record;
  BufferId payload;  // kApply only
};

// One update of the slice; answer with Applied. BSP: out of place, from value buffer
// `version % 2` into `(version + 1) % 2`. SSP and async: in place (version is 0).
struct ApplyNow {
  Record record;
  BufferId payload;
  uint64_t version = 0;
};

// This policy is in force from here on, and values are kept as it wants them: in BSP two versions,
// of which the newest, that all slices have, is `version`; otherwise one. Nothing is being applied.
struct SwitchPolicy {
  PolicyNumber number;
  bool two_versions = false;
  uint64_t version = 0;
};

// Copy all values of the partition for the epoch's cut. At most one copy is live at a time.
struct CopyForCut {
  uint32_t epoch = 0;
};

// The copy of this epoch is not read any more: right before the next CopyForCut, which needs its
// memory.
struct DropCopy {
  uint32_t epoch = 0;
};

// A frame without payload, or with `text` as its payload (then kind is kText). The adaptor fills
// payload_bytes and digest.
struct SendFrame {
  ConnectionId connection;
  FrameHeader header;
  std::string text;
};

enum class ValueSource : uint8_t {
  kCurrent = 1,  // BSP: value buffer `version % 2`
  kCutCopy = 2,
};

// A VALUE frame with the slice's bytes as they are now. The adaptor fills payload_bytes and digest.
struct SendValue {
  ConnectionId connection;
  FrameHeader header;
  ValueSource source = ValueSource::kCurrent;
  uint64_t version = 0;
};

// The buffer is free.
struct Release {
  BufferId buffer;
};

// The partition stopped itself: it refuses every further push, and goes on answering pulls. Once.
struct ReportFault {
  std::string message;
  Origin origin;  // who sent what cannot be applied
};

using PartitionAction =
    std::variant<Verify, MergeSums, Measure, ReportNorm, Replicate, ApplyNow, SwitchPolicy,
                 CopyForCut, DropCopy, SendFrame, SendValue, Release, ReportFault>;

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_EVENTS_H_
