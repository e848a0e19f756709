// Shards that do not answer: when they are asked, when views change, and when they are lost.
#include "absl/strings/str_cat.h"
#include "common/version/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SilenceTest : public CoordinatorTest {
 protected:
  SilenceTest() {
    cluster.train_samples = 400000;
    Workers(1);
    for (const char* name : {"ps-0", "ps-1", "ps-2"}) cluster.AddShard(name);
    cluster.RunFor(absl::Milliseconds(200));
  }

  void Begin(Durability durability = DURABILITY_AUTO) {
    JobSpec spec = Once(MiniCluster::Spec("a", Policy::SSP, 1, 1));
    spec.set_durability(durability);
    Submit(spec);
    ASSERT_TRUE(cluster.RunUntil([&] { return IsSettled(durability); }, absl::Seconds(10)));
  }
  bool IsSettled(Durability durability) {
    const JobStatus status = cluster.Status("a");
    if (durability == DURABILITY_NONE) return status.state() == RUNNING;
    return status.partitions() > 0 && status.partitions_whole() == status.partitions();
  }
  // How many partitions the shard leads or backs.
  int Copies(const std::string& shard) {
    int copies = 0;
    const JobReply reply = cluster.Get("a");
    for (const View& view : reply.views()) {
      copies += view.primary() == cluster.shards[shard].identity.id();
      copies += view.backup() == cluster.shards[shard].identity.id();
    }
    return copies;
  }
  std::string State(const std::string& shard) {
    const auto reply =
        std::get<ListShardsReply>(cluster.Ask<event::ListShards>(ListShardsRequest()));
    for (const ShardStatus& status : reply.shards()) {
      if (status.name() == shard) return status.state();
    }
    return "";
  }
  // The worker says that it has no stream to the shard.
  void Unreached(const std::string& shard) {
    LinkStatus link;
    link.set_shard(cluster.shards[shard].identity.id());
    link.set_address(shard + ":1");
    cluster.workers["worker-0"].links = {link};
  }
  void Kill(const std::string& shard) { cluster.shards[shard].alive = false; }
};

TEST_F(SilenceTest, AShardWhoseConnectionsBreakIsAskedAndReplacedAtOnce) {
  Begin();
  ASSERT_GT(Copies("ps-0"), 0);
  Kill("ps-0");
  Unreached("ps-0");
  EXPECT_TRUE(cluster.RunUntil([&] { return Copies("ps-0") == 0; }, absl::Milliseconds(500)));
  EXPECT_EQ(cluster.questions, 2);
  EXPECT_EQ(State("ps-0"), "silent");
  EXPECT_THAT(cluster.JobLog("a"),
              HasSubstr("shard ps-0 at ps-0:1 does not answer (worker-0 does not reach it, and it "
                        "has not answered twice within 300ms): "));
  cluster.AddShard("ps-0");
  EXPECT_TRUE(cluster.RunUntil([&] { return IsSettled(DURABILITY_AUTO); }, absl::Seconds(10)));
}

TEST_F(SilenceTest, OneThatAnswersIsNeverReplaced) {
  Begin();
  const int copies = Copies("ps-0");
  Unreached("ps-0");
  cluster.RunFor(absl::Seconds(30));
  EXPECT_EQ(Copies("ps-0"), copies);
  EXPECT_EQ(State("ps-0"), "ready");
  EXPECT_GT(cluster.questions, 3);
  EXPECT_LT(cluster.questions, 7) << "each time after twice the time";
}

// What is told only once counts as soon as the shard may be asked again.
TEST_F(SilenceTest, ABreakWhileAShardIsTrustedIsRemembered) {
  Begin();
  Unreached("ps-0");
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.questions == 1; }, absl::Seconds(1)));
  cluster.workers["worker-0"].links.clear();
  cluster.RunFor(absl::Milliseconds(100));
  event::Heartbeat broke = cluster.Heartbeat(cluster.shards["ps-0"]);
  broke.broke = true;
  cluster.Step(event::Tick{cluster.now, {broke}});
  cluster.RunFor(absl::Seconds(3));
  EXPECT_EQ(cluster.questions, 1) << "it was heard since";
  Unreached("ps-0");
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.questions == 2; }, absl::Seconds(1)));
  cluster.workers["worker-0"].links.clear();
  cluster.RunFor(absl::Milliseconds(100));
  broke = cluster.Heartbeat(cluster.shards["ps-0"]);
  broke.broke = true;
  Kill("ps-0");
  cluster.Step(event::Tick{cluster.now, {broke}});
  EXPECT_TRUE(cluster.RunUntil([&] { return Copies("ps-0") == 0; }, absl::Milliseconds(1600)));
}

// One that was replaced by mistake goes on as who it was.
TEST_F(SilenceTest, OneThatAnswersTooLateKeepsItsIncarnation) {
  Begin();
  Kill("ps-0");
  Unreached("ps-0");
  ASSERT_TRUE(cluster.RunUntil([&] { return Copies("ps-0") == 0; }, absl::Milliseconds(500)));
  cluster.workers["worker-0"].links.clear();
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(State("ps-0"), "silent");
  cluster.shards["ps-0"].alive = true;
  cluster.RunFor(absl::Milliseconds(200));
  EXPECT_EQ(State("ps-0"), "ready");
  EXPECT_TRUE(cluster.RunUntil([&] { return IsSettled(DURABILITY_AUTO); }, absl::Seconds(10)));
}

// A process that was started again elsewhere does not wait for the silence of the one before.
TEST_F(SilenceTest, TheNameOfAReplacedShardIsFree) {
  Begin();
  Kill("ps-0");
  Unreached("ps-0");
  ASSERT_TRUE(cluster.RunUntil([&] { return Copies("ps-0") == 0; }, absl::Milliseconds(500)));
  const absl::Time before = cluster.now;
  const RegisterReply reply = cluster.Register(SHARD, "ps-0", "ps-0:2", /*nonce=*/12345);
  EXPECT_EQ(reply.refused(), "");
  EXPECT_EQ(reply.id(), cluster.shards["ps-0"].identity.id());
  EXPECT_LT(cluster.now - before, absl::Milliseconds(500));
}

// The coordinator stops for a moment, twice, while it waits for an answer.
TEST_F(SilenceTest, ShortPausesOfTheCoordinatorAreNotAShardsSilence) {
  Begin();
  cluster.shards["ps-0"].alive = false;
  Unreached("ps-0");
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.questions == 1; }, absl::Seconds(1)));
  for (int i = 0; i < 2; ++i) {
    cluster.now += absl::Milliseconds(240);
    cluster.Tick();
  }
  EXPECT_EQ(State("ps-0"), "ready");
  EXPECT_EQ(cluster.questions, 1);
  // Where each step is late, it still ends.
  for (int i = 0; i < 40 && State("ps-0") == "ready"; ++i) {
    cluster.now += absl::Milliseconds(60);
    cluster.Round();
  }
  EXPECT_EQ(State("ps-0"), "silent");
  EXPECT_EQ(cluster.questions, 2);
}

// Its heartbeats do not come, but its reports do.
TEST_F(SilenceTest, OneThatReportsIsNotReplacedEither) {
  Begin();
  const int copies = Copies("ps-0");
  cluster.shards["ps-0"].beats = false;
  Unreached("ps-0");
  cluster.RunFor(absl::Seconds(10));
  EXPECT_EQ(Copies("ps-0"), copies);
  EXPECT_EQ(State("ps-0"), "ready");
}

TEST_F(SilenceTest, AShardAndTheCoordinatorItselfMaySuspect) {
  Begin();
  for (const bool by_shard : {true, false}) {
    const std::string victim = by_shard ? "ps-0" : "ps-1";
    Kill(victim);
    if (by_shard) {
      cluster.shards["ps-2"].unreached = {victim + ":1"};
    } else {
      event::Heartbeat broke = cluster.Heartbeat(cluster.shards[victim]);
      broke.broke = true;
      cluster.Step(event::Tick{cluster.now, {broke}});
    }
    EXPECT_TRUE(cluster.RunUntil([&] { return Copies(victim) == 0; }, absl::Milliseconds(500)))
        << victim;
    cluster.shards["ps-2"].unreached.clear();
    cluster.AddShard(victim);
    ASSERT_TRUE(cluster.RunUntil([&] { return IsSettled(DURABILITY_AUTO); }, absl::Seconds(10)));
  }
  EXPECT_THAT(cluster.JobLog("a"), AllOf(HasSubstr("ps-2 does not reach it"),
                                         HasSubstr("its connection to the coordinator broke")));
}

TEST_F(SilenceTest, SilenceAloneTakesTwoSeconds) {
  Begin();
  Kill("ps-0");
  cluster.RunFor(absl::Milliseconds(1800));
  EXPECT_GT(Copies("ps-0"), 0);
  cluster.RunFor(absl::Milliseconds(500));
  EXPECT_EQ(Copies("ps-0"), 0);
  EXPECT_EQ(State("ps-0"), "silent");
  EXPECT_EQ(cluster.questions, 0);
  cluster.RunFor(absl::Seconds(3));
  EXPECT_EQ(State("ps-0"), "lost");
}

// The shard's own thread is busy, as with a large job's plan.
TEST_F(SilenceTest, HeartbeatsAreEnough) {
  Begin();
  const int copies = Copies("ps-0");
  cluster.RunFor(absl::Milliseconds(200));
  const auto at = [&](const event::Heartbeat& heartbeat, absl::Duration step) {
    cluster.now += step;
    cluster.Step(event::Tick{cluster.now, {heartbeat}});
  };
  for (int i = 0; i < 100; ++i) {
    for (const char* other : {"ps-1", "ps-2"})
      at(cluster.Heartbeat(cluster.shards[other]), absl::ZeroDuration());
    at(cluster.Heartbeat(cluster.shards["ps-0"]), absl::Milliseconds(100));
  }
  EXPECT_EQ(Copies("ps-0"), copies);
  EXPECT_EQ(State("ps-0"), "ready");
}

// The shard's own thread hangs.
TEST_F(SilenceTest, HeartbeatsAloneAreNotEnoughForLong) {
  Begin();
  ASSERT_GT(Copies("ps-0"), 0);
  const auto beat = [&](absl::Duration time) {
    event::Heartbeat heartbeat = cluster.Heartbeat(cluster.shards["ps-0"]);
    for (absl::Duration left = time; left > absl::ZeroDuration(); left -= absl::Milliseconds(50)) {
      cluster.Round();
      heartbeat.at = cluster.now;
      cluster.Step(event::Tick{cluster.now, {heartbeat}});
    }
  };
  Kill("ps-0");  // but for its heartbeats
  beat(absl::Seconds(25));
  EXPECT_EQ(State("ps-0"), "ready");
  beat(absl::Seconds(8));
  EXPECT_EQ(Copies("ps-0"), 0);
  EXPECT_THAT(cluster.JobLog("a"), HasSubstr("no report for 30s, though heartbeats come"));
  beat(absl::Seconds(4));
  EXPECT_EQ(State("ps-0"), "lost");
}

// It has not reported since the coordinator's start.
TEST_F(SilenceTest, HeartbeatsAloneAreNotEnoughForLongAfterAStart) {
  Begin();
  Kill("ps-0");
  cluster.StartCoordinator();
  event::Heartbeat heartbeat = cluster.Heartbeat(cluster.shards["ps-0"]);
  for (int i = 0; i < 900; ++i) {
    cluster.Round();
    heartbeat.at = cluster.now;
    cluster.Step(event::Tick{cluster.now, {heartbeat}});
  }
  EXPECT_EQ(State("ps-0"), "lost");
  EXPECT_EQ(Copies("ps-0"), 0);
}

TEST_F(SilenceTest, HeartbeatsOfOthersChangeNothing) {
  Begin();
  event::Heartbeat right = cluster.Heartbeat(cluster.shards["ps-0"]);
  Kill("ps-0");
  for (int i = 0; i < 50; ++i) {
    cluster.Round();
    event::Heartbeat stale = right, other = right, impostor = right, nobody = right;
    for (event::Heartbeat* heartbeat : {&stale, &other, &impostor, &nobody})
      heartbeat->at = cluster.now;
    stale.request.set_incarnation(right.request.incarnation() - 1);
    other.request.set_cluster(0xbad);
    impostor.caller = "ps-1";
    nobody.request.set_shard(99);
    cluster.Step(event::Tick{cluster.now, {stale, other, impostor, nobody, right}});
  }
  EXPECT_EQ(State("ps-0"), "silent");
}

// What only a shard has waits for it for as long as before.
TEST_F(SilenceTest, WhatHasNoOtherCopyWaits) {
  Begin(DURABILITY_NONE);
  ASSERT_GT(Copies("ps-0"), 0);
  Kill("ps-0");
  cluster.RunFor(absl::Seconds(4));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  EXPECT_EQ(State("ps-0"), "silent");
  cluster.shards["ps-0"].alive = true;
  cluster.RunFor(absl::Milliseconds(200));
  EXPECT_EQ(State("ps-0"), "ready");
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  Kill("ps-0");
  cluster.RunFor(absl::Seconds(6));
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
  EXPECT_THAT(cluster.Status("a").reason(), HasSubstr("no report for 5."));
}

// The coordinator may be the one that hears nothing.
TEST_F(SilenceTest, TwoThatAreSilentAtOnceKeepWhatTheyShare) {
  Begin();
  const auto numbers = [&] {
    std::vector<uint64_t> all;
    const JobReply reply = cluster.Get("a");
    for (const View& view : reply.views()) all.push_back(view.number());
    return all;
  };
  const std::vector<uint64_t> before = numbers();
  const auto each = [&](bool alive) {
    for (auto& [name, shard] : cluster.shards) {
      shard.alive = alive;
      cluster.RunFor(absl::Milliseconds(50));
    }
  };
  for (const absl::Duration silence : {absl::Milliseconds(1950), absl::Milliseconds(3500)}) {
    each(false);
    cluster.RunFor(silence);
    EXPECT_EQ(State("ps-0"), "silent");
    each(true);
    cluster.RunFor(absl::Seconds(1));
  }
  EXPECT_EQ(State("ps-0"), "ready");
  EXPECT_EQ(numbers(), before);
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
}

// The coordinator may be the one that is cut off. Who died meanwhile is lost as late as that.
TEST_F(SilenceTest, ACoordinatorThatHearsNobodyBlamesNobody) {
  Begin();
  const auto all = [&](bool alive) {
    for (auto& [name, worker] : cluster.workers) worker.alive = alive;
    for (auto& [name, shard] : cluster.shards) shard.alive = alive;
  };
  for (const int seconds : {3, 8, 30}) {
    all(false);
    cluster.RunFor(absl::Seconds(seconds));
    all(true);
    cluster.RunFor(absl::Seconds(1));
    EXPECT_EQ(State("ps-0"), "ready");
    EXPECT_TRUE(IsSettled(DURABILITY_AUTO)) << seconds;
    EXPECT_EQ(cluster.Status("a").failovers(), 0u);
  }
  all(false);
  cluster.RunFor(absl::Seconds(8));
  all(true);
  Kill("ps-0");
  cluster.RunFor(absl::Seconds(7));
  EXPECT_EQ(State("ps-0"), "lost");
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  all(false);
  cluster.RunFor(absl::Seconds(61));
  EXPECT_TRUE(cluster.IsIn("a", FAILED)) << "it does not wait for ever";
}

// All died at once, and each was started again at another port. Its registration is heard, so the
// silence of those before is not the network's.
TEST_F(SilenceTest, WhoWasStartedAgainIsTakenThoughNobodyElseIsHeard) {
  Begin();
  for (auto& [name, worker] : cluster.workers) worker.alive = false;
  for (auto& [name, shard] : cluster.shards) shard.alive = false;
  cluster.RunFor(absl::Seconds(1));
  const absl::Time began = cluster.now;
  EXPECT_EQ(cluster.Register(SHARD, "ps-0", "elsewhere:1", 90).refused(), "");
  EXPECT_LE(cluster.now - began, absl::Seconds(6));
  EXPECT_EQ(State("ps-1"), "ready") << "nobody else is blamed for the time in which none was heard";
  EXPECT_EQ(cluster.Register(WORKER, "worker-0", "elsewhere:2", 91).refused(), "");
  EXPECT_LE(cluster.now - began, absl::Seconds(12));
}

// It was started by mistake while the coordinator was cut off, and is heard first.
TEST_F(SilenceTest, ASecondProcessOfANameReplacesNoneThatIsHeardAgain) {
  Begin();
  const auto all = [&](bool alive) {
    for (auto& [name, worker] : cluster.workers) worker.alive = alive;
    for (auto& [name, shard] : cluster.shards) shard.alive = alive;
  };
  all(false);
  cluster.RunFor(absl::Seconds(20));
  RegisterRequest request;
  request.set_role(SHARD);
  request.set_name("ps-0");
  request.set_address("elsewhere:1");
  request.set_nonce(90);
  request.mutable_version()->set_version(std::string(ReleaseVersion()));
  request.mutable_version()->set_protocol(ProtocolVersion());
  const CallId call = cluster.NewCall();
  cluster.Step(event::Register{call, request});
  cluster.RunFor(absl::Seconds(1));
  all(true);
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(State("ps-0"), "ready");
  ASSERT_NE(cluster.Answer(call), nullptr);
  EXPECT_THAT(std::get<RegisterReply>(*cluster.Answer(call)).refused(),
              HasSubstr("in use by a live process"));
  EXPECT_TRUE(IsSettled(DURABILITY_AUTO));
}

// Whoever has the other copies is not heard when a shard is missed, but a moment later.
TEST_F(SilenceTest, WhatASilentShardHasMovesAsSoonAsItMay) {
  Begin();
  Kill("ps-0");
  cluster.RunFor(absl::Milliseconds(1500));
  for (const char* other : {"ps-1", "ps-2"}) Kill(other);
  cluster.RunFor(absl::Milliseconds(800));
  EXPECT_EQ(State("ps-0"), "silent");
  EXPECT_GT(Copies("ps-0"), 0);
  for (const char* other : {"ps-1", "ps-2"}) cluster.shards[other].alive = true;
  EXPECT_TRUE(cluster.RunUntil([&] { return Copies("ps-0") == 0; }, absl::Seconds(1)));
  EXPECT_EQ(State("ps-0"), "silent");
}

TEST_F(SilenceTest, ACoordinatorThatWasPausedBlamesNobody) {
  Begin();
  cluster.now += absl::Seconds(30);
  cluster.Tick();
  EXPECT_EQ(State("ps-0"), "ready");
}

// It died with the coordinator, as on one machine. Others say that they do not reach it.
TEST_F(SilenceTest, AfterAStartAShardThatIsNotReachedIsReplacedAtOnce) {
  Begin();
  ASSERT_GT(Copies("ps-0"), 0);
  for (const bool by_shard : {false, true}) {
    const std::string victim = by_shard ? "ps-1" : "ps-0";
    const int questions = cluster.questions;
    Kill(victim);
    cluster.StartCoordinator();
    if (by_shard) {
      cluster.shards["ps-2"].unreached = {victim + ":1"};
    } else {
      Unreached(victim);
    }
    EXPECT_TRUE(cluster.RunUntil([&] { return Copies(victim) == 0; }, absl::Milliseconds(1700)));
    EXPECT_EQ(State(victim), "silent");
    EXPECT_EQ(cluster.questions, questions + 2);
    EXPECT_EQ(cluster.calls_to_shards, by_shard ? 4 : 2) << "it may not have connected yet";
    EXPECT_THAT(cluster.JobLog("a"),
                HasSubstr(absl::StrCat("shard ", victim, " at ", victim, ":1 does not answer (",
                                       by_shard ? "ps-2" : "worker-0",
                                       " does not reach it, and it has not answered twice within "
                                       "1s): ")));
    cluster.shards["ps-2"].unreached.clear();
    cluster.workers["worker-0"].links.clear();
    cluster.AddShard(victim);
    ASSERT_TRUE(cluster.RunUntil([&] { return IsSettled(DURABILITY_AUTO); }, absl::Seconds(10)));
  }
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << cluster.Status("a").reason();
}

// Nobody says it, as where the shard's machine is off.
TEST_F(SilenceTest, AfterAStartAShardThatIsNotHeardIsReplacedSoon) {
  Begin();
  ASSERT_GT(Copies("ps-0"), 0);
  Kill("ps-0");
  cluster.StartCoordinator();
  cluster.RunFor(absl::Milliseconds(1900));
  EXPECT_EQ(State("ps-0"), "unknown");
  EXPECT_EQ(cluster.questions, 0);
  EXPECT_TRUE(cluster.RunUntil([&] { return Copies("ps-0") == 0; }, absl::Milliseconds(1400)));
  EXPECT_EQ(State("ps-0"), "silent");
  EXPECT_EQ(cluster.calls_to_shards, 2);
  EXPECT_THAT(cluster.JobLog("a"),
              HasSubstr("nothing was heard of it since the coordinator started, and it has not "
                        "answered twice"));
  cluster.RunFor(absl::Seconds(6));
  EXPECT_EQ(State("ps-0"), "silent");
  cluster.RunFor(absl::Seconds(3));
  EXPECT_EQ(State("ps-0"), "lost");
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << cluster.Status("a").reason();
}

// Its connections to the coordinator take their time.
TEST_F(SilenceTest, AfterAStartOneThatAnswersAtItsAddressIsNotReplaced) {
  Begin();
  const int copies = Copies("ps-0");
  Kill("ps-0");
  cluster.shards["ps-0"].listens = true;
  cluster.StartCoordinator();
  Unreached("ps-0");
  cluster.RunFor(absl::Seconds(1));
  cluster.workers["worker-0"].links.clear();
  cluster.RunFor(absl::Seconds(4));
  EXPECT_EQ(Copies("ps-0"), copies);
  EXPECT_EQ(State("ps-0"), "unknown");
  EXPECT_GT(cluster.calls_to_shards, 1);
  EXPECT_LT(cluster.calls_to_shards, 5);
  cluster.shards["ps-0"].alive = true;
  cluster.RunFor(absl::Seconds(3));
  EXPECT_EQ(Copies("ps-0"), copies);
  EXPECT_EQ(State("ps-0"), "ready");
  EXPECT_EQ(cluster.Status("a").failovers(), 0u);
}

// What only the shard has waits for it for as long as before.
TEST_F(SilenceTest, AfterAStartWhatHasNoOtherCopyWaits) {
  Begin(DURABILITY_NONE);
  ASSERT_GT(Copies("ps-0"), 0);
  Kill("ps-0");
  cluster.StartCoordinator();
  Unreached("ps-0");
  cluster.RunFor(absl::Seconds(9));
  EXPECT_EQ(State("ps-0"), "silent");
  EXPECT_TRUE(cluster.IsIn("a", RUNNING));
  cluster.shards["ps-0"].alive = true;
  cluster.workers["worker-0"].links.clear();
  cluster.RunFor(absl::Milliseconds(200));
  EXPECT_EQ(State("ps-0"), "ready");
  Kill("ps-0");
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(11));
  EXPECT_TRUE(cluster.IsIn("a", FAILED));
}

// The coordinator itself is cut off, and the others come back one after the other.
TEST_F(SilenceTest, AfterAStartACoordinatorThatHearsNobodyBlamesNobody) {
  Begin();
  const auto all = [&](bool alive) {
    for (auto& [name, worker] : cluster.workers) worker.alive = alive;
    for (auto& [name, shard] : cluster.shards) {
      shard.alive = alive;
      if (alive) cluster.RunFor(absl::Milliseconds(150));
    }
  };
  for (const int seconds : {1, 3, 8}) {
    all(false);
    cluster.StartCoordinator();
    cluster.RunFor(absl::Seconds(seconds));
    EXPECT_EQ(State("ps-0"), "unknown");
    EXPECT_EQ(cluster.questions, 0);
    Unreached("ps-1");  // as before the coordinator's link came back
    all(true);
    cluster.workers["worker-0"].links.clear();
    cluster.RunFor(absl::Seconds(3));
    for (const char* shard : {"ps-0", "ps-1", "ps-2"}) EXPECT_EQ(State(shard), "ready");
    EXPECT_EQ(cluster.Status("a").failovers(), 0u) << seconds;
    EXPECT_TRUE(IsSettled(DURABILITY_AUTO));
    cluster.questions = 0;
  }
}

// It was suspended right after its start.
TEST_F(SilenceTest, AfterAStartACoordinatorThatWasPausedBlamesNobody) {
  Begin();
  Kill("ps-0");  // which takes its time
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  cluster.now += absl::Seconds(30);
  cluster.Tick();
  EXPECT_EQ(cluster.questions, 0);
  EXPECT_EQ(State("ps-0"), "unknown");
  cluster.shards["ps-0"].alive = true;
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(State("ps-0"), "ready");
  EXPECT_EQ(cluster.Status("a").failovers(), 0u);
}

// A process of its name that was started again elsewhere does not wait until the old one is lost.
TEST_F(SilenceTest, AfterAStartTheNameOfAReplacedShardIsFree) {
  Begin();
  Kill("ps-0");
  cluster.StartCoordinator();
  Unreached("ps-0");
  const absl::Time before = cluster.now;
  const RegisterReply reply = cluster.Register(SHARD, "ps-0", "ps-0:2", /*nonce=*/12345);
  EXPECT_EQ(reply.refused(), "");
  EXPECT_EQ(reply.id(), cluster.shards["ps-0"].identity.id());
  EXPECT_LT(cluster.now - before, absl::Milliseconds(1500));
}

}  // namespace
}  // namespace starling::coordinator
