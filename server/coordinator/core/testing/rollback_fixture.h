// A cluster with two shards, a worker and a disk of checkpoints, and a job that goes back there.
#ifndef STARLING_SERVER_COORDINATOR_CORE_TESTING_ROLLBACK_FIXTURE_H_
#define STARLING_SERVER_COORDINATOR_CORE_TESTING_ROLLBACK_FIXTURE_H_

#include <functional>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "server/coordinator/core/records.h"
#include "server/coordinator/core/state.pb.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {

class RollbackTest : public CoordinatorTest {
 protected:
  RollbackTest() {
    cluster.train_samples = 400;  // 100 steps in an epoch
    for (const char* name : {"ps-0", "ps-1"}) cluster.AddShard(name);
    Workers(1);
    cluster.RunFor(absl::Seconds(1));
  }

  static JobSpec Job(const std::string& name, uint64_t every_steps = 30,
                     Policy::Kind policy = Policy::BSP) {
    JobSpec spec = MiniCluster::Spec(name, policy, 1, 1);
    spec.clear_evaluate();
    spec.mutable_stop()->set_epochs(4);
    if (every_steps > 0) spec.mutable_checkpoint()->set_every_steps(every_steps);
    if (every_steps > 0) spec.mutable_checkpoint()->set_keep(2);
    return spec;
  }
  bool Comes(const std::function<bool()>& condition, absl::Duration limit = absl::Seconds(30)) {
    return cluster.RunUntil(condition, limit);
  }
  CheckpointInfo Last() { return cluster.Status("a").checkpoint().last(); }
  // The job is so far beyond its last checkpoint, of at least this number.
  void RunBeyond(uint64_t number, uint64_t steps = 5) {
    ASSERT_TRUE(Comes([&] {
      const auto id = ParseCheckpointId(Last().id());
      return id && id->number >= number && cluster.Status("a").step() >= Last().step() + steps;
    })) << cluster.JobLog("a");
  }
  CheckpointInfo Create(const std::string& job = "a") {
    CreateCheckpointRequest request;
    request.set_name(job);
    const CallReply reply = cluster.Ask<event::CreateCheckpoint>(request);
    const auto* made = std::get_if<CreateCheckpointReply>(&reply);
    EXPECT_NE(made, nullptr);
    return made == nullptr ? CheckpointInfo() : made->checkpoint();
  }
  // Another process takes its place: what the shard had is lost.
  void Replace(const std::string& shard) { cluster.AddShard(shard); }
  void KillShards() {
    for (auto& [name, shard] : cluster.shards) shard.alive = false;
  }
  // The job has gone back, then the coordinator starts without the folder, and so do the shards.
  void ComeBackWithoutTheMount() {
    Submit(Job("a"));
    RunBeyond(1);
    KillShards();
    ASSERT_TRUE(Comes([&] { return cluster.Status("a").restarts() == 1; }));
    cluster.mounted = false;
    cluster.StartCoordinator();
    for (const char* name : {"ps-0", "ps-1"}) Replace(name);
    cluster.RunFor(absl::Seconds(25));
  }
  bool GoesBack(uint32_t restarts = 1, const std::string& job = "a") {
    return Comes([&] {
      const JobStatus status = cluster.Status(job);
      return status.restarts() == restarts && status.state() == RUNNING;
    });
  }
  // As it is durable.
  JobDescription Description(uint64_t uid = 1) {
    StoredJob stored;
    EXPECT_TRUE(stored.ParseFromString(cluster.store[records::Job(uid)]));
    return stored.description();
  }
  // A job that continues that of the checkpoint; with `spec`, another one that begins with it.
  absl::Status SubmitFrom(const std::string& checkpoint, const std::string& name,
                          const std::optional<JobSpec>& spec = std::nullopt) {
    SubmitRequest request;
    request.set_from(checkpoint);
    if (spec) *request.mutable_spec() = *spec;
    if (!spec) request.set_name(name);
    const CallReply reply = cluster.Submit(request);
    const auto* error = std::get_if<absl::Status>(&reply);
    return error == nullptr ? absl::OkStatus() : *error;
  }
  // Of job a, which is then over.
  CheckpointInfo Leaves(uint64_t step) {
    Submit(Job("a", /*every_steps=*/0));
    EXPECT_TRUE(Comes([&] { return cluster.Status("a").step() > step; }));
    const CheckpointInfo made = Create();
    EXPECT_TRUE(AskJob<event::CancelJob>("a").ok());
    return made;
  }
  StoredJobState State() {
    StoredJobState state;
    EXPECT_TRUE(state.ParseFromString(cluster.store[records::JobState(1)]));
    return state;
  }
  std::string Reason() { return cluster.Status("a").reason(); }
  // As `explain` says it of job a.
  std::string WhyPending() {
    ExplainRequest request;
    request.set_name("a");
    const CallReply reply = cluster.Ask<event::Explain>(request);
    std::string text;
    for (const Finding& finding : std::get<ExplainReply>(reply).findings()) {
      if (finding.cause() == "pending") text = finding.text();
    }
    return text;
  }
  void CannotWrite(const std::string& why) {
    for (auto& [name, shard] : cluster.shards) shard.checkpoint_fails = why;
  }
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_TESTING_ROLLBACK_FIXTURE_H_
