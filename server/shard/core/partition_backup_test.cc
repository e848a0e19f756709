// Transcripts of a primary that has a backup, and of a backup.
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/coordinator.pb.h"
#include "server/shard/core/testing/transcript.h"

namespace starling {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

OrdersReceived WithBackup(const Transcript& t, uint64_t view) {
  OrdersReceived orders = t.Base();
  orders.view = ViewNumber(view);
  orders.backup = ShardId(2);
  orders.roster = {RosterNumber(1), {Transcript::Member(1)}};
  return orders;
}

TEST(PartitionBackupTest, ABackupThatHasNothingGetsASnapshot) {
  Transcript t({.policy = {PolicyKind::kAsync, 0}});
  t.Begin(1);
  t.Contribute(1, 0, 0, 0, 4);
  t.Step(WithBackup(t, 2));
  EXPECT_EQ(t.Text(), R"(
orders generation 1 view 2 roster 1: r1.1 epoch 0
  ask the backup
)");
  FrameHeader needs;
  needs.type = FrameType::kAck;
  needs.key.run = t.partition().config().run;
  needs.view = ViewNumber(2);
  needs.request_id = 1;
  needs.flags = frame_flags::kSnapshot;
  t.Step(BackupAnswered{needs, ""});
  needs.request_id = 2;  // answers to other questions are void
  t.Step(SnapshotTaken{3});
  t.Verify(t.Push(1, 0, 0, 4, 4));  // is committed when it is on its way
  needs.clock = 3;
  t.Step(BackupAnswered{needs, ""});
  EXPECT_FALSE(t.partition().Status().backup_whole());
  EXPECT_EQ(t.partition().Status().backup_frames(), 3u);
  EXPECT_EQ(t.Text(), R"(
backup needs a snapshot from frame 0
  take a snapshot
snapshot of 3 frames
  snapshot frame 0 of 3
  snapshot frame 1 of 3
  snapshot frame 2 of 3
c1 r1.1 push s0 0:[4,8) b3
  verify s0 b3
verified b3
  replicate lsn 4 apply s0 0:[4,8) rate 0.25 scale 1 t 2 lag 1
  lsn 4 apply s0 0:[4,8) rate 0.25 scale 1 t 2 lag 1 b3 version 0
backup needs a snapshot from frame 3
)");
  t.BackupHas(3);
  EXPECT_FALSE(t.partition().Status().backup_whole()) << "record 4 is committed";
  t.Verify(t.Push(1, 0, 0, 8, 4));
  EXPECT_THAT(t.Text(), Not(HasSubstr("version 0"))) << "from now on it waits for the backup";
  t.BackupHas(4);
  EXPECT_TRUE(t.partition().Status().backup_whole());
  EXPECT_EQ(t.partition().Status().backup_behind(), 1u);
}

TEST(PartitionBackupTest, OneThatWasWholeIsWaitedForWhateverHappensToTheLink) {
  Transcript t({.policy = {PolicyKind::kAsync, 0}});
  t.Begin(1);
  t.Quietly([&] { t.Step(WithBackup(t, 2)); });
  t.Follow();
  t.Step(BackupDown{"cut"});
  t.Verify(t.Push(1, 0, 0, 0, 4));
  t.Advance(kAskBackupSoon);
  t.Step(ShardTick());
  EXPECT_EQ(t.Text(), R"(
backup down: cut
c1 r1.1 push s0 0:[0,4) b2
  verify s0 b2
verified b2
tick
  ask the backup
)");
  t.BackupHas(2);
  EXPECT_EQ(t.Text(), R"(
backup has lsn 2
  replicate lsn 3 apply s0 0:[0,4) rate 0.5 scale 1 t 1 lag 0
)");
  OrdersReceived alone = WithBackup(t, 3);
  alone.backup = ShardId();
  t.Step(alone);
  EXPECT_THAT(t.Text(), HasSubstr("lsn 3 apply s0 0:[0,4) rate 0.5 scale 1 t 1 lag 0 b2"));
}

TEST(PartitionBackupTest, AnAnswerOfAnotherViewCommitsNothing) {
  Transcript t({.policy = {PolicyKind::kAsync, 0}});
  t.Begin(1);
  t.Quietly([&] { t.Step(WithBackup(t, 2)); });
  t.Follow();
  t.Verify(t.Push(1, 0, 0, 0, 4));
  FrameHeader late;
  late.type = FrameType::kAck;
  late.key.run = t.partition().config().run;
  late.view = ViewNumber(1);
  late.request_id = 1;
  late.base_lsn = Lsn(3);
  t.Text();
  t.Step(BackupAnswered{late, ""});
  late.view = ViewNumber(2);
  late.request_id = 0;  // of another round of asking
  t.Step(BackupAnswered{late, ""});
  EXPECT_EQ(t.Text(), "\nbackup has lsn 3\nbackup has lsn 3\n");
  EXPECT_EQ(t.partition().counters().stale_answers, 2u);
  t.BackupHas(3);
  EXPECT_THAT(t.Text(), HasSubstr("lsn 3 apply"));
}

TEST(PartitionBackupTest, ABackupTakesNothingOfAnotherView) {
  Partition backup(Transcript::Config({.policy = {PolicyKind::kAsync, 0}}), FirstState::kNothing);
  OrdersReceived orders;
  orders.generation = Generation(1);
  orders.view = ViewNumber(5);
  orders.primary = ShardId(2);
  orders.backup = ShardId(1);
  PartitionActions actions;
  backup.Step(orders, absl::UnixEpoch(), actions);
  EXPECT_TRUE(actions.empty());
  const auto asked = [&](uint64_t view) {
    FrameHeader h;
    h.type = FrameType::kReplicate;
    h.key.run = backup.config().run;
    h.view = ViewNumber(view);
    h.request_id = 9;
    actions.clear();
    backup.Step(FrameReceived{ConnectionId(3), h, BufferId()}, absl::UnixEpoch(), actions);
    return std::get<SendFrame>(actions.at(0)).header;
  };
  EXPECT_EQ(asked(4).answer, Answer::kStaleView);
  EXPECT_EQ(asked(6).answer, Answer::kNotHosted) << "its orders are on their way";
  const FrameHeader answer = asked(5);
  EXPECT_EQ(answer.type, FrameType::kAck);
  EXPECT_EQ(answer.flags, frame_flags::kSnapshot) << "it has nothing";
  EXPECT_EQ(answer.request_id, 9u);
  EXPECT_FALSE(backup.has_copy());

  orders.view = ViewNumber(6);
  orders.primary = ShardId(1);
  orders.backup = ShardId();
  actions.clear();
  backup.Step(orders, absl::UnixEpoch(), actions);
  EXPECT_THAT(backup.Status().fault(), HasSubstr("is not whole"));
}

// A learner on shard 1 and what its primary, or who claims to be it, sends.
class LearnerTest : public testing::Test {
 protected:
  LearnerTest() {
    OrdersReceived orders;
    orders.generation = Generation(1);
    orders.view = ViewNumber(5);
    orders.primary = ShardId(2);
    orders.backup = ShardId(1);
    Step(orders);
  }
  static PartitionConfig Config() {
    PartitionConfig config = Transcript::Config({.policy = {PolicyKind::kAsync, 0}});
    config.slices.front().slots = 1;
    return config;
  }
  void Step(const PartitionEvent& event) {
    actions_.clear();
    learner_.Step(event, absl::UnixEpoch(), actions_);
  }
  // The answer; kNone if there is none.
  Answer Reply() const {
    for (const PartitionAction& action : actions_) {
      if (const auto* send = std::get_if<SendFrame>(&action)) return send->header.answer;
    }
    return Answer::kNone;
  }
  FrameHeader Header(uint64_t round) const {
    FrameHeader h;
    h.type = FrameType::kReplicate;
    h.key.run = learner_.config().run;
    h.view = ViewNumber(5);
    h.request_id = round;
    return h;
  }
  Answer Ask(uint64_t connection, uint64_t round) {
    Step(FrameReceived{ConnectionId(connection), Header(round), BufferId()});
    return Reply();
  }
  Answer State(uint64_t round, Clock at, uint32_t frames, const std::string& part) {
    FrameHeader h = Header(round);
    h.flags = frame_flags::kSnapshot;
    h.kind = PayloadKind::kRecord;
    h.clock = at;
    h.samples = frames;
    Step(SnapshotReceived{{ConnectionId(3), h, BufferId()}, part});
    return Reply();
  }
  Answer Tensor(uint64_t round, Clock at, uint32_t frames, TensorPart part) {
    FrameHeader h = Header(round);
    h.flags = frame_flags::kSnapshot;
    h.kind = PayloadKind::kDense;
    h.clock = at;
    h.samples = frames;
    h.key.work.epoch = static_cast<uint32_t>(part);
    h.elements = Transcript::kElements;
    Step(SnapshotReceived{{ConnectionId(3), h, BufferId(++last_buffer_)}, ""});
    EXPECT_TRUE(std::any_of(actions_.begin(), actions_.end(), [&](const PartitionAction& action) {
      const auto* release = std::get_if<Release>(&action);
      return release != nullptr && release->buffer == BufferId(last_buffer_);
    }));
    return Reply();
  }

  Partition learner_{Config(), FirstState::kNothing};
  PartitionActions actions_;
  uint64_t last_buffer_ = 0;
};

TEST_F(LearnerTest, TheNewestRoundIsAnsweredOnWhicheverStream) {
  EXPECT_EQ(Ask(9, 1), Answer::kCounted);
  EXPECT_EQ(Ask(8, 2), Answer::kCounted) << "the stream of round 1 was accepted late";
  EXPECT_EQ(Ask(9, 1), Answer::kNone);
  EXPECT_EQ(Ask(8, 2), Answer::kCounted);
}

TEST_F(LearnerTest, ASnapshotHasEachTensorOnce) {
  const PartitionConfig config = Config();
  const std::string state = PartitionState(&config).Write();
  EXPECT_EQ(State(1, 0, 3, state), Answer::kCounted);
  EXPECT_EQ(Tensor(1, 1, 3, TensorPart::kVersion0), Answer::kCounted);
  EXPECT_EQ(Tensor(1, 2, 3, TensorPart::kVersion0), Answer::kBadFrame) << "twice";
  EXPECT_EQ(Tensor(1, 2, 3, TensorPart::kVersion1), Answer::kBadFrame) << "not in BSP";
  EXPECT_EQ(Tensor(1, 2, 3, TensorPart::kSlot1), Answer::kBadFrame) << "the rule has one slot";
  EXPECT_EQ(Tensor(1, 2, 3, TensorPart::kCut), Answer::kBadFrame) << "there is no copy";
  EXPECT_EQ(State(2, 0, 2, state), Answer::kCounted);
  EXPECT_EQ(Tensor(2, 1, 2, TensorPart::kVersion0), Answer::kBadFrame) << "slot 0 does not come";
  EXPECT_FALSE(learner_.has_copy());
  EXPECT_EQ(State(3, 0, 3, state), Answer::kCounted);
  EXPECT_EQ(Tensor(3, 1, 3, TensorPart::kSlot0), Answer::kCounted);
  EXPECT_EQ(Tensor(3, 2, 3, TensorPart::kVersion0), Answer::kCounted);
  EXPECT_TRUE(learner_.has_copy());
}

TEST_F(LearnerTest, AStateIsNoLargerThanAnyCanBe) {
  const std::string part(limits::kRecordBytesMax, 'x');
  const uint64_t most = PartitionState::BytesMax(learner_.config());
  ASSERT_LT(most, uint64_t{100} << 20);
  const auto fit = static_cast<Clock>(most / part.size());
  for (Clock at = 0; at < fit; ++at) ASSERT_EQ(State(1, at, 1 << 20, part), Answer::kCounted);
  EXPECT_EQ(State(1, fit, 1 << 20, part), Answer::kOverBudget);
}

}  // namespace
}  // namespace starling
