// Shards that do not reach the one that decides about each step, while the coordinator hears all.
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class UndecidedTest : public CoordinatorTest {
 protected:
  UndecidedTest() {
    cluster.train_samples = 400000;
    for (int i = 0; i < 3; ++i) cluster.AddShard(absl::StrCat("ps-", i));
    Workers(1);
    cluster.RunFor(absl::Milliseconds(200));
  }

  void Begin(Durability durability = DURABILITY_REPLICATED) {
    JobSpec spec = Once(MiniCluster::Spec("a", Policy::BSP, 1, 1));
    for (int layer = 0; layer < 3; ++layer)
      (*spec.mutable_model_source()->mutable_arguments())["hidden"].mutable_ints()->add_values(8);
    spec.mutable_clip()->set_norm(1);
    spec.mutable_clip()->set_scope(Clip::GLOBAL);
    spec.set_durability(durability);
    Submit(spec);
    ASSERT_TRUE(cluster.RunUntil(
        [&] {
          const JobStatus status = cluster.Status("a");
          return status.state() == RUNNING && (durability == DURABILITY_NONE ||
                                               status.partitions_whole() == status.partitions());
        },
        absl::Seconds(10)));
    cluster.RunFor(absl::Seconds(1));
    before = Views();
    decider = before.at(0).primary();
    for (auto& [name, shard] : cluster.shards) {
      if (shard.identity.id() != decider) others.push_back(shard.identity.id());
    }
    for (const uint32_t id : others) ASSERT_GT(Led(id, before).size(), 0u);
  }
  std::vector<View> Views() {
    const JobReply reply = cluster.Get("a");
    return {reply.views().begin(), reply.views().end()};
  }
  static std::vector<uint32_t> Led(uint32_t shard, const std::vector<View>& views) {
    std::vector<uint32_t> led;
    for (const View& view : views) {
      if (view.primary() == shard) led.push_back(view.partition());
    }
    return led;
  }
  MiniCluster::MiniShard& Shard(uint32_t id) {
    for (auto& [name, shard] : cluster.shards) {
      if (shard.identity.id() == id) return shard;
    }
    return cluster.shards["none"];
  }
  // These shards do not reach the one that decides now.
  void Cut(const std::vector<uint32_t>& shards) {
    for (const uint32_t id : shards) Shard(id).undecided.insert(before.at(0).primary_address());
  }
  std::string Explain() {
    ExplainRequest request;
    request.set_name("a");
    const CallReply reply = cluster.Ask<event::Explain>(request);
    const auto* explained = std::get_if<ExplainReply>(&reply);
    return explained == nullptr ? "" : explained->ShortDebugString();
  }

  std::vector<View> before;
  uint32_t decider = 0;
  std::vector<uint32_t> others;
};

TEST_F(UndecidedTest, OtherCopiesOfWhatWaitsLead) {
  Begin();
  Cut({others[0]});
  cluster.RunFor(absl::Seconds(25));
  EXPECT_EQ(Led(others[0], Views()), Led(others[0], before)) << "the link may come back";
  cluster.RunFor(absl::Seconds(6));
  const std::vector<View> views = Views();
  for (const View& view : before) {
    const bool moves = view.primary() == others[0];
    EXPECT_EQ(views[view.partition()].primary(), moves ? view.backup() : view.primary());
  }
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << cluster.Status("a").reason();
  EXPECT_THAT(cluster.JobLog("a"),
              HasSubstr("which decides about each step, for 30s: the other copy leads now of"));
}

TEST_F(UndecidedTest, AnotherShardDecidesWhereSeveralDoNotReachIt) {
  Begin();
  Cut(others);
  cluster.RunFor(absl::Seconds(32));
  const std::vector<View> views = Views();
  for (const View& view : before) {
    const bool moves = view.partition() == 0;
    EXPECT_EQ(views[view.partition()].primary(), moves ? view.backup() : view.primary());
  }
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << cluster.Status("a").reason();
}

TEST_F(UndecidedTest, AJobWithoutOtherCopiesWaitsForTheLink) {
  Begin(DURABILITY_NONE);
  Cut({others[0]});
  cluster.RunFor(absl::Minutes(5));
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << cluster.Status("a").reason();
  EXPECT_EQ(Led(others[0], Views()), Led(others[0], before));
  EXPECT_THAT(Explain(), AllOf(HasSubstr("\"undecided\""), HasSubstr("no stream to it")));
  Shard(others[0]).undecided.clear();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_THAT(Explain(), AllOf(HasSubstr("name: \"a\""), Not(HasSubstr("\"undecided\""))));
}

// It is replaced at once, as any shard that is dead. The others lead what they led.
TEST_F(UndecidedTest, ADeadDeciderIsNoCutLink) {
  Begin();
  Cut(others);
  cluster.RunFor(absl::Seconds(20));
  Shard(decider).alive = false;
  cluster.RunFor(absl::Seconds(30));
  const std::vector<View> views = Views();
  for (const View& view : before) {
    const bool moves = view.primary() == decider;
    EXPECT_EQ(views[view.partition()].primary(), moves ? view.backup() : view.primary());
  }
  EXPECT_TRUE(cluster.IsIn("a", RUNNING)) << cluster.Status("a").reason();
}

}  // namespace
}  // namespace starling::coordinator
