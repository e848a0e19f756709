#include "common/protocol/frame.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "common/base/crc32c.h"

namespace starling {
namespace {

using Bytes = std::array<uint8_t, limits::kFrameHeaderBytes>;

FrameHeader Sample() {
  FrameHeader h;
  h.type = FrameType::kPush;
  h.kind = PayloadKind::kDense;
  h.codec = Codec::kFp32;
  h.flags = frame_flags::kEnter;
  h.key = {{JobUid(7), 3}, SliceId(11), {WorkPurpose::kTrain, 5, 128, 4}};
  h.partition = PartitionId(13);
  h.view = ViewNumber(17);
  h.roster = RosterNumber(19);
  h.policy = PolicyNumber(67);
  h.origin = {ReplicaId(23), WorkerId(29), Incarnation(31), 37};
  h.request_id = 41;
  h.samples = 43;
  h.clock = -47;
  h.base_lsn = Lsn(53);
  h.min_lsn = Lsn(59);
  h.elements = 61;
  h.payload_bytes = 244;
  h.digest = 0x123456789ABCDEF0;
  h.loss_scale_log2 = 24;
  return h;
}

Bytes Encoded(const FrameHeader& header) {
  Bytes bytes;
  EncodeFrameHeader(header, bytes.data());
  return bytes;
}

void FixCrc(Bytes* bytes) {
  const uint32_t crc = Crc32c(absl::MakeConstSpan(bytes->data(), 188));
  for (int i = 0; i < 4; ++i) (*bytes)[188 + i] = static_cast<uint8_t>(crc >> (8 * i));
}

TEST(Frame, RoundTripsEveryField) {
  const Bytes bytes = Encoded(Sample());
  FrameHeader back;
  ASSERT_TRUE(DecodeFrameHeader(bytes, &back).ok());
  EXPECT_EQ(back, Sample());
}

TEST(Frame, CarriesEveryAnswer) {
  constexpr Answer kAnswers[] = {
      Answer::kCounted,   Answer::kAlreadyCounted, Answer::kStaleView,  Answer::kStaleIncarnation,
      Answer::kStaleRun,  Answer::kNotHosted,      Answer::kBadFrame,   Answer::kBadDigest,
      Answer::kNonFinite, Answer::kOverBudget,     Answer::kStaleClock, Answer::kStopped};
  for (const Answer answer : kAnswers) {
    FrameHeader error = Sample();
    error.answer = answer;
    FrameHeader back;
    EXPECT_TRUE(DecodeFrameHeader(Encoded(error), &back).ok()) << static_cast<int>(answer);
    EXPECT_EQ(back, error);
  }
}

TEST(Frame, AValueSaysHowLongItsPullWasHeldAndWhatWasLate) {
  FrameHeader value = Sample();
  value.type = FrameType::kValue;
  value.held_us = 0xDEADBEEF;
  value.late_us = 0xBEEFDEAD;
  value.late_part = 0xCAFEDEAD;
  FrameHeader back;
  ASSERT_TRUE(DecodeFrameHeader(Encoded(value), &back).ok());
  EXPECT_EQ(back, value);
}

FrameHeader Report() {
  FrameHeader h;
  h.type = FrameType::kDecision;
  h.key.run = {JobUid(7), 3};
  h.view = ViewNumber(17);
  h.reporter = PartitionId(5);
  h.clock = 41;
  h.scalar = 0.1;
  return h;
}

TEST(Frame, DecisionsCarryANumberThatIsOne) {
  FrameHeader back;
  ASSERT_TRUE(DecodeFrameHeader(Encoded(Report()), &back).ok());
  EXPECT_EQ(back, Report());
  const auto refusal = [](FrameHeader header) {
    FrameHeader out;
    return std::string(DecodeFrameHeader(Encoded(header), &out).message());
  };
  FrameHeader h = Report();
  for (const double bad : {std::nan(""), -1.0, -0.0, HUGE_VAL, -HUGE_VAL}) {
    h.scalar = bad;
    EXPECT_NE(refusal(h).find("must be finite and not negative"), std::string::npos) << bad;
  }
  h = Report();
  for (const Clock bad : {Clock{-1}, limits::kClockMax + 1}) {
    h.clock = bad;
    EXPECT_NE(refusal(h).find("a decision's step must be"), std::string::npos) << bad;
  }
  h = Report();
  h.kind = PayloadKind::kText;
  EXPECT_NE(refusal(h).find("a decision has no payload"), std::string::npos);
  h = Sample();
  h.scalar = 1;
  EXPECT_NE(refusal(h).find("with decisions alone"), std::string::npos);
  h = Sample();
  h.reporter = PartitionId(1);
  EXPECT_NE(refusal(h).find("reporter"), std::string::npos);
}

TEST(Frame, ALossScaleComesWithPushesAndValuesAndIsInBounds) {
  const auto refusal = [](FrameHeader header) {
    FrameHeader out;
    return std::string(DecodeFrameHeader(Encoded(header), &out).message());
  };
  FrameHeader h = Sample();
  h.loss_scale_log2 = 25;
  EXPECT_NE(refusal(h).find("loss scale must be at most 2^24, not 25"), std::string::npos);
  h.loss_scale_log2 = 1;
  h.type = FrameType::kPull;
  EXPECT_NE(refusal(h).find("loss scale must be 0 but in pushes and values, not 1"),
            std::string::npos);
  h = Report();
  h.loss_scale_log2 = 1;
  EXPECT_NE(refusal(h).find("loss scale"), std::string::npos);
}

TEST(Frame, LayoutIsLittleEndianAndFixed) {
  FrameHeader header = Sample();
  header.answer = Answer::kStaleView;
  header.scalar = 0.5;
  header.reporter = PartitionId(71);
  header.held_us = 73;
  header.late_us = 79;
  header.late_part = 83;
  header.blocks = 0x1'0000;
  const Bytes bytes = Encoded(header);
  EXPECT_EQ(std::memcmp(bytes.data(), "STLG", 4), 0);
  struct Place {
    size_t at, size;
    uint64_t value;
  };
  const Place places[] = {{4, 2, 1},
                          {6, 1, 1},
                          {7, 1, 1},
                          {8, 1, 1},
                          {9, 1, 11},
                          {10, 2, 1},
                          {12, 4, 3},
                          {16, 8, 7},
                          {24, 4, 11},
                          {28, 1, 1},
                          {29, 1, 24},
                          {30, 2, 0},
                          {32, 4, 5},
                          {36, 4, 4},
                          {40, 8, 128},
                          {48, 4, 13},
                          {52, 4, 23},
                          {56, 8, 17},
                          {64, 8, 19},
                          {72, 4, 29},
                          {76, 4, 37},
                          {80, 8, 31},
                          {88, 8, 41},
                          {96, 8, uint64_t(-47)},
                          {104, 8, 53},
                          {112, 8, 59},
                          {120, 4, 43},
                          {124, 4, 61},
                          {128, 4, 244},
                          {132, 4, 67},
                          {136, 8, 0x123456789ABCDEF0},
                          {144, 8, 0x3FE0000000000000},
                          {152, 4, 71},
                          {156, 4, 73},
                          {160, 4, 79},
                          {164, 4, 83},
                          {168, 8, 0x1'0000}};
  size_t end = 4;
  for (const Place& place : places) {
    EXPECT_EQ(place.at, end);
    end = place.at + place.size;
    uint64_t value = 0;
    std::memcpy(&value, bytes.data() + place.at, place.size);
    EXPECT_EQ(value, place.value) << "at " << place.at;
  }
  for (; end < 188; ++end) EXPECT_EQ(bytes[end], 0) << "at " << end;
}

TEST(Frame, NamesWhatIsWrong) {
  struct Case {
    const char* field;
    std::function<void(Bytes*)> spoil;
  };
  const std::vector<Case> cases = {
      {"magic", [](Bytes* b) { (*b)[0] ^= 1; }},
      {"version", [](Bytes* b) { (*b)[4] = 2; }},
      {"type", [](Bytes* b) { (*b)[6] = 0; }},
      {"type", [](Bytes* b) { (*b)[6] = 11; }},
      {"kind", [](Bytes* b) { (*b)[7] = 6; }},
      {"codec", [](Bytes* b) { (*b)[8] = 0; }},
      {"codec", [](Bytes* b) { (*b)[8] = 5; }},
      {"answer", [](Bytes* b) { (*b)[9] = 3; }},
      {"answer", [](Bytes* b) { (*b)[9] = 26; }},
      {"flags", [](Bytes* b) { (*b)[11] = 0x80; }},
      {"work purpose", [](Bytes* b) { (*b)[28] = 3; }},
      {"reserved", [](Bytes* b) { (*b)[30] = 1; }},
      {"scalar", [](Bytes* b) { (*b)[144] = 1; }},
      {"reporter", [](Bytes* b) { (*b)[152] = 1; }},
      {"held time", [](Bytes* b) { (*b)[156] = 1; }},
      {"blocks", [](Bytes* b) { (*b)[168] = 3; }},
      {"reserved", [](Bytes* b) { (*b)[176] = 1; }},
      {"reserved", [](Bytes* b) { (*b)[187] = 1; }},
      {"work count", [](Bytes* b) { (*b)[36] = 3; }},
      {"work first", [](Bytes* b) { (*b)[40] = 129; }},
      {"payload_bytes", [](Bytes* b) { (*b)[128] = 243; }},
      {"payload_bytes", [](Bytes* b) { (*b)[131] = 1; }},
      {"payload_bytes", [](Bytes* b) { (*b)[7] = 0; }},  // no payload, but a size
      {"elements", [](Bytes* b) { (*b)[126] = 0x10; }},
  };
  for (const Case& c : cases) {
    Bytes bytes = Encoded(Sample());
    c.spoil(&bytes);
    FixCrc(&bytes);
    FrameHeader out;
    const absl::Status status = DecodeFrameHeader(bytes, &out);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field;
    EXPECT_NE(status.message().find(c.field), absl::string_view::npos) << c.field << ": " << status;
    EXPECT_EQ(out, FrameHeader()) << c.field;
  }
}

TEST(Frame, BlocksAreConsecutiveAndHoldThePayload) {
  FrameHeader h = Sample();
  const auto refusal = [&](uint64_t blocks, uint32_t elements) {
    h.blocks = blocks;
    h.elements = elements;
    h.payload_bytes = 4 * elements;
    FrameHeader out;
    const absl::Status status = DecodeFrameHeader(Encoded(h), &out);
    EXPECT_EQ(out.blocks, status.ok() ? blocks : 0);
    return std::string(status.message());
  };
  constexpr uint32_t kBlock = limits::kSegmentBlockBytes / 4;
  constexpr uint64_t kTop = uint64_t{1} << 63;
  EXPECT_EQ(refusal(0, 8 * kBlock), "");
  EXPECT_EQ(refusal(1, 1), "");
  EXPECT_EQ(refusal(1, kBlock), "");
  EXPECT_EQ(refusal(kTop, kBlock), "");
  EXPECT_EQ(refusal(6, kBlock + 1), "");
  EXPECT_EQ(refusal(uint64_t{0xFF} << 56, 8 * kBlock), "");
  EXPECT_NE(refusal(5, kBlock + 1).find("blocks must be consecutive, not 5"), std::string::npos);
  EXPECT_NE(refusal(kTop | 1, 2 * kBlock).find("consecutive"), std::string::npos);
  EXPECT_NE(refusal(1, kBlock + 1).find("blocks must be 2 for 131076 bytes, not 1"),
            std::string::npos);
  EXPECT_NE(refusal(3, kBlock).find("blocks must be 1"), std::string::npos);
  EXPECT_NE(refusal(~uint64_t{0}, 8 * kBlock).find("blocks must be 8"), std::string::npos);
  EXPECT_NE(refusal(1, 0).find("blocks must be 0"), std::string::npos);
  h.loss_scale_log2 = 0;
  for (const FrameType type :
       {FrameType::kPull, FrameType::kAck, FrameType::kReplicate, FrameType::kError}) {
    h.type = type;
    h.flags = type == FrameType::kReplicate ? frame_flags::kSnapshot : 0;
    EXPECT_NE(refusal(1, 1).find("blocks must be 0 but for"), std::string::npos);
  }
  h = Sample();
  h.type = FrameType::kValue;
  EXPECT_EQ(refusal(1, 1), "");
  FrameHeader credit;
  credit.type = FrameType::kCredit;
  credit.blocks = ~uint64_t{0};
  FrameHeader out;
  ASSERT_TRUE(DecodeFrameHeader(Encoded(credit), &out).ok());
  EXPECT_EQ(out, credit);
}

TEST(Frame, ARecordComesWithWhatItAppliesBehindIt) {
  FrameHeader h = Sample();
  h.type = FrameType::kReplicate;
  h.kind = PayloadKind::kRecord;
  h.loss_scale_log2 = 0;
  const auto refusal = [&](uint32_t elements, size_t bytes) {
    h.elements = elements;
    h.payload_bytes = static_cast<uint32_t>(bytes);
    FrameHeader out;
    return std::string(DecodeFrameHeader(Encoded(h), &out).message());
  };
  EXPECT_EQ(refusal(0, 1), "");
  EXPECT_EQ(refusal(0, limits::kRecordBytesMax), "");
  EXPECT_EQ(refusal(limits::kSliceElementsMax, limits::kFramePayloadBytesMax), "");
  EXPECT_NE(refusal(0, limits::kRecordBytesMax + 1).find("payload_bytes"), std::string::npos);
  EXPECT_NE(refusal(3, 12).find("payload_bytes must be 13 to "), std::string::npos);
  EXPECT_NE(refusal(limits::kSliceElementsMax + 1, limits::kFramePayloadBytesMax).find("elements"),
            std::string::npos);
  h.type = FrameType::kPush;
  EXPECT_NE(refusal(3, 13).find("type must be replicate where a record comes"), std::string::npos);
}

// What the receiver takes off the end as a tensor is never more than came.
TEST(Frame, WhatIsReplicatedIsFp32) {
  FrameHeader h = Sample();
  h.type = FrameType::kReplicate;
  h.loss_scale_log2 = 0;
  const auto refusal = [&](PayloadKind kind, Codec codec, uint16_t flags, size_t bytes) {
    h.kind = kind;
    h.codec = codec;
    h.flags = flags;
    h.elements = 4;
    h.payload_bytes = static_cast<uint32_t>(bytes);
    FrameHeader out;
    return std::string(DecodeFrameHeader(Encoded(h), &out).message());
  };
  EXPECT_EQ(refusal(PayloadKind::kDense, Codec::kFp32, frame_flags::kSnapshot, 16), "");
  EXPECT_NE(refusal(PayloadKind::kDense, Codec::kFp16, frame_flags::kSnapshot, 8).find("codec"),
            std::string::npos);
  EXPECT_NE(refusal(PayloadKind::kRecord, Codec::kInt8, 0, 17).find("codec"), std::string::npos);
  EXPECT_EQ(refusal(PayloadKind::kRecord, Codec::kFp32, 0, 17), "");
  EXPECT_NE(
      refusal(PayloadKind::kRecord, Codec::kFp32, frame_flags::kSnapshot, 17).find("elements"),
      std::string::npos);
  for (const PayloadKind kind : {PayloadKind::kTopK, PayloadKind::kRows, PayloadKind::kText})
    EXPECT_NE(refusal(kind, Codec::kFp32, frame_flags::kSnapshot, 1).find("kind"),
              std::string::npos);
  EXPECT_NE(refusal(PayloadKind::kDense, Codec::kFp32, 0, 16).find("kind"), std::string::npos);
}

TEST(Frame, DigestWithoutPayloadIsRefused) {
  FrameHeader header = Sample();
  header.kind = PayloadKind::kNone;
  header.payload_bytes = 0;
  FrameHeader out;
  const absl::Status status = DecodeFrameHeader(Encoded(header), &out);
  EXPECT_NE(status.message().find("digest"), absl::string_view::npos) << status;
}

TEST(Frame, RefusesShortInputOfEveryLength) {
  const Bytes bytes = Encoded(Sample());
  for (size_t n = 0; n < bytes.size(); ++n) {
    FrameHeader out;
    EXPECT_FALSE(DecodeFrameHeader(absl::MakeConstSpan(bytes.data(), n), &out).ok()) << n;
  }
}

TEST(Frame, AnyFlippedBitIsRefused) {
  for (size_t bit = 0; bit < 8 * limits::kFrameHeaderBytes; ++bit) {
    Bytes bytes = Encoded(Sample());
    bytes[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    FrameHeader out;
    EXPECT_FALSE(DecodeFrameHeader(bytes, &out).ok()) << "bit " << bit;
  }
}

// Random bytes, with and without a valid envelope: either rejected, or accepted and then encoded to
// the same bytes.
TEST(Frame, RandomBytesNeverCrash) {
  std::mt19937_64 random(20240101);
  int accepted = 0;
  for (int round = 0; round < 200'000; ++round) {
    Bytes bytes = Encoded(Sample());
    const int changes = 1 + static_cast<int>(random() % 8);
    for (int i = 0; i < changes; ++i) bytes[random() % 188] = static_cast<uint8_t>(random());
    if (round % 4 != 0) FixCrc(&bytes);
    FrameHeader out;
    if (!DecodeFrameHeader(bytes, &out).ok()) continue;
    ++accepted;
    ASSERT_EQ(Encoded(out), bytes);
    ASSERT_FALSE(FrameToString(out).empty());
  }
  EXPECT_GT(accepted, 1000);
}

TEST(Frame, ReadsWell) {
  EXPECT_EQ(FrameToString(Sample()),
            "push slice 11 of job 7.3 work train 5:[128,132) by worker 29.31 attempt 37 clock -47");
}

}  // namespace
}  // namespace starling
