// Jobs that are over: they are listed page by page, and cost running jobs nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/records.h"
#include "server/coordinator/core/state.pb.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PastTest : public CoordinatorTest {
 protected:
  PastTest() {
    Use({});
    cluster.AddShard("ps-0");
    Workers(1);
    cluster.train_samples = cluster.test_samples = 4;  // a step an epoch
  }
  void Use(CoordinatorOptions now) {
    now.forget_left = absl::Seconds(20);
    now.forget_lost = absl::Seconds(60);
    cluster.UseOptions(std::move(now));
    cluster.StartCoordinator();
  }
  JobSpec Quick(const std::string& name) {
    JobSpec spec = Ssp(name, 1, 1);
    spec.mutable_stop()->set_epochs(1);
    return spec;
  }
  void RunQuick(const std::string& name) {
    Submit(Quick(name));
    ASSERT_TRUE(Ends(name, SUCCEEDED));
  }
  ListJobsReply Jobs(uint32_t size, const std::string& after = "",
                     std::vector<JobState> states = {}) {
    ListJobsRequest request;
    request.mutable_page()->set_size(size);
    request.mutable_page()->set_after(after);
    for (const JobState state : states) request.add_states(state);
    const CallReply reply = cluster.Ask<event::ListJobs>(request);
    const auto* jobs = std::get_if<ListJobsReply>(&reply);
    EXPECT_NE(jobs, nullptr) << std::get<absl::Status>(reply);
    return jobs != nullptr ? *jobs : ListJobsReply();
  }
  static std::vector<std::string> Names(const ListJobsReply& reply) {
    std::vector<std::string> names;
    for (const JobStatus& job : reply.jobs()) names.push_back(job.name());
    return names;
  }
  ClusterView Overview() { return std::get<ClusterView>(cluster.Ask<event::Overview>()); }
};

// ---- Lists ----

TEST_F(PastTest, JobsAreListedByPages) {
  for (const char* name : {"a", "b", "c"}) RunQuick(name);
  Submit(Ssp("runs", 1, 1));
  Submit(Ssp("waits", 1, 1));
  cluster.workers["worker-0"].idle_hands = true;
  EXPECT_THAT(Names(Jobs(0)), ElementsAre("waits", "runs", "c", "b", "a"));
  ListJobsReply page = Jobs(2);
  EXPECT_THAT(Names(page), ElementsAre("waits", "runs"));
  EXPECT_EQ(page.total(), 5u);
  page = Jobs(2, page.next());
  EXPECT_THAT(Names(page), ElementsAre("c", "b"));
  page = Jobs(2, page.next());
  EXPECT_THAT(Names(page), ElementsAre("a"));
  EXPECT_EQ(page.next(), "");
  EXPECT_THAT(Names(Jobs(0, "", {SUCCEEDED})), ElementsAre("c", "b", "a"));
  EXPECT_EQ(Jobs(1, "", {SUCCEEDED}).total(), 3u);
  EXPECT_THAT(Names(Jobs(0, "", {FAILED})), IsEmpty());
  page = Jobs(1, "", {RUNNING, SUCCEEDED});
  EXPECT_THAT(Names(page), ElementsAre("runs"));
  EXPECT_THAT(Names(Jobs(9, page.next(), {RUNNING, SUCCEEDED})), ElementsAre("c", "b", "a"));
  cluster.StartCoordinator();
  EXPECT_THAT(Names(Jobs(0)), ElementsAre("waits", "runs", "c", "b", "a"));
  ListJobsRequest request;
  request.mutable_page()->set_after("rubbish");
  const CallReply reply = cluster.Ask<event::ListJobs>(request);
  EXPECT_EQ(std::get<absl::Status>(reply).code(), absl::StatusCode::kInvalidArgument);
}

// A page stays within a client's limits, however long its texts are.
TEST_F(PastTest, APageHasAnEndInBytesToo) {
  Workers(1);
  for (int i = 0; i < 3; ++i) {
    const std::string name = absl::StrCat("a", i);
    Submit(Quick(name));
    Fault fault;
    fault.set_kind(Fault::MODEL);
    fault.mutable_run()->set_job_uid(static_cast<uint64_t>(i) + 1);
    fault.set_message(std::string(limits::kFaultBytesMax, 'x'));
    cluster.workers["worker-0"].fault = fault;
    ASSERT_TRUE(Ends(name, FAILED));
    cluster.workers["worker-0"].fault = Fault();
  }
  StoredJobState state;  // texts of another time
  for (uint64_t uid = 1; uid <= 3; ++uid) {
    ASSERT_TRUE(state.ParseFromString(cluster.store[records::JobState(uid)]));
    state.set_reason(std::string(limits::kListBytesMax / 2, 'x'));
    cluster.store[records::JobState(uid)] = state.SerializeAsString();
  }
  cluster.StartCoordinator();
  const ListJobsReply page = Jobs(0);
  EXPECT_THAT(Names(page), ElementsAre("a2", "a1"));
  EXPECT_THAT(Names(Jobs(0, page.next())), ElementsAre("a0"));
}

TEST_F(PastTest, WorkersAreListedByPages) {
  for (int i = 1; i < 5; ++i) cluster.AddWorker(absl::StrCat("worker-", i));
  ListWorkersRequest request;
  request.mutable_page()->set_size(2);
  std::vector<std::string> names;
  do {
    const auto page = std::get<ListWorkersReply>(cluster.Ask<event::ListWorkers>(request));
    EXPECT_LE(page.workers_size(), 2);
    for (const WorkerStatus& worker : page.workers()) names.push_back(worker.name());
    request.mutable_page()->set_after(page.next());
  } while (!request.page().after().empty());
  EXPECT_THAT(names, ElementsAre("worker-0", "worker-1", "worker-2", "worker-3", "worker-4"));
  ListShardsRequest shards;
  shards.mutable_page()->set_after("7");
  EXPECT_EQ(std::get<ListShardsReply>(cluster.Ask<event::ListShards>(shards)).shards_size(), 0);
}

// ---- The admin port ----

TEST_F(PastTest, TheOverviewIsBoundedAndCountsAll) {
  for (int i = 0; i < 40; ++i) RunQuick(absl::StrCat("a", i));
  Submit(Ssp("runs", 1, 1));
  const ClusterView view = Overview();
  EXPECT_EQ(view.job_counts.at(SUCCEEDED), 40u);
  EXPECT_EQ(view.job_counts.at(RUNNING), 1u);
  ASSERT_LT(view.jobs.jobs_size(), 20);
  EXPECT_EQ(view.jobs.jobs(0).name(), "runs");
  EXPECT_EQ(view.jobs.jobs(1).name(), "a39");
  EXPECT_EQ(view.worker_counts.count("preparing") + view.worker_counts.count("training"), 1u);
}

TEST_F(PastTest, AShardsFiguresFollowWhatIsKeptThere) {
  const auto shard = [&] {
    return std::get<ListShardsReply>(cluster.Ask<event::ListShards>()).shards(0);
  };
  RunQuick("a");
  RunQuick("b");
  const uint32_t each = shard().partitions() / 2;
  ASSERT_GT(each, 0u);
  EXPECT_EQ(shard().value_bytes(), 2 * 100 * each);
  EXPECT_EQ(AskJob<event::DeleteJob>("a"), absl::OkStatus());
  EXPECT_EQ(shard().partitions(), each);
  EXPECT_EQ(shard().value_bytes(), 100 * each);
  cluster.StartCoordinator();
  EXPECT_EQ(shard().partitions(), each);
  ASSERT_TRUE(cluster.RunUntil([&] { return shard().value_bytes() == 100 * each; }));
  cluster.AddShard("ps-0");  // another incarnation, which has nothing
  EXPECT_EQ(shard().partitions(), 0u);
  EXPECT_EQ(shard().value_bytes(), 0u);
}

// ---- Retention ----

// Each change used to repeat the orders of all jobs, ended ones included.
TEST_F(PastTest, AJobIsDescribedOnceToADaemonAndEndedJobsAreNotSpokenOf) {
  for (int i = 0; i < 20; ++i) RunQuick(absl::StrCat("quick-", i));
  cluster.RunFor(absl::Seconds(2));
  const MiniCluster::MiniShard& shard = cluster.shards["ps-0"];
  EXPECT_EQ(shard.described, 20);
  EXPECT_EQ(shard.ended, 20) << "of each it was told to keep only the values";
  EXPECT_EQ(cluster.workers["worker-0"].described, 20);
  JobSpec spec = Ssp("long", 1, 1);
  spec.mutable_stop()->set_epochs(1000);
  Submit(spec);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("long").epoch() > 5; }));
  EXPECT_EQ(shard.described, 21);
  EXPECT_EQ(cluster.workers["worker-0"].described, 21);
  EXPECT_LT(cluster.report_bytes, 2000u);
  EXPECT_LT(cluster.orders_bytes, 2000u);

  // Nor after a restart of the coordinator.
  cluster.StartCoordinator();
  const uint64_t before = cluster.Status("long").step();
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("long").step() > before + 5; }));
  EXPECT_EQ(shard.described, 21);
  EXPECT_EQ(cluster.workers["worker-0"].described, 21);
  EXPECT_EQ(shard.ended, 20);
  EXPECT_LT(cluster.report_bytes, 2000u);

  // A shard that comes back holds nothing, and is told nothing about what it held.
  cluster.AddShard("ps-0");
  cluster.RunFor(absl::Seconds(1));
  for (uint64_t uid = 1; uid <= 20; ++uid) EXPECT_FALSE(cluster.shards["ps-0"].reports.Holds(uid));
}

// A job that is over keeps what was known at its end; shards need not report it again.
TEST_F(PastTest, TheFiguresOfAJobThatIsOverStay) {
  RunQuick("quick");
  cluster.RunFor(absl::Seconds(1));
  const JobStatus before = cluster.Status("quick");
  EXPECT_EQ(before.coverage_max(), 1u);
  EXPECT_EQ(cluster.shards["ps-0"].ended, 1);
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  JobStatus after = cluster.Status("quick");
  after.set_generation(before.generation());
  EXPECT_EQ(after.ShortDebugString(), before.ShortDebugString());
  EXPECT_EQ(cluster.shards["ps-0"].ended, 1);
}

TEST_F(PastTest, AJobThatWasDeletedWhileItsShardWasAwayIsDropped) {
  RunQuick("quick");
  Submit(Ssp("other", 1, 1));
  cluster.RunFor(absl::Seconds(1));
  cluster.shards["ps-0"].alive = false;  // for a moment
  JobRequest request;
  request.set_name("quick");
  cluster.Ask<event::DeleteJob>(request);
  cluster.StartCoordinator();  // which does not know that job at all
  cluster.shards["ps-0"].alive = true;
  cluster.RunFor(absl::Seconds(1));
  EXPECT_FALSE(cluster.shards["ps-0"].reports.Holds(1));
  EXPECT_TRUE(cluster.shards["ps-0"].reports.Holds(2));
}

// 30 jobs with descriptions of 1 MiB each come in parts, and none is left out.
TEST_F(PastTest, OrdersThatDoNotFitIntoAMessageComeInParts) {
  for (int i = 0; i < 30; ++i) {
    JobSpec spec = Ssp(absl::StrCat("wide-", i), 1, 1);
    for (int label = 0; label < 100; ++label) {
      (*spec.mutable_labels())[absl::StrCat("label-", label)] = std::string(11'000, 'x');
    }
    Submit(spec);
  }
  for (int w = 1; w < 30; ++w) cluster.AddWorker(absl::StrCat("worker-", w));
  cluster.shards["ps-0"].alive = false;  // until all have begun
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.IsIn("wide-29", RUNNING); }, absl::Seconds(3)));
  cluster.shards["ps-0"].alive = true;
  size_t most = 0;
  ASSERT_TRUE(cluster.RunUntil([&] {
    most = std::max(most, cluster.orders_bytes);
    return cluster.shards["ps-0"].described == 30;
  }));
  EXPECT_LT(most, 2 * limits::kControlChangesBytesMax);
  EXPECT_GT(most, limits::kControlChangesBytesMax);
}

// ---- The archive ----

// Everything that clients see of a job.
TEST_F(PastTest, WhatIsArchivedIsSaidAsBefore) {
  const auto all = [&](const std::string& name) {
    JobRequest job;
    job.set_name(name);
    CurvesRequest curves;
    curves.set_name(name);
    LogsRequest logs;
    logs.set_name(name);
    ExplainRequest explain;
    explain.set_name(name);
    return std::vector<std::string>{
        std::get<JobReply>(cluster.Ask<event::GetJob>(job)).DebugString(),
        std::get<CurvesReply>(cluster.Ask<event::Curves>(curves)).DebugString(),
        std::get<LogsReply>(cluster.Ask<event::Logs>(logs)).DebugString(),
        std::get<ExplainReply>(cluster.Ask<event::Explain>(explain)).DebugString()};
  };
  RunQuick("a");
  cluster.RunFor(absl::Seconds(1));
  const std::vector<std::string> before = all("a");  // it ended last, and is at hand
  EXPECT_THAT(before[2], HasSubstr("SUCCEEDED"));
  const std::string listed = Jobs(0).jobs(0).DebugString();
  RunQuick("b");
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(all("a"), before);
  EXPECT_EQ(all("a"), before);
  EXPECT_EQ(Jobs(0).jobs(1).DebugString(), listed);
}

TEST_F(PastTest, WhatIsArchivedIsLostWithItsShard) {
  for (const char* name : {"a", "b", "c"}) RunQuick(name);
  cluster.RunFor(absl::Seconds(1));
  cluster.shards["ps-0"].alive = false;
  ASSERT_TRUE(cluster.RunUntil([&] { return !cluster.Status("a").reason().empty(); }));
  for (const char* name : {"a", "b", "c"}) {
    JobRequest request;
    request.set_name(name);
    const auto job = std::get<JobReply>(cluster.Ask<event::GetJob>(request));
    EXPECT_THAT(job.values(0).gone(), HasSubstr("lost with shard ps-0"));
    EXPECT_THAT(job.status().reason(), HasSubstr("lost partition"));
  }
}

class RetentionTest : public PastTest {
 protected:
  void KeepJobs(size_t count, absl::Duration time = absl::InfiniteDuration()) {
    CoordinatorOptions options;
    options.keep_ended_jobs = count;
    options.keep_ended_for = time;
    Use(std::move(options));
  }
  std::string Warnings() {
    const ListJobsReply jobs = Jobs(0);
    std::string text;
    for (const std::string& warning : jobs.warnings()) absl::StrAppend(&text, warning, "\n");
    return text;
  }
};

TEST_F(RetentionTest, BeyondItsNumberTheOldestIsDeletedAndThatIsSaidBefore) {
  KeepJobs(10);
  for (int i = 0; i < 8; ++i) RunQuick(absl::StrCat("a", i));
  EXPECT_EQ(Warnings(), "");
  RunQuick("a8");
  EXPECT_THAT(Warnings(),
              HasSubstr("9 jobs have ended, and the coordinator keeps 10 (--keep-ended-jobs"));
  RunQuick("a9");
  EXPECT_EQ(Jobs(0).total(), 10u);
  RunQuick("b");
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(Jobs(0).total(), 10u);
  EXPECT_EQ(cluster.store.count(records::Job(1)), 0u);
  EXPECT_EQ(cluster.store.count(records::JobState(1)), 0u);
  const absl::Status gone = AskJob<event::GetJob>("a0");
  EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(gone.message()),
              HasSubstr("retention deleted it (--keep-ended-jobs 10)"));
  EXPECT_EQ(AskJob<event::GetJob>("a1"), absl::OkStatus());
  EXPECT_EQ(Warnings(), "");
  RunQuick("a0");  // the name is free
}

TEST_F(RetentionTest, WhatLivesIsKept) {
  Submit(Ssp("old", 1, 1));
  cluster.workers["worker-0"].idle_hands = true;
  KeepJobs(0);
  cluster.RunFor(absl::Seconds(5));
  EXPECT_TRUE(cluster.IsIn("old", RUNNING));
}

TEST_F(RetentionTest, ByTimeToo) {
  RunQuick("a");
  EXPECT_EQ(cluster.Status("a").kept_until(), "");
  KeepJobs(100, absl::Minutes(2));
  EXPECT_NE(cluster.Status("a").kept_until(), "");
  cluster.RunFor(absl::Minutes(1));
  RunQuick("b");
  cluster.StartCoordinator();  // what passed before counts
  cluster.RunFor(absl::Seconds(61));
  EXPECT_THAT(std::string(AskJob<event::GetJob>("a").message()), HasSubstr("--keep-ended-for 2m"));
  EXPECT_EQ(AskJob<event::GetJob>("b"), absl::OkStatus());
}

TEST_F(RetentionTest, AClockThatGoesBackMakesNoJobTheOldest) {
  KeepJobs(2);
  RunQuick("a");
  RunQuick("b");
  cluster.wall_ahead -= absl::Hours(1);
  RunQuick("c");
  cluster.RunFor(absl::Seconds(1));
  EXPECT_THAT(Names(Jobs(0)), ::testing::ElementsAre("c", "b"));
}

TEST_F(RetentionTest, OffKeepsAll) {
  KeepJobs(std::numeric_limits<size_t>::max());
  for (int i = 0; i < 20; ++i) RunQuick(absl::StrCat("a", i));
  cluster.RunFor(absl::Seconds(5));
  EXPECT_EQ(Jobs(0).total(), 20u);
}

// ---- Names ----

TEST_F(PastTest, WhoLeftIsKnownAsThatAfterARestartAndForgotten) {
  const auto state = [&](const std::string& name) {
    const auto reply = std::get<ListWorkersReply>(cluster.Ask<event::ListWorkers>());
    for (const WorkerStatus& worker : reply.workers()) {
      if (worker.name() == name) return worker.state();
    }
    return std::string();
  };
  cluster.AddWorker("leaves");
  cluster.AddWorker("dies");
  cluster.workers["leaves"].drained = true;
  cluster.Round();
  cluster.workers["leaves"].alive = cluster.workers["dies"].alive = false;
  cluster.RunFor(absl::Seconds(10));
  EXPECT_EQ(state("leaves"), "left");
  EXPECT_EQ(state("dies"), "lost");
  EXPECT_EQ(Overview().workers_lost, 1u);
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(15));
  EXPECT_EQ(state("leaves"), "left");
  EXPECT_EQ(Overview().workers_lost, 0u) << "no alert";
  cluster.RunFor(absl::Seconds(15));
  EXPECT_EQ(state("leaves"), "");
  EXPECT_EQ(state("dies"), "lost");
  cluster.RunFor(absl::Seconds(45));
  EXPECT_EQ(state("dies"), "");
  EXPECT_EQ(state("worker-0"), "idle");
  cluster.StartCoordinator();
  EXPECT_EQ(state("dies"), "");
  cluster.AddWorker("dies");  // comes again, as a new one
  RunQuick("a");
}

TEST_F(PastTest, AShardIsForgottenWhenNoKeptJobHadValuesThere) {
  RunQuick("a");
  cluster.shards["ps-0"].alive = false;
  cluster.AddShard("ps-1");
  const auto shards = [&] {
    std::vector<std::string> names;
    const auto reply = std::get<ListShardsReply>(cluster.Ask<event::ListShards>());
    for (const ShardStatus& shard : reply.shards()) names.push_back(shard.name());
    return names;
  };
  cluster.RunFor(absl::Seconds(80));
  EXPECT_THAT(shards(), ElementsAre("ps-0", "ps-1"));
  EXPECT_EQ(AskJob<event::DeleteJob>("a"), absl::OkStatus());
  cluster.RunFor(absl::Seconds(2));
  EXPECT_THAT(shards(), ElementsAre("ps-1"));
  cluster.StartCoordinator();
  RunQuick("b");
}

// ---- Another version's layout ----

TEST_F(PastTest, AJobOfAnotherLayoutStopsNoCoordinator) {
  RunQuick("ended");
  Submit(Ssp("runs", 1, 1));
  Submit(Ssp("waits", 1, 1));
  cluster.workers["worker-0"].idle_hands = true;
  cluster.RunFor(absl::Seconds(1));
  for (uint64_t uid = 1; uid <= 3; ++uid) {
    StoredJob stored;
    ASSERT_TRUE(stored.ParseFromString(cluster.store[records::Job(uid)]));
    stored.mutable_description()->set_layout_digest(stored.description().layout_digest() + 1);
    cluster.store[records::Job(uid)] = stored.SerializeAsString();
  }
  cluster.StartCoordinator();
  EXPECT_TRUE(cluster.IsIn("ended", SUCCEEDED));
  EXPECT_THAT(cluster.Status("ended").reason(), HasSubstr("laid out by another version"));
  EXPECT_TRUE(cluster.IsIn("runs", FAILED));
  EXPECT_THAT(cluster.Status("runs").reason(), HasSubstr("laid out by another version"));
  cluster.workers["worker-0"].idle_hands = false;
  EXPECT_TRUE(Ends("waits", SUCCEEDED)) << cluster.Status("waits").reason();
  EXPECT_EQ(AskJob<event::DeleteJob>("ended"), absl::OkStatus());
  EXPECT_EQ(AskJob<event::DeleteJob>("runs"), absl::OkStatus());
  cluster.StartCoordinator();
  EXPECT_EQ(Jobs(0).total(), 1u);
}

// ---- What is shown of a job that is over ----

TEST_F(PastTest, AveragesAreShownAndNothingChangesWithARestart) {
  cluster.train_samples = 40;
  cluster.workers["worker-0"].hidden_share = 0.25;
  RunQuick("a");
  const JobStatus before = cluster.Status("a");
  EXPECT_NEAR(before.samples_per_second(), 40 / before.running_seconds(), 1);
  EXPECT_GT(before.samples_per_second(), 0);
  EXPECT_NEAR(before.hidden_share(), 0.25, 1e-6);
  cluster.train_loss = 0.25;
  Submit(Ssp("b", 1, 1));  // two epochs; its smoothed loss is none of theirs
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Status("b").step() >= 5; }));
  cluster.train_loss = 2;
  ASSERT_TRUE(Ends("b", SUCCEEDED));
  const double loss = cluster.Status("b").train_loss();
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.Status("b").train_loss(), loss);
  EXPECT_EQ(cluster.Status("a").samples_per_second(), before.samples_per_second());
  EXPECT_EQ(cluster.Status("a").hidden_share(), before.hidden_share());
}

}  // namespace
}  // namespace starling::coordinator
