// Submissions, registrations, held calls: one exchange each.
#include <cmath>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/protocol/limits.h"
#include "common/version/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/coordinator.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CoordinatorCallsTest : public CoordinatorTest {
 protected:
  // Returns the call, which is held while a worker looks at the data.
  CallId BeginToSubmit(const JobSpec& spec) {
    SubmitRequest request;
    *request.mutable_spec() = spec;
    const CallId call = cluster.NewCall();
    cluster.Step(event::Submit{call, request});
    return call;
  }
};

// ---- Submission ----

TEST_F(CoordinatorCallsTest, ASubmissionNeedsAWorkerThatLooksAtTheData) {
  const absl::Status none = SubmitError(Ssp("a", 1, 1));
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()),
              HasSubstr("no worker can inspect the data: start one with"));

  Workers(1);
  cluster.workers["worker-0"].inspect_error = "/data/train.csv: no such file";
  const absl::Status bad = SubmitError(Ssp("a", 1, 1));
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad.message()),
              HasSubstr("/data/train.csv: no such file (workers asked: worker-0)"));

  cluster.workers["worker-0"].inspects = false;
  cluster.workers["worker-0"].inspect_error = "";
  const absl::Time begin = cluster.now;
  const absl::Status late = SubmitError(Ssp("a", 1, 1));
  // Not kDeadlineExceeded: clients take that for a coordinator that does not answer.
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(late.message()),
              HasSubstr("worker-0 has not inspected the data within 5m"));
  EXPECT_LT(cluster.now - begin, absl::Seconds(301));
}

TEST_F(CoordinatorCallsTest, AFewWorkersWithoutTheDataRefuseAJobAndOneDoesNot) {
  Workers(4);
  const auto try_out = [&] { return cluster.Submit(Ssp("a", 1, 1), 0, /*dry_run=*/true); };
  cluster.workers["worker-0"].inspect_error = "/data/train.csv: no such file";
  EXPECT_TRUE(std::holds_alternative<SubmitReply>(try_out()));
  cluster.workers["worker-1"].inspect_error = "/data/train.csv: permission denied";
  EXPECT_TRUE(std::holds_alternative<SubmitReply>(try_out()));
  cluster.workers["worker-2"].inspect_error = "/data/train.csv: it is a folder";
  EXPECT_THAT(
      std::string(std::get<absl::Status>(try_out()).message()),
      HasSubstr("/data/train.csv: no such file (workers asked: worker-0, worker-1, worker-2)"));
}

TEST_F(CoordinatorCallsTest, WhatAWorkerFoundIsSaidWhenTheNextOneToLookDies) {
  Workers(2);
  cluster.workers["worker-0"].inspect_error = "/data/train.csv: no such file";
  cluster.workers["worker-1"].inspects = false;
  const CallId call = BeginToSubmit(Ssp("a", 1, 1));
  cluster.RunFor(absl::Minutes(1));
  ASSERT_EQ(cluster.Answer(call), nullptr);
  cluster.workers["worker-1"].alive = false;
  cluster.RunFor(absl::Seconds(10));
  const CallReply* reply = cluster.Answer(call);
  ASSERT_NE(reply, nullptr);
  EXPECT_THAT(std::string(std::get<absl::Status>(*reply).message()),
              HasSubstr("/data/train.csv: no such file (workers asked: worker-0)"));
}

TEST_F(CoordinatorCallsTest, TheAnswerToASubmissionHasItsWarnings) {
  Workers(1);
  cluster.workers["worker-0"].inspect_warnings.assign(limits::kWarningsPerJobMax + 3,
                                                      "data.train: a");
  cluster.workers["worker-0"].inspect_warnings[0] =
      "data.train: corrupt image, not used: a.tar: b.jpg";
  JobSpec spec = Ssp("a", 1, 1);
  spec.mutable_test()->mutable_csv()->set_path("/t.csv");
  spec.clear_evaluate();
  const auto check = [&](const JobStatus& status) {
    ASSERT_EQ(status.warnings_size(), static_cast<int>(limits::kWarningsPerJobMax) + 2);
    EXPECT_THAT(status.warnings(0), HasSubstr("data.test is not used"));
    EXPECT_THAT(status.warnings(1), HasSubstr("corrupt image, not used: a.tar: b.jpg"));
    EXPECT_THAT(*status.warnings().rbegin(), HasSubstr("and 3 more"));
  };
  check(std::get<SubmitReply>(cluster.Submit(spec, 0, /*dry_run=*/true)).status());
  check(std::get<SubmitReply>(cluster.Submit(spec)).status());
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(1));
  check(cluster.Status("a"));
}

TEST_F(CoordinatorCallsTest, ADryRunLooksAtTheJobWhoeverHasItsName) {
  Workers(1);
  Submit(Ssp("a", 1, 1));
  cluster.workers["worker-0"].inspect_error = "/data/train.csv: no such file";
  const CallReply wrong = cluster.Submit(Ssp("a", 1, 1), 7, /*dry_run=*/true);
  EXPECT_THAT(std::string(std::get<absl::Status>(wrong).message()), HasSubstr("no such file"));
  cluster.workers["worker-0"].inspect_error = "";
  const auto right = std::get<SubmitReply>(cluster.Submit(Ssp("a", 1, 1), 8, /*dry_run=*/true));
  ASSERT_EQ(right.status().warnings_size(), 1);
  EXPECT_THAT(right.status().warnings(0),
              HasSubstr("a job named a exists (PENDING): submit under another"));
  EXPECT_EQ(SubmitError(Ssp("a", 1, 1)).code(), absl::StatusCode::kAlreadyExists);
}

// The index of a million images takes that long.
TEST_F(CoordinatorCallsTest, ALookAtTheDataMayTakeMinutes) {
  Workers(1);
  cluster.workers["worker-0"].inspects = false;
  const CallId call = BeginToSubmit(Ssp("a", 1, 1));
  cluster.RunFor(absl::Minutes(4));
  ASSERT_EQ(cluster.Answer(call), nullptr);
  // The worker that looks at the data dies, and there is no other.
  cluster.workers["worker-0"].alive = false;
  cluster.RunFor(absl::Seconds(25));
  const CallReply* reply = cluster.Answer(call);
  ASSERT_NE(reply, nullptr);
  EXPECT_THAT(std::string(std::get<absl::Status>(*reply).message()),
              HasSubstr("no worker could inspect the data for 15"));
}

TEST_F(CoordinatorCallsTest, ASubmissionWaitsForTheSuccessorsOfWorkersThatDrain) {
  Workers(1);
  cluster.workers["worker-0"].draining = true;
  cluster.RunFor(absl::Seconds(1));
  const CallId call = BeginToSubmit(Ssp("a", 1, 1));
  cluster.RunFor(absl::Seconds(5));
  ASSERT_EQ(cluster.Answer(call), nullptr);
  cluster.AddWorker("worker-1");
  EXPECT_TRUE(std::holds_alternative<SubmitReply>(cluster.Await(call)));
}

TEST_F(CoordinatorCallsTest, EachWorkerHasTheWholeTimeToLook) {
  Workers(1);
  cluster.workers["worker-0"].inspects = false;
  const CallId call = BeginToSubmit(Ssp("a", 1, 1));
  cluster.RunFor(absl::Seconds(290));
  cluster.workers["worker-0"].alive = false;
  cluster.AddWorker("worker-1");
  cluster.workers["worker-1"].inspects = false;
  cluster.RunFor(absl::Minutes(4));
  ASSERT_EQ(cluster.Answer(call), nullptr);
  const CallReply late = cluster.Await(call);
  EXPECT_THAT(std::string(std::get<absl::Status>(late).message()),
              HasSubstr("worker-1 has not inspected the data within 5m"));
}

TEST_F(CoordinatorCallsTest, ASubmissionIsAnsweredInTimeHoweverManyWorkersDieInspecting) {
  Workers(1);
  cluster.workers["worker-0"].inspects = false;
  const absl::Time begin = cluster.now;
  const CallId call = BeginToSubmit(Ssp("a", 1, 1));
  for (int i = 0; i < 3; ++i) {
    cluster.RunFor(absl::Seconds(290));
    cluster.workers[absl::StrCat("worker-", i)].alive = false;
    const std::string next = absl::StrCat("worker-", i + 1);
    cluster.AddWorker(next);
    cluster.workers[next].inspects = false;
  }
  cluster.RunFor(absl::Minutes(1));
  ASSERT_EQ(cluster.Answer(call), nullptr);
  const CallReply late = cluster.Await(call);
  EXPECT_THAT(std::string(std::get<absl::Status>(late).message()),
              HasSubstr("no worker has inspected the data within 16m"));
  EXPECT_LT(cluster.now - begin, absl::Minutes(limits::kSubmitMinutesMax) + absl::Seconds(1));
}

TEST_F(CoordinatorCallsTest, ASubmissionRightAfterARestartWaitsForTheWorkersToReport) {
  cluster.AddShard("ps-0");
  Workers(1);
  cluster.StartCoordinator();
  Submit(Ssp("a", 1, 1));
}

TEST_F(CoordinatorCallsTest, AnotherWorkerLooksWhenTheFirstDies) {
  Workers(2);
  cluster.workers["worker-0"].alive = false;
  Submit(Ssp("a", 1, 1));
}

TEST_F(CoordinatorCallsTest, ImpossibleValuesAreRefusedOnTheServerToo) {
  Workers(1);
  JobSpec spec = Ssp("a", 0, 1);
  EXPECT_THAT(std::string(SubmitError(spec).message()), HasSubstr("workers"));
  spec = MiniCluster::Spec("a", Policy::BSP, 5, 8);
  EXPECT_THAT(std::string(SubmitError(spec).message()),
              HasSubstr("5 workers cannot share the 4 micro-batches"));
  spec = Ssp("a", 1, 1);
  spec.mutable_model_source()->set_builtin("resnet");
  EXPECT_THAT(std::string(SubmitError(spec).message()), HasSubstr("resnet"));
  spec = Ssp("a", 1, 1);
  spec.add_sample_shape(5);
  EXPECT_THAT(std::string(SubmitError(spec).message()), HasSubstr("a sample of the data has 4"));
  EXPECT_TRUE(std::get<ListJobsReply>(cluster.Ask<event::ListJobs>()).jobs().empty());
}

// Sent straight to the coordinator, past the client's checks: refused, with nothing left behind.
TEST_F(CoordinatorCallsTest, WhatNoJobFileCanSayIsRefusedToo) {
  Workers(1);
  const double nan = std::nan("");
  const auto refusal = [&](const std::function<void(JobSpec&)>& spoil) {
    JobSpec spec = Ssp("a", 1, 1);
    spoil(spec);
    const absl::Status status = SubmitError(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](JobSpec& s) { s.Clear(); }), HasSubstr("metadata.name"));
  EXPECT_THAT(
      refusal([](JobSpec& s) { s.mutable_policy()->set_kind(static_cast<Policy::Kind>(77)); }),
      HasSubstr("consistency"));
  EXPECT_THAT(refusal([&](JobSpec& s) { s.mutable_optimizer()->mutable_adam()->set_beta1(nan); }),
              HasSubstr("beta1"));
  EXPECT_THAT(refusal([](JobSpec& s) { s.mutable_optimizer()->mutable_adamw()->set_epsilon(-1); }),
              HasSubstr("epsilon"));
  EXPECT_THAT(refusal([](JobSpec& s) {
                Optimizer::Group* group = s.mutable_optimizer()->add_groups();
                group->add_match("nothing.*");
                group->set_weight_decay(0);
              }),
              HasSubstr("\"nothing.*\" matches no trainable parameter"));
  EXPECT_THAT(refusal([](JobSpec& s) { s.mutable_clip()->set_norm(1); }), HasSubstr("clip.scope"));
  EXPECT_THAT(refusal([](JobSpec& s) {
                s.mutable_optimizer()->mutable_learning_rate()->set_warmup_steps(INT64_MIN);
              }),
              HasSubstr("warmupSteps"));
  EXPECT_THAT(
      refusal([&](JobSpec& s) { s.mutable_train()->mutable_csv()->set_holdout_fraction(nan); }),
      HasSubstr("data.train.csv.holdoutFraction"));
  EXPECT_THAT(refusal([](JobSpec& s) {
                s.mutable_train()->mutable_csv()->set_path(std::string("/d\0x", 4));
              }),
              HasSubstr("zero byte"));
  EXPECT_THAT(
      refusal([](JobSpec& s) { (*s.mutable_labels())["x"].assign(limits::kJobSpecBytesMax, 'x'); }),
      HasSubstr("bytes; expected at most"));
  EXPECT_THAT(refusal([](JobSpec& s) {
                s.clear_model_source();
                s.mutable_model()->add_nodes()->set_op("linear");
              }),
              HasSubstr("the name of a graph input"));
  EXPECT_TRUE(std::get<ListJobsReply>(cluster.Ask<event::ListJobs>()).jobs().empty());
}

TEST_F(CoordinatorCallsTest, ACounterThatItsBatchesDoNotDivideIsRefused) {
  Workers(1);
  JobSpec spec = Ssp("a", 1, 1);
  spec.mutable_model_source()->Clear();
  spec.mutable_model_source()->set_builtin("counter");
  spec.mutable_train()->mutable_counter()->set_samples(41);
  EXPECT_THAT(std::string(SubmitError(spec).message()),
              HasSubstr("multiple of batch.global 4, got 41"));
  spec.mutable_train()->mutable_counter()->set_samples(-4);
  EXPECT_THAT(std::string(SubmitError(spec).message()),
              HasSubstr("expected a whole number from 1 to"));
}

TEST_F(CoordinatorCallsTest, AnEpochOfMoreStepsThanCanBeServedIsRefusedWithTheFigures) {
  cluster.AddShard("ps-0");
  Workers(1);
  cluster.train_samples = 4 * 60'000'000'000;
  EXPECT_THAT(std::string(SubmitError(Ssp("a", 1, 1)).message()),
              HasSubstr("an epoch of 240000000000 samples would have 60000000000 steps of 4; "
                        "expected at most 4294967296: choose a batch of at least 56"));
  cluster.train_samples = 4 * limits::kStepsPerEpochMax;
  EXPECT_FALSE(std::holds_alternative<absl::Status>(cluster.Submit(Ssp("a", 1, 1))));
  cluster.RunFor(absl::Seconds(2));
  cluster.StartCoordinator();
  cluster.RunFor(absl::Seconds(2));
  EXPECT_GT(cluster.Status("a").step(), 40u);
}

TEST_F(CoordinatorCallsTest, NamesAndAddressesHaveALength) {
  RegisterRequest request;
  request.set_role(WORKER);
  request.set_name("long");
  request.set_address(std::string(10'000, '1'));
  request.mutable_version()->set_protocol(ProtocolVersion());
  const auto reply = std::get<RegisterReply>(cluster.Ask<event::Register>(request));
  EXPECT_THAT(reply.refused(), HasSubstr("10000 bytes"));
}

TEST_F(CoordinatorCallsTest, AJobThatNoWorkerGetsReadyForIsOver) {
  cluster.AddShard("shard-0");
  Workers(1);
  cluster.workers["worker-0"].prepares = false;
  Submit(Ssp("a", 1, 1));
  const absl::Time begin = cluster.now;
  EXPECT_TRUE(cluster.RunUntil([&] { return cluster.IsIn("a", FAILED); }, absl::Minutes(10)));
  EXPECT_GE(cluster.now - begin, absl::Minutes(5));
  JobRequest request;
  request.set_name("a");
  EXPECT_THAT(std::get<JobReply>(cluster.Ask<event::GetJob>(request)).status().reason(),
              HasSubstr("worker-0 was not ready within 5m"));
}

TEST_F(CoordinatorCallsTest, AWaitForLogsThatIsNoNumberEndsAtOnce) {
  Workers(1);
  Submit(Ssp("a", 2, 2));  // pending: its log stands still
  LogsRequest request;
  request.set_name("a");
  request.set_after(1'000'000);
  request.set_wait_seconds(std::nan(""));
  const absl::Time begin = cluster.now;
  EXPECT_TRUE(std::get<LogsReply>(cluster.Ask<event::Logs>(request)).entries().empty());
  EXPECT_LT(cluster.now - begin, absl::Seconds(1));
}

TEST_F(CoordinatorCallsTest, ADryRunChecksEverythingAndLeavesNothing) {
  Workers(1);
  const CallReply reply = cluster.Submit(Ssp("a", 1, 1), 7, true);
  ASSERT_TRUE(std::holds_alternative<SubmitReply>(reply));
  EXPECT_EQ(std::get<SubmitReply>(reply).status().parameters(), 67u);
  EXPECT_EQ(AskJob<event::GetJob>("a").code(), absl::StatusCode::kNotFound);
  cluster.workers["worker-0"].inspect_error = "truncated";
  EXPECT_TRUE(std::holds_alternative<absl::Status>(cluster.Submit(Ssp("a", 1, 1), 8, true)));
}

TEST_F(CoordinatorCallsTest, ARetriedSubmissionGetsTheSameJobAndAnotherOfItsNameIsRefused) {
  Workers(1);
  const CallReply first = cluster.Submit(Ssp("a", 1, 1), 7);
  const CallReply again = cluster.Submit(Ssp("a", 1, 1), 7);
  EXPECT_EQ(std::get<SubmitReply>(first).uid(), std::get<SubmitReply>(again).uid());
  const absl::Status other = SubmitError(Ssp("a", 1, 1));
  EXPECT_EQ(other.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(other.message()), HasSubstr("starling cancel a && starling delete a"));
  cluster.StartCoordinator();
  const CallReply after = cluster.Submit(Ssp("a", 1, 1), 7);
  EXPECT_EQ(std::get<SubmitReply>(first).uid(), std::get<SubmitReply>(after).uid());
}

TEST_F(CoordinatorCallsTest, CancelAndDelete) {
  cluster.train_samples = 40'000;
  cluster.AddShard("ps-0");
  Workers(1);
  Submit(Ssp("a", 1, 1));
  const absl::Status running = AskJob<event::DeleteJob>("a");
  EXPECT_EQ(running.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(running.message()), HasSubstr("cancel first"));
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
  EXPECT_TRUE(AskJob<event::CancelJob>("a").ok()) << "a retry";
  EXPECT_TRUE(cluster.IsIn("a", CANCELLED));
  EXPECT_TRUE(AskJob<event::DeleteJob>("a").ok());
  EXPECT_EQ(AskJob<event::CancelJob>("a").code(), absl::StatusCode::kNotFound);
  Submit(Ssp("a", 1, 1));
  EXPECT_EQ(cluster.Status("a").uid(), 2u) << "uids are never used again";
}

// ---- Daemons ----

TEST_F(CoordinatorCallsTest, AnotherProtocolIsRefusedByName) {
  RegisterRequest request;
  request.set_role(WORKER);
  request.set_name("worker-9");
  request.mutable_version()->set_version("0.9.0");
  request.mutable_version()->set_protocol(ProtocolVersion() + 1);
  const auto reply = std::get<RegisterReply>(cluster.Ask<event::Register>(request));
  const std::string ours = absl::StrCat(" and speaks protocol ", ProtocolVersion());
  const std::string theirs = absl::StrCat(" and speaks protocol ", ProtocolVersion() + 1);
  EXPECT_THAT(reply.refused(), AllOf(HasSubstr("worker-9 has version 0.9.0" + theirs),
                                     HasSubstr("version " + std::string(ReleaseVersion()) + ours)));
  EXPECT_EQ(reply.id(), 0u);
}

TEST_F(CoordinatorCallsTest, ANameInUseIsRefusedAndARetryGetsTheSameAnswer) {
  Workers(1);
  const RegisterReply first = cluster.workers["worker-0"].identity;
  const RegisterReply retry = cluster.Register(WORKER, "worker-0", "worker-0:1", 1);
  EXPECT_EQ(retry.incarnation(), first.incarnation());
  EXPECT_THAT(cluster.Register(WORKER, "worker-0", "elsewhere:1", 99).refused(),
              HasSubstr("the name worker-0 is in use by a live process at worker-0:1"));
}

TEST_F(CoordinatorCallsTest, AProcessThatWasKilledAndStartedAgainTakesItsNameBack) {
  Workers(1);
  const RegisterReply first = cluster.workers["worker-0"].identity;
  cluster.workers["worker-0"].alive = false;
  const absl::Time begin = cluster.now;
  const RegisterReply second = cluster.Register(WORKER, "worker-0", "worker-0:2", 99);
  EXPECT_EQ(second.refused(), "");
  EXPECT_EQ(second.id(), first.id());
  EXPECT_GT(second.incarnation(), first.incarnation());
  EXPECT_LT(cluster.now - begin, absl::Seconds(6));
  // From the same port: at once.
  const RegisterReply third = cluster.Register(WORKER, "worker-0", "worker-0:2", 100);
  EXPECT_GT(third.incarnation(), second.incarnation());
}

TEST_F(CoordinatorCallsTest, AnOldCoordinatorIsNotServed) {
  Workers(1);
  WorkerReport report;
  report.set_worker(1);
  report.set_incarnation(cluster.workers["worker-0"].identity.incarnation());
  report.set_sequence(1'000'000);
  report.set_generation(7);
  report.set_draining(true);
  const CallReply reply = cluster.Ask<event::WorkerReport>(report);
  const auto* status = std::get_if<absl::Status>(&reply);
  ASSERT_NE(status, nullptr);
  EXPECT_THAT(std::string(status->message()), HasSubstr("generation 1, but the caller has seen 7"));
}

// A daemon that was started with --insecure is named in every status while it lives.
TEST_F(CoordinatorCallsTest, OpenLinksAreWarnedOf) {
  Workers(1);
  EXPECT_EQ(std::get<ListJobsReply>(cluster.Ask<event::ListJobs>()).warnings_size(), 0);
  RegisterRequest request;
  request.set_role(SHARD);
  request.set_name("ps-0");
  request.set_address("10.0.0.1:7071");
  request.set_nonce(99);
  request.mutable_version()->set_protocol(ProtocolVersion());
  request.set_insecure(true);
  EXPECT_EQ(std::get<RegisterReply>(cluster.Ask<event::Register>(request)).refused(), "");
  const auto jobs = std::get<ListJobsReply>(cluster.Ask<event::ListJobs>());
  const auto workers = std::get<ListWorkersReply>(cluster.Ask<event::ListWorkers>());
  const auto shards = std::get<ListShardsReply>(cluster.Ask<event::ListShards>());
  for (const auto& warnings : {jobs.warnings(), workers.warnings(), shards.warnings()}) {
    ASSERT_EQ(warnings.size(), 1);
    EXPECT_THAT(warnings[0], HasSubstr("ps-0 started with --insecure"));
  }
}

TEST_F(CoordinatorCallsTest, AnOvertakenReportIsNotTaken) {
  Workers(1);
  WorkerReport report;
  report.set_worker(1);
  report.set_incarnation(cluster.workers["worker-0"].identity.incarnation());
  report.set_sequence(50);
  report.set_clock(5);
  cluster.Step(event::WorkerReport{cluster.NewCall(), report});
  report.set_sequence(49);
  report.set_draining(true);
  report.set_clock(4);
  cluster.Step(event::WorkerReport{cluster.NewCall(), report});
  const auto workers = std::get<ListWorkersReply>(cluster.Ask<event::ListWorkers>());
  EXPECT_EQ(workers.workers(0).state(), "idle");
  EXPECT_EQ(workers.workers(0).clock(), 5);
}

TEST_F(CoordinatorCallsTest, AReportIsHeldUntilThereIsNewsAndATenthOfASecondAtMost) {
  Workers(1);
  WorkerReport report;
  report.set_worker(1);
  report.set_incarnation(cluster.workers["worker-0"].identity.incarnation());
  report.set_generation(cluster.core->generation());
  report.set_sequence(1);
  const CallId first = cluster.NewCall();
  cluster.Step(event::WorkerReport{first, report});
  ASSERT_NE(cluster.Answer(first), nullptr) << "orders that it has not seen";
  report.set_orders_seen(std::get<WorkerOrders>(*cluster.Answer(first)).version());
  report.set_sequence(2);
  const CallId held = cluster.NewCall();
  cluster.Step(event::WorkerReport{held, report});
  EXPECT_EQ(cluster.Answer(held), nullptr);
  report.set_sequence(3);
  const CallId newer = cluster.NewCall();
  cluster.Step(event::WorkerReport{newer, report});
  ASSERT_NE(cluster.Answer(held), nullptr) << "a newer call of the same worker";
  EXPECT_TRUE(std::get<WorkerOrders>(*cluster.Answer(held)).unchanged());
  EXPECT_EQ(cluster.Answer(newer), nullptr);
  cluster.now += absl::Milliseconds(99);
  cluster.Tick();
  EXPECT_EQ(cluster.Answer(newer), nullptr);
  cluster.now += absl::Milliseconds(1);
  cluster.Tick();
  ASSERT_NE(cluster.Answer(newer), nullptr);
  EXPECT_EQ(std::get<WorkerOrders>(*cluster.Answer(newer)).sequence_taken(), 3u);
}

TEST_F(CoordinatorCallsTest, LogsWaitForNews) {
  Workers(1);
  Submit(Ssp("a", 1, 1));
  LogsRequest request;
  request.set_name("a");
  const auto seen = std::get<LogsReply>(cluster.Ask<event::Logs>(request));
  ASSERT_GT(seen.entries_size(), 0);
  request.set_after(seen.entries(seen.entries_size() - 1).number());
  request.set_wait_seconds(30);
  const CallId call = cluster.NewCall();
  cluster.Step(event::Logs{call, request});
  EXPECT_EQ(cluster.Answer(call), nullptr);
  cluster.AddShard("ps-0");
  ASSERT_NE(cluster.Answer(call), nullptr);
  EXPECT_EQ(std::get<LogsReply>(*cluster.Answer(call)).entries(0).number(), request.after() + 1);
}

TEST(CoordinatorState, DamagedRecordsAreNamed) {
  EXPECT_EQ(Coordinator::Create({}, {{"cluster", "\xff\xff"}}).status().code(),
            absl::StatusCode::kDataLoss);
  const auto missing = Coordinator::Create({}, {{"worker/0000000001", ""}});
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("\"cluster\""));
}

TEST(CoordinatorState, ARecordThatAJobNeedsIsMissed) {
  MiniCluster cluster;
  cluster.AddShard("ps-0");
  cluster.AddWorker("worker-0");
  cluster.Submit(MiniCluster::Spec("a", Policy::SSP, 1, 1));
  cluster.RunFor(absl::Seconds(0.3));
  for (const std::string key :
       {"worker/0000000001", "shard/0000000001", "job/00000000000000000001/state"}) {
    StoreSnapshot damaged = cluster.store;
    ASSERT_EQ(damaged.erase(key), 1u) << key;
    EXPECT_EQ(Coordinator::Create({}, damaged).status().code(), absl::StatusCode::kDataLoss) << key;
  }
  EXPECT_TRUE(Coordinator::Create({}, cluster.store).ok());
}

}  // namespace
}  // namespace starling::coordinator
