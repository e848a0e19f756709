// Two hosts of one partition, and the bytes between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/shard/host/testing/partition_fixture.h"

namespace starling {
namespace {

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
      const FakeConnection::Sent sent = std::move(to_backup_.front());
      to_backup_.pop_front();
      ASSERT_EQ(sent.header.payload_bytes, sent.payload.bytes.size());
      struct Received {
        std::vector<uint8_t> bytes;
        std::vector<ReceivedPayload::Piece> pieces;
      };
      auto memory = std::make_shared<Received>();
      memory->bytes.assign(sent.payload.bytes.begin(), sent.payload.bytes.end());
      if (damage_ && !memory->bytes.empty()) memory->bytes.back() ^= 1;
      const absl::Span<const uint8_t> bytes = memory->bytes;
      const size_t cut = bytes.size() / 3;
      memory->pieces = {bytes.subspan(0, cut), bytes.subspan(cut)};
      const absl::Span<const ReceivedPayload::Piece> pieces = memory->pieces;
      const size_t before = link_->sent.size();
      backup_->OnFrame(link_, sent.header, ReceivedPayload(pieces, std::move(memory)), loop_.Now());
      for (size_t i = before; i < link_->sent.size(); ++i)
        host_->OnBackupAnswer(link_->sent[i].header, link_->sent[i].Text());
    }
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
  bool damage_ = false;
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

TEST_F(ReplicationTest, WhatASnapshotPinsIsNotOverwritten) {
  Begin(Policy::SSP);
  Carry(1);  // the question
  ASSERT_GT(to_backup_.size(), 1u);
  std::vector<std::string> before;
  for (const FakeConnection::Sent& sent : to_backup_) before.push_back(sent.Text());
  Push(1, Step(0, 0), 1);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(to_backup_[i].Text(), before[i]);
}

TEST_F(ReplicationTest, ALearnerHasNothingToKeep) {
  Begin(Policy::SSP);
  EXPECT_EQ(backup_->End(std::nullopt), nullptr);
  Carry();
  EXPECT_NE(backup_->End(std::nullopt), nullptr);
  backup_.reset();
}

}  // namespace
}  // namespace starling
