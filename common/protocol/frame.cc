#include "common/protocol/frame.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "absl/base/internal/endian.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/crc32c.h"
#include "common/schedule/loss_scale.h"

namespace starling {
namespace {

// Offsets in bytes. The gaps are reserved: written as zero, and rejected otherwise.
namespace at {
constexpr size_t kMagic = 0;
constexpr size_t kVersion = 4;
constexpr size_t kType = 6;
constexpr size_t kKind = 7;
constexpr size_t kCodec = 8;
constexpr size_t kAnswer = 9;
constexpr size_t kFlags = 10;
constexpr size_t kEra = 12;
constexpr size_t kJob = 16;
constexpr size_t kSlice = 24;
constexpr size_t kPurpose = 28;
constexpr size_t kLossScale = 29;
constexpr size_t kReserved1 = 30;  // to 32
constexpr size_t kEpoch = 32;
constexpr size_t kCount = 36;
constexpr size_t kFirst = 40;
constexpr size_t kPartition = 48;
constexpr size_t kReplica = 52;
constexpr size_t kView = 56;
constexpr size_t kRoster = 64;
constexpr size_t kWorker = 72;
constexpr size_t kAttempt = 76;
constexpr size_t kIncarnation = 80;
constexpr size_t kRequest = 88;
constexpr size_t kClock = 96;
constexpr size_t kBaseLsn = 104;
constexpr size_t kMinLsn = 112;
constexpr size_t kSamples = 120;
constexpr size_t kElements = 124;
constexpr size_t kPayloadBytes = 128;
constexpr size_t kPolicy = 132;
constexpr size_t kDigest = 136;
constexpr size_t kScalar = 144;
constexpr size_t kReporter = 152;
constexpr size_t kHeld = 156;
constexpr size_t kReserved2 = 160;  // to 188
constexpr size_t kCrc = 188;
}  // namespace at
static_assert(at::kCrc + 4 == limits::kFrameHeaderBytes);

using absl::little_endian::Load16;
using absl::little_endian::Load32;
using absl::little_endian::Load64;
using absl::little_endian::Store16;
using absl::little_endian::Store32;
using absl::little_endian::Store64;

constexpr uint16_t kKnownFlags = frame_flags::kEnter | frame_flags::kPark | frame_flags::kSkip |
                                 frame_flags::kReader | frame_flags::kVersion |
                                 frame_flags::kSkipped;

absl::Status Refuse(absl::string_view field, absl::string_view expected, uint64_t came) {
  return absl::InvalidArgumentError(
      absl::StrCat("frame: ", field, " must be ", expected, ", not ", came));
}

bool KnownAnswer(uint8_t answer) {
  return answer <= 2 || (answer >= 10 && answer <= 13) || (answer >= 20 && answer <= 24);
}

size_t ElementBytes(Codec codec) {
  switch (codec) {
    case Codec::kFp32: return 4;
    case Codec::kFp16:
    case Codec::kBf16: return 2;
    case Codec::kInt8: return 1;
  }
  return 0;
}

bool AllZero(const uint8_t* begin, const uint8_t* end) {
  for (; begin < end; ++begin) {
    if (*begin != 0) return false;
  }
  return true;
}

// Checks that the bytes are one of our headers at all, before any other field is trusted.
absl::Status CheckEnvelope(absl::Span<const uint8_t> bytes) {
  if (bytes.size() < limits::kFrameHeaderBytes) {
    return Refuse("length", absl::StrCat("at least ", limits::kFrameHeaderBytes, " bytes"),
                  bytes.size());
  }
  const uint8_t* p = bytes.data();
  if (const uint32_t magic = Load32(p + at::kMagic); magic != kFrameMagic) {
    return Refuse("magic", absl::StrCat(kFrameMagic, " (\"STLG\")"), magic);
  }
  if (const uint16_t version = Load16(p + at::kVersion); version != kFrameVersion) {
    return Refuse("version", absl::StrCat(kFrameVersion), version);
  }
  const uint32_t crc = Crc32c(bytes.subspan(0, at::kCrc));
  if (const uint32_t came = Load32(p + at::kCrc); came != crc) {
    return Refuse("header CRC", absl::StrCat(crc), came);
  }
  return absl::OkStatus();
}

absl::Status CheckEnums(const uint8_t* p) {
  if (p[at::kType] < 1 || p[at::kType] > kFrameTypeLast) {
    return Refuse("type", absl::StrCat("1 to ", kFrameTypeLast), p[at::kType]);
  }
  if (p[at::kKind] > 4) return Refuse("kind", "0 to 4", p[at::kKind]);
  if (p[at::kCodec] < 1 || p[at::kCodec] > 4) return Refuse("codec", "1 to 4", p[at::kCodec]);
  if (!KnownAnswer(p[at::kAnswer])) return Refuse("answer", "a known one", p[at::kAnswer]);
  if (p[at::kPurpose] > 2) return Refuse("work purpose", "0 to 2", p[at::kPurpose]);
  const uint16_t flags = Load16(p + at::kFlags);
  if ((flags & ~kKnownFlags) != 0) return Refuse("flags", "known ones", flags);
  if (!AllZero(p + at::kReserved1, p + at::kEpoch) || !AllZero(p + at::kReserved2, p + at::kCrc)) {
    return absl::InvalidArgumentError("frame: reserved bytes must be 0");
  }
  return absl::OkStatus();
}

absl::Status CheckWork(const WorkRange& work) {
  if (work.count == 0) {
    return work.first == 0 ? absl::OkStatus()
                           : Refuse("work first", "0 when count is 0", work.first);
  }
  if ((work.count & (work.count - 1)) != 0) {
    return Refuse("work count", "a power of two", work.count);
  }
  if (work.first % work.count != 0) {
    return Refuse("work first", absl::StrCat("a multiple of count ", work.count), work.first);
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const FrameHeader& h) {
  if (h.payload_bytes > limits::kFramePayloadBytesMax) {
    return Refuse("payload_bytes", absl::StrCat("at most ", limits::kFramePayloadBytesMax),
                  h.payload_bytes);
  }
  switch (h.kind) {
    case PayloadKind::kNone:
      if (h.payload_bytes != 0)
        return Refuse("payload_bytes", "0 without a payload", h.payload_bytes);
      if (h.digest != 0) return Refuse("digest", "0 without a payload", h.digest);
      return absl::OkStatus();
    case PayloadKind::kDense:
      if (h.elements > limits::kSliceElementsMax) {
        return Refuse("elements", absl::StrCat("at most ", limits::kSliceElementsMax), h.elements);
      }
      if (h.payload_bytes != h.elements * ElementBytes(h.codec)) {
        return Refuse(
            "payload_bytes",
            absl::StrCat(h.elements * ElementBytes(h.codec), " for ", h.elements, " elements"),
            h.payload_bytes);
      }
      return absl::OkStatus();
    case PayloadKind::kTopK:
    case PayloadKind::kRows:
    case PayloadKind::kText: return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status CheckLossScale(const FrameHeader& h) {
  if (h.type != FrameType::kPush && h.type != FrameType::kValue) {
    return h.loss_scale_log2 == 0
               ? absl::OkStatus()
               : Refuse("loss scale", "0 but in pushes and values", h.loss_scale_log2);
  }
  if (h.loss_scale_log2 <= LossScale::kMostLog2) return absl::OkStatus();
  return Refuse("loss scale", absl::StrCat("at most 2^", LossScale::kMostLog2), h.loss_scale_log2);
}

// A rejected report is answered with an ERROR frame, which carries its reporter.
absl::Status CheckDecision(const FrameHeader& h) {
  if (h.type != FrameType::kDecision) {
    if (std::bit_cast<uint64_t>(h.scalar) != 0) {
      return absl::InvalidArgumentError("frame: a scalar comes with decisions alone");
    }
    if (h.type != FrameType::kError && h.reporter.value != 0) {
      return Refuse("reporter", "0 but in decisions", h.reporter.value);
    }
    return absl::OkStatus();
  }
  if (!std::isfinite(h.scalar) || std::signbit(h.scalar)) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame: a decision's scalar must be finite and not negative, not ", h.scalar));
  }
  if (h.clock < 0 || h.clock > limits::kClockMax) {
    return absl::InvalidArgumentError(absl::StrCat("frame: a decision's step must be 0 to ",
                                                   limits::kClockMax, ", not ", h.clock));
  }
  if (h.kind != PayloadKind::kNone) {
    return Refuse("kind", "0 (a decision has no payload)", static_cast<uint64_t>(h.kind));
  }
  return absl::OkStatus();
}

const char* PurposeName(WorkPurpose purpose) {
  switch (purpose) {
    case WorkPurpose::kNone: return "none";
    case WorkPurpose::kTrain: return "train";
    case WorkPurpose::kEvaluate: return "evaluate";
  }
  return "unknown";
}

}  // namespace

const char* FrameTypeName(FrameType type) {
  switch (type) {
    case FrameType::kPush: return "push";
    case FrameType::kClose: return "close";
    case FrameType::kCredit: return "credit";
    case FrameType::kAck: return "ack";
    case FrameType::kPull: return "pull";
    case FrameType::kValue: return "value";
    case FrameType::kReplicate: return "replicate";
    case FrameType::kDecision: return "decision";
    case FrameType::kActivation: return "activation";
    case FrameType::kError: return "error";
  }
  return "unknown";
}

void EncodeFrameHeader(const FrameHeader& h, uint8_t* out) {
  std::memset(out, 0, limits::kFrameHeaderBytes);
  Store32(out + at::kMagic, kFrameMagic);
  Store16(out + at::kVersion, kFrameVersion);
  out[at::kType] = static_cast<uint8_t>(h.type);
  out[at::kKind] = static_cast<uint8_t>(h.kind);
  out[at::kCodec] = static_cast<uint8_t>(h.codec);
  out[at::kAnswer] = static_cast<uint8_t>(h.answer);
  Store16(out + at::kFlags, h.flags);
  Store32(out + at::kEra, h.key.run.era);
  Store64(out + at::kJob, h.key.run.job.value);
  Store32(out + at::kSlice, h.key.slice.value);
  out[at::kPurpose] = static_cast<uint8_t>(h.key.work.purpose);
  Store32(out + at::kEpoch, h.key.work.epoch);
  Store32(out + at::kCount, h.key.work.count);
  Store64(out + at::kFirst, h.key.work.first);
  Store32(out + at::kPartition, h.partition.value);
  Store32(out + at::kReplica, h.origin.replica.value);
  Store64(out + at::kView, h.view.value);
  Store64(out + at::kRoster, h.roster.value);
  Store32(out + at::kWorker, h.origin.worker.value);
  Store32(out + at::kAttempt, h.origin.attempt);
  Store64(out + at::kIncarnation, h.origin.incarnation.value);
  Store64(out + at::kRequest, h.request_id);
  Store64(out + at::kClock, static_cast<uint64_t>(h.clock));
  Store64(out + at::kBaseLsn, h.base_lsn.value);
  Store64(out + at::kMinLsn, h.min_lsn.value);
  Store32(out + at::kSamples, h.samples);
  Store32(out + at::kElements, h.elements);
  Store32(out + at::kPayloadBytes, h.payload_bytes);
  Store32(out + at::kPolicy, h.policy.value);
  Store64(out + at::kDigest, h.digest);
  Store64(out + at::kScalar, std::bit_cast<uint64_t>(h.scalar));
  Store32(out + at::kReporter, h.reporter.value);
  Store32(out + at::kHeld, h.held_us);
  out[at::kLossScale] = h.loss_scale_log2;
  Store32(out + at::kCrc, Crc32c(absl::MakeConstSpan(out, at::kCrc)));
}

absl::Status DecodeFrameHeader(absl::Span<const uint8_t> bytes, FrameHeader* out) {
  if (absl::Status status = CheckEnvelope(bytes); !status.ok()) return status;
  const uint8_t* p = bytes.data();
  if (absl::Status status = CheckEnums(p); !status.ok()) return status;
  FrameHeader h;
  h.type = static_cast<FrameType>(p[at::kType]);
  h.kind = static_cast<PayloadKind>(p[at::kKind]);
  h.codec = static_cast<Codec>(p[at::kCodec]);
  h.answer = static_cast<Answer>(p[at::kAnswer]);
  h.flags = Load16(p + at::kFlags);
  h.key.run.era = Load32(p + at::kEra);
  h.key.run.job = JobUid(Load64(p + at::kJob));
  h.key.slice = SliceId(Load32(p + at::kSlice));
  h.key.work.purpose = static_cast<WorkPurpose>(p[at::kPurpose]);
  h.key.work.epoch = Load32(p + at::kEpoch);
  h.key.work.count = Load32(p + at::kCount);
  h.key.work.first = Load64(p + at::kFirst);
  h.partition = PartitionId(Load32(p + at::kPartition));
  h.origin.replica = ReplicaId(Load32(p + at::kReplica));
  h.view = ViewNumber(Load64(p + at::kView));
  h.roster = RosterNumber(Load64(p + at::kRoster));
  h.origin.worker = WorkerId(Load32(p + at::kWorker));
  h.origin.attempt = Load32(p + at::kAttempt);
  h.origin.incarnation = Incarnation(Load64(p + at::kIncarnation));
  h.request_id = Load64(p + at::kRequest);
  h.clock = static_cast<Clock>(Load64(p + at::kClock));
  h.base_lsn = Lsn(Load64(p + at::kBaseLsn));
  h.min_lsn = Lsn(Load64(p + at::kMinLsn));
  h.samples = Load32(p + at::kSamples);
  h.elements = Load32(p + at::kElements);
  h.payload_bytes = Load32(p + at::kPayloadBytes);
  h.policy = PolicyNumber(Load32(p + at::kPolicy));
  h.digest = Load64(p + at::kDigest);
  h.scalar = std::bit_cast<double>(Load64(p + at::kScalar));
  h.reporter = PartitionId(Load32(p + at::kReporter));
  h.held_us = Load32(p + at::kHeld);
  h.loss_scale_log2 = p[at::kLossScale];
  if (h.held_us != 0 && h.type != FrameType::kValue) {
    return Refuse("held time", "0 but in values", h.held_us);
  }
  if (absl::Status status = CheckLossScale(h); !status.ok()) return status;
  if (absl::Status status = CheckWork(h.key.work); !status.ok()) return status;
  if (absl::Status status = CheckSizes(h); !status.ok()) return status;
  if (absl::Status status = CheckDecision(h); !status.ok()) return status;
  *out = h;
  return absl::OkStatus();
}

std::string FrameToString(const FrameHeader& h) {
  if (h.type == FrameType::kCredit) return absl::StrCat("credit ", h.elements, " bytes");
  if (h.type == FrameType::kDecision) {
    return absl::StrCat("decision about step ", h.clock, " of job ", h.key.run.job.value, ".",
                        h.key.run.era, " with partition ", h.reporter.value, ": ", h.scalar);
  }
  std::string text = absl::StrFormat(
      "%s slice %d of job %d.%d work %s %d:[%d,%d) by worker %d.%d attempt %d clock %d",
      FrameTypeName(h.type), h.key.slice.value, h.key.run.job.value, h.key.run.era,
      PurposeName(h.key.work.purpose), h.key.work.epoch, h.key.work.first,
      h.key.work.first + h.key.work.count, h.origin.worker.value, h.origin.incarnation.value,
      h.origin.attempt, h.clock);
  if (h.answer != Answer::kNone) absl::StrAppend(&text, " answer ", static_cast<int>(h.answer));
  return text;
}

}  // namespace starling
