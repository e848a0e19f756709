#include "common/protocol/frame.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/byte_io.h"
#include "common/base/crc32c.h"
#include "common/base/status_macros.h"
#include "common/schedule/loss_scale.h"

namespace starling {
namespace {

// Offsets in bytes. What lies between is in Fields.
constexpr size_t kReservedAt = 30;  // a gap: written as zero, and rejected otherwise
constexpr size_t kEpochAt = 32;
constexpr size_t kEndAt = 176;  // reserved from here on
constexpr size_t kCrcAt = 188;
static_assert(kCrcAt + 4 == limits::kFrameHeaderBytes);

// Behind magic and version.
template <typename IO, LikeType<FrameHeader> T>
void Fields(IO& io, T& h) {
  uint16_t reserved = 0;
  io(h.type, h.kind, h.codec, h.answer, h.flags, h.key.run.era, h.key.run.job, h.key.slice,
     h.key.work.purpose, h.loss_scale_log2, reserved, h.key.work.epoch, h.key.work.count,
     h.key.work.first, h.partition, h.origin.replica, h.view, h.roster, h.origin.worker,
     h.origin.attempt, h.origin.incarnation, h.request_id, h.clock, h.base_lsn, h.min_lsn,
     h.samples, h.elements, h.payload_bytes, h.policy, h.digest, h.scalar, h.reporter, h.held_us,
     h.late_us, h.late_part, h.blocks);
}

// Plain fields, one behind the other, into memory that has room for them.
class FieldsWriter {
 public:
  explicit FieldsWriter(uint8_t* out) : out_(out) {}
  template <PlainField... T>
  void operator()(const T&... fields) {
    (Put(fields), ...);
  }

 private:
  template <typename T>
  void Put(const T& field) {
    std::memcpy(out_, &field, sizeof(T));
    out_ += sizeof(T);
  }
  uint8_t* out_;
};

ByteReader Reader(absl::Span<const uint8_t> bytes) {
  return ByteReader({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

constexpr uint16_t kKnownFlags = frame_flags::kEnter | frame_flags::kPark | frame_flags::kSkip |
                                 frame_flags::kReader | frame_flags::kVersion |
                                 frame_flags::kSkipped | frame_flags::kSnapshot;

absl::Status Refuse(absl::string_view field, absl::string_view expected, uint64_t came) {
  return absl::InvalidArgumentError(
      absl::StrCat("frame: ", field, " must be ", expected, ", not ", came));
}

bool KnownAnswer(uint64_t answer) {
  return answer <= 2 || (answer >= 10 && answer <= 13) || (answer >= 20 && answer <= 25);
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
  ByteReader in = Reader(bytes);
  if (const auto magic = in.Get<uint32_t>(); magic != kFrameMagic) {
    return Refuse("magic", absl::StrCat(kFrameMagic, " (\"STLG\")"), magic);
  }
  if (const auto version = in.Get<uint16_t>(); version != kFrameVersion) {
    return Refuse("version", absl::StrCat(kFrameVersion), version);
  }
  const uint32_t crc = Crc32c(bytes.subspan(0, kCrcAt));
  if (const auto came = Reader(bytes.subspan(kCrcAt)).Get<uint32_t>(); came != crc) {
    return Refuse("header CRC", absl::StrCat(crc), came);
  }
  if (!AllZero(bytes.data() + kReservedAt, bytes.data() + kEpochAt) ||
      !AllZero(bytes.data() + kEndAt, bytes.data() + kCrcAt)) {
    return absl::InvalidArgumentError("frame: reserved bytes must be 0");
  }
  return absl::OkStatus();
}

absl::Status CheckEnums(const FrameHeader& h) {
  const auto number = [](auto value) { return static_cast<uint64_t>(value); };
  if (number(h.type) < 1 || number(h.type) > kFrameTypeLast) {
    return Refuse("type", absl::StrCat("1 to ", kFrameTypeLast), number(h.type));
  }
  if (number(h.kind) > 5) return Refuse("kind", "0 to 5", number(h.kind));
  if (number(h.codec) < 1 || number(h.codec) > 4) return Refuse("codec", "1 to 4", number(h.codec));
  if (!KnownAnswer(number(h.answer))) return Refuse("answer", "a known one", number(h.answer));
  if (number(h.key.work.purpose) > 2)
    return Refuse("work purpose", "0 to 2", number(h.key.work.purpose));
  if ((h.flags & ~kKnownFlags) != 0) return Refuse("flags", "known ones", h.flags);
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

absl::Status CheckRecordSizes(const FrameHeader& h) {
  if (h.type != FrameType::kReplicate)
    return Refuse("type", "replicate where a record comes", static_cast<uint64_t>(h.type));
  if (h.elements > limits::kSliceElementsMax) {
    return Refuse("elements", absl::StrCat("at most ", limits::kSliceElementsMax), h.elements);
  }
  const size_t tensor = h.elements * sizeof(float);
  if (h.payload_bytes > tensor && h.payload_bytes - tensor <= limits::kRecordBytesMax)
    return absl::OkStatus();
  return Refuse("payload_bytes",
                absl::StrCat(tensor + 1, " to ", tensor + limits::kRecordBytesMax,
                             " for a record of ", h.elements, " elements"),
                h.payload_bytes);
}

// A tensor's bytes are those of its elements; what comes before them is as it is.
absl::Status CheckReplicate(const FrameHeader& h) {
  if (h.type != FrameType::kReplicate) return absl::OkStatus();
  const bool snapshot = (h.flags & frame_flags::kSnapshot) != 0;
  const bool known = h.kind == PayloadKind::kNone || h.kind == PayloadKind::kRecord ||
                     (snapshot && h.kind == PayloadKind::kDense);
  if (!known) {
    return Refuse("kind", "a record or a part of a snapshot to replicate",
                  static_cast<uint64_t>(h.kind));
  }
  if (h.codec != Codec::kFp32)
    return Refuse("codec", "1 (fp32) to replicate", static_cast<uint64_t>(h.codec));
  if (snapshot && h.kind == PayloadKind::kRecord && h.elements != 0)
    return Refuse("elements", "0 for a part of a state", h.elements);
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
    case PayloadKind::kRecord: return CheckRecordSizes(h);
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

// Consecutive blocks, as many as the payload fills. Needs CheckSizes.
absl::Status CheckBlocks(const FrameHeader& h) {
  if (h.blocks == 0 || h.type == FrameType::kCredit) return absl::OkStatus();
  const bool tensor = (h.type == FrameType::kPush || h.type == FrameType::kValue) &&
                      h.kind == PayloadKind::kDense && h.codec == Codec::kFp32;
  if (!tensor) return Refuse("blocks", "0 but for fp32 tensors of pushes and values", h.blocks);
  const uint64_t run = h.blocks >> std::countr_zero(h.blocks);
  if ((run & (run + 1)) != 0) return Refuse("blocks", "consecutive", h.blocks);
  if (std::popcount(h.blocks) != BlocksOf(h.payload_bytes)) {
    return Refuse("blocks",
                  absl::StrCat(BlocksOf(h.payload_bytes), " for ", h.payload_bytes, " bytes"),
                  static_cast<uint64_t>(std::popcount(h.blocks)));
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
  constexpr const char* kNames[] = {"none", "train", "evaluate"};
  static_assert(std::size(kNames) == static_cast<size_t>(WorkPurpose::kEvaluate) + 1);
  const auto number = static_cast<size_t>(purpose);
  return number < std::size(kNames) ? kNames[number] : "unknown";
}

}  // namespace

const char* FrameTypeName(FrameType type) {
  constexpr const char* kNames[] = {"unknown",  "push",       "close", "credit",
                                    "ack",      "pull",       "value", "replicate",
                                    "decision", "activation", "error"};
  static_assert(std::size(kNames) == kFrameTypeLast + 1);
  const auto number = static_cast<size_t>(type);
  return kNames[number <= kFrameTypeLast ? number : 0];
}

void EncodeFrameHeader(const FrameHeader& h, uint8_t* out) {
  std::memset(out, 0, limits::kFrameHeaderBytes);
  FieldsWriter writer(out);
  writer(kFrameMagic, kFrameVersion);
  Fields(writer, h);
  FieldsWriter(out + kCrcAt)(Crc32c(absl::MakeConstSpan(out, kCrcAt)));
}

absl::Status DecodeFrameHeader(absl::Span<const uint8_t> bytes, FrameHeader* out) {
  STARLING_RETURN_IF_ERROR(CheckEnvelope(bytes));
  ByteReader in = Reader(bytes.subspan(sizeof(kFrameMagic) + sizeof(kFrameVersion)));
  FrameHeader h;
  Fields(in, h);
  STARLING_RETURN_IF_ERROR(CheckEnums(h));
  if (h.held_us != 0 && h.type != FrameType::kValue) {
    return Refuse("held time", "0 but in values", h.held_us);
  }
  if ((h.late_us != 0 || h.late_part != 0) && h.type != FrameType::kValue) {
    return Refuse("late part", "0 but in values", h.late_part);
  }
  STARLING_RETURN_IF_ERROR(CheckLossScale(h));
  STARLING_RETURN_IF_ERROR(CheckWork(h.key.work));
  STARLING_RETURN_IF_ERROR(CheckReplicate(h));
  STARLING_RETURN_IF_ERROR(CheckSizes(h));
  STARLING_RETURN_IF_ERROR(CheckBlocks(h));
  STARLING_RETURN_IF_ERROR(CheckDecision(h));
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
