// A fake coordinator with the command line in front of it, for tests of the verbs.
#ifndef STARLING_TOOLS_CLI_TESTING_CLI_FIXTURE_H_
#define STARLING_TOOLS_CLI_TESTING_CLI_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/cli/app.h"

namespace starling::cli {

inline JobStatus Running() {
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

inline JobReply Reply(const JobStatus& status) {
  JobReply reply;
  *reply.mutable_status() = status;
  reply.mutable_spec()->mutable_batch()->set_global(100);
  return reply;
}

inline void AddEpoch(JobStatus* status, double accuracy) {
  EpochResult* result = status->add_epochs_done();
  result->set_epoch(status->epochs_done_size() - 1);
  result->set_train_loss(0.5);
  result->set_test_loss(0.25);
  result->set_test_accuracy(accuracy);
  result->set_evaluated(true);
  result->set_seconds(9.13);
}

// Answers with what the test sets, and records the requests.
struct FakeCluster {
  std::vector<SubmitRequest> submitted;
  absl::StatusOr<SubmitReply> submit_reply = SubmitReply();
  std::deque<absl::StatusOr<JobReply>> jobs;  // the last one is repeated
  ListJobsReply job_list;
  uint32_t page_max = 1000;
  std::vector<ListJobsRequest> lists_asked;
  ListWorkersReply workers;
  ListShardsReply shards;
  std::deque<absl::StatusOr<CurvesReply>> curves;  // the last one is repeated
  std::deque<LogsReply> logs;
  std::vector<LogsRequest> logs_asked;
  absl::Status cancel, remove;
  std::vector<std::string> cancelled, removed;
  std::vector<SetPolicyRequest> set;
  absl::StatusOr<SetPolicyReply> set_reply = SetPolicyReply();
  absl::StatusOr<ExplainReply> explained = ExplainReply();
  absl::StatusOr<CreateCheckpointReply> checkpoint = CreateCheckpointReply();
  std::vector<CreateCheckpointRequest> checkpoints_asked;
  ListCheckpointsReply checkpoint_list;
  std::vector<std::string> checkpoints_of;  // the jobs whose lists were asked for
  absl::Status remove_checkpoint;
  std::vector<std::string> checkpoints_removed;
  // By address; other addresses are unreachable.
  std::map<std::string, InfoReply> infos;
  std::map<std::string, NodeReply> nodes;
  // By the daemon that measures, and its target.
  std::map<std::pair<std::string, std::string>, MeasureReply> measured;
  std::string address;  // the address that was connected to
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
  // Pages of job_list; `next` is the number of jobs before the page.
  absl::StatusOr<ListJobsReply> ListJobs(const ListJobsRequest& request) override {
    cluster_.lists_asked.push_back(request);
    ListJobsReply page;
    *page.mutable_warnings() = cluster_.job_list.warnings();
    const uint32_t size = request.page().size() == 0
                              ? cluster_.page_max
                              : std::min(request.page().size(), cluster_.page_max);
    int skip = request.page().after().empty() ? 0 : std::stoi(request.page().after());
    for (const JobStatus& job : cluster_.job_list.jobs()) {
      const auto& states = request.states();
      if (!states.empty() && std::count(states.begin(), states.end(), job.state()) == 0) continue;
      page.set_total(page.total() + 1);
      if (skip > 0) {
        --skip;
      } else if (page.jobs_size() < static_cast<int>(size)) {
        *page.add_jobs() = job;
      } else if (page.next().empty()) {
        page.set_next(absl::StrCat(page.total() - 1));
      }
    }
    return page;
  }
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
  absl::StatusOr<CurvesReply> Curves(const std::string&) override {
    if (cluster_.curves.empty()) return absl::NotFoundError("no job is called that");
    auto reply = cluster_.curves.front();
    if (cluster_.curves.size() > 1) cluster_.curves.pop_front();
    return reply;
  }
  absl::StatusOr<LogsReply> Logs(const LogsRequest& request) override {
    cluster_.logs_asked.push_back(request);
    LogsReply reply;
    if (cluster_.logs.empty()) return reply;
    reply = cluster_.logs.front();
    cluster_.logs.pop_front();
    return reply;
  }
  absl::StatusOr<ExplainReply> Explain(const std::string&) override { return cluster_.explained; }
  absl::StatusOr<CreateCheckpointReply> CreateCheckpoint(
      const CreateCheckpointRequest& request) override {
    cluster_.checkpoints_asked.push_back(request);
    return cluster_.checkpoint;
  }
  absl::StatusOr<ListCheckpointsReply> ListCheckpoints(const std::string& job) override {
    cluster_.checkpoints_of.push_back(job);
    return cluster_.checkpoint_list;
  }
  absl::Status DeleteCheckpoint(const std::string& id) override {
    cluster_.checkpoints_removed.push_back(id);
    return cluster_.remove_checkpoint;
  }

 private:
  FakeCluster& cluster_;
};

class FakeDaemons : public Daemons {
 public:
  explicit FakeDaemons(const FakeCluster& cluster) : cluster_(cluster) {}
  absl::StatusOr<InfoReply> Info(const std::string& address) override {
    return Find(cluster_.infos, address, address);
  }
  absl::StatusOr<NodeReply> Node(const std::string& address) override {
    return Find(cluster_.nodes, address, address);
  }
  absl::StatusOr<MeasureReply> Measure(const std::string& address,
                                       const MeasureRequest& request) override {
    return Find(cluster_.measured, {address, request.address()}, address);
  }
  absl::StatusOr<SpansReply> Spans(const std::string& address, const SpansRequest&) override {
    return absl::UnavailableError(absl::StrCat(address, ": connection refused"));
  }

 private:
  template <typename Key, typename Reply>
  static absl::StatusOr<Reply> Find(const std::map<Key, Reply>& replies, const Key& key,
                                    const std::string& address) {
    const auto it = replies.find(key);
    if (it != replies.end()) return it->second;
    return absl::UnavailableError(absl::StrCat(address, ": connection refused"));
  }
  const FakeCluster& cluster_;
};

class CliTest : public ::testing::Test {
 protected:
  CliTest() : context_{.out = out_, .err = err_} {
    environment_["STARLING_COORDINATOR"] = "127.0.0.1:1";
    context_.environment = [this](const std::string& name) -> std::optional<std::string> {
      const auto it = environment_.find(name);
      return it == environment_.end() ? std::nullopt : std::optional<std::string>(it->second);
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
    context_.daemons = [this] { return std::make_unique<FakeDaemons>(cluster_); };
    context_.describe_node = [this] { return node_; };
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
  NodeReply node_;  // this machine
  Context context_;
};

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_TESTING_CLI_FIXTURE_H_
