// The verbs, driven through the command line against a coordinator that is faked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/config/schema.h"
#include "common/safetensors/safetensors.h"
#include "nlohmann/json.hpp"
#include "tools/cli/app.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"

namespace starling::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

JobStatus Running() {
  JobStatus status;
  status.set_name("digits");
  status.set_state(RUNNING);
  status.set_policy("ssp(2)");
  status.set_epoch(1);
  status.set_epochs(5);
  status.set_step(812);
  status.set_steps(2345);
  status.set_train_loss(0.13121);
  status.set_samples_per_second(1533);
  status.set_hidden_share(0.834);
  status.set_staleness(1);
  status.set_staleness_bound(2);
  status.set_parameters(1199882);
  return status;
}

JobReply Reply(const JobStatus& status) {
  JobReply reply;
  *reply.mutable_status() = status;
  reply.mutable_spec()->mutable_batch()->set_global(100);
  return reply;
}

void AddEpoch(JobStatus* status, double accuracy) {
  EpochResult* result = status->add_epochs_done();
  result->set_epoch(status->epochs_done_size() - 1);
  result->set_train_loss(0.5);
  result->set_test_loss(0.25);
  result->set_test_accuracy(accuracy);
  result->set_evaluated(true);
  result->set_seconds(9.13);
}

// Answers from what the test put in, and notes what was asked.
struct FakeCluster {
  std::vector<SubmitRequest> submitted;
  absl::StatusOr<SubmitReply> submit_reply = SubmitReply();
  std::deque<absl::StatusOr<JobReply>> jobs;  // the last one stays
  ListJobsReply job_list;
  ListWorkersReply workers;
  ListShardsReply shards;
  std::deque<LogsReply> logs;
  std::vector<LogsRequest> logs_asked;
  absl::Status cancel, remove;
  std::vector<std::string> cancelled, removed;
  std::vector<SetPolicyRequest> set;
  absl::StatusOr<SetPolicyReply> set_reply = SetPolicyReply();
  std::string address;  // that was connected to
};

class FakeClient : public Client {
 public:
  explicit FakeClient(FakeCluster& cluster) : cluster_(cluster) {}
  absl::StatusOr<SubmitReply> Submit(const SubmitRequest& request) override {
    cluster_.submitted.push_back(request);
    return cluster_.submit_reply;
  }
  absl::StatusOr<JobReply> GetJob(const std::string&) override {
    if (cluster_.jobs.empty()) return absl::NotFoundError("no job is called that");
    auto reply = cluster_.jobs.front();
    if (cluster_.jobs.size() > 1) cluster_.jobs.pop_front();
    return reply;
  }
  absl::StatusOr<ListJobsReply> ListJobs() override { return cluster_.job_list; }
  absl::StatusOr<ListWorkersReply> ListWorkers() override { return cluster_.workers; }
  absl::StatusOr<ListShardsReply> ListShards() override { return cluster_.shards; }
  absl::Status CancelJob(const std::string& name) override {
    cluster_.cancelled.push_back(name);
    return cluster_.cancel;
  }
  absl::Status DeleteJob(const std::string& name) override {
    cluster_.removed.push_back(name);
    return cluster_.remove;
  }
  absl::StatusOr<SetPolicyReply> SetPolicy(const SetPolicyRequest& request) override {
    cluster_.set.push_back(request);
    return cluster_.set_reply;
  }
  absl::StatusOr<LogsReply> Logs(const LogsRequest& request) override {
    cluster_.logs_asked.push_back(request);
    LogsReply reply;
    if (cluster_.logs.empty()) return reply;
    reply = cluster_.logs.front();
    cluster_.logs.pop_front();
    return reply;
  }

 private:
  FakeCluster& cluster_;
};

class CliTest : public ::testing::Test {
 protected:
  CliTest() : context_{.out = out_, .err = err_} {
    environment_["STARLING_COORDINATOR"] = "127.0.0.1:1";
    context_.environment = [this](const std::string& name) -> absl::optional<std::string> {
      const auto it = environment_.find(name);
      return it == environment_.end() ? absl::nullopt : absl::optional<std::string>(it->second);
    };
    context_.now = [this] { return now_; };
    context_.random = [] { return uint64_t{42}; };
    context_.catch_interrupts = [this] { catches_ = true; };
    context_.sleep = [this](absl::Duration duration) {
      now_ += duration;
      return !catches_ || interrupt_at_ > now_;
    };
    context_.connect = [this](const std::string& address) -> std::unique_ptr<Client> {
      cluster_.address = address;
      return std::make_unique<FakeClient>(cluster_);
    };
  }

  int Run(const std::vector<std::string>& args) {
    out_.str("");
    err_.str("");
    return RunApp(args, context_);
  }

  std::string JobFile(const std::string& text) {
    const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/job.yaml");
    std::ofstream(path) << text;
    return path;
  }
  std::string GoodJobFile() {
    return JobFile(R"(apiVersion: starling/v1
kind: TrainingJob
metadata: {name: digits}
spec:
  model: {builtin: mlp}
  data: {train: {csv: {path: digits.csv}}}
  batch: {global: 64}
  optimizer: {sgd: {learningRate: 0.1}}
)");
  }

  std::ostringstream out_, err_;
  std::map<std::string, std::string> environment_;
  absl::Time now_ = absl::UnixEpoch();
  bool catches_ = false;
  absl::Time interrupt_at_ = absl::InfiniteFuture();
  FakeCluster cluster_;
  Context context_;
};

// ---- Usage ----------------------------------------------------------------------------------

TEST_F(CliTest, WrongUsageIsTwoAndSaysWhat) {
  const std::vector<std::vector<std::string>> wrong = {
      {}, {"fly"}, {"submit"}, {"get"}, {"get", "cats"}, {"get", "jobs", "-o", "xml"}, {"wait"},
      {"wait", "digits", "--timeout", "soon"}, {"local"}, {"local", "up", "--shards", "0"}, {"schema", "--loud"}};
  for (const auto& args : wrong) {
    EXPECT_EQ(Run(args), 2) << (args.empty() ? "" : args.back());
    EXPECT_FALSE(err_.str().empty());
    EXPECT_EQ(out_.str(), "");
  }
}

TEST_F(CliTest, HelpVersionAndSchemaNeedNoCoordinator) {
  context_.connect = nullptr;
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("submit"));
  EXPECT_EQ(Run({"version"}), 0);
  EXPECT_THAT(out_.str(), StartsWith("starling "));
  EXPECT_EQ(Run({"--version"}), 0);
  EXPECT_THAT(out_.str(), StartsWith("starling "));
  EXPECT_EQ(Run({"schema"}), 0);
  EXPECT_EQ(out_.str(), config::SchemaText(config::JobFileSchema()));
}

std::string Contents(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

TEST_F(CliTest, TheManualHasTheSchemaAsItIs) {
  // When this fails: put what `starling schema` prints into the page.
  EXPECT_THAT(Contents("docs/job_file.md"), HasSubstr("```yaml\n" + config::SchemaText(config::JobFileSchema()) + "```"));
}

// On this machine alone: nothing listens where the coordinator would.
TEST_F(CliTest, DataInspectShowsWhatAJobWouldTrainOn) {
  const std::string folder = ::testing::TempDir();
  std::ofstream(folder + "/rows.csv") << "0,16,4,8,1\n1,2,3,4,0\n16,0,0,16,1\n";
  const std::string file = folder + "/inspect.yaml";
  std::ofstream(file) << R"(apiVersion: starling/v1
kind: TrainingJob
metadata: {name: a}
spec:
  model: {builtin: mlp}
  batch: {global: 4}
  optimizer: {sgd: {learningRate: 1}}
  data: {train: {csv: {path: rows.csv}}, normalize: {mean: [8], std: [8]}, shape: [1, 2, 2]}
)";
  const std::string sheet = folder + "/sheet.png";
  EXPECT_EQ(Run({"data", "inspect", "-f", file, "--rows", "1", "--samples", "2", "--sheet", sheet}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("data.train\nsamples    3\nsample     float32 [1, 2, 2]\n"));
  EXPECT_THAT(out_.str(), HasSubstr("looked at  the first 2\nvalues     -1 to 1, "));
  EXPECT_THAT(out_.str(), HasSubstr("classes    2 of 2 occur: 0: 1, 1: 1\nrow 0      [-1, 1, -0.5, 0] -> 1\n"));
  EXPECT_THAT(out_.str(), Not(HasSubstr("row 1")));
  EXPECT_EQ(Contents(sheet).substr(1, 3), "PNG");
  EXPECT_NE(Run({"data", "inspect", "-f", file, "--sheet", folder + "/sheet.gif"}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("ends in .png or .ppm"));
  EXPECT_NE(Run({"data", "inspect", "-f", file, "--set", "data.train.csv.path=none.csv"}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("data.train: cannot open"));
}

TEST_F(CliTest, TheExamplesAreValid) {
  environment_["STARLING_DATA"] = "/data";
  environment_["STARLING_DIGITS"] = "/digits.csv.gz";
  for (const char* file : {"examples/mnist_cnn.yaml", "examples/digits_mlp.yaml"}) {
    EXPECT_EQ(Run({"submit", "-f", file}), 0) << file << ": " << err_.str();
  }
  EXPECT_EQ(cluster_.submitted.at(0).spec().train().idx().images(), "/data/mnist/train-images-idx3-ubyte.gz");
}

TEST_F(CliTest, TheFlagsAddressWinsThenTheVariableThenTheLocalCluster) {
  EXPECT_EQ(Run({"get", "jobs", "--coordinator", "127.0.0.1:2"}), 0);
  EXPECT_EQ(cluster_.address, "127.0.0.1:2");
  EXPECT_EQ(Run({"get", "jobs"}), 0);
  EXPECT_EQ(cluster_.address, "127.0.0.1:1");
  environment_.erase("STARLING_COORDINATOR");
  const std::string state = absl::StrCat(std::getenv("TEST_TMPDIR"), "/state");
  environment_["XDG_STATE_HOME"] = state;
  EXPECT_EQ(Run({"get", "jobs"}), 6);
  EXPECT_THAT(err_.str(), HasSubstr(state));
  EXPECT_THAT(err_.str(), HasSubstr("starling local up"));
  ASSERT_EQ(std::system(absl::StrCat("mkdir -p ", state, "/starling/local && echo 127.0.0.1:3 >", state,
                                     "/starling/local/address").c_str()), 0);
  EXPECT_EQ(Run({"get", "jobs"}), 0);
  EXPECT_EQ(cluster_.address, "127.0.0.1:3");
}

// ---- Submit, wait ---------------------------------------------------------------------------

TEST_F(CliTest, SubmitSendsTheFileWithOverrides) {
  EXPECT_EQ(Run({"submit", "-f", GoodJobFile(), "--set", "batch.global=32", "--set", "stop.epochs=3"}), 0);
  ASSERT_EQ(cluster_.submitted.size(), 1u);
  const SubmitRequest& request = cluster_.submitted[0];
  EXPECT_EQ(request.spec().batch().global(), 32u);
  EXPECT_EQ(request.spec().stop().epochs(), 3u);
  EXPECT_EQ(request.spec().train().csv().path(), absl::StrCat(std::getenv("TEST_TMPDIR"), "/digits.csv"));
  EXPECT_EQ(request.nonce(), 42u);
  EXPECT_FALSE(request.dry_run());
  EXPECT_EQ(out_.str(), "");
}

TEST_F(CliTest, AnInvalidJobFileIsTwoAndNeverSent) {
  EXPECT_EQ(Run({"submit", "-f", GoodJobFile(), "--set", "bach.global=32"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("did you mean \"batch\""));
  EXPECT_EQ(Run({"submit", "-f", JobFile("kind: [")}), 2);
  EXPECT_EQ(Run({"submit", "-f", "/nowhere/job.yaml"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("/nowhere/job.yaml"));
  EXPECT_TRUE(cluster_.submitted.empty());
  EXPECT_EQ(cluster_.address, "");
}

TEST_F(CliTest, TheCoordinatorsRefusalHasItsExitCode) {
  const std::map<int, absl::Status> refusals = {
      {1, absl::AlreadyExistsError("a job of that name")}, {2, absl::InvalidArgumentError("labels out of range")},
      {6, absl::UnavailableError("not reached")}};
  for (const auto& [code, status] : refusals) {
    cluster_.submit_reply = status;
    EXPECT_EQ(Run({"submit", "-f", GoodJobFile()}), code);
    EXPECT_THAT(err_.str(), HasSubstr(std::string(status.message())));
  }
}

TEST_F(CliTest, ADryRunSaysThatTheJobIsValid) {
  cluster_.submit_reply->mutable_status()->set_parameters(1199882);
  EXPECT_EQ(Run({"submit", "-f", GoodJobFile(), "--dry-run", "--watch"}), 0);
  EXPECT_TRUE(cluster_.submitted.at(0).dry_run());
  EXPECT_THAT(out_.str(), HasSubstr("1,199,882 parameters"));
}

TEST_F(CliTest, WatchEndsWithTheAccuracyOnStandardOutput) {
  JobStatus end = Running();
  AddEpoch(&end, 0.95);
  cluster_.jobs = {Reply(Running()), Reply(end)};
  AddEpoch(&end, 0.97119);
  end.set_state(SUCCEEDED);
  cluster_.jobs.push_back(Reply(end));
  EXPECT_EQ(Run({"submit", "-f", GoodJobFile(), "--watch"}), 0);
  EXPECT_EQ(out_.str(), "test_accuracy=0.9712\n");
  EXPECT_THAT(err_.str(), HasSubstr("digits  epoch 1/5: train loss 0.5000, test loss 0.2500, test accuracy 0.9500, 9.1s\n"));
  EXPECT_THAT(err_.str(), HasSubstr("digits  SUCCEEDED"));
}

TEST_F(CliTest, AnEvaluatingJobsEpochsAreShownOnceTheyAreEvaluated) {
  JobStatus status = Running();
  AddEpoch(&status, 0.9);
  AddEpoch(&status, 0.9);
  status.mutable_epochs_done(0)->set_evaluated(false);  // and never is
  status.mutable_epochs_done(1)->set_evaluated(false);  // not yet
  JobReply reply = Reply(status);
  reply.mutable_spec()->mutable_evaluate()->set_every_epochs(2);
  cluster_.jobs = {reply};
  reply.mutable_status()->mutable_epochs_done(1)->set_evaluated(true);
  cluster_.jobs.push_back(reply);
  reply.mutable_status()->set_state(SUCCEEDED);
  cluster_.jobs.push_back(reply);
  EXPECT_EQ(Run({"wait", "digits"}), 0);
  EXPECT_THAT(err_.str(), Not(HasSubstr("epoch 1/5: ")));
  const std::string line = "digits  epoch 2/5: train loss 0.5000, test loss 0.2500, test accuracy 0.9000, 9.1s\n";
  ASSERT_THAT(err_.str(), HasSubstr(line));
  EXPECT_EQ(err_.str().find(line), err_.str().rfind(line));
}

TEST_F(CliTest, TheEndsStateIsTheExitCode) {
  const std::map<int, JobState> ends = {{0, SUCCEEDED}, {3, FAILED}, {4, CANCELLED}};
  for (const auto& [code, state] : ends) {
    JobStatus status = Running();
    status.set_state(state);
    status.set_reason("the reason");
    cluster_.jobs = {Reply(status)};
    EXPECT_EQ(Run({"wait", "digits"}), code);
    EXPECT_EQ(out_.str(), "");  // it never evaluated
    EXPECT_THAT(err_.str(), HasSubstr("the reason"));
  }
}

TEST_F(CliTest, AFailedJobHasNoAccuracy) {
  JobStatus status = Running();
  AddEpoch(&status, 0.9);
  status.set_state(FAILED);
  cluster_.jobs = {Reply(status)};
  EXPECT_EQ(Run({"wait", "digits"}), 3);
  EXPECT_EQ(out_.str(), "");
}

TEST_F(CliTest, WaitIsBounded) {
  cluster_.jobs = {Reply(Running())};
  EXPECT_EQ(Run({"wait", "digits", "--timeout", "10s"}), 7);
  EXPECT_EQ(now_, absl::UnixEpoch() + absl::Seconds(10));
  EXPECT_THAT(err_.str(), HasSubstr("starling wait digits"));
}

TEST_F(CliTest, WaitForNobodyIsFive) {
  EXPECT_EQ(Run({"wait", "nobody"}), 5);
}

TEST_F(CliTest, InterruptingAWatchDetachesAndSaysHowToComeBack) {
  cluster_.jobs = {Reply(Running())};
  interrupt_at_ = now_ + absl::Seconds(3);
  EXPECT_EQ(Run({"submit", "-f", GoodJobFile(), "--watch"}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("detached: digits goes on"));
  EXPECT_THAT(err_.str(), HasSubstr("starling wait digits"));
  EXPECT_TRUE(cluster_.cancelled.empty());
}

TEST_F(CliTest, AWatchOutlivesAShortAbsenceOfTheCoordinatorAndNotALongOne) {
  JobStatus end = Running();
  end.set_state(SUCCEEDED);
  cluster_.jobs = {Reply(Running()), absl::UnavailableError("gone"), absl::UnavailableError("gone"), Reply(end)};
  EXPECT_EQ(Run({"wait", "digits"}), 0);
  cluster_.jobs = {Reply(Running()), absl::UnavailableError("gone")};
  EXPECT_EQ(Run({"wait", "digits"}), 6);
  EXPECT_THAT(err_.str(), HasSubstr("starling: gone"));
}

TEST_F(CliTest, OffATerminalProgressIsALineEveryTwoSeconds) {
  JobStatus status = Running();
  for (int i = 0; i < 21; ++i) {  // a new step every 250 ms, for 5 s
    status.set_step(100 + i);
    cluster_.jobs.push_back(Reply(status));
  }
  EXPECT_EQ(Run({"wait", "digits", "--timeout", "5s"}), 7);
  std::vector<std::string> steps;
  std::istringstream lines(err_.str());
  for (std::string line; std::getline(lines, line);) {
    if (line.find("  step ") != std::string::npos) steps.push_back(line.substr(line.find("  step "), 10));
  }
  EXPECT_THAT(steps, ElementsAre("  step 100", "  step 108", "  step 116"));
  EXPECT_THAT(err_.str(), Not(HasSubstr("\x1b")));
}

TEST_F(CliTest, OnATerminalOneLineChangesInPlaceAndFits) {
  context_.terminal = true;
  context_.columns = 30;
  JobStatus end = Running();
  AddEpoch(&end, 0.95);
  end.set_state(SUCCEEDED);
  cluster_.jobs = {Reply(Running()), Reply(end)};
  EXPECT_EQ(Run({"wait", "digits"}), 0);
  EXPECT_THAT(err_.str(), StartsWith("\r\x1b[Kepoch 2/5 step 812/2,345 1,53\r\x1b[Kdigits  epoch 1/5: train loss"));
}

// ---- Lines ----------------------------------------------------------------------------------

TEST(Progress, OneLineSaysItAll) {
  const JobReply reply = Reply(Running());
  EXPECT_EQ(ProgressLine(reply.status(), reply.spec()),
            "digits  epoch 2/5  step 812/2,345  1,533 samples/s  loss 0.1312  staleness 1/2  83% hidden  ETA 1m40s");
}

TEST(Progress, WhatHasNoBoundShowsNone) {
  JobReply reply = Reply(Running());
  JobStatus* status = reply.mutable_status();
  status->set_epochs(1000000);
  status->set_staleness_bound(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(ProgressLine(*status, reply.spec()),
            "digits  epoch 2  step 812  1,533 samples/s  loss 0.1312  staleness 1  83% hidden");
  reply.mutable_spec()->mutable_stop()->set_wall_time_seconds(30);
  status->set_running_seconds(21);
  EXPECT_THAT(ProgressLine(*status, reply.spec()), HasSubstr("ETA 9.0s"));
}

TEST(Progress, TheShortLineFitsATerminal) {
  const JobReply reply = Reply(Running());
  EXPECT_EQ(ShortProgressLine(reply.status(), reply.spec()),
            "epoch 2/5 step 812/2,345 1,533/s loss 0.1312 stale 1/2 83% hidden ETA 1m40s");
}

TEST(Progress, BehindTheLastEpochNoneIsOpen) {
  JobReply reply = Reply(Running());
  reply.mutable_status()->set_epoch(5);
  EXPECT_THAT(ProgressLine(reply.status(), reply.spec()), HasSubstr("epoch 5/5"));
}

TEST(Progress, APendingJobSaysWhatItWaitsFor) {
  JobStatus status = Running();
  status.set_state(PENDING);
  status.set_reason("waits for 1 more worker");
  EXPECT_EQ(ProgressLine(status, JobSpec()), "digits  PENDING: waits for 1 more worker");
}

TEST(Output, NumbersForPeople) {
  EXPECT_EQ(CountText(7), "7");
  EXPECT_EQ(CountText(999), "999");
  EXPECT_EQ(CountText(1000), "1,000");
  EXPECT_EQ(CountText(1234567), "1,234,567");
  EXPECT_EQ(DurationText(-1), "0s");
  EXPECT_EQ(DurationText(0.42), "0.4s");
  EXPECT_EQ(DurationText(59.4), "59s");
  EXPECT_EQ(DurationText(59.6), "1m00s");
  EXPECT_EQ(DurationText(11100), "3h05m");
  EXPECT_EQ(BytesText(512), "512 B");
  EXPECT_EQ(BytesText(4799528), "4.6 MiB");
}

// ---- Get, describe, logs --------------------------------------------------------------------

TEST_F(CliTest, GetPrintsTablesAndTheSameAsJsonAndYaml) {
  *cluster_.job_list.add_jobs() = Running();
  AddEpoch(cluster_.job_list.mutable_jobs(0), 0.95);
  cluster_.job_list.mutable_jobs(0)->set_staleness_bound(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(Run({"get", "jobs"}), 0);
  EXPECT_EQ(out_.str(),
            "NAME    STATE    POLICY  EPOCH  STEP  LOSS    ACCURACY  SAMPLES/S  WORKERS  REASON\n"
            "digits  RUNNING  ssp(2)  2/5    812   0.1312  0.9500    1,533      0\n");
  EXPECT_EQ(Run({"get", "jobs", "-o", "json"}), 0);
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json[0]["name"], "digits");
  EXPECT_EQ(json[0]["state"], "RUNNING");
  EXPECT_EQ(json[0]["step"], 812);
  EXPECT_TRUE(json[0]["stalenessBound"].is_null());
  EXPECT_EQ(json[0]["epochsDone"][0]["testAccuracy"], 0.95);
  EXPECT_EQ(Run({"get", "jobs", "-o", "yaml"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("  name: \"digits\"\n  state: \"RUNNING\"\n"));
}

TEST_F(CliTest, GetWorkersAndShards) {
  WorkerStatus* worker = cluster_.workers.add_workers();
  worker->set_name("worker-0");
  worker->set_state("idle");
  ShardStatus* shard = cluster_.shards.add_shards();
  shard->set_name("shard-0");
  shard->set_state("ready");
  shard->set_value_bytes(4799528);
  EXPECT_EQ(Run({"get", "workers"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("\nworker-0  idle   -    0"));
  EXPECT_EQ(Run({"get", "shards"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("\nshard-0  ready  0           4.6 MiB"));
  EXPECT_EQ(Run({"describe", "shard", "shard-0", "-o", "json"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["valueBytes"], 4799528);
  EXPECT_EQ(Run({"describe", "worker", "worker-9"}), 5);
  EXPECT_THAT(err_.str(), HasSubstr("there is worker-0"));
}

TEST_F(CliTest, DescribeSaysWhatIsPromisedAndWhatIsMeasured) {
  JobStatus status = Running();
  AddEpoch(&status, 0.95);
  status.set_staleness_max(2);
  status.set_coverage_min(469);
  status.set_coverage_max(469);
  status.set_coverage_expected(469);
  status.set_not_reproducible_because("ssp(2) lets workers overtake each other");
  for (uint64_t count : {1203, 0, 10}) status.add_lag_histogram(count);
  JobReply reply = Reply(status);
  (*reply.mutable_spec()->mutable_labels())["team"] = "vision";
  (*reply.mutable_spec()->mutable_labels())["cost"] = "42";
  for (uint32_t partition = 0; partition < 5; ++partition) {
    View* view = reply.add_views();
    view->set_partition(partition);
    view->set_primary(partition == 3 ? 2 : 1);
    view->set_primary_address(partition == 3 ? "127.0.0.1:12" : "127.0.0.1:11");
  }
  cluster_.jobs = {reply};
  ShardStatus* shard = cluster_.shards.add_shards();
  shard->set_id(1);
  shard->set_name("shard-0");
  WorkerStatus* worker = cluster_.workers.add_workers();
  worker->set_name("worker-7");
  worker->set_job("digits");
  EXPECT_EQ(Run({"describe", "job", "digits"}), 0);
  for (const char* line : {"State:         RUNNING\n", "Labels:        cost=42, team=vision\n", "Parameters:    1,199,882\n", "Progress:      epoch 2/5, step 812/2,345\n",
                           "Speed:         1,533 samples/s, 83% of communication hidden\n",
                           "Staleness:     now 1, max 2, bound 2\n", "Lag of pulls:  0: 1,203, 2+: 10\n",
                           "Coverage:      min 469, max 469 of 469 updates per slice in the last complete epoch\n",
                           "Reproducible:  no: ssp(2) lets workers overtake each other\n",
                           "  1      0.5000      0.2500     0.9500         9.1s\n", "  worker-7",
                           "  shard-0  127.0.0.1:11  4 (0-2,4)\n", "  shard 2  127.0.0.1:12  1 (3)\n"}) {
    EXPECT_THAT(out_.str(), HasSubstr(line));
  }
  EXPECT_EQ(Run({"describe", "job", "digits", "-o", "json"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["status"]["coverageMax"], 469);
}

LogsReply Logged(std::vector<std::pair<uint64_t, std::string>> entries, JobState state) {
  LogsReply reply;
  reply.set_state(state);
  for (const auto& [number, text] : entries) {
    LogEntry* entry = reply.add_entries();
    entry->set_number(number);
    entry->set_time("T");
    entry->set_text(text);
  }
  return reply;
}

TEST_F(CliTest, LogsPrintsWhatIsThere) {
  cluster_.logs = {Logged({{1, "submitted"}, {2, "started"}}, RUNNING), Logged({}, RUNNING)};
  EXPECT_EQ(Run({"logs", "digits"}), 0);
  EXPECT_EQ(out_.str(), "T  submitted\nT  started\n");
  EXPECT_EQ(cluster_.logs_asked.at(1).after(), 2u);
  EXPECT_EQ(cluster_.logs_asked.at(1).wait_seconds(), 0);
}

TEST_F(CliTest, LogsFollowsToTheEnd) {
  cluster_.logs = {Logged({{1, "a"}}, RUNNING), Logged({}, RUNNING), Logged({{2, "b"}}, SUCCEEDED),
                   Logged({}, SUCCEEDED)};
  EXPECT_EQ(Run({"logs", "digits", "-f"}), 0);
  EXPECT_EQ(out_.str(), "T  a\nT  b\n");
  EXPECT_GT(cluster_.logs_asked.at(2).wait_seconds(), 0);
}

TEST_F(CliTest, SetSendsThePolicyAndSaysItsNumber) {
  cluster_.set_reply->set_number(1);
  PolicyRecord* record = cluster_.set_reply->mutable_status()->add_policies();
  record->set_number(1);
  record->mutable_policy()->set_kind(Policy::SSP);
  record->mutable_policy()->set_staleness(3);
  EXPECT_EQ(Run({"set", "digits", "consistency=ssp:3"}), kExitOk);
  EXPECT_THAT(err_.str(), HasSubstr("digits: policy 1, ssp(3), takes effect"));
  ASSERT_EQ(cluster_.set.size(), 1u);
  EXPECT_EQ(cluster_.set[0].name(), "digits");
  EXPECT_EQ(cluster_.set[0].policy().kind(), Policy::SSP);
  EXPECT_EQ(cluster_.set[0].policy().staleness(), 3u);
  EXPECT_NE(cluster_.set[0].nonce(), 0u);
  EXPECT_EQ(Run({"set", "digits", "consistency=bsp"}), kExitOk);
  EXPECT_EQ(cluster_.set[1].policy().kind(), Policy::BSP);
  EXPECT_EQ(Run({"set", "digits", "consistency=async"}), kExitOk);
  EXPECT_EQ(cluster_.set[2].policy().kind(), Policy::ASYNC);
}

TEST_F(CliTest, SetRefusesWhatItDoesNotKnow) {
  for (const char* wrong : {"consistency=ssp", "consistency=ssp:", "consistency=ssp:-1", "consistency=sp:3",
                            "consistency", "batch=3", "consistency=ssp:99999999"}) {
    EXPECT_EQ(Run({"set", "digits", wrong}), kExitUsage) << wrong;
    EXPECT_THAT(err_.str(), HasSubstr("expected")) << wrong;
  }
  EXPECT_TRUE(cluster_.set.empty());
}

TEST_F(CliTest, DescribeTellsThePolicysHistory) {
  JobStatus status = Running();
  for (const auto kind : {Policy::BSP, Policy::ASYNC, Policy::BSP}) {
    PolicyRecord* record = status.add_policies();
    record->set_number(status.policies_size() - 1);
    record->mutable_policy()->set_kind(kind);
    record->set_in_force(status.policies_size() < 3);
    if (record->in_force()) record->set_step(100 * record->number());
    record->set_by(record->number() == 0 ? "job file" : "set");
  }
  cluster_.jobs = {Reply(status)};
  EXPECT_EQ(Run({"describe", "job", "digits"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("Policies:\n"));
  EXPECT_THAT(out_.str(), ::testing::ContainsRegex("0 +bsp +0 +was +job file"));
  EXPECT_THAT(out_.str(), ::testing::ContainsRegex("1 +async +100 +in force +set"));
  EXPECT_THAT(out_.str(), ::testing::ContainsRegex("2 +bsp +- +waits +set"));
}

TEST_F(CliTest, ALossThatKnowsNoRightOrWrongHasNoAccuracy) {
  JobStatus status = Running();
  AddEpoch(&status, 0);
  status.mutable_epochs_done(0)->clear_test_accuracy();
  status.set_state(SUCCEEDED);
  cluster_.jobs = {Reply(status)};
  EXPECT_EQ(Run({"wait", "digits"}), kExitOk);
  EXPECT_EQ(out_.str(), "test_loss=0.2500\n");
  EXPECT_THAT(err_.str(), Not(HasSubstr("accuracy")));
  EXPECT_EQ(Run({"describe", "job", "digits"}), kExitOk);
  EXPECT_THAT(out_.str(), ::testing::ContainsRegex("0\\.2500 +- "));
}

TEST_F(CliTest, CancelAndDelete) {
  EXPECT_EQ(Run({"cancel", "digits"}), 0);
  EXPECT_THAT(cluster_.cancelled, ElementsAre("digits"));
  EXPECT_EQ(Run({"delete", "digits"}), 0);
  EXPECT_THAT(cluster_.removed, ElementsAre("digits"));
  cluster_.remove = absl::NotFoundError("no job is called digits");
  EXPECT_EQ(Run({"delete", "digits"}), 5);
  cluster_.cancel = absl::FailedPreconditionError("it has ended");
  EXPECT_EQ(Run({"cancel", "digits"}), 1);
}

// ---- Export ---------------------------------------------------------------------------------

// A model of two parameters and one statistic, whose flat buffer is 0, 1, 2, ...
class ExportTest : public CliTest {
 protected:
  ExportTest() {
    JobStatus status = Running();
    status.set_state(SUCCEEDED);
    reply_ = Reply(status);
    reply_.add_views();
    Graph* model = reply_.mutable_spec()->mutable_model();
    AddParameter(model, "conv.weight", {2, 3}, TRAINABLE);
    AddParameter(model, "bn.mean", {2}, STATISTIC);
    AddParameter(model, "fc.bias", {4}, TRAINABLE);
    reply_.mutable_spec()->mutable_train()->mutable_csv()->set_path("/d.csv");
    reply_.mutable_spec()->mutable_normalize()->add_mean(8);
    cluster_.jobs = {reply_};
    context_.read_slices = [this](const JobReply&, const Layout& layout, const ReadPoint& point, absl::Time,
                                  const SliceConsumer& consume) -> absl::Status {
      points_.push_back(point);
      for (const Slice& slice : layout.slices) {
        std::vector<float> values(slice.elements);
        std::iota(values.begin(), values.end(), static_cast<float>(slice.flat_begin));
        const absl::Status status = consume(slice, values);
        if (!status.ok()) return status;
        if (!refusals_.empty()) {
          const absl::Status refusal = refusals_.front();
          refusals_.pop_front();
          return refusal;
        }
      }
      return absl::OkStatus();
    };
    path_ = absl::StrCat(std::getenv("TEST_TMPDIR"), "/out.safetensors");
    std::remove(path_.c_str());
  }

  static void AddParameter(Graph* model, const std::string& name, const std::vector<int64_t>& shape, ParameterKind kind) {
    Parameter* parameter = model->add_parameters();
    parameter->set_name(name);
    for (int64_t dim : shape) parameter->add_shape(dim);
    parameter->set_kind(kind);
    if (kind == STATISTIC) parameter->set_statistic_momentum(0.1);
  }

  int Export() { return Run({"export", "digits", "--format", "safetensors", "-o", path_}); }

  JobReply reply_;
  std::string path_;
  std::vector<ReadPoint> points_;
  std::deque<absl::Status> refusals_;
};

TEST_F(ExportTest, WritesEveryParameterUnderItsName) {
  ASSERT_EQ(Export(), 0) << err_.str();
  EXPECT_FALSE(points_.at(0).epoch.has_value());
  const auto file = safetensors::Reader::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(*file->ReadFloats("conv.weight"), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(*file->ReadFloats("fc.bias"), ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(*file->ReadFloats("bn.mean"), ElementsAre(10, 11));
  EXPECT_THAT(file->Find("conv.weight")->shape, ElementsAre(2, 3));
  const auto& metadata = file->header().metadata;
  EXPECT_EQ(metadata.at("format"), "pt");
  EXPECT_EQ(metadata.at("job"), "digits");
  EXPECT_EQ(metadata.at("step"), "812");
  const auto model = nlohmann::json::parse(metadata.at("model"));
  EXPECT_EQ(model["parameters"][0]["name"], "conv.weight");
  EXPECT_EQ(model["parameters"][1]["kind"], "STATISTIC");
  const auto preprocessing = nlohmann::json::parse(metadata.at("preprocessing"));
  EXPECT_EQ(preprocessing["train"]["csv"]["path"], "/d.csv");
  EXPECT_EQ(preprocessing["normalize"]["mean"][0], 8);
}

TEST_F(ExportTest, ARunningJobGivesItsNewestEvaluatedEpoch) {
  reply_.mutable_status()->set_state(RUNNING);
  cluster_.jobs = {reply_};
  EXPECT_EQ(Export(), 1);
  EXPECT_THAT(err_.str(), HasSubstr("no complete copy of its parameters yet"));
  EXPECT_TRUE(points_.empty());
  AddEpoch(reply_.mutable_status(), 0.9);
  AddEpoch(reply_.mutable_status(), 0.9);
  cluster_.jobs = {reply_};
  EXPECT_EQ(Export(), 0);
  EXPECT_EQ(points_.at(0).epoch, 1u);
  EXPECT_THAT(err_.str(), HasSubstr("after epoch 2"));
}

// It may have ended in the middle of a step; the least that all slices have is consistent.
TEST_F(ExportTest, ABspJobIsReadAtTheVersionThatAllSlicesHave) {
  reply_.mutable_spec()->mutable_policy()->set_kind(Policy::BSP);
  reply_.mutable_status()->set_state(FAILED);
  cluster_.jobs = {reply_};
  EXPECT_EQ(Export(), 1);
  EXPECT_THAT(err_.str(), HasSubstr("not all shards of digits have reported"));
  reply_.mutable_status()->set_sealed_steps(411);
  cluster_.jobs = {reply_};
  EXPECT_EQ(Export(), 0);
  EXPECT_EQ(points_.at(0).version, 411u);
  const auto file = safetensors::Reader::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header().metadata.at("step"), "411");
}

TEST_F(ExportTest, ACopyThatIsReplacedIsReadAnew) {
  refusals_ = {absl::AbortedError("that copy is gone")};
  EXPECT_EQ(Export(), 0);
  EXPECT_EQ(points_.size(), 2u);
  refusals_ = {absl::AbortedError("gone"), absl::AbortedError("gone"), absl::AbortedError("gone")};
  EXPECT_EQ(Export(), 1);
  EXPECT_THAT(err_.str(), HasSubstr("cannot export digits: gone"));
}

TEST_F(ExportTest, AFailureLeavesNoFile) {
  refusals_ = {absl::UnavailableError("shard 2 at 127.0.0.1:9 is not there")};
  EXPECT_EQ(Export(), 1);  // the coordinator is there: not kExitUnreachable
  EXPECT_THAT(err_.str(), HasSubstr("127.0.0.1:9"));
  EXPECT_FALSE(std::ifstream(path_).good());
}

TEST_F(ExportTest, WhatHasNoParametersIsRefused) {
  reply_.clear_views();
  reply_.mutable_status()->set_state(PENDING);
  cluster_.jobs = {reply_};
  EXPECT_EQ(Export(), 1);
  EXPECT_THAT(err_.str(), HasSubstr("digits is PENDING and has no parameters"));
  EXPECT_EQ(Run({"export", "digits", "--format", "npz", "-o", path_}), 2);
}

}  // namespace
}  // namespace starling::cli
