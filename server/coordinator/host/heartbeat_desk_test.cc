#include "server/coordinator/host/heartbeat_desk.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/event_loop/testing/manual_loop.h"

namespace starling::coordinator {
namespace {

// One that its caller waits for: the desk answers all in the end.
using Reply = std::optional<absl::StatusOr<HeartbeatReply>>;

class HeartbeatDeskTest : public testing::Test {
 protected:
  static HeartbeatRequest Request(uint32_t shard, uint64_t incarnation, uint64_t asked = 0) {
    HeartbeatRequest request;
    request.set_shard(shard);
    request.set_incarnation(incarnation);
    request.set_asked(asked);
    return request;
  }
  struct Call {
    uint64_t id = 0;
    std::shared_ptr<Reply> reply = std::make_shared<Reply>();
    bool answered() const { return reply->has_value(); }
    uint64_t question() const { return reply->value()->question(); }
    absl::StatusCode code() const { return reply->value().status().code(); }
  };
  Call Take(const HeartbeatRequest& request, const std::string& caller = "ps-0") {
    Call call;
    call.id = desk_.Take(request, caller, [reply = call.reply](auto answer) {
      ASSERT_FALSE(reply->has_value()) << "answered twice";
      reply->emplace(std::move(answer));
    });
    loop_->Advance(absl::ZeroDuration());
    return call;
  }

  // Whom it asked at which address, and how they answer.
  struct Asked {
    std::string address, name;
    std::function<void()> answer;
  };
  struct Asker final : ShardAsker {
    explicit Asker(std::vector<Asked>* all) : asked(all) {}
    void Ask(const std::string& address, const std::string& name,
             std::function<void()> answered) override {
      asked->push_back({address, name, std::move(answered)});
    }
    std::vector<Asked>* const asked;
  };
  std::vector<Asked> asked_;
  ManualLoop* loop_ = nullptr;
  HeartbeatDesk desk_{absl::Milliseconds(100), std::make_unique<Asker>(&asked_),
                      [this](const std::string&) {
                        auto loop = std::make_unique<ManualLoop>();
                        loop_ = loop.get();
                        return loop;
                      }};
};

TEST_F(HeartbeatDeskTest, HoldsAHeartbeatForAWhile) {
  const Call call = Take(Request(1, 5));
  EXPECT_FALSE(call.answered());
  loop_->Advance(absl::Milliseconds(100));
  ASSERT_TRUE(call.answered());
  EXPECT_EQ(call.code(), absl::StatusCode::kOk);
  EXPECT_EQ(call.question(), 0u);
}

TEST_F(HeartbeatDeskTest, AsksWhoIsHeldAtOnceAndOthersWhenTheyCome) {
  const Call held = Take(Request(1, 5)), other = Take(Request(2, 6), "ps-1");
  desk_.Ask({1, 5, 7});
  loop_->Advance(absl::ZeroDuration());
  ASSERT_TRUE(held.answered());
  EXPECT_EQ(held.question(), 7u);
  EXPECT_FALSE(other.answered());
  const Call later = Take(Request(1, 5, 6));
  ASSERT_TRUE(later.answered());
  EXPECT_EQ(later.question(), 7u);
  EXPECT_FALSE(Take(Request(1, 5, 7)).answered()) << "it has got it";
  EXPECT_FALSE(Take(Request(1, 9)).answered()) << "another incarnation was asked";
}

TEST_F(HeartbeatDeskTest, AnAnswerAtTheShardsAddressIsAHeartbeatWithTheQuestion) {
  desk_.Ask({1, 5, 7});
  loop_->Advance(absl::ZeroDuration());
  EXPECT_TRUE(asked_.empty());
  desk_.Ask({1, 5, 8, "ps-0:1", "ps-0"});
  loop_->Advance(absl::ZeroDuration());
  ASSERT_EQ(asked_.size(), 1u);
  EXPECT_EQ(asked_[0].address, "ps-0:1");
  EXPECT_EQ(asked_[0].name, "ps-0");
  EXPECT_TRUE(desk_.TakeAll().empty());
  loop_->Advance(absl::Milliseconds(20));
  asked_[0].answer();
  std::vector<event::Heartbeat> came = desk_.TakeAll();
  ASSERT_EQ(came.size(), 1u);
  EXPECT_EQ(came[0].request.shard(), 1u);
  EXPECT_EQ(came[0].request.incarnation(), 5u);
  EXPECT_EQ(came[0].request.asked(), 8u);
  EXPECT_EQ(came[0].caller, "ps-0");
  EXPECT_EQ(came[0].at, loop_->Now());
  EXPECT_FALSE(came[0].broke);
  EXPECT_TRUE(came[0].called);
  Take(Request(1, 5, 8));
  asked_[0].answer();
  came = desk_.TakeAll();
  ASSERT_EQ(came.size(), 2u) << "its own is not the same";
  EXPECT_FALSE(came[0].called);
  EXPECT_TRUE(came[1].called);
}

TEST_F(HeartbeatDeskTest, TellsWhatCame) {
  Take(Request(1, 5, 1));
  loop_->Advance(absl::Milliseconds(10));
  Take(Request(1, 5, 2));
  Take(Request(1, 5, 3), "ps-1");
  std::vector<event::Heartbeat> came = desk_.TakeAll();
  ASSERT_EQ(came.size(), 2u) << "the first is as good as repeated";
  EXPECT_EQ(came[0].request.asked(), 2u);
  EXPECT_EQ(came[0].at, loop_->Now());
  EXPECT_EQ(came[0].caller, "ps-0");
  EXPECT_FALSE(came[0].broke);
  EXPECT_EQ(came[1].caller, "ps-1");
  EXPECT_TRUE(desk_.TakeAll().empty());

  const Call broken = Take(Request(1, 5, 2));
  desk_.Gone(broken.id);
  desk_.Gone(broken.id);
  loop_->Advance(absl::ZeroDuration());
  ASSERT_TRUE(broken.answered());
  EXPECT_EQ(broken.code(), absl::StatusCode::kCancelled);
  came = desk_.TakeAll();
  ASSERT_EQ(came.size(), 2u);
  EXPECT_FALSE(came[0].broke);
  EXPECT_TRUE(came[1].broke);
  EXPECT_EQ(came[1].request.incarnation(), 5u);
}

TEST_F(HeartbeatDeskTest, OneThatWasAnsweredDidNotBreak) {
  const Call call = Take(Request(1, 5));
  loop_->Advance(absl::Milliseconds(100));
  desk_.TakeAll();
  desk_.Gone(call.id);
  loop_->Advance(absl::ZeroDuration());
  EXPECT_TRUE(desk_.TakeAll().empty());
}

TEST_F(HeartbeatDeskTest, AnswersAllWhenItStops) {
  const Call held = Take(Request(1, 5));
  desk_.Stop();
  ASSERT_TRUE(held.answered());
  EXPECT_EQ(held.code(), absl::StatusCode::kUnavailable);
  const Call late = Take(Request(1, 5));
  ASSERT_TRUE(late.answered());
  EXPECT_EQ(late.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace starling::coordinator
