#include "server/shard/host/shard_heartbeats.h"

#include <gtest/gtest.h>

#include <deque>
#include <utility>

#include "common/event_loop/testing/manual_loop.h"

namespace starling {
namespace {

// A coordinator whose answers a test gives by hand.
class HeartbeatCoordinator : public CoordinatorClient {
 public:
  using Calls = std::deque<std::pair<HeartbeatRequest, Done<HeartbeatReply>>>;

  explicit HeartbeatCoordinator(Calls* calls) : calls_(calls) {}
  void Register(const RegisterRequest&, absl::Duration, Done<RegisterReply>) override { Fail(); }
  void ReportWorker(const WorkerReport&, absl::Duration, Done<WorkerOrders>) override { Fail(); }
  void ReportShard(const ShardReport&, absl::Duration, Done<ShardOrders>) override { Fail(); }
  void Heartbeat(const HeartbeatRequest& request, absl::Duration,
                 Done<HeartbeatReply> done) override {
    calls_->emplace_back(request, std::move(done));
  }

 private:
  static void Fail() { FAIL() << "this client is for heartbeats alone"; }
  Calls* const calls_;
};

class ShardHeartbeatsTest : public testing::Test {
 protected:
  ShardHeartbeatsTest() {
    auto loop = std::make_unique<ManualLoop>();
    loop_ = loop.get();
    heartbeats_ = std::make_unique<ShardHeartbeats>(
        std::move(loop), std::make_unique<HeartbeatCoordinator>(&calls_));
  }
  void Begin(uint64_t incarnation) {
    heartbeats_->Begin(ShardId(3), Incarnation(incarnation), 0xa);
    Run();
  }
  void Run(absl::Duration time = absl::ZeroDuration()) { loop_->Advance(time); }
  HeartbeatRequest Answer(absl::StatusOr<HeartbeatReply> reply) {
    auto [request, done] = std::move(calls_.front());
    calls_.pop_front();
    done(std::move(reply));
    Run();
    return request;
  }
  static HeartbeatReply Question(uint64_t question) {
    HeartbeatReply reply;
    reply.set_question(question);
    return reply;
  }

  HeartbeatCoordinator::Calls calls_;
  ManualLoop* loop_ = nullptr;
  std::unique_ptr<ShardHeartbeats> heartbeats_;
};

TEST_F(ShardHeartbeatsTest, OneFollowsTheOther) {
  Run();
  EXPECT_TRUE(calls_.empty()) << "not registered";
  Begin(9);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(calls_.size(), 1u);
    Run(absl::Milliseconds(100));  // the coordinator holds it
    const HeartbeatRequest request = Answer(HeartbeatReply());
    EXPECT_EQ(request.shard(), 3u);
    EXPECT_EQ(request.incarnation(), 9u);
    EXPECT_EQ(request.cluster(), 0xau);
  }
}

TEST_F(ShardHeartbeatsTest, AQuestionIsAnsweredAtOnce) {
  Begin(9);
  Answer(Question(7));
  ASSERT_EQ(calls_.size(), 1u);
  EXPECT_EQ(Answer(Question(7)).asked(), 7u);
  EXPECT_TRUE(calls_.empty()) << "the same again takes its time";
  Run(absl::Milliseconds(50));
  ASSERT_EQ(calls_.size(), 1u);
  EXPECT_EQ(Answer(HeartbeatReply()).asked(), 7u);
}

TEST_F(ShardHeartbeatsTest, OneThatFailsIsFollowedALittleLater) {
  Begin(9);
  Answer(absl::UnavailableError("connection refused"));
  EXPECT_TRUE(calls_.empty());
  Run(absl::Milliseconds(50));
  EXPECT_EQ(calls_.size(), 1u);
}

TEST_F(ShardHeartbeatsTest, EachIsOfTheLatestIncarnation) {
  Begin(9);
  Answer(Question(7));
  heartbeats_->Pause();
  Run();
  Answer(Question(8));
  Run(absl::Seconds(1));
  EXPECT_TRUE(calls_.empty());
  Begin(10);
  Begin(11);
  ASSERT_EQ(calls_.size(), 1u);
  EXPECT_EQ(Answer(HeartbeatReply()).incarnation(), 10u);
  Run(absl::Milliseconds(50));
  const HeartbeatRequest request = Answer(HeartbeatReply());
  EXPECT_EQ(request.incarnation(), 11u);
  EXPECT_EQ(request.asked(), 0u);
}

TEST_F(ShardHeartbeatsTest, NoneFollowsStop) {
  Begin(9);
  heartbeats_->Stop();
  Answer(HeartbeatReply());
  EXPECT_TRUE(calls_.empty());
}

}  // namespace
}  // namespace starling
