// Which job gets which workers.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

CoordinatorOptions Impatient() {
  CoordinatorOptions options;
  options.patience = absl::Minutes(1);
  return options;
}

class ScheduleTest : public CoordinatorTest {
 protected:
  ScheduleTest() : CoordinatorTest(Impatient()) {}
  void SetUp() override { cluster.AddShard("ps-0"); }
  // A job that does not end by itself.
  void SubmitLong(const std::string& name, uint32_t min, uint32_t max) {
    JobSpec spec = Ssp(name, min, max);
    spec.mutable_stop()->set_epochs(100'000);
    Submit(spec);
  }
  bool Has(const std::string& job, uint32_t workers) {
    return cluster.RunUntil([&] { return cluster.Status(job).workers() == workers; });
  }
};

TEST_F(ScheduleTest, AJobThatCannotStartTakesNobodyAndLaterJobsPass) {
  Workers(2);
  SubmitLong("base", 1, 2);
  ASSERT_TRUE(Has("base", 2));
  Submit(Ssp("huge", 9, 9));
  EXPECT_EQ(
      cluster.Status("huge").reason(),
      "needs 9 workers (workers.min); the cluster has 2, of which job base keeps 1: start 7 more "
      "with `starling-worker`, or submit it with a lower workers.min");
  cluster.RunFor(absl::Seconds(5));
  EXPECT_EQ(cluster.Status("base").workers(), 2u) << cluster.JobLog("base");
  EXPECT_THAT(cluster.JobLog("base"), Not(HasSubstr("gives")));
  Submit(Ssp("later", 1, 1));
  EXPECT_EQ(cluster.Status("later").state(), RUNNING)
      << "it starts at once, with what base has to give";
  ASSERT_TRUE(Ends("later", SUCCEEDED));
  EXPECT_TRUE(cluster.IsIn("huge", PENDING));
  EXPECT_TRUE(Has("base", 2));
}

// It would need the worker that the job before it keeps.
TEST_F(ScheduleTest, NoWorkerIdlesForAJobThatWaitsForAnother) {
  Workers(2);
  SubmitLong("one", 1, 1);
  ASSERT_TRUE(Has("one", 1));
  Submit(Ssp("two", 2, 2));
  EXPECT_EQ(
      cluster.Status("two").reason(),
      "needs 2 workers (workers.min) and can have 1 of the cluster's 2, of which job one keeps 1: "
      "waits for 1 more worker");
  SubmitLong("three", 1, 4);
  EXPECT_EQ(cluster.Status("three").state(), RUNNING);
  EXPECT_EQ(
      cluster.Status("two").reason(),
      "needs 2 workers (workers.min) and can have 0 of the cluster's 2, of which job one keeps 1, "
      "job three keeps 1: waits for 2 more workers");
  EXPECT_TRUE(AskJob<event::CancelJob>("three").ok());
  EXPECT_TRUE(AskJob<event::CancelJob>("one").ok());
  EXPECT_TRUE(Ends("two", SUCCEEDED));
}

TEST_F(ScheduleTest, WorkersAreTakenFromTheYoungestOnlyWhenTheyAreEnough) {
  Workers(6);
  SubmitLong("old", 1, 3);
  SubmitLong("young", 1, 3);
  ASSERT_TRUE(Has("old", 3));
  ASSERT_TRUE(Has("young", 3));
  SubmitLong("five", 5, 5);
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(cluster.Status("old").workers(), 3u);
  EXPECT_EQ(cluster.Status("young").workers(), 3u);
  SubmitLong("three", 3, 3);
  EXPECT_EQ(cluster.Status("three").state(), RUNNING);
  ASSERT_TRUE(Has("three", 3));
  EXPECT_EQ(cluster.Status("young").workers(), 1u);
  EXPECT_EQ(cluster.Status("old").workers(), 2u);
  cluster.AddWorker("worker-6");
  EXPECT_TRUE(Has("old", 3))
      << "a free worker goes to who can use it, not to one that cannot start";
}

// Its workers are still letting an ended job go: it starts with them, and no other job gets them in
// between.
TEST_F(ScheduleTest, WorkersOfAJobThatEndedGoToTheFirstThatWaits) {
  Workers(2);
  Submit(Ssp("a", 2, 2));
  Submit(Ssp("b", 2, 2));
  SubmitLong("c", 1, 2);
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(cluster.Status("b").state(), RUNNING);
  EXPECT_EQ(cluster.Status("c").state(), PENDING);
}

// A stream of small jobs passes the job that needs all workers, until that has its turn.
TEST_F(ScheduleTest, AJobThatIsPassedForLongHasItsTurn) {
  Workers(2);
  SubmitLong("small-0", 1, 1);
  SubmitLong("small-1", 1, 1);
  Submit(Ssp("both", 2, 2));
  int next = 2;
  const auto replace = [&](absl::Duration time) {  // small jobs come and go, never both at once
    const absl::Time end = cluster.now + time;
    for (int oldest = next - 2; cluster.now < end && !cluster.IsIn("both", SUCCEEDED); ++oldest) {
      SubmitLong("small-" + std::to_string(next++), 1, 1);
      cluster.RunFor(absl::Seconds(4));
      if (cluster.IsIn("small-" + std::to_string(oldest), RUNNING)) {
        EXPECT_TRUE(AskJob<event::CancelJob>("small-" + std::to_string(oldest)).ok());
      }
      cluster.RunFor(absl::Seconds(0.2));
    }
  };
  replace(absl::Seconds(52));
  EXPECT_TRUE(cluster.IsIn("both", PENDING));
  EXPECT_GT(next, 10);
  replace(absl::Seconds(22));
  EXPECT_TRUE(cluster.IsIn("both", SUCCEEDED)) << cluster.Status("both").reason();
  EXPECT_THAT(cluster.JobLog("both"), HasSubstr("later jobs have passed it for a long time"));
}

// A job behind an earlier job keeps nothing, however long it has waited.
TEST_F(ScheduleTest, BehindAnEarlierJobThereIsNoTurn) {
  Workers(2);
  SubmitLong("weeks", 1, 1);
  Submit(Ssp("both", 2, 2));
  Submit(Ssp("huge", 9, 9));
  cluster.RunFor(absl::Seconds(66));
  Submit(Ssp("later", 1, 1));
  EXPECT_TRUE(Ends("later", SUCCEEDED));
  EXPECT_TRUE(cluster.IsIn("both", PENDING));
}

// A turn ends, so that nothing idles for long behind a later job that does not end.
TEST_F(ScheduleTest, ATurnEnds) {
  Workers(3);
  SubmitLong("first", 1, 1);
  Submit(Ssp("three", 3, 3));
  SubmitLong("weeks", 1, 1);
  EXPECT_TRUE(AskJob<event::CancelJob>("first").ok());
  cluster.RunFor(absl::Seconds(62));
  Submit(Ssp("later", 1, 1));
  EXPECT_EQ(cluster.Status("later").reason(),
            "lets job three start first, which needs 3 workers and was passed by later jobs for a "
            "long time");
  cluster.RunFor(absl::Seconds(10));
  EXPECT_TRUE(cluster.IsIn("later", PENDING));
  cluster.RunFor(absl::Seconds(8));
  EXPECT_TRUE(cluster.IsIn("later", SUCCEEDED));
}

TEST_F(ScheduleTest, WhatNoShardCanHoldIsRefusedWithTheFigures) {
  Workers(1);
  cluster.memory_room = 200;
  cluster.RunFor(absl::Seconds(1));
  JobSpec spec = Ssp("a", 1, 1);
  const absl::Status refused = SubmitError(spec);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr("job a needs 0.0 MiB of the shards' memory, in 2 partitions, but there is room for "
                "0.0 MiB (ps-0) even without other jobs: start more shards"));
  EXPECT_EQ(cluster.Status("a").name(), "");
}

TEST_F(ScheduleTest, WhatFitsOnceOthersAreGoneWaits) {
  Workers(2);
  SubmitLong("first", 1, 1);
  ASSERT_TRUE(Has("first", 1));
  cluster.memory_room = 0;  // is no shard that has not said
  cluster.RunFor(absl::Seconds(1));
  Submit(Ssp("second", 1, 1));
  EXPECT_TRUE(cluster.IsIn("second", PENDING));
  cluster.memory_room = 200;
  cluster.RunFor(absl::Seconds(1));
  EXPECT_THAT(cluster.Status("second").reason(),
              HasSubstr("but there is room for 0.0 MiB (ps-0) now: "
                        "waits for jobs to end, or for ended jobs to be deleted"));
  cluster.RunFor(absl::Seconds(5));
  EXPECT_TRUE(cluster.IsIn("second", PENDING));
  cluster.memory_room = 100'000;
  EXPECT_TRUE(Ends("second", SUCCEEDED));
}

// They wait until a worker can look at their data.
TEST_F(ScheduleTest, OfAHundredSubmissionsAtOnceNoneIsRefused) {
  Workers(2);
  std::vector<CallId> calls;
  for (int i = 0; i < 100; ++i) {
    calls.push_back(cluster.NewCall());
    SubmitRequest request;
    *request.mutable_spec() = Ssp("job-" + std::to_string(i), 1, 1);
    cluster.Step(event::Submit{calls.back(), request});
  }
  for (const CallId call : calls) {
    EXPECT_TRUE(std::holds_alternative<SubmitReply>(cluster.Await(call)));
  }
}

TEST_F(ScheduleTest, SmallJobsAreSpreadOverShards) {
  cluster.AddShard("ps-1");
  Workers(1);
  for (int i = 0; i < 20; ++i) {
    const std::string name = "job-" + std::to_string(i);
    Submit(Ssp(name, 1, 1));
    ASSERT_TRUE(Ends(name, SUCCEEDED));
  }
  std::map<uint32_t, uint64_t> first;  // where the larger partition of each lies
  for (int i = 0; i < 20; ++i) {
    JobRequest request;
    request.set_name("job-" + std::to_string(i));
    const CallReply reply = cluster.Ask<event::GetJob>(request);
    for (const View& view : std::get<JobReply>(reply).views())
      first[view.primary()] += view.partition() == 0;
  }
  EXPECT_EQ(first[1], 10u);
  EXPECT_EQ(first[2], 10u);
}

}  // namespace
}  // namespace starling::coordinator
