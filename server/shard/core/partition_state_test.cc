#include "server/shard/core/partition_state.h"

#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/byte_io.h"
#include "common/base/crc32c.h"
#include "common/protocol/frame.h"
#include "common/protocol/limits.h"
#include "common/protocol/record.h"
#include "common/version/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "xxhash.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kElements = 10;

// Two epochs of four steps; slices 0 and 1 are updated, slice 2 is frozen.
PartitionConfig Config(PolicyKind policy = PolicyKind::kBsp) {
  PartitionConfig config;
  config.run = {JobUid(7), 1};
  config.self = ShardId(1);
  config.slices = {{SliceId(0), kElements}, {SliceId(1), kElements}, {SliceId(2), 3, false}};
  config.samples = 32;
  config.batch = 8;
  config.micro_batches = 4;
  config.steps = 8;
  config.policy = {policy, policy == PolicyKind::kSsp ? 1U : 0U};
  config.scales_loss = true;
  config.reporters = {PartitionId(0), PartitionId(1)};
  config.rate = [](int64_t) { return 0.5F; };
  config.evaluates_at = [](uint32_t) { return true; };
  config.name_of_element = [](SliceId, uint32_t) { return std::string("w"); };
  return config;
}

Record Base(RecordKind kind) {
  Record record;
  record.kind = kind;
  record.view = ViewNumber(2);
  return record;
}

Record Roster(uint64_t number, const std::vector<uint32_t>& replicas) {
  Record record = Base(RecordKind::kRoster);
  record.roster.number = RosterNumber(number);
  for (const uint32_t r : replicas)
    record.roster.members.push_back({ReplicaId(r), WorkerId(r), Incarnation(1), 0});
  return record;
}

Record Close(uint32_t replica, uint16_t flags, Clock clock) {
  Record record = Base(RecordKind::kClose);
  record.origin = {ReplicaId(replica), WorkerId(replica), Incarnation(1), 0};
  record.flags = flags;
  record.clock = clock;
  return record;
}

// Of step `step` of the job, which makes `t` updates.
Record Apply(uint32_t slice, uint64_t step, int64_t t) {
  Record record = Base(RecordKind::kApply);
  record.slice = SliceId(slice);
  record.work = {WorkPurpose::kTrain, static_cast<uint32_t>(step / 4), step % 4 * 4, 4};
  record.samples = 8;
  record.elements = kElements;
  record.clock = static_cast<Clock>(step);
  record.scalars.t = t;
  return record;
}

Record Decision(Clock step) {
  Record record = Base(RecordKind::kDecision);
  record.clock = step;
  record.scalars.scale = 0.5F;
  return record;
}

Record Policy(uint32_t number, PolicyKind kind, uint64_t step) {
  Record record = Base(RecordKind::kPolicy);
  record.policy = {PolicyNumber(number), {kind, 0}, step};
  return record;
}

Record Cut(uint32_t epoch) {
  Record record = Base(RecordKind::kCut);
  record.work.purpose = WorkPurpose::kTrain;
  record.work.epoch = epoch;
  return record;
}

std::string Encoded(const Record& record) {
  std::string bytes;
  EncodeRecord(record, &bytes);
  return bytes;
}

absl::Status RepeatBytes(PartitionState& state, const std::string& bytes) {
  const absl::StatusOr<Record> record = DecodeRecord(bytes);
  if (!record.ok()) return record.status();
  return state.Repeat(*record, LogDigest(state.digest(), bytes));
}

// The next position is filled in.
absl::Status Repeat(PartitionState& state, Record record) {
  record.lsn = Lsn(state.lsn().value + 1);
  return RepeatBytes(state, Encoded(record));
}

void RepeatAll(PartitionState& state, const std::vector<Record>& records) {
  for (const Record& record : records) {
    const absl::Status fits = Repeat(state, record);
    ASSERT_TRUE(fits.ok()) << fits;
  }
}

// Two members that entered; step 0 is done by slice 0, skipped, and by slice 1, step 1 by slice 0.
std::vector<Record> SomeRecords() {
  Record skipped = Apply(0, 0, 1);
  skipped.skipped = true;
  skipped.loss_scale = {15, 0};
  Record other = Apply(1, 0, 1);
  other.skipped = true;
  Record next = Apply(0, 1, 1);
  next.loss_scale = {15, 1};
  return {Roster(3, {1, 2}),
          Close(1, frame_flags::kEnter, 0),
          Close(2, frame_flags::kEnter, 0),
          Decision(0),
          skipped,
          other,
          Close(1, 0, 1),
          next};
}

TEST(PartitionStateTest, RecordsChangeWhatTheySay) {
  const PartitionConfig config = Config();
  PartitionState state(&config);
  RepeatAll(state, SomeRecords());
  EXPECT_EQ(state.lsn(), Lsn(8));
  EXPECT_EQ(state.view(), ViewNumber(2));
  EXPECT_EQ(state.roster(), RosterNumber(3));
  EXPECT_EQ(state.clocks().min(), 0);
  EXPECT_EQ(state.clocks().max(), 1);
  EXPECT_EQ(state.slice(SliceId(0)).updates, 2U);
  EXPECT_EQ(state.slice(SliceId(0)).skipped, 1U);
  EXPECT_EQ(state.slice(SliceId(0)).version_lsn[0], Lsn(8));
  EXPECT_EQ(state.LeastUpdates(), 1U);
  EXPECT_EQ(state.CoveredSteps(), 1U);
  EXPECT_TRUE(state.Covers(SliceId(0), 0, 1));
  EXPECT_FALSE(state.Covers(SliceId(1), 0, 1));
  EXPECT_EQ(state.OpenItems(0), 1U);
  EXPECT_EQ(state.loss_scale(), (LossScale::State{15, 1}));
  EXPECT_EQ(state.loss_scale_log2(0), 15);
  EXPECT_EQ(state.skipped_steps(), 1U);
  EXPECT_EQ(state.decided()->scale, 0.5F);
  EXPECT_EQ(state.next_decision(), 1);
}

TEST(PartitionStateTest, AnEpochIsCutAndThePolicyChanges) {
  const PartitionConfig config = Config();
  PartitionState state(&config);
  RepeatAll(state, {Roster(1, {1}), Close(1, frame_flags::kEnter, 0)});
  for (uint64_t step = 0; step < 4; ++step)
    RepeatAll(state, {Apply(0, step, static_cast<int64_t>(step) + 1),
                      Apply(1, step, static_cast<int64_t>(step) + 1)});
  EXPECT_TRUE(state.Complete(0));
  RepeatAll(state, {Cut(0), Policy(1, PolicyKind::kAsync, 4)});
  EXPECT_EQ(state.cut_epochs(), 1U);
  EXPECT_EQ(state.copy(), 0U);
  EXPECT_EQ(state.copy_lsn(), Lsn(11));
  EXPECT_EQ(state.applied_min(), 4U);
  EXPECT_FALSE(state.bsp());
  EXPECT_TRUE(state.was_bsp());
  EXPECT_FALSE(state.clocks().any_active());
  EXPECT_EQ(state.clocks().min(), 4);
  Record late = Apply(0, 6, 5);
  late.scalars.lag = 2;
  RepeatAll(state, {late});
  EXPECT_EQ(state.recent_lag(), 2U);
  EXPECT_EQ(state.LagOf(SliceId(0), Lsn(12)), 1U);
  EXPECT_EQ(state.LagOf(SliceId(0), Lsn(13)), 0U);
  EXPECT_FALSE(state.Complete(1));
}

TEST(PartitionStateTest, WhatIsWrittenIsReadBackAndGoesOnAlike) {
  const PartitionConfig config = Config();
  PartitionState state(&config);
  PartitionState other(&config);
  for (const Record& record : SomeRecords()) {
    ASSERT_TRUE(Repeat(state, record).ok());
    const std::string bytes = state.Write();
    ASSERT_TRUE(other.Read(bytes).ok());
    EXPECT_EQ(other.Write(), bytes);
  }
  for (PartitionState* s : {&state, &other})
    RepeatAll(*s, {Apply(1, 1, 1), Close(2, frame_flags::kPark, 0), Roster(4, {1})});
  EXPECT_EQ(other.Write(), state.Write());
  EXPECT_EQ(other.digest(), state.digest());
}

// Printed, so that acceptance can list what is refused.
void ExpectRefused(PartitionState& state, const std::string& bytes, const char* why) {
  const std::string before = state.Write();
  const absl::Status refused = RepeatBytes(state, bytes);
  EXPECT_FALSE(refused.ok()) << why;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(why));
  EXPECT_EQ(state.Write(), before) << why;
  std::printf("refused without a change: %s\n", std::string(refused.message()).c_str());
}

struct Misfit {
  const char* why;  // of the message
  Record record;
};

Record With(Record record, const std::function<void(Record&)>& change) {
  change(record);
  return record;
}

// Each could be sent, and is a record of some log; none of them fits this one.
TEST(PartitionStateTest, RecordsThatDoNotFitAreRefusedWithoutAChange) {
  const std::vector<Misfit> all = {
      {"expected position 9", With(Apply(1, 1, 1), [](Record& r) { r.lsn = Lsn(8); })},
      {"expected position 9", With(Apply(1, 1, 1), [](Record& r) { r.lsn = Lsn(10); })},
      {"expected view 2 or later", With(Apply(1, 1, 1), [](Record& r) { r.view = ViewNumber(1); })},
      {"expected a slice that partition 0 updates", Apply(5, 1, 1)},
      {"expected a slice that partition 0 updates", Apply(2, 1, 1)},
      {"expected elements 10, not 9", With(Apply(1, 1, 1), [](Record& r) { r.elements = 9; })},
      {"expected a whole step", With(Apply(1, 1, 1), [](Record& r) { r.work.count = 2; })},
      {"expected a whole step", With(Apply(1, 1, 1), [](Record& r) { r.work.first = 16; })},
      {"expected a whole step", With(Apply(1, 1, 1), [](Record& r) { r.work.epoch = 2; })},
      {"expected a whole step",
       With(Apply(1, 1, 1), [](Record& r) { r.work.purpose = WorkPurpose::kEvaluate; })},
      {"expected samples 8, not 7", With(Apply(1, 1, 1), [](Record& r) { r.samples = 7; })},
      {"expected epoch 0, not 1", Apply(1, 4, 1)},
      {"expected a step that slice 1 does not cover", Apply(1, 0, 1)},
      {"expected step 2, not 1", With(Apply(0, 2, 2), [](Record& r) { r.clock = 1; })},
      {"expected step 1, not 2", Apply(1, 2, 1)},
      {"expected t 1, not 2", Apply(1, 1, 2)},
      {"expected a member of roster 3, not replica 4", Close(4, frame_flags::kEnter, 0)},
      {"expected a member of roster 3, not replica 1 on worker 1.9",
       With(Close(1, 0, 2), [](Record& r) { r.origin.incarnation = Incarnation(9); })},
      {"expected clock 2, not 3", Close(1, 0, 3)},
      {"expected clock 1, not 0", Close(1, frame_flags::kPark, 0)},
      {"expected a clock above 1, not 1", Close(1, frame_flags::kSkip, 1)},
      {"expected decision about step 1, not 0", Decision(0)},
      {"expected a step below 8, not 8", Decision(8)},
      {"expected a roster above 3, not 3", Roster(3, {1})},
      {"expected a policy above 0, not 0", Policy(0, PolicyKind::kSsp, 1)},
      {"expected a policy from step 0 to 1, not 2", Policy(1, PolicyKind::kSsp, 2)},
      {"expected cut of epoch 0, not 1", Cut(1)},
      {"expected a cut of an epoch that is covered", Cut(0)},
  };
  const PartitionConfig config = Config();
  PartitionState state(&config);
  RepeatAll(state, SomeRecords());
  for (const Misfit& misfit : all) {
    Record record = misfit.record;
    if (record.lsn.value == 0) record.lsn = Lsn(9);
    ExpectRefused(state, Encoded(record), misfit.why);
  }
  RepeatAll(state, {Apply(1, 1, 1)});
}

// Writes the length and the CRC again, so that only what was changed is wrong.
std::string Sealed(std::string bytes) {
  const auto size = static_cast<uint32_t>(bytes.size());
  std::memcpy(bytes.data() + 8, &size, sizeof(size));
  const uint32_t crc =
      Crc32c(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size() - 4));
  std::memcpy(bytes.data() + bytes.size() - 4, &crc, sizeof(crc));
  return bytes;
}

template <typename T>
std::string With(std::string bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  return bytes;
}

std::string Flipped(std::string bytes, size_t at) {
  bytes[at] = static_cast<char>(bytes[at] ^ 4);
  return bytes;
}

// Each is the next record but for its damage.
TEST(PartitionStateTest, DamagedRecordsAreRefusedWithoutAChange) {
  const PartitionConfig config = Config();
  PartitionState state(&config);
  RepeatAll(state, SomeRecords());
  const auto next = [](Record record) {
    record.lsn = Lsn(9);
    return record;
  };
  const Record apply = next(Apply(1, 1, 1));
  const auto changed = [&](const std::function<void(Record&)>& change) {
    return Encoded(With(apply, change));
  };
  const std::string bytes = Encoded(apply);
  const size_t size = bytes.size();
  const std::string roster = Encoded(next(Roster(4, {1, 2})));
  struct Damage {
    const char* why;  // of the message
    std::string bytes;
  };
  const std::vector<Damage> all = {
      {"length must be 32 to 131072, not 0", ""},
      {"length must be the", bytes.substr(0, size / 2)},
      {"length must be the", bytes.substr(0, size - 1)},
      {"length must be the", bytes + bytes},
      {"magic must be", std::string(size, '\0')},
      {"magic must be", Sealed(With(bytes, 0, uint32_t{0x474C5453}))},  // a frame's
      {"CRC must be", Flipped(bytes, 12)},                              // the position
      {"CRC must be", Flipped(bytes, 28)},                              // the slice
      {"CRC must be", Flipped(bytes, size - 5)},                        // the payload's digest
      {"CRC must be", Flipped(bytes, size - 1)},
      {"version must be 1, not 2", Sealed(With(bytes, 4, uint16_t{2}))},
      {"kind must be 1 to 6, not 7", Sealed(With(bytes, 6, uint8_t{7}))},
      {"flags of kind 1 must be 0 to 1, not 2", Sealed(With(bytes, 7, uint8_t{2}))},
      {"the fields must be as long as those of kind 2", Sealed(With(bytes, 6, uint8_t{2}))},
      {"the fields must be as long as those of kind 1", Sealed(bytes.substr(0, size - 4))},
      {"view must be 1 or more", changed([](Record& r) { r.view = {}; })},
      {"lsn must be 1 or more", changed([](Record& r) { r.lsn = {}; })},
      {"rate must be finite",
       changed([](Record& r) { r.scalars.rate = std::numeric_limits<float>::quiet_NaN(); })},
      {"scale must be finite and not negative", changed([](Record& r) { r.scalars.scale = -1; })},
      {"expected a whole step", changed([](Record& r) { r.work.count = 3; })},
      {"expected a whole step", Sealed(With(bytes, 32, uint8_t{9}))},  // the purpose
      {"clock must be 0 to", changed([](Record& r) { r.clock = -1; })},
      {"loss scale must be", changed([](Record& r) { r.loss_scale.log2 = 25; })},
      {"expected elements 10, not 0", changed([](Record& r) { r.elements = 0; })},
      {"the fields must be as long as those of kind 4", Sealed(With(roster, 36, UINT32_MAX))},
      {"a roster's replica must be above 1",
       Encoded(With(next(Roster(4, {1, 2})),
                    [](Record& r) { r.roster.members[1] = r.roster.members[0]; }))},
  };
  for (const Damage& damage : all) ExpectRefused(state, damage.bytes, damage.why);
  RepeatAll(state, {Apply(1, 1, 1)});
}

TEST(PartitionStateTest, APartitionRefusesWhatItsJobHasNot) {
  PartitionConfig config = Config();
  config.scales_loss = false;
  config.reporters.clear();
  PartitionState state(&config);
  Record skipped = Apply(0, 0, 1);
  skipped.skipped = true;
  EXPECT_THAT(std::string(Repeat(state, skipped).message()), HasSubstr("no skipped work"));
  EXPECT_THAT(std::string(Repeat(state, Decision(0)).message()),
              HasSubstr("expected no decision, in partition 0"));
  EXPECT_EQ(state.lsn(), Lsn());
}

// ---- Bytes ----

void Seal(std::string* bytes) {
  const uint64_t digest = XXH3_64bits(bytes->data(), bytes->size() - 8);
  std::memcpy(bytes->data() + bytes->size() - 8, &digest, sizeof(digest));
}

TEST(PartitionStateTest, DamagedBytesAreRefusedWithoutAChange) {
  const PartitionConfig config = Config();
  PartitionState state(&config);
  RepeatAll(state, SomeRecords());
  const std::string bytes = state.Write();
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::string cut = bytes.substr(0, size);
    EXPECT_FALSE(state.Read(cut).ok()) << size;
    if (size < 8) continue;
    Seal(&cut);  // whose end is missing, too
    EXPECT_FALSE(state.Read(cut).ok()) << size;
  }
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(state.Read(flipped).ok()) << bit;
  }
  EXPECT_FALSE(state.Read(bytes + bytes).ok());
  EXPECT_EQ(state.Write(), bytes);
}

// Whatever bytes say with a digest that is right: they are refused, or they are a state.
TEST(PartitionStateTest, WhatIsReadIsWrittenAlike) {
  const PartitionConfig config = Config();
  PartitionState state(&config);
  RepeatAll(state, SomeRecords());
  const std::string bytes = state.Write();
  int refused = 0;
  for (size_t at = 0; at + 8 < bytes.size(); ++at) {
    for (const uint8_t value : {0, 1, 2, 127, 255}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(value);
      Seal(&changed);
      PartitionState read(&config);
      const absl::Status status = read.Read(changed);
      if (status.ok()) {
        EXPECT_EQ(read.Write(), changed) << at;
      } else {
        ++refused;
        EXPECT_THAT(std::string(status.message()), HasSubstr("partition state: "));
      }
    }
  }
  EXPECT_GT(refused, 500);
}

template <typename... T>
std::string Bytes(const T&... fields) {
  std::string bytes;
  ByteWriter out(&bytes);
  out(fields...);
  return bytes;
}

// `bytes` with `to` in the one place where they have `from`, under a digest that is right.
std::string Edited(std::string bytes, const std::string& from, const std::string& to) {
  const size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos);
  EXPECT_EQ(bytes.rfind(from), at) << "it is there twice";
  if (at != std::string::npos) bytes.replace(at, from.size(), to);
  Seal(&bytes);
  return bytes;
}

// Each of these states is written as it was read. Only no log leaves it behind.
TEST(PartitionStateTest, BytesOfAStateThatNoLogLeavesAreRefusedByName) {
  const PartitionConfig config = Config(PolicyKind::kAsync);
  PartitionState state(&config);
  const auto lags = [](Record record, uint64_t lag) {
    record.scalars.lag = lag;
    return record;
  };
  RepeatAll(state, {Roster(3, {1, 2}), lags(Apply(0, 0, 1), 71), lags(Apply(0, 1, 2), 72)});
  const std::string bytes = state.Write();
  const auto replica = [](uint32_t key, uint32_t name) {
    return Bytes(ReplicaId(key), ReplicaId(name), WorkerId(2), Incarnation(1));
  };
  const auto slice = [&](const std::function<void(SliceState&)>& change) {
    SliceState s = state.slice(SliceId(0));
    change(s);
    return Bytes(s.updates, s.updates_in_epoch, s.skipped, s.version_lsn[0], s.version_lsn[1],
                 s.recent);
  };
  const std::string unchanged = slice([](SliceState&) {});
  struct Edit {
    const char* why;  // of the message
    std::string from;
    std::string to;
  };
  const std::vector<Edit> all = {
      {"replica 2 has the name of another", replica(2, 2), replica(2, 5)},
      {"it has 65 lags", Bytes(std::vector<uint64_t>{71, 72}),
       Bytes(std::vector<uint64_t>(kLagsRemembered + 1, 71))},
      {"slice 0 skipped more than it counted", unchanged,
       slice([](SliceState& s) { s.skipped = s.updates + 1; })},
      {"the last updates of slice 0 are out of order", unchanged,
       slice([](SliceState& s) { std::swap(s.recent.front(), s.recent.back()); })},
      {"the last updates of slice 0 are out of order", unchanged,
       slice([](SliceState& s) { s.recent.assign(limits::kSliceUpdatesRemembered + 1, Lsn(1)); })},
  };
  PartitionState read(&config);
  const std::string before = read.Write();
  for (const Edit& edit : all) {
    EXPECT_EQ(read.Read(Edited(bytes, edit.from, edit.to)).message(),
              absl::StrCat("partition state: ", edit.why,
                           "; it is damaged: read it again, or another copy"));
    EXPECT_EQ(read.Write(), before) << edit.why;
  }
  EXPECT_TRUE(read.Read(bytes).ok());
}

TEST(PartitionStateTest, BytesOfAnotherPartitionOrReleaseAreRefusedByName) {
  const PartitionConfig config = Config();
  const std::string bytes = PartitionState(&config).Write();
  PartitionConfig other = Config();
  other.partition = PartitionId(1);
  EXPECT_EQ(PartitionState(&other).Read(bytes).message(),
            "partition state: partition must be 1, not 0; it is of another partition: read that "
            "one's own");
  other = Config();
  other.run.era = 2;
  EXPECT_THAT(std::string(PartitionState(&other).Read(bytes).message()),
              HasSubstr("era must be 2, not 1"));
  other = Config();
  other.slices.pop_back();
  EXPECT_THAT(std::string(PartitionState(&other).Read(bytes).message()),
              HasSubstr("slices must be 2, not 3"));
  std::string newer = bytes;
  ++newer[4];
  Seal(&newer);
  EXPECT_EQ(PartitionState(&config).Read(newer).message(),
            "partition state: version must be 2, not 3; read it with the release that wrote it");
}

// Daemons of one protocol serve a job together, so a format's new number is a new protocol, too.
// Rows are history: append one with the new protocol, and change none.
TEST(PartitionStateTest, AnotherFormatIsAnotherProtocol) {
  struct Formats {
    uint32_t protocol;
    uint16_t frame, record, state;
  };
  constexpr Formats kHistory[] = {{7, 1, 1, 2}};
  const Formats& now = kHistory[std::size(kHistory) - 1];
  EXPECT_EQ(ProtocolVersion(), now.protocol);
  EXPECT_EQ(kFrameVersion, now.frame);
  EXPECT_EQ(kRecordVersion, now.record);
  EXPECT_EQ(kPartitionStateVersion, now.state);
  for (size_t i = 1; i < std::size(kHistory); ++i)
    EXPECT_GT(kHistory[i].protocol, kHistory[i - 1].protocol);
}

}  // namespace
}  // namespace starling
