#include "common/protocol/record.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/base/crc32c.h"
#include "common/protocol/frame.h"
#include "common/protocol/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

// Where fields are, so that a test can damage one alone.
constexpr size_t kVersionAt = 4;
constexpr size_t kKindAt = 6;
constexpr size_t kFlagsAt = 7;
constexpr size_t kBytesAt = 8;
constexpr size_t kFieldsAt = 28;

Record Base(RecordKind kind) {
  Record record;
  record.kind = kind;
  record.lsn = Lsn(17);
  record.view = ViewNumber(3);
  return record;
}

Record Apply() {
  Record record = Base(RecordKind::kApply);
  record.slice = SliceId(5);
  record.work = {WorkPurpose::kTrain, 2, 96, 32};
  record.samples = 120;
  record.scalars = {0.1F, 1.5F, 0.01, 41, 7};
  record.elements = 1000;
  record.digest = 0xFEDCBA9876543210;
  record.loss_scale = {15, 12};
  record.origin = {ReplicaId(1), WorkerId(2), Incarnation(uint64_t{1} << 40), 4};
  record.clock = 40;
  record.skipped = true;
  return record;
}

Record Close(uint16_t flags) {
  Record record = Base(RecordKind::kClose);
  record.origin = {ReplicaId(1), WorkerId(2), Incarnation(9), 4};
  record.clock = limits::kClockMax + 1;
  record.flags = flags;
  return record;
}

Record Decision() {
  Record record = Base(RecordKind::kDecision);
  record.clock = 12;
  record.scalars.scale = 0.25F;
  return record;
}

Record Roster() {
  Record record = Base(RecordKind::kRoster);
  record.roster = {RosterNumber(8),
                   {{ReplicaId(1), WorkerId(7), Incarnation(70), 0},
                    {ReplicaId(4), WorkerId(6), Incarnation(60), 33}}};
  return record;
}

Record Policy() {
  Record record = Base(RecordKind::kPolicy);
  record.policy = {PolicyNumber(2), {PolicyKind::kSsp, 3}, 1000};
  return record;
}

Record Cut() {
  Record record = Base(RecordKind::kCut);
  record.work.purpose = WorkPurpose::kTrain;
  record.work.epoch = 6;
  return record;
}

std::vector<Record> OneOfEach() {
  Record skipped = Decision();
  skipped.skipped = true;
  skipped.origin = {ReplicaId(3), WorkerId(3), Incarnation(30), 1};
  Record empty = Roster();
  empty.roster.members.clear();
  return {Apply(),
          Close(0),
          Close(frame_flags::kEnter),
          Close(frame_flags::kPark),
          Decision(),
          skipped,
          Roster(),
          empty,
          Policy(),
          Cut()};
}

std::string Encoded(const Record& record) {
  std::string bytes;
  EncodeRecord(record, &bytes);
  return bytes;
}

// Writes the length and the CRC again, so that only what was changed is wrong.
void Seal(std::string* bytes) {
  const auto size = static_cast<uint32_t>(bytes->size());
  std::memcpy(bytes->data() + kBytesAt, &size, sizeof(size));
  const uint32_t crc = Crc32c(
      absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes->data()), bytes->size() - 4));
  std::memcpy(bytes->data() + bytes->size() - 4, &crc, sizeof(crc));
}

TEST(RecordTest, EachKindComesBackAsItWas) {
  for (const Record& record : OneOfEach()) {
    const std::string bytes = Encoded(record);
    const absl::StatusOr<Record> back = DecodeRecord(bytes);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, record) << static_cast<int>(record.kind);
    EXPECT_EQ(Encoded(*back), bytes);
  }
}

// The bytes are on disks and between releases: this test changes with kRecordVersion alone.
TEST(RecordTest, TheBytesOfARecordAreFinal) {
  std::string hex;
  for (const char byte : Encoded(Close(frame_flags::kPark))) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<uint8_t>(byte) >> 4];
    hex += kDigits[static_cast<uint8_t>(byte) & 15];
  }
  EXPECT_EQ(hex.substr(0, hex.size() - 8),
            "53544c5201000200"
            "3e000000"
            "1100000000000000"
            "0300000000000000"
            "01000000"
            "02000000"
            "0900000000000000"
            "04000000"
            "0100000000000040"
            "0200");
}

TEST(RecordTest, WhatItsKindDoesNotNameIsNotEncoded) {
  Record record = Cut();
  record.clock = 99;
  record.skipped = true;
  record.roster = Roster().roster;
  EXPECT_EQ(Encoded(record), Encoded(Cut()));
}

TEST(RecordTest, EachFieldCountsForTheDigest) {
  const std::vector<std::function<void(Record&)>> changes = {
      [](Record& r) { r.lsn = Lsn(18); },        [](Record& r) { r.view = ViewNumber(4); },
      [](Record& r) { r.slice = SliceId(6); },   [](Record& r) { r.work.first = 64; },
      [](Record& r) { r.samples = 121; },        [](Record& r) { r.scalars.rate = 0.2F; },
      [](Record& r) { r.scalars.scale = 1; },    [](Record& r) { r.scalars.decay = 0; },
      [](Record& r) { r.scalars.t = 42; },       [](Record& r) { r.scalars.lag = 8; },
      [](Record& r) { r.elements = 999; },       [](Record& r) { r.digest = 1; },
      [](Record& r) { r.loss_scale.log2 = 14; }, [](Record& r) { r.loss_scale.clean = 13; },
      [](Record& r) { r.origin.attempt = 5; },   [](Record& r) { r.clock = 41; },
      [](Record& r) { r.skipped = false; },
  };
  const uint64_t digest = LogDigest(1, Encoded(Apply()));
  EXPECT_NE(digest, LogDigest(2, Encoded(Apply())));
  for (size_t i = 0; i < changes.size(); ++i) {
    Record changed = Apply();
    changes[i](changed);
    EXPECT_NE(LogDigest(1, Encoded(changed)), digest) << i;
  }
}

TEST(RecordTest, EachFlippedBitAndEachMissingByteIsFound) {
  for (const Record& record : OneOfEach()) {
    const std::string bytes = Encoded(record);
    for (size_t size = 0; size < bytes.size(); ++size)
      EXPECT_FALSE(DecodeRecord(bytes.substr(0, size)).ok()) << size;
    EXPECT_FALSE(DecodeRecord(bytes + '\0').ok());
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      std::string flipped = bytes;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      EXPECT_FALSE(DecodeRecord(flipped).ok()) << bit;
    }
  }
}

struct Foreign {
  const char* why;  // of the message
  std::string bytes;
};

template <typename T>
std::string With(const Record& record, size_t at, T value) {
  std::string bytes = Encoded(record);
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  Seal(&bytes);
  return bytes;
}

std::string Without(const Record& record, size_t bytes_less) {
  std::string bytes = Encoded(record);
  bytes.resize(bytes.size() - bytes_less);
  Seal(&bytes);
  return bytes;
}

Record Changed(Record record, const std::function<void(Record&)>& change) {
  change(record);
  return record;
}

TEST(RecordTest, WhatNoPartitionWritesIsRefusedByName) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Foreign> all = {
      {"magic must be", With(Cut(), 0, uint32_t{0x474C5453})},
      {"version must be 1, not 2", With(Cut(), kVersionAt, uint16_t{2})},
      {"kind must be 1 to 6, not 0", With(Cut(), kKindAt, uint8_t{0})},
      {"kind must be 1 to 6, not 7", With(Cut(), kKindAt, uint8_t{7})},
      {"flags of kind 6 must be 0 to 0, not 1", With(Cut(), kFlagsAt, uint8_t{1})},
      {"flags of kind 1 must be 0 to 1, not 2", With(Apply(), kFlagsAt, uint8_t{2})},
      {"lsn must be 1 or more", Encoded(Changed(Cut(), [](Record& r) { r.lsn = Lsn(); }))},
      {"view must be 1 or more", Encoded(Changed(Cut(), [](Record& r) { r.view = {}; }))},
      {"the fields must be as long as", With(Cut(), kKindAt, uint8_t{1})},
      {"the fields must be as long as", Without(Apply(), 1)},
      {"the fields must be as long as", Without(Close(0), 2)},
      {"clock must be 0 to", Encoded(Changed(Apply(), [](Record& r) { r.clock = -1; }))},
      {"rate must be finite", Encoded(Changed(Apply(), [](Record& r) { r.scalars.rate = kNan; }))},
      {"scale must be finite", Encoded(Changed(Apply(), [](Record& r) { r.scalars.scale = -1; }))},
      {"decay must be finite",
       Encoded(Changed(Apply(), [](Record& r) { r.scalars.decay = INFINITY; }))},
      {"loss scale must be 2^0 to 2^24",
       Encoded(Changed(Apply(), [](Record& r) { r.loss_scale.log2 = 25; }))},
      {"close flags must be none, or one of", Encoded(Close(3))},
      {"close flags must be none, or one of", Encoded(Close(frame_flags::kReader))},
      {"scale must be from 0 to 1, not 2",
       Encoded(Changed(Decision(), [](Record& r) { r.scalars.scale = 2; }))},
      {"origin must be 0 where the step is not skipped",
       Encoded(Changed(Decision(), [](Record& r) { r.origin.replica = ReplicaId(1); }))},
      // No memory is taken for members that are not there.
      {"the fields must be as long as", With(Roster(), kFieldsAt + 8, UINT32_MAX)},
      {"the fields must be as long as", With(Roster(), kFieldsAt + 8, uint32_t{3})},
      {"the fields must be as long as", With(Roster(), kFieldsAt + 8, uint32_t{1})},
      {"a roster's replica must be above 1",
       Encoded(Changed(Roster(), [](Record& r) { r.roster.members[1].replica = ReplicaId(1); }))},
      {"joined must be",
       Encoded(Changed(Roster(), [](Record& r) { r.roster.members[1].joined = -1; }))},
      {"policy kind must be 1 to 3, not 0", With(Policy(), kFieldsAt + 4, uint8_t{0})},
      {"staleness must be",
       Encoded(Changed(Policy(), [](Record& r) { r.policy.policy.staleness = 10'001; }))},
  };
  for (const Foreign& foreign : all) {
    const absl::StatusOr<Record> record = DecodeRecord(foreign.bytes);
    EXPECT_EQ(record.status().code(), absl::StatusCode::kInvalidArgument) << foreign.why;
    EXPECT_THAT(std::string(record.status().message()), HasSubstr(foreign.why));
  }
}

TEST(RecordTest, ARefusalSaysWhatToDo) {
  EXPECT_EQ(DecodeRecord(With(Cut(), kVersionAt, uint16_t{2})).status().message(),
            "record: version must be 1, not 2; run the same release everywhere");
  EXPECT_EQ(DecodeRecord("STLR").status().message(),
            "record: length must be 32 to 131072, not 4; it is damaged: read it again from where "
            "it came");
}

}  // namespace
}  // namespace starling
