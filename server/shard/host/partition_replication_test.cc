// Two hosts of one partition, and the bytes between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "server/shard/host/testing/partition_fixture.h"
#include "xxhash.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

std::shared_ptr<ShardMemory> MemoryOf(uint64_t bytes) {
  return std::make_shared<ShardMemory>(ShardMemory::Options{.bytes_max = bytes});
}

class ReplicationTest : public PartitionHostTest {
 protected:
  // host_ is the primary, on shard 1; the backup, on shard 2, has nothing.
  void Begin(Policy::Kind policy) {
    Start(policy);
    LearnFromNowOn();
  }
  void LearnFromNowOn() {
    PartitionHost::Environment environment = Environment();
    environment.self = ShardId(2);
    environment.report = [this](const PartitionStatus& status, bool) { backup_status_ = status; };
    environment.memory = backup_memory_;
    backup_ =
        *PartitionHost::Create(plan_, PartitionId(0), std::move(environment), FirstState::kNothing);
    OrderView(*host_, 2, 1, 2);
    OrderView(*backup_, 2, 1, 2);
  }

  void OrderView(PartitionHost& host, uint64_t view, uint32_t primary, uint32_t backup) {
    OrdersReceived orders;
    orders.generation = Generation(1);
    orders.view = ViewNumber(view);
    orders.primary = ShardId(primary);
    orders.backup = ShardId(backup);
    orders.backup_address = "two:1";
    orders.roster.number = RosterNumber(1);
    for (uint32_t worker = 1; worker <= 2; ++worker) {
      orders.roster.members.push_back(
          {ReplicaId(worker), WorkerId(worker), Incarnation(worker), 0});
    }
    orders.policy.policy.kind = plan_->bsp() ? PolicyKind::kBsp : PolicyKind::kSsp;
    orders.policy.policy.staleness = plan_->description.spec().policy().staleness();
    host.OnOrders(std::move(orders));
  }

  // As a stream would, until nothing is on its way: cut at odd places.
  void Carry(size_t frames = SIZE_MAX) {
    while (frames-- > 0 && !to_backup_.empty()) {
      CarryOne();
      Answer();
    }
  }
  void Answer() {
    for (; answered_ < link_->sent.size(); ++answered_)
      host_->OnBackupAnswer(link_->sent[answered_].header, link_->sent[answered_].Text());
  }
  void CarryOne() {
    const FakeConnection::Sent sent = std::move(to_backup_.front());
    to_backup_.pop_front();
    const std::string all = sent.Text();
    ASSERT_EQ(sent.header.payload_bytes, all.size());
    struct Received {
      std::vector<uint8_t> bytes;
      std::vector<ReceivedPayload::Piece> pieces;
    };
    auto memory = std::make_shared<Received>();
    memory->bytes.assign(all.begin(), all.end());
    if (damage_ && !memory->bytes.empty()) memory->bytes.back() ^= 1;
    FrameHeader header = sent.header;
    if (alter_) alter_(header, memory->bytes);
    const absl::Span<const uint8_t> bytes = memory->bytes;
    const size_t cut = bytes.size() / 3;
    memory->pieces = {bytes.subspan(0, cut), bytes.subspan(cut)};
    received_ = memory;
    const absl::Span<const ReceivedPayload::Piece> pieces = memory->pieces;
    backup_->OnFrame(link_, header, ReceivedPayload(pieces, std::move(memory)), loop_.Now());
  }

  // All bytes of the slice, as the host would send them to a reader.
  std::string Read(PartitionHost& host, uint64_t view, uint16_t flags = 0, Clock clock = 0) {
    FrameHeader pull = Header(FrameType::kPull, 1);
    pull.view = ViewNumber(view);
    pull.flags = frame_flags::kReader | flags;
    pull.clock = clock;
    host.OnFrame(connection_, pull, {}, loop_.Now());
    EXPECT_EQ(Last().header.type, FrameType::kValue) << Last().Text();
    return Last().Text();
  }

  PartitionStatus backup_status_;
  std::shared_ptr<ShardMemory> backup_memory_ =
      std::make_shared<ShardMemory>(ShardMemory::Options{});
  std::shared_ptr<FakeConnection> link_ = std::make_shared<FakeConnection>(7);
  std::unique_ptr<PartitionHost> backup_;
  size_t answered_ = 0;                 // of link_->sent
  std::weak_ptr<const void> received_;  // watches the transport's memory of the last frame
  bool damage_ = false;
  std::function<void(FrameHeader&, std::vector<uint8_t>&)> alter_;
};

TEST_F(ReplicationTest, ASnapshotThenRecordsMakeTheSameValues) {
  Begin(Policy::SSP);
  Push(1, Step(0, 0), 1);
  EXPECT_EQ(Last().header.answer, Answer::kCounted) << "nobody waits for a learner";
  Carry(4);
  Push(2, Step(0, 1), 2);  // while the snapshot is on its way
  Carry();
  EXPECT_TRUE(status_.backup_whole());
  const size_t before = connection_->sent.size();
  Push(1, Step(1, 0), 4);  // of the next epoch: it waits for orders
  Orders(1, 0);
  EXPECT_EQ(connection_->sent.size(), before) << "it is acked once the backup has it";
  Carry();
  for (PartitionHost* host : {host_.get(), backup_.get()}) host->OnTick();
  EXPECT_EQ(backup_status_.fault(), "");
  EXPECT_EQ(backup_status_.lsn(), status_.lsn());
  EXPECT_EQ(backup_status_.state_digest(), status_.state_digest());
  const std::string values = Read(*host_, 2);
  OrderView(*backup_, 3, 2, 0);
  EXPECT_EQ(Read(*backup_, 3), values);
}

TEST_F(ReplicationTest, WhatALearnerKeepsCostsItsPrimaryNoCredit) {
  Begin(Policy::SSP);
  Carry(1);
  Push(1, Step(0, 0), 1);
  ASSERT_GT(to_backup_.size(), 2u);
  to_backup_.insert(to_backup_.begin() + 1, to_backup_.back());  // before the tensors
  to_backup_.pop_back();
  CarryOne();
  CarryOne();
  EXPECT_TRUE(received_.expired());
  EXPECT_EQ(link_->sent.back().header.type, FrameType::kAck) << "of the snapshot's first frame";
  Answer();
  Carry();
  EXPECT_TRUE(status_.backup_whole());
  for (PartitionHost* host : {host_.get(), backup_.get()}) host->OnTick();
  EXPECT_EQ(backup_status_.lsn(), status_.lsn());
}

TEST_F(ReplicationTest, InBspBothVersionsAreThere) {
  Begin(Policy::BSP);
  Carry();
  ASSERT_TRUE(status_.backup_whole());
  for (uint32_t step = 0; step < 2; ++step) {
    for (const uint64_t half : {0, 2})
      Push(1, {WorkPurpose::kTrain, 0, step * 4 + half, 2}, 1 + static_cast<float>(half));
    Carry();
  }
  OrderView(*backup_, 3, 2, 0);
  for (const Clock version : {1, 2}) {
    EXPECT_EQ(Read(*backup_, 3, frame_flags::kVersion, version),
              Read(*host_, 2, frame_flags::kVersion, version));
  }
}

TEST_F(ReplicationTest, TheCopyForEvaluationComesAlong) {
  Start(Policy::SSP);
  for (uint32_t step = 0; step < 2; ++step) {
    Push(1, Step(0, step), 1);
    PushOtherSlicesOfThePartition(Step(0, step));
  }
  ASSERT_EQ(status_.cut_epochs(), 1u);
  LearnFromNowOn();
  Carry();
  ASSERT_TRUE(status_.backup_whole());
  PullCut(0);
  ASSERT_EQ(Last().header.type, FrameType::kValue);
  const std::string copy = Last().Text();
  OrderView(*backup_, 3, 2, 0);
  FrameHeader pull = Header(FrameType::kPull, 1);
  pull.view = ViewNumber(3);
  pull.key.work.purpose = WorkPurpose::kEvaluate;
  backup_->OnFrame(connection_, pull, {}, loop_.Now());
  ASSERT_EQ(Last().header.type, FrameType::kValue) << Last().Text();
  EXPECT_EQ(Last().Text(), copy);
}

TEST_F(ReplicationTest, WhatArrivesDamagedIsRefusedAndComesAgain) {
  Begin(Policy::SSP);
  Carry();
  ASSERT_TRUE(status_.backup_whole());
  Push(1, Step(0, 0), 1);
  const size_t before = connection_->sent.size();
  damage_ = true;
  Carry();
  damage_ = false;
  EXPECT_EQ(link_->sent.back().header.type, FrameType::kError);
  EXPECT_EQ(link_->sent.back().header.answer, Answer::kBadDigest);
  EXPECT_EQ(connection_->sent.size(), before);
  loop_.Advance(kAskBackupSoon);
  host_->OnTick();
  Carry();
  EXPECT_EQ(connection_->sent.size(), before + 1);
  EXPECT_EQ(Last().header.answer, Answer::kCounted);
}

TEST_F(ReplicationTest, DigestsThatAreDamagedOnTheirWayComeAgain) {
  Begin(Policy::SSP);
  Carry();
  ASSERT_TRUE(status_.backup_whole());
  Push(1, Step(0, 0), 1);
  alter_ = [](const FrameHeader& header, std::vector<uint8_t>& bytes) {
    bytes[bytes.size() - header.elements * sizeof(float) - kCopyDigestsBytes] ^= 1;
  };
  Carry();
  alter_ = nullptr;
  EXPECT_EQ(link_->sent.back().header.answer, Answer::kBadDigest) << link_->sent.back().Text();
  EXPECT_EQ(backup_status_.fault(), "");
}

TEST_F(ReplicationTest, CopiesThatDifferAreFound) {
  for (const bool differ : {false, true}) {
    train_samples_ = 400;
    Begin(Policy::SSP);
    if (differ) {
      alter_ = [](FrameHeader& header, std::vector<uint8_t>& bytes) {
        if (header.kind != PayloadKind::kDense) return;
        float first = 0;
        std::memcpy(&first, bytes.data(), sizeof(first));
        first += 1;
        std::memcpy(bytes.data(), &first, sizeof(first));
        header.digest = XXH3_64bits(bytes.data(), bytes.size());
      };
    }
    Carry();
    alter_ = nullptr;
    ASSERT_TRUE(status_.backup_whole());
    for (uint32_t step = 0; step < 60 && backup_status_.fault().empty(); ++step) {
      Push(1, Step(0, step), 1);
      Carry();
      backup_->OnTick();
    }
    EXPECT_EQ(backup_status_.copies_differ(), differ);
    EXPECT_EQ(
        backup_status_.fault().find("differ: after the update of record") != std::string::npos,
        differ)
        << backup_status_.fault();
  }
}

TEST_F(ReplicationTest, WhatASnapshotPinsIsNotOverwritten) {
  Begin(Policy::SSP);
  Carry(1);  // the question
  ASSERT_GT(to_backup_.size(), 1u);
  std::vector<std::string> before;
  for (const FakeConnection::Sent& sent : to_backup_) before.push_back(sent.Text());
  Push(1, Step(0, 0), 1);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(to_backup_[i].Text(), before[i]);
}

// The backup's answer commits two updates, and there is memory for one: the position is that of
// the values.
TEST_F(ReplicationTest, WithoutMemoryForThePrimaryThePositionIsThatOfTheValues) {
  memory_ = MemoryOf(kMiB);
  Begin(Policy::BSP);
  Carry();
  ASSERT_TRUE(status_.backup_whole());
  Pull(0);
  ASSERT_EQ(Last().header.type, FrameType::kValue);
  const FakeConnection::Sent kept = Last();
  host_->OnTick();
  const uint64_t before = status_.lsn();
  for (uint32_t step = 0; step < 2; ++step) {
    for (const uint64_t half : {0, 2}) Push(1, {WorkPurpose::kTrain, 0, step * 4 + half, 2}, 1);
  }
  while (!to_backup_.empty()) CarryOne();
  const auto taken = TakeAllMemory(*memory_);
  answered_ = link_->sent.size() - 1;
  Answer();
  EXPECT_THAT(status_.fault(), HasSubstr("no memory"));
  EXPECT_EQ(status_.lsn(), before + 1);
  const std::unique_ptr<EndedPartition> ended = host_->End(std::nullopt);
  host_.reset();
  FrameHeader pull = Header(FrameType::kPull, 0);
  pull.flags = frame_flags::kReader;
  ended->OnFrame(*connection_, pull);
  EXPECT_EQ(Last().header.base_lsn, Lsn(before + 1));
  EXPECT_EQ(Last().First(), -2);
}

TEST_F(ReplicationTest, ABackupWaitsForMemory) {
  backup_memory_ = MemoryOf(kMiB);
  auto taken = TakeAllMemory(*backup_memory_);
  Begin(Policy::SSP);
  Carry();
  EXPECT_FALSE(status_.backup_whole());
  loop_.Advance(ShardMemory::kClosedAfter / 2);
  EXPECT_EQ(backup_status_.fault(), "");
  taken.clear();
  while (!status_.backup_whole() && loop_.Now() < absl::UnixEpoch() + absl::Seconds(9)) {
    loop_.Advance(absl::Milliseconds(2));
    Answer();
    Carry();
  }
  EXPECT_TRUE(status_.backup_whole());
  const auto again = TakeAllMemory(*backup_memory_);
  Push(1, Step(0, 0), 1);
  Carry();
  EXPECT_EQ(Last().header.answer, Answer::kCounted) << "a record needs none but its update's";
}

// Then the coordinator goes on without it.
TEST_F(ReplicationTest, ABackupThatFindsNoMemoryReportsIt) {
  backup_memory_ = MemoryOf(kMiB);
  const auto taken = TakeAllMemory(*backup_memory_);
  Begin(Policy::SSP);
  Carry();
  loop_.Advance(ShardMemory::kClosedAfter + absl::Milliseconds(2));
  EXPECT_THAT(backup_status_.fault(), HasSubstr("no memory"));
  EXPECT_EQ(backup_status_.view(), 2u);
  EXPECT_EQ(status_.fault(), "");
  Push(1, Step(0, 0), 1);
  EXPECT_EQ(Last().header.answer, Answer::kCounted) << "nobody waits for a learner";
  Carry();
  EXPECT_EQ(link_->sent.back().header.answer, Answer::kNotHosted);
}

// A second copy can be made later: for it no job fails, and no reader is cut off.
TEST_F(ReplicationTest, ASnapshotIsGivenUpWhereAnUpdateNeedsTheMemory) {
  memory_ = MemoryOf(kMiB);
  Begin(Policy::SSP);
  Carry(1);  // the question
  ASSERT_GT(to_backup_.size(), 1u);
  const auto reader = std::make_shared<FakeStream>(
      ValueStream::Load{.reads_only = true, .bytes = 5 << 20, .stalled_seconds = 3}, [] {});
  memory_->AddStream(reader);
  const auto taken = TakeAllMemory(*memory_);
  const size_t before = connection_->sent.size();
  Push(1, Step(0, 0), 1);
  EXPECT_FALSE(reader->over());
  EXPECT_EQ(connection_->sent.size(), before) << "the value is still being sent";
  to_backup_.clear();
  loop_.Advance(absl::Milliseconds(2));
  EXPECT_EQ(status_.fault(), "");
  EXPECT_EQ(Last().header.answer, Answer::kCounted);
  loop_.Advance(absl::Seconds(9));
  host_->OnTick();
  EXPECT_TRUE(to_backup_.empty()) << "not at once: the next update would find no memory, either";
  loop_.Advance(absl::Seconds(1));
  host_->OnTick();
  Carry();
  EXPECT_TRUE(status_.backup_whole());
}

TEST_F(ReplicationTest, WhatOnlyASnapshotHoldsIsNoOldValue) {
  Begin(Policy::SSP);
  Carry(1);
  ASSERT_GT(to_backup_.size(), 1u);
  const uint64_t allocated = memory_->allocated();
  Push(1, Step(0, 0), 1);
  EXPECT_GT(memory_->allocated(), allocated);
  EXPECT_EQ(memory_->old_values(), 0u);
  Pull(0);
  Push(1, Step(0, 1), 1);
  EXPECT_GT(memory_->old_values(), 0u) << "a worker's stream holds this one";
  Carry();
  connection_->sent.clear();
  EXPECT_EQ(memory_->old_values(), 0u);
  EXPECT_EQ(memory_->allocated(), allocated);
}

TEST_F(ReplicationTest, ARecordIsSentFromTheMemoryThatItIsAppliedFrom) {
  Begin(Policy::SSP);
  Carry();
  ASSERT_TRUE(status_.backup_whole());
  const uint64_t before = memory_->allocated();
  const uint64_t bytes = slice_.elements * sizeof(float);
  Push(1, Step(0, 0), 1);
  ASSERT_EQ(to_backup_.size(), 1u);
  EXPECT_EQ(to_backup_.front().payload.bytes.size(), bytes);
  EXPECT_EQ(memory_->allocated(), before + bytes);
  const FakeConnection::Sent sent = to_backup_.front();
  Carry();
  EXPECT_EQ(sent.First(), 1) << "the stream holds it";
  EXPECT_EQ(memory_->allocated(), before + bytes);
}

TEST_F(ReplicationTest, WithoutMemoryARecordIsCopied) {
  memory_ = MemoryOf(kMiB);
  Begin(Policy::SSP);
  Carry();
  ASSERT_TRUE(status_.backup_whole());
  const auto taken = TakeAllMemory(*memory_);
  Push(1, Step(0, 0), 1);
  ASSERT_EQ(to_backup_.size(), 1u);
  EXPECT_EQ(to_backup_.front().First(), 1);
  Carry();
  EXPECT_EQ(Last().header.answer, Answer::kCounted);
}

TEST_F(ReplicationTest, ABreakOfTheLinkToAnEarlierBackupChangesNothing) {
  Begin(Policy::SSP);
  Carry();
  ASSERT_TRUE(status_.backup_whole());
  host_->OnBackupDown("one:1", "broken");
  Push(1, Step(0, 0), 1);
  ASSERT_EQ(to_backup_.size(), 1u);
  host_->OnBackupDown("two:1", "broken");
  to_backup_.clear();
  Push(1, Step(0, 1), 1);
  EXPECT_TRUE(to_backup_.empty()) << "it asks first";
  loop_.Advance(kAskBackupSoon);
  host_->OnTick();
  Carry();
  EXPECT_EQ(Last().header.answer, Answer::kCounted);
}

TEST_F(ReplicationTest, AFrameThatIsShorterThanItsTensorIsRefused) {
  Begin(Policy::SSP);
  FrameHeader h;
  h.type = FrameType::kReplicate;
  h.kind = PayloadKind::kDense;
  h.flags = frame_flags::kSnapshot;
  h.key.run = plan_->run;
  h.key.slice = slice_.id;
  h.view = ViewNumber(2);
  h.elements = slice_.elements;
  backup_->OnFrame(link_, h, {}, loop_.Now());
  EXPECT_EQ(link_->sent.back().header.answer, Answer::kBadFrame);
}

// With where, since when, how often, and the last error.
TEST_F(ReplicationTest, TroubleWithABackupIsLogged) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_st>(log)));
  Begin(Policy::SSP);
  const auto warnings = [&log] {
    size_t count = 0;
    const std::string text = log.str();
    for (size_t at = 0; (at = text.find("of its backup", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  for (int second = 0; second < 60; ++second) {
    host_->OnBackupDown("two:1", "nothing answers");
    EXPECT_EQ(warnings(), second < 5 ? 0u : second < 35 ? 1u : 2u) << second;
    loop_.Advance(absl::Seconds(1));
  }
  spdlog::set_default_logger(before);
  EXPECT_THAT(log.str(), HasSubstr("job job partition 0: 6 errors of its backup at two:1 in the "
                                   "last 5 s: nothing answers"));
}

TEST_F(ReplicationTest, ALearnerHasNothingToKeep) {
  Begin(Policy::SSP);
  EXPECT_EQ(backup_->End(std::nullopt), nullptr);
  Carry();
  EXPECT_NE(backup_->End(std::nullopt), nullptr);
  backup_.reset();
}

// Its core has the whole state then.
TEST_F(ReplicationTest, WithoutMemoryForItsLastTensorALearnerHasNothingToKeep) {
  Start(Policy::BSP);
  backup_memory_ = MemoryOf(memory_->allocated() - 1);
  LearnFromNowOn();
  Carry();
  EXPECT_GT(backup_memory_->allocated(), 0u);
  EXPECT_EQ(backup_->End(std::nullopt), nullptr);
  backup_.reset();
}

}  // namespace
}  // namespace starling
