// The data plane's frame: a fixed header, then the raw payload. Its layout is final.
//
// Layout: 192 bytes, little-endian, fields in the order of frame.cc, zero where unused, CRC32C of
// the first 188 bytes in the last 4. A receiver rejects an unknown magic, version, type, kind or
// codec, a payload whose length is not `payload_bytes`, and a header with a wrong CRC; it trusts no
// size before these checks.
#ifndef STARLING_COMMON_PROTOCOL_FRAME_H_
#define STARLING_COMMON_PROTOCOL_FRAME_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/protocol/limits.h"
#include "common/protocol/types.h"

namespace starling {

inline constexpr uint32_t kFrameMagic = 0x474C5453;  // "STLG"
inline constexpr uint16_t kFrameVersion = 1;

enum class FrameType : uint8_t {
  kPush = 1,  // worker -> shard: a contribution
  // Worker -> shard: unit `clock` of `key.work` is complete; or ENTER, PARK (flags).
  kClose = 2,
  kCredit = 3,  // receiver -> sender: `elements` bytes of credit and `blocks` are free again
  kAck = 4,     // shard -> worker: push or close is durable (see `answer`)
  // Worker -> shard: requests the slice at `clock`; pending until answered or superseded.
  kPull = 5,
  kValue = 6,       // shard -> worker: the slice
  kReplicate = 7,   // primary -> backup: a record, a part of a snapshot, or a question (section 12)
  kDecision = 8,    // partition -> partition 0: a step's norm; and back: the step's scale
  kActivation = 9,  // reserved: pipeline parallelism
  kError = 10,      // shard -> worker: rejected, see `answer` and the text in the payload
};

// The highest number above: types are numbered from 1 without gaps.
inline constexpr uint8_t kFrameTypeLast = 10;

const char* FrameTypeName(FrameType type);  // "push"

enum class PayloadKind : uint8_t {
  kNone = 0,
  kDense = 1,
  kTopK = 2,
  kRows = 3,
  kText = 4,
  // Replicate: an encoded record, and behind it the `elements` fp32 that it applies, of which alone
  // `digest` is; or a part of a state (kSnapshot).
  kRecord = 5
};
enum class Codec : uint8_t { kFp32 = 1, kFp16 = 2, kBf16 = 3, kInt8 = 4 };

// The outcome of a request, in kAck and kError.
enum class Answer : uint8_t {
  kNone = 0,
  kCounted = 1,         // ack: counted now
  kAlreadyCounted = 2,  // ack: an earlier attempt was counted
  // Fenced: the named field is stale. Nothing changed. The worker drops the request.
  kStaleRun = 10,
  kStaleView = 11,         // the answer's `view` is the current one: reconnect
  kStaleIncarnation = 12,  // origin is not in the roster: rejoin with a new incarnation
  kNotHosted = 13,         // the partition is not here (or not yet): retry with a deadline
  // Rejected: the request is wrong.
  kBadFrame = 20,
  kBadDigest = 21,   // the payload differs from its digest: send again
  kNonFinite = 22,   // the contribution has a NaN or Inf: it is not counted
  kOverBudget = 23,  // over a byte or count budget, or another's bytes for it failed: send again
  kStaleClock = 24,  // BSP: that version is gone; `clock` is the current one
  kStopped = 25,     // the partition has stopped; its shard tells the coordinator why
};

namespace frame_flags {
// Close: the replica becomes active; the ack's clock is its position.
inline constexpr uint16_t kEnter = 1;
inline constexpr uint16_t kPark = 2;  // close: the replica leaves the minimum
// Close: advance to `clock` without work (after entering behind).
inline constexpr uint16_t kSkip = 4;
inline constexpr uint16_t kReader = 8;    // pull by a reader: not a replica; never waits
inline constexpr uint16_t kVersion = 16;  // with kReader, in BSP: exactly the version `clock`
// Push, decision: the fp16 gradient overflowed, and counts as zero (docs/protocol.md, section 10).
inline constexpr uint16_t kSkipped = 32;
// Replicate: a part of a snapshot. Its answer: the backup needs one (docs/protocol.md, section 12).
inline constexpr uint16_t kSnapshot = 64;
}  // namespace frame_flags

struct FrameHeader {
  FrameType type = FrameType::kError;
  PayloadKind kind = PayloadKind::kNone;
  Codec codec = Codec::kFp32;
  Answer answer = Answer::kNone;
  uint16_t flags = 0;

  ContributionKey key;  // run, slice, work
  PartitionId partition;
  ViewNumber view;
  RosterNumber roster;
  PolicyNumber policy;  // the sender's; an answer repeats it
  Origin origin;
  uint64_t request_id = 0;  // per stream, chosen by the requester; the answer repeats it

  uint32_t samples = 0;  // in the contribution; PUSH only
  Clock clock = 0;       // push, close: the unit; pull: the clock to compute at; value: see docs
  Lsn base_lsn;  // push: position of the value that it was computed from; value: its position
  Lsn min_lsn;   // pull: the answer must not be older than this

  // Decisions only (docs/protocol.md, section 9); `clock` is the job's step.
  PartitionId reporter;  // the partition that reports, or is answered
  double scalar = 0;     // report: the squared norm; answer: the scale. Finite, not negative

  uint32_t held_us = 0;  // value only: how long the shard held the pull back
  // Value only, BSP with backup workers: how long the step that made this version waited for
  // one worker, and fewer than N others, alone; 0: hardly. And for which contribution of that
  // worker: its first micro-batch in the step.
  uint32_t late_us = 0;
  uint32_t late_part = 0;

  // fp16: log2 of the loss scale: the one used (push), or the next one (value of kLossScaleSlice).
  // The gradient on the wire is already divided by it.
  uint8_t loss_scale_log2 = 0;

  uint32_t elements = 0;
  uint32_t payload_bytes = 0;
  uint64_t digest = 0;  // XXH3-64 of the payload; 0: no payload

  // The transport's: blocks of a segment of shared memory (docs/decisions/0015), a bit for each.
  // Push, value: where the payload lies, which does not follow then; 0: it follows. Credit: those
  // of the frame's receiver that are free again.
  uint64_t blocks = 0;

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

// How many blocks of a segment hold a payload.
constexpr int BlocksOf(size_t payload_bytes) {
  return static_cast<int>((payload_bytes + limits::kSegmentBlockBytes - 1) /
                          limits::kSegmentBlockBytes);
}

// Writes exactly kFrameHeaderBytes at `out`.
void EncodeFrameHeader(const FrameHeader& header, uint8_t* out);

// kInvalidArgument names the field, what was expected and what came. Does not check the payload.
absl::Status DecodeFrameHeader(absl::Span<const uint8_t> bytes, FrameHeader* out);

// For logs and golden files: "push slice 3 of job 7.0 work train 0:[128,132) by worker 2.17 attempt
// 1 clock 32".
std::string FrameToString(const FrameHeader& header);

}  // namespace starling

#endif  // STARLING_COMMON_PROTOCOL_FRAME_H_
