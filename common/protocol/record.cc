#include "common/protocol/record.h"

#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/status_macros.h"
#include "common/defences.h"
#include "common/protocol/fields.h"
#include "common/protocol/frame.h"
#include "common/protocol/limits.h"
#include "xxhash.h"

namespace starling {
namespace {

constexpr uint8_t kSkippedFlag = 1;  // of the envelope
constexpr size_t kBytesAt = 8;       // where the envelope says how long it all is
constexpr size_t kEnvelopeBytes = 28;
constexpr size_t kCrcBytes = sizeof(uint32_t);
constexpr size_t kMemberBytes = 24;
constexpr size_t kUsualBytes = 160;  // enough for all but rosters
static_assert(kEnvelopeBytes + kCrcBytes + 12 + limits::kWorkersPerJobMax * kMemberBytes <=
                  limits::kRecordBytesMax,
              "the largest roster fits");

constexpr char kDamaged[] = "it is damaged: read it again from where it came";
constexpr char kOtherRelease[] = "run the same release everywhere";

absl::Status Refuse(absl::string_view field, absl::string_view expected, absl::string_view came,
                    absl::string_view advice = kOtherRelease) {
  return absl::InvalidArgumentError(
      absl::StrCat("record: ", field, " must be ", expected, ", not ", came, "; ", advice));
}

template <std::integral T>
absl::Status CheckRange(absl::string_view field, T least, T most, T came) {
  if (came >= least && came <= most) return absl::OkStatus();
  return Refuse(field, absl::StrCat(least, " to ", most), absl::StrCat(came));
}

absl::Status CheckNumber(absl::string_view field, double came, double most) {
  if (std::isfinite(came) && !std::signbit(came) && came <= most) return absl::OkStatus();
  const std::string range =
      std::isfinite(most) ? absl::StrCat("from 0 to ", most) : "finite and not negative";
  return Refuse(field, range, absl::StrCat(came));
}

absl::Status CheckClock(absl::string_view field, Clock clock) {
  return CheckRange<int64_t>(field, 0, limits::kClockMax + 1, clock);
}

// What a kind has beyond the envelope, in order.
template <typename IO, LikeType<Record> T>
void KindFields(IO& io, T& r) {
  switch (r.kind) {
    case RecordKind::kApply:
      io(r.slice, r.work, r.samples, r.origin, r.clock, r.scalars.rate, r.scalars.scale,
         r.scalars.decay, r.scalars.t, r.scalars.lag, r.loss_scale.log2, r.loss_scale.clean,
         r.elements, r.digest);
      return;
    case RecordKind::kClose: return io(r.origin, r.clock, r.flags);
    case RecordKind::kDecision: return io(r.origin, r.clock, r.scalars.scale);
    case RecordKind::kRoster: return io(r.roster.number, r.roster.members);
    case RecordKind::kPolicy: return io(r.policy);
    case RecordKind::kCut: return io(r.work.epoch);
  }
}

bool MaySkip(RecordKind kind) {
  return kind == RecordKind::kApply || kind == RecordKind::kDecision;
}

// ---- What the fields may be, where a partition has nothing to compare them with ----------------

absl::Status CheckApply(const Record& r) {
  STARLING_RETURN_IF_ERROR(CheckClock("clock", r.clock));
  if (!std::isfinite(r.scalars.rate)) return Refuse("rate", "finite", absl::StrCat(r.scalars.rate));
  constexpr double kAny = std::numeric_limits<double>::infinity();
  STARLING_RETURN_IF_ERROR(CheckNumber("scale", r.scalars.scale, kAny));
  STARLING_RETURN_IF_ERROR(CheckNumber("decay", r.scalars.decay, kAny));
  if (LossScale scale; scale.Restore(r.loss_scale)) return absl::OkStatus();
  return Refuse("loss scale",
                absl::StrCat("2^", LossScale::kLeastLog2, " to 2^", LossScale::kMostLog2,
                             " behind fewer than ", LossScale::kCleanSteps, " clean steps"),
                absl::StrCat("2^", r.loss_scale.log2, " behind ", r.loss_scale.clean));
}

absl::Status CheckClose(const Record& r) {
  constexpr uint16_t kKnown = frame_flags::kEnter | frame_flags::kPark | frame_flags::kSkip;
  if ((r.flags & ~kKnown) != 0 || std::popcount(r.flags) > 1) {
    return Refuse("close flags", "none, or one of enter, park, skip", absl::StrCat(r.flags));
  }
  return CheckClock("clock", r.clock);
}

absl::Status CheckDecision(const Record& r) {
  if (!r.skipped && r.origin != Origin()) {
    return Refuse("origin", "0 where the step is not skipped",
                  absl::StrCat(r.origin.replica.value));
  }
  return CheckNumber("scale", r.scalars.scale, 1);
}

absl::Status CheckRoster(const Record& r) {
  const RosterMember* before = nullptr;
  for (const RosterMember& member : r.roster.members) {
    STARLING_RETURN_IF_ERROR(CheckClock("joined", member.joined));
    if (before != nullptr && member.replica <= before->replica) {
      return Refuse("a roster's replica", absl::StrCat("above ", before->replica.value),
                    absl::StrCat(member.replica.value));
    }
    before = &member;
  }
  return absl::OkStatus();
}

absl::Status CheckPolicy(const Record& r) {
  STARLING_RETURN_IF_ERROR(
      CheckRange<int>("policy kind", 1, 3, static_cast<int>(r.policy.policy.kind)));
  return CheckRange<uint32_t>("staleness", 0, limits::kStalenessMax, r.policy.policy.staleness);
}

absl::Status CheckFields(const Record& r) {
  switch (r.kind) {
    case RecordKind::kApply: return CheckApply(r);
    case RecordKind::kClose: return CheckClose(r);
    case RecordKind::kDecision: return CheckDecision(r);
    case RecordKind::kRoster: return CheckRoster(r);
    case RecordKind::kPolicy: return CheckPolicy(r);
    case RecordKind::kCut: break;
  }
  return absl::OkStatus();
}

uint32_t Load32(absl::string_view bytes, size_t at) {
  return ByteReader(bytes.substr(at)).Get<uint32_t>();
}

// What says that these bytes are a whole record of this release, before any field is trusted.
absl::Status CheckEnvelope(absl::string_view bytes) {
  if (bytes.size() < kEnvelopeBytes + kCrcBytes || bytes.size() > limits::kRecordBytesMax) {
    return Refuse("length",
                  absl::StrCat(kEnvelopeBytes + kCrcBytes, " to ", limits::kRecordBytesMax),
                  absl::StrCat(bytes.size()), kDamaged);
  }
  ByteReader in(bytes);
  if (const auto magic = in.Get<uint32_t>(); magic != kRecordMagic) {
    return Refuse("magic", absl::StrCat(kRecordMagic, " (\"STLR\")"), absl::StrCat(magic),
                  kDamaged);
  }
  if (const auto version = in.Get<uint16_t>(); version != kRecordVersion) {
    return Refuse("version", absl::StrCat(kRecordVersion), absl::StrCat(version));
  }
  if (const uint32_t said = Load32(bytes, kBytesAt); said != bytes.size()) {
    return Refuse("length", absl::StrCat("the ", said, " bytes that it says"),
                  absl::StrCat(bytes.size()), kDamaged);
  }
  const uint32_t crc = Crc32cOf(bytes.substr(0, bytes.size() - kCrcBytes));
  if (const uint32_t came = Load32(bytes, bytes.size() - kCrcBytes); came != crc) {
    return Refuse("CRC", absl::StrCat(crc), absl::StrCat(came), kDamaged);
  }
  return absl::OkStatus();
}

}  // namespace

void EncodeRecord(const Record& record, std::string* out) {
  out->clear();
  out->reserve(kUsualBytes);
  ByteWriter writer(out);
  writer(kRecordMagic, kRecordVersion, record.kind,
         MaySkip(record.kind) && record.skipped ? kSkippedFlag : uint8_t{0},
         uint32_t{0},  // bytes, once they are known
         record.lsn, record.view);
  if (DefenceMasked(Defence::kRecordScalars) || DefenceMasked(Defence::kRecordClock)) {
    Record masked = record;
    if (DefenceMasked(Defence::kRecordScalars)) masked.scalars.rate = 0;
    if (DefenceMasked(Defence::kRecordClock) && (record.flags & frame_flags::kEnter) != 0)
      masked.clock = 0;
    KindFields(writer, masked);
  } else {
    KindFields(writer, record);
  }
  const auto bytes = static_cast<uint32_t>(out->size() + kCrcBytes);
  std::memcpy(out->data() + kBytesAt, &bytes, sizeof(bytes));
  writer(Crc32cOf(*out));
}

absl::StatusOr<Record> DecodeRecord(absl::string_view bytes) {
  STARLING_RETURN_IF_ERROR(CheckEnvelope(bytes));
  ByteReader in(bytes.substr(6, bytes.size() - kCrcBytes - 6));
  const auto kind = in.Get<uint8_t>();
  STARLING_RETURN_IF_ERROR(CheckRange<int>("kind", 1, static_cast<int>(RecordKind::kCut), kind));
  Record record;
  record.kind = static_cast<RecordKind>(kind);
  const auto flags = in.Get<uint8_t>();
  STARLING_RETURN_IF_ERROR(CheckRange<int>(absl::StrCat("flags of kind ", kind), 0,
                                           MaySkip(record.kind) ? 1 : 0, flags));
  record.skipped = flags == kSkippedFlag;
  in.Get<uint32_t>();  // bytes
  in(record.lsn, record.view);
  if (record.lsn.value == 0) return Refuse("lsn", "1 or more", "0");
  if (record.view.value == 0) return Refuse("view", "1 or more", "0");
  if (record.kind == RecordKind::kCut) record.work.purpose = WorkPurpose::kTrain;
  const size_t body = in.left();
  KindFields(in, record);
  if (!in.ok() || in.left() != 0) {
    return Refuse("the fields",
                  absl::StrCat("as long as those of kind ", kind, " in version ", kRecordVersion),
                  absl::StrCat(body, " bytes"));
  }
  STARLING_RETURN_IF_ERROR(CheckFields(record));
  return record;
}

void AppendCopyDigests(const CopyDigests& digests, std::string* out) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer(digests.log, digests.checked, digests.slice);
  writer(Crc32cOf(bytes));
  *out += bytes;
}

std::optional<CopyDigests> ReadCopyDigests(absl::string_view bytes) {
  CopyDigests digests;
  ByteReader in(bytes);
  in(digests.log, digests.checked, digests.slice);
  const auto crc = in.Get<uint32_t>();
  if (!in.ok() || in.left() != 0 || crc != Crc32cOf(bytes.substr(0, bytes.size() - kCrcBytes)))
    return std::nullopt;
  return digests;
}

uint64_t LogDigest(uint64_t before, absl::string_view record) {
  return XXH3_64bits_withSeed(record.data(), record.size(), before);
}

}  // namespace starling
