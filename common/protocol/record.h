// A record: what happens at one point of a partition's log, and the atomic unit of everything. It
// has all that a repeater needs (docs/protocol.md, section 11), so a repeater decides nothing.
//
// A record has one encoding, for whatever keeps or repeats a log. Little-endian, fields one behind
// the other:
//   magic u32, version u16, kind u8, flags u8, bytes u32 (all of the encoding), lsn u64, view u64,
//   the fields of its kind (record.cc), CRC32C of all before as u32
// The payload of a kApply travels behind its record; `elements` and `digest` say which one.
#ifndef STARLING_COMMON_PROTOCOL_RECORD_H_
#define STARLING_COMMON_PROTOCOL_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/protocol/types.h"
#include "common/schedule/loss_scale.h"

namespace starling {

inline constexpr uint32_t kRecordMagic = 0x524C5453;  // "STLR"
inline constexpr uint16_t kRecordVersion = 1;

enum class RecordKind : uint8_t {
  kApply = 1,
  kClose = 2,
  kDecision = 3,
  kRoster = 4,
  kPolicy = 5,
  kCut = 6
};

// Fields that its kind does not name are as here, and are not encoded.
struct Record {
  Lsn lsn;
  ViewNumber view;
  RecordKind kind = RecordKind::kApply;

  // kApply: the slice, the work that it covers (BSP: the whole step), and what is applied how.
  SliceId slice;
  WorkRange work;         // kCut: `epoch` alone
  uint32_t samples = 0;   // of `work`
  UpdateScalars scalars;  // kDecision: `scale` alone
  uint32_t elements = 0;
  // XXH3-64 of the payload; 0 for a sum that was merged here, of which each part was verified.
  uint64_t digest = 0;
  // kApply of kLossScaleSlice in fp16: once this record is applied.
  LossScale::State loss_scale;

  // kApply in SSP and async, kClose: by whom. Skipped: whose gradient overflowed.
  Origin origin;
  // kApply: of the contribution, in BSP the job's step; kClose: where the replica is then;
  // kDecision: the job's step.
  Clock clock = 0;
  uint16_t flags = 0;  // kClose: frame_flags
  // kApply, kDecision: the gradient overflowed in fp16, and nothing changes but what was counted.
  bool skipped = false;

  RosterList roster;  // kRoster
  PolicyAt policy;    // kPolicy

  friend bool operator==(const Record&, const Record&) = default;
};

// Replaces `out`, whose memory is used again.
void EncodeRecord(const Record& record, std::string* out);

// kInvalidArgument: the bytes are no record that this release writes; says what was expected, what
// came, and what to do. Allocates in proportion to `bytes`, whatever they say. What a partition
// can compare with its own state is not checked: PartitionState::Repeat does that.
absl::StatusOr<Record> DecodeRecord(absl::string_view bytes);

// What a primary says of its own copy, behind each record that it sends (docs/protocol.md, section
// 12): log u64, checked u64, slice u64, CRC32C of these as u32.
struct CopyDigests {
  uint64_t log = 0;    // of the log up to and including the record
  Lsn checked;         // the newest record of which IsChecked that took effect; 0: none
  uint64_t slice = 0;  // of the values and slots of its slice, right after it
  friend bool operator==(const CopyDigests&, const CopyDigests&) = default;
};
inline constexpr size_t kCopyDigestsBytes = 28;

void AppendCopyDigests(const CopyDigests& digests, std::string* out);
// nullopt: the bytes are damaged.
std::optional<CopyDigests> ReadCopyDigests(absl::string_view bytes);

// Whether both copies digest the slice of the update with this position once it is applied. One in
// 16 is, at irregular distances, so that each slice has its turn.
constexpr bool IsChecked(Lsn lsn) { return (lsn.value * 0x9E3779B97F4A7C15) >> 60 == 0; }

// The digest of a log that ended with `before`, and goes on with an encoded record.
uint64_t LogDigest(uint64_t before, absl::string_view record);

}  // namespace starling

#endif  // STARLING_COMMON_PROTOCOL_RECORD_H_
