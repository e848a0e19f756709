#include "server/shard/host/shard_reporter.h"

#include <gtest/gtest.h>

#include <deque>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/event_loop/threaded_loop.h"

namespace starling {
namespace {

// A coordinator whose answers a test gives by hand. Used on the loop's thread alone.
class FakeCoordinator : public CoordinatorClient {
 public:
  struct Calls {
    std::deque<Done<RegisterReply>> registrations;
    std::deque<std::pair<ShardReport, Done<ShardOrders>>> reports;
  };

  explicit FakeCoordinator(Calls* calls) : calls_(calls) {}
  void Register(const RegisterRequest&, absl::Duration, Done<RegisterReply> done) override {
    calls_->registrations.push_back(std::move(done));
  }
  void ReportWorker(const WorkerReport&, absl::Duration, Done<WorkerOrders>) override {
    FAIL() << "a shard is no worker";
  }
  void ReportShard(const ShardReport& report, absl::Duration, Done<ShardOrders> done) override {
    calls_->reports.emplace_back(report, std::move(done));
  }
  void Heartbeat(const HeartbeatRequest&, absl::Duration, Done<HeartbeatReply>) override {
    FAIL() << "heartbeats have a client of their own";
  }

 private:
  Calls* const calls_;
};

class ShardReporterTest : public testing::Test {
 protected:
  void SetUp() override {
    On([this] {
      reporter_ = std::make_unique<ShardReporter>(
          &loop_, std::make_unique<FakeCoordinator>(&calls_),
          ShardReporter::Options{"127.0.0.1:7070", {PeerRole::kShard, "ps-0"}, "127.0.0.1:1"},
          ShardReporter::Callbacks{
              [](ShardId, Incarnation, uint64_t) {},
              [this](const ShardOrders& orders) { orders_ = orders; },
              [this] { ++rejoins_; },
              [this](const absl::Status& status) { failures_.push_back(status); },
              [] { return uint64_t{5} << 20; },
              [this](const DrainOrders& drain) { drains_.push_back(drain); },
              [this](uint64_t cluster, uint64_t nonce) { roots_.emplace_back(cluster, nonce); },
          });
      reporter_->Start();
    });
  }
  void TearDown() override {
    On([this] { reporter_->Stop(); });
    loop_.Stop();
  }

  // Runs it on the loop, behind what was posted before.
  void On(const std::function<void()>& step) {
    std::promise<void> done;
    loop_.Post([&] {
      step();
      done.set_value();
    });
    done.get_future().wait();
  }
  // A coordinator's answer, and what the reporter does on it.
  void Register() {
    On([this] {
      RegisterReply reply;
      reply.set_id(3);
      reply.set_incarnation(9);
      reply.set_generation(5);
      std::exchange(calls_.registrations, {}).front()(reply);
    });
    On([] {});
  }
  ShardReport Answer(absl::StatusOr<ShardOrders> orders) {
    ShardReport report;
    On([&] {
      ASSERT_FALSE(calls_.reports.empty());
      auto [sent, done] = std::move(calls_.reports.front());
      calls_.reports.pop_front();
      report = sent;
      done(std::move(orders));
    });
    On([] {});
    return report;
  }
  // Waits for the next report, which may come after a delay.
  void AwaitReport() {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);  // only ever reached by a failure
    for (bool there = false; !there;) {
      ASSERT_LT(absl::Now(), deadline);
      On([&] { there = !calls_.reports.empty(); });
    }
  }
  static ShardOrders Orders(uint64_t version, uint64_t generation = 5) {
    ShardOrders orders;
    orders.set_generation(generation);
    orders.set_version(version);
    return orders;
  }
  static PartitionStatus Status(uint64_t job, uint32_t partition) {
    PartitionStatus status;
    status.mutable_run()->set_job_uid(job);
    status.set_partition(partition);
    return status;
  }

  ThreadedLoop loop_{"test"};
  FakeCoordinator::Calls calls_;
  std::unique_ptr<ShardReporter> reporter_;
  ShardOrders orders_;
  int rejoins_ = 0;
  std::vector<absl::Status> failures_;
  std::vector<DrainOrders> drains_;
  std::vector<std::pair<uint64_t, uint64_t>> roots_;
};

TEST_F(ShardReporterTest, IsReadyWhileItIsRegistered) {
  EXPECT_EQ(reporter_->WhyNotReady(), "registers with the coordinator at 127.0.0.1:7070");
  On([this] {
    std::exchange(calls_.registrations, {}).front()(absl::UnavailableError("connection refused"));
  });
  On([] {});
  EXPECT_NE(reporter_->WhyNotReady().find("connection refused"), std::string::npos);
  while (!reporter_->WhyNotReady().empty()) {
    On([this] {  // it asks again soon
      RegisterReply reply;
      reply.set_id(3);
      for (auto& done : std::exchange(calls_.registrations, {})) done(reply);
    });
  }
  ShardOrders rejoin;
  rejoin.set_rejoin(true);
  Answer(rejoin);
  EXPECT_NE(reporter_->WhyNotReady().find("registers anew"), std::string::npos);
}

TEST_F(ShardReporterTest, ARefusedReportIsNotTheEnd) {
  Register();
  On([this] {
    reporter_->Hold(Status(7, 0).run());
    reporter_->Update(Status(7, 0), false);
  });
  Answer(Orders(1));
  // As a coordinator on older state answers, or of another release, or one that does not know us.
  for (const absl::Status& refusal :
       {absl::FailedPreconditionError("generation 2 is older than 5"),
        absl::UnauthenticatedError("who?"), absl::PermissionDeniedError("not you"),
        absl::InvalidArgumentError("what?"), absl::UnimplementedError("no such call")}) {
    Answer(refusal);
    EXPECT_TRUE(failures_.empty()) << failures_.front();
    EXPECT_EQ(rejoins_, 0);
    AwaitReport();
  }
  // The right one is back: it hears of what was held all the time.
  const ShardReport report = Answer(Orders(2, 6));
  ASSERT_EQ(report.partitions_size(), 1);
  EXPECT_EQ(report.incarnation(), 9u);
  EXPECT_EQ(orders_.version(), 2u);
}

// A coordinator was started on an empty state: as often as the right one, at the same address.
TEST_F(ShardReporterTest, AnotherClustersCoordinatorMakesItDropNothing) {
  Register();
  On([this] {
    reporter_->Hold(Status(7, 0).run());
    reporter_->Update(Status(7, 0), false);
  });
  ShardOrders right = Orders(1);
  right.set_cluster(0xa);
  Answer(right);
  ShardOrders other = Orders(2);
  other.set_cluster(0xb);
  Answer(other);
  AwaitReport();
  other.set_rejoin(true);
  Answer(other);
  AwaitReport();
  EXPECT_EQ(rejoins_, 0);
  EXPECT_EQ(orders_.version(), 1u);
  EXPECT_NE(reporter_->WhyNotReady().find("000000000000000b"), std::string::npos)
      << reporter_->WhyNotReady();
  // The right one is back.
  right.set_version(3);
  const ShardReport report = Answer(right);
  EXPECT_EQ(report.cluster(), 0xau);
  EXPECT_EQ(report.partitions_size(), 1);
  EXPECT_EQ(orders_.version(), 3u);
  EXPECT_EQ(reporter_->WhyNotReady(), "");
}

TEST_F(ShardReporterTest, ARefusedRegistrationIs) {
  On([this] { calls_.registrations.front()(absl::FailedPreconditionError("protocol 99")); });
  On([] {});
  ASSERT_EQ(failures_.size(), 1u);
}

TEST_F(ShardReporterTest, ReportsWhatChangedAndNothingOfJobsThatAreGone) {
  Register();
  Answer(Orders(1));
  On([this] {
    for (const uint64_t job : {7, 8}) {
      reporter_->Hold(Status(job, 0).run());
      reporter_->Update(Status(job, 0), false);
    }
    reporter_->DropPartition(JobUid(8), PartitionId(0));
  });
  Answer(Orders(2));
  ShardOrders taken = Orders(3);
  taken.set_sequence_taken(3);
  const ShardReport report = Answer(taken);
  EXPECT_EQ(report.sequence(), 3u);
  EXPECT_EQ(report.memory_room(), uint64_t{5} << 20);
  EXPECT_EQ(report.held_size(), 2);
  ASSERT_EQ(report.partitions_size(), 1);
  EXPECT_EQ(report.partitions(0).run().job_uid(), 7u);
  const ShardReport next = Answer(Orders(4));
  EXPECT_EQ(next.partitions_size() + next.held_size(), 0) << next.ShortDebugString();
}

TEST_F(ShardReporterTest, TellsWhatItFindsBeneathTheCheckpointRoot) {
  Register();
  ShardOrders orders = Orders(1);
  orders.set_cluster(5);
  const ShardReport before = Answer(orders);
  EXPECT_EQ(before.checkpoint_nonce(), 0u);
  EXPECT_TRUE(roots_.empty()) << "the coordinator has no root";
  orders.set_unchanged(true);
  orders.set_checkpoint_nonce(77);
  Answer(orders);
  EXPECT_EQ(roots_, (std::vector<std::pair<uint64_t, uint64_t>>{{5, 77}}));
  On([this] { reporter_->SetCheckpointRoot(0, "nothing is there"); });
  Answer(orders);  // to a report that was sent before
  EXPECT_EQ(Answer(orders).checkpoint_error(), "nothing is there");
  On([this] { reporter_->SetCheckpointRoot(77, ""); });
  Answer(orders);
  const ShardReport after = Answer(orders);
  EXPECT_EQ(after.checkpoint_nonce(), 77u);
  EXPECT_EQ(after.checkpoint_error(), "");
}

// A coordinator that is new knows nothing: it is told all.
TEST_F(ShardReporterTest, TellsAnotherCoordinatorAll) {
  Register();
  On([this] {
    reporter_->Hold(Status(7, 0).run());
    reporter_->Update(Status(7, 0), false);
  });
  Answer(Orders(1));
  ShardOrders taken = Orders(2);
  taken.set_sequence_taken(2);
  EXPECT_EQ(Answer(taken).partitions_size(), 1);
  const ShardReport quiet = Answer(Orders(2, 6));  // of the next generation
  EXPECT_FALSE(quiet.whole());
  EXPECT_EQ(quiet.partitions_size(), 0);
  const ShardReport all = Answer(Orders(3, 6));
  EXPECT_TRUE(all.whole());
  EXPECT_EQ(all.generation(), 6u);
  EXPECT_EQ(all.partitions_size(), 1);
  EXPECT_EQ(all.held_size(), 1);
}

// What does not fit into a message is told where it still gets through, and the shard is not ready.
TEST_F(ShardReporterTest, SaysWhatDoesNotGetThrough) {
  Register();
  Answer(Orders(1));
  Answer(absl::ResourceExhaustedError("Received message larger than max (68406663 vs. 67108864)"));
  EXPECT_NE(reporter_->WhyNotReady().find("68406663"), std::string::npos)
      << reporter_->WhyNotReady();
  AwaitReport();
  EXPECT_NE(Answer(Orders(2)).trouble().find("68406663"), std::string::npos);
  EXPECT_EQ(reporter_->WhyNotReady(), "");
  EXPECT_EQ(Answer(Orders(3)).trouble(), "");
}

TEST_F(ShardReporterTest, TellsAtOnceWhomItDoesNotReach) {
  Register();
  Answer(Orders(1));
  On([this] {
    for (const char* address : {"a:1", "b:1", "a:1"}) reporter_->Unreached(address);
  });
  EXPECT_EQ(Answer(Orders(1)).unreached_size(), 0) << "that report was under way";
  AwaitReport();
  const ShardReport report = Answer(Orders(1));
  ASSERT_GE(report.unreached_size(), 1);
  EXPECT_EQ(report.unreached(0), "a:1");
  AwaitReport();
  EXPECT_EQ(Answer(Orders(1)).unreached_size(), 2);
}

TEST_F(ShardReporterTest, AsksToLeaveUntilItMay) {
  Register();
  Answer(Orders(1));
  On([this] { reporter_->Drain(); });
  EXPECT_FALSE(Answer(Orders(1)).draining()) << "that report was under way";
  AwaitReport();
  ShardOrders orders = Orders(1);
  orders.set_unchanged(true);
  orders.mutable_drain()->set_text("2 partitions have no whole copy elsewhere yet");
  EXPECT_TRUE(Answer(orders).draining());
  ASSERT_EQ(drains_.size(), 1u);
  EXPECT_FALSE(drains_[0].may_leave());
  AwaitReport();
  orders.mutable_drain()->set_may_leave(true);
  EXPECT_TRUE(Answer(orders).draining());
  ASSERT_EQ(drains_.size(), 2u);
  EXPECT_TRUE(drains_[1].may_leave());

  bool left = false;
  On([&] { reporter_->Leave([&] { left = true; }); });
  while (!Answer(Orders(1)).drained()) AwaitReport();
  EXPECT_TRUE(left);
  On([] {});
  EXPECT_TRUE(calls_.reports.empty()) << "nothing follows";
}

TEST_F(ShardReporterTest, MayLeaveBeforeItIsRegistered) {
  On([this] { reporter_->Drain(); });
  ASSERT_EQ(drains_.size(), 1u);
  EXPECT_TRUE(drains_[0].may_leave());
  bool left = false;
  On([&] { reporter_->Leave([&] { left = true; }); });
  EXPECT_TRUE(left);
}

// Without a coordinator nothing can be handed over.
TEST_F(ShardReporterTest, LeavesWithoutACoordinatorIfAllIsElsewhereToo) {
  Register();
  PartitionStatus status = Status(7, 0);
  status.set_view(2);
  status.set_lsn(1);
  On([&] {
    reporter_->Hold(status.run());
    reporter_->Update(status, false);
    reporter_->Drain();
  });
  const auto await_text = [this](bool may_leave) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);  // only ever reached by a failure
    std::string text;
    while (text.empty() && absl::Now() < deadline) {
      On([&] {
        if (!drains_.empty() && drains_.back().may_leave() == may_leave)
          text = drains_.back().text();
      });
    }
    return text;
  };
  const std::string waits = await_text(false);
  EXPECT_NE(waits.find("has not answered for"), std::string::npos) << waits;
  EXPECT_NE(waits.find("may have no whole copy elsewhere: 1"), std::string::npos) << waits;
  status.set_backup_whole(true);
  On([&] { reporter_->Update(status, true); });
  ShardOrders taken = Orders(1);
  taken.set_sequence_taken(UINT64_MAX);
  for (int i = 0; i < 3; ++i) {  // two were under way
    AwaitReport();
    Answer(taken);
  }
  EXPECT_NE(await_text(true).find("has a whole copy elsewhere"), std::string::npos);
}

// It would be given new partitions.
TEST_F(ShardReporterTest, OneThatDrainsAndIsGivenUpLeavesInsteadOfRegistering) {
  Register();
  Answer(Orders(1));
  On([this] { reporter_->Drain(); });
  AwaitReport();
  ShardOrders rejoin = Orders(1);
  rejoin.set_rejoin(true);
  Answer(rejoin);
  EXPECT_EQ(rejoins_, 1) << "it drops all that it has";
  ASSERT_EQ(drains_.size(), 1u);
  EXPECT_TRUE(drains_[0].may_leave());
  On([this] { EXPECT_TRUE(calls_.registrations.empty()); });
}

// Values of jobs that are over may be only here.
TEST_F(ShardReporterTest, WithoutACoordinatorItKeepsValuesOfEndedJobs) {
  Register();
  On([&] {
    reporter_->Hold(Status(7, 0).run());
    HeldJob ended;
    *ended.mutable_run() = Status(7, 0).run();
    ended.set_value_bytes(100);
    reporter_->End(ended);
    reporter_->Drain();
  });
  const auto await_text = [this](bool may_leave) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);  // only ever reached by a failure
    std::string text;
    while (text.empty() && absl::Now() < deadline) {
      On([&] {
        if (!drains_.empty() && drains_.back().may_leave() == may_leave)
          text = drains_.back().text();
      });
    }
    return text;
  };
  const std::string waits = await_text(false);
  EXPECT_NE(waits.find("of which values may have no copy elsewhere: 1"), std::string::npos)
      << waits;
  On([&] { reporter_->Drop(JobUid(7)); });  // as ordered, when they are elsewhere
  EXPECT_NE(await_text(true).find("all that is here has a whole copy elsewhere"),
            std::string::npos);
}

}  // namespace
}  // namespace starling
