#include "common/protocol/record.h"

#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
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

// ---- What several kinds have --------------------------------------------------------------------

absl::Status CheckWork(const WorkRange& work) {
  STARLING_RETURN_IF_ERROR(CheckRange<int>("work purpose", 1, 2, static_cast<int>(work.purpose)));
  STARLING_RETURN_IF_ERROR(
      CheckRange<uint32_t>("work epoch", 0, limits::kEpochsMax - 1, work.epoch));
  if (!std::has_single_bit(work.count) || work.count > limits::kMicroBatchesMax) {
    return Refuse("work count", absl::StrCat("a power of two, at most ", limits::kMicroBatchesMax),
                  absl::StrCat(work.count));
  }
  if (work.first % work.count != 0) {
    return Refuse("work first", absl::StrCat("a multiple of count ", work.count),
                  absl::StrCat(work.first));
  }
  return CheckRange<uint64_t>("work first", 0, limits::kStepsPerEpochMax * limits::kMicroBatchesMax,
                              work.first);
}

absl::Status CheckClock(absl::string_view field, Clock clock) {
  return CheckRange<int64_t>(field, 0, limits::kClockMax + 1, clock);
}

// ---- The fields of each kind, in order, and what they may be -----------------------------------

constexpr auto kApplyFields = [](auto& io, auto& r) {
  io(r.slice, r.work, r.samples, r.origin, r.clock, r.scalars.rate, r.scalars.scale,
     r.scalars.decay, r.scalars.t, r.scalars.lag, r.loss_scale.log2, r.loss_scale.clean, r.elements,
     r.digest);
};

absl::Status CheckApply(const Record& r) {
  STARLING_RETURN_IF_ERROR(CheckWork(r.work));
  STARLING_RETURN_IF_ERROR(CheckRange<uint32_t>("samples", 0, limits::kGlobalBatchMax, r.samples));
  STARLING_RETURN_IF_ERROR(CheckClock("clock", r.clock));
  if (!std::isfinite(r.scalars.rate)) return Refuse("rate", "finite", absl::StrCat(r.scalars.rate));
  constexpr double kAny = std::numeric_limits<double>::infinity();
  STARLING_RETURN_IF_ERROR(CheckNumber("scale", r.scalars.scale, kAny));
  STARLING_RETURN_IF_ERROR(CheckNumber("decay", r.scalars.decay, kAny));
  STARLING_RETURN_IF_ERROR(CheckRange<int64_t>("t", 1, limits::kClockMax, r.scalars.t));
  if (LossScale scale; !scale.Restore(r.loss_scale)) {
    return Refuse("loss scale",
                  absl::StrCat("2^", LossScale::kLeastLog2, " to 2^", LossScale::kMostLog2,
                               " behind fewer than ", LossScale::kCleanSteps, " clean steps"),
                  absl::StrCat("2^", r.loss_scale.log2, " behind ", r.loss_scale.clean));
  }
  return CheckRange<uint32_t>("elements", 1, limits::kSliceElementsMax, r.elements);
}

constexpr auto kCloseFields = [](auto& io, auto& r) { io(r.origin, r.clock, r.flags); };

absl::Status CheckClose(const Record& r) {
  constexpr uint16_t kKnown = frame_flags::kEnter | frame_flags::kPark | frame_flags::kSkip;
  if ((r.flags & ~kKnown) != 0 || std::popcount(r.flags) > 1) {
    return Refuse("close flags", "none, or one of enter, park, skip", absl::StrCat(r.flags));
  }
  return CheckClock("clock", r.clock);
}

constexpr auto kDecisionFields = [](auto& io, auto& r) { io(r.origin, r.clock, r.scalars.scale); };

absl::Status CheckDecision(const Record& r) {
  if (!r.skipped && r.origin != Origin()) {
    return Refuse("origin", "0 where the step is not skipped",
                  absl::StrCat(r.origin.replica.value));
  }
  STARLING_RETURN_IF_ERROR(CheckNumber("scale", r.scalars.scale, 1));
  return CheckClock("step", r.clock);
}

void WriteRoster(ByteWriter& out, const Record& r) {
  out(r.roster.number);
  out.Each(r.roster.members);
}

absl::Status ReadRoster(ByteReader& in, Record* r) {
  in(r->roster.number);
  const auto count = in.Get<uint32_t>();
  if (!in.ok()) return absl::OkStatus();
  STARLING_RETURN_IF_ERROR(CheckRange<uint32_t>("members", 0, limits::kWorkersPerJobMax, count));
  if (in.left() != count * kMemberBytes) {
    return Refuse("a roster", absl::StrCat(count * kMemberBytes, " bytes for ", count, " members"),
                  absl::StrCat(in.left()));
  }
  ReplicaId before;
  r->roster.members.resize(count);
  for (RosterMember& member : r->roster.members) {
    in(member);
    STARLING_RETURN_IF_ERROR(CheckClock("joined", member.joined));
    if (&member != r->roster.members.data() && member.replica <= before) {
      return Refuse("a roster's replica", absl::StrCat("above ", before.value),
                    absl::StrCat(member.replica.value));
    }
    before = member.replica;
  }
  return absl::OkStatus();
}

constexpr auto kPolicyFields = [](auto& io, auto& r) { io(r.policy); };

absl::Status CheckPolicy(const Record& r) {
  STARLING_RETURN_IF_ERROR(
      CheckRange<int>("policy kind", 1, 3, static_cast<int>(r.policy.policy.kind)));
  STARLING_RETURN_IF_ERROR(
      CheckRange<uint32_t>("staleness", 0, limits::kStalenessMax, r.policy.policy.staleness));
  return CheckRange<uint64_t>("policy step", 0, limits::kEpochsMax * limits::kStepsPerEpochMax,
                              r.policy.step);
}

constexpr auto kCutFields = [](auto& io, auto& r) { io(r.work.epoch); };

absl::Status CheckCut(const Record& r) {
  return CheckRange<uint32_t>("epoch", 0, limits::kEpochsMax - 1, r.work.epoch);
}

template <auto kFields>
void Write(ByteWriter& out, const Record& r) {
  kFields(out, r);
}

// Too few bytes: the length is judged once, by the caller.
template <auto kFields, auto kCheck>
absl::Status Read(ByteReader& in, Record* r) {
  kFields(in, *r);
  return in.ok() ? kCheck(*r) : absl::OkStatus();
}

struct Kind {
  bool may_skip;
  void (*write)(ByteWriter& out, const Record& record);
  absl::Status (*read)(ByteReader& in, Record* record);
};

constexpr Kind kKinds[] = {
    // by RecordKind, from 1
    {true, Write<kApplyFields>, Read<kApplyFields, CheckApply>},
    {false, Write<kCloseFields>, Read<kCloseFields, CheckClose>},
    {true, Write<kDecisionFields>, Read<kDecisionFields, CheckDecision>},
    {false, WriteRoster, ReadRoster},
    {false, Write<kPolicyFields>, Read<kPolicyFields, CheckPolicy>},
    {false, Write<kCutFields>, Read<kCutFields, CheckCut>},
};

const Kind& RowOf(RecordKind kind) { return kKinds[static_cast<size_t>(kind) - 1]; }

uint32_t Load32(absl::string_view bytes, size_t at) {
  return ByteReader(bytes.substr(at)).Get<uint32_t>();
}

uint32_t CrcOf(absl::string_view bytes) {
  return Crc32c(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
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
  const uint32_t crc = CrcOf(bytes.substr(0, bytes.size() - kCrcBytes));
  if (const uint32_t came = Load32(bytes, bytes.size() - kCrcBytes); came != crc) {
    return Refuse("CRC", absl::StrCat(crc), absl::StrCat(came), kDamaged);
  }
  return absl::OkStatus();
}

}  // namespace

void EncodeRecord(const Record& record, std::string* out) {
  const Kind& kind = RowOf(record.kind);
  out->clear();
  out->reserve(kUsualBytes);
  ByteWriter writer(out);
  writer(kRecordMagic, kRecordVersion, record.kind,
         kind.may_skip && record.skipped ? kSkippedFlag : uint8_t{0},
         uint32_t{0},  // bytes, once they are known
         record.lsn, record.view);
  if (DefenceMasked(Defence::kRecordScalars) || DefenceMasked(Defence::kRecordClock)) {
    Record masked = record;
    if (DefenceMasked(Defence::kRecordScalars)) masked.scalars.rate = 0;
    if (DefenceMasked(Defence::kRecordClock) && (record.flags & frame_flags::kEnter) != 0)
      masked.clock = 0;
    kind.write(writer, masked);
  } else {
    kind.write(writer, record);
  }
  const auto bytes = static_cast<uint32_t>(out->size() + kCrcBytes);
  std::memcpy(out->data() + kBytesAt, &bytes, sizeof(bytes));
  writer(CrcOf(*out));
}

absl::StatusOr<Record> DecodeRecord(absl::string_view bytes) {
  STARLING_RETURN_IF_ERROR(CheckEnvelope(bytes));
  ByteReader in(bytes.substr(6, bytes.size() - kCrcBytes - 6));
  const auto kind = in.Get<uint8_t>();
  STARLING_RETURN_IF_ERROR(CheckRange<int>("kind", 1, std::size(kKinds), kind));
  Record record;
  record.kind = static_cast<RecordKind>(kind);
  const Kind& row = RowOf(record.kind);
  const auto flags = in.Get<uint8_t>();
  STARLING_RETURN_IF_ERROR(
      CheckRange<int>(absl::StrCat("flags of kind ", kind), 0, row.may_skip ? 1 : 0, flags));
  record.skipped = flags == kSkippedFlag;
  in.Get<uint32_t>();  // bytes
  in(record.lsn, record.view);
  if (record.lsn.value == 0) return Refuse("lsn", "1 or more", "0");
  if (record.view.value == 0) return Refuse("view", "1 or more", "0");
  if (record.kind == RecordKind::kCut) record.work.purpose = WorkPurpose::kTrain;
  const size_t body = in.left();
  STARLING_RETURN_IF_ERROR(row.read(in, &record));
  if (!in.ok() || in.left() != 0) {
    return Refuse("the fields",
                  absl::StrCat("as long as those of kind ", kind, " in version ", kRecordVersion),
                  absl::StrCat(body, " bytes"));
  }
  return record;
}

uint64_t LogDigest(uint64_t before, absl::string_view record) {
  return XXH3_64bits_withSeed(record.data(), record.size(), before);
}

}  // namespace starling
