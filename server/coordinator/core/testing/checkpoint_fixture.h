// The fixture of the tests of checkpoints: two shards, a worker, and questions about checkpoints.
#ifndef STARLING_SERVER_COORDINATOR_CORE_TESTING_CHECKPOINT_FIXTURE_H_
#define STARLING_SERVER_COORDINATOR_CORE_TESTING_CHECKPOINT_FIXTURE_H_

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/records.h"
#include "server/coordinator/core/state.pb.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {

class CheckpointTest : public CoordinatorTest {
 protected:
  CheckpointTest() {
    cluster.train_samples = 4000;  // 1,000 steps in an epoch
    for (const char* name : {"ps-0", "ps-1"}) cluster.AddShard(name);
    Workers(1);
    cluster.RunFor(absl::Seconds(1));
  }

  static JobSpec Bsp(const std::string& name, uint64_t every_steps = 0) {
    JobSpec spec = MiniCluster::Spec(name, Policy::BSP, 1, 1);
    spec.clear_evaluate();
    if (every_steps > 0) spec.mutable_checkpoint()->set_every_steps(every_steps);
    spec.mutable_checkpoint()->set_keep(2);
    if (every_steps == 0) spec.clear_checkpoint();
    return spec;
  }
  CallId Create(const std::string& job, uint64_t nonce = 0) {
    CreateCheckpointRequest request;
    request.set_name(job);
    request.set_nonce(nonce);
    const CallId call = cluster.NewCall();
    cluster.Step(event::CreateCheckpoint{call, request});
    return call;
  }
  static std::string ErrorOf(const CallReply& reply) {
    const auto* status = std::get_if<absl::Status>(&reply);
    return status == nullptr ? "" : std::string(status->message());
  }
  // The checkpoint of the call.
  CheckpointInfo Made(CallId call) {
    const CallReply reply = cluster.Await(call);
    const auto* made = std::get_if<CreateCheckpointReply>(&reply);
    EXPECT_NE(made, nullptr) << ErrorOf(reply);
    return made == nullptr ? CheckpointInfo() : made->checkpoint();
  }
  std::vector<CheckpointInfo> List(const std::string& job = "") {
    ListCheckpointsRequest request;
    request.set_name(job);
    const CallReply reply = cluster.Ask<event::ListCheckpoints>(request);
    EXPECT_EQ(ErrorOf(reply), "");
    const auto& list = std::get<ListCheckpointsReply>(reply).checkpoints();
    return {list.begin(), list.end()};
  }
  std::vector<uint64_t> Numbers(const std::string& job = "") {
    std::vector<uint64_t> numbers;
    for (const CheckpointInfo& info : List(job))
      numbers.push_back(ParseCheckpointId(info.id())->number);
    return numbers;
  }
  std::string DeleteError(const std::string& id) {
    DeleteCheckpointRequest request;
    request.set_id(id);
    return ErrorOf(cluster.Ask<event::DeleteCheckpoint>(request));
  }
  CheckpointStatus Of(const std::string& job) { return cluster.Status(job).checkpoint(); }
  bool Comes(const std::function<bool()>& condition, absl::Duration limit = absl::Seconds(20)) {
    return cluster.RunUntil(condition, limit);
  }
  bool ComesTo(const std::string& stage) {
    return Comes([&] { return Of("a").stage() == stage; });
  }
  static SubmitRequest From(const std::string& from, const std::string& name = "") {
    SubmitRequest request;
    request.set_from(from);
    request.set_name(name);
    return request;
  }
  // As it is durable.
  JobDescription DescriptionOf(const std::string& job) {
    StoredJob stored;
    EXPECT_TRUE(stored.ParseFromString(cluster.store[records::Job(cluster.Status(job).uid())]));
    return stored.description();
  }
  std::string SubmitFromError(const SubmitRequest& request) {
    return ErrorOf(cluster.Submit(request));
  }
  void ForEachShard(const std::function<void(MiniCluster::MiniShard&)>& act) {
    for (auto& [name, shard] : cluster.shards) act(shard);
  }
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_TESTING_CHECKPOINT_FIXTURE_H_
