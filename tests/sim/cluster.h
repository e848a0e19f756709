// A whole cluster in one thread: coordinator, shards, workers, a client, and what goes wrong.
#ifndef STARLING_TESTS_SIM_CLUSTER_H_
#define STARLING_TESTS_SIM_CLUSTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/checker.h"
#include "tests/sim/coordinator_node.h"
#include "tests/sim/network.h"
#include "tests/sim/shard_node.h"
#include "tests/sim/sim_streams.h"
#include "tests/sim/worker_node.h"
#include "tests/sim/workload.h"
#include "tests/sim/world.h"

namespace starling::sim {

struct ClusterShape {
  int shards = 2;
  int workers = 3;
  bool faults = true;
  bool second_job = false;
};

class Cluster {
 public:
  Cluster(uint64_t seed, const ClusterShape& shape);

  // Until all jobs are over and what must then hold was checked, or time is up (G8).
  void Run();

  World& world() { return world_; }
  Network& network() { return network_; }
  SimStreams& streams() { return streams_; }
  CoordinatorNode& coordinator() { return coordinator_; }

  // Of the first job: 0 if it did not succeed.
  uint64_t final_hash() const;

  // ---- For the nodes ----
  ShardNode* ShardAt(const std::string& address);
  JobTruth* Truth(const JobDescription& job);
  const Workload& WorkloadOf(const std::string& job_name) const;

  // Not registered: kUnavailable where no answer came, or the coordinator's refusal.
  void Register(Process* caller, const RegisterRequest& request,
                std::function<void(absl::StatusOr<RegisterReply>)> done);

  // A call that is answered with Reply, or with a status: the coordinator's, or kUnavailable where
  // no answer came in time.
  template <typename Reply>
  void CallForStatus(Process* caller, uint64_t generation_seen, CoordinatorNode::MakeEvent event,
                     std::function<void(absl::StatusOr<Reply>)> done) {
    CallWith<Reply>(
        caller,
        [this, generation_seen, event](CoordinatorNode::Answer answer) {
          coordinator_.Serve(event, generation_seen, std::move(answer));
        },
        std::move(done));
  }

  // The same, where `serve` hands the call to the coordinator.
  template <typename Reply>
  void CallWith(Process* caller, std::function<void(CoordinatorNode::Answer)> serve,
                std::function<void(absl::StatusOr<Reply>)> done) {
    network_.Call<coordinator::CallReply>(
        caller, &coordinator_, std::move(serve),
        [this, done](std::optional<coordinator::CallReply> reply) {
          if (!reply.has_value()) return done(absl::UnavailableError("no answer"));
          if (std::holds_alternative<Reply>(*reply)) {
            return done(std::get<Reply>(std::move(*reply)));
          }
          const absl::Status* const refused = std::get_if<absl::Status>(&*reply);
          if (refused == nullptr) return done(absl::InternalError("another reply"));
          OnRefusedCall(*refused);
          done(*refused);
        });
  }

  // A call that is answered with Reply, or with nothing (lost, refused, too late).
  template <typename Reply>
  void Call(Process* caller, uint64_t generation_seen, CoordinatorNode::MakeEvent event,
            std::function<void(std::optional<Reply>)> done) {
    CallForStatus<Reply>(caller, generation_seen, std::move(event),
                         [done](absl::StatusOr<Reply> reply) {
                           if (!reply.ok()) return done(std::nullopt);
                           done(*std::move(reply));
                         });
  }

 private:
  struct ClientJob {
    Workload workload;
    uint64_t nonce = 0;
    uint64_t uid = 0;
    bool over = false;
    std::unique_ptr<JobTruth> truth;
  };

  void OnRefusedCall(const absl::Status& status);
  void Submit(size_t job);
  void Poll(size_t job);
  void PlanSwitches(size_t job);
  void SetPolicy(size_t job, const Policy& policy, uint64_t nonce);
  void Finish(size_t job, const JobStatus& status);
  void ListJobs();
  bool AllOver() const;

  // faults.cc
  void PlanFaults();
  void NextFault();
  void Heal();
  void CutWorker();
  void CrashWorker();
  void CrashCoordinator();
  void CrashShard();
  void StepWall();
  void Pause();
  void DrainWorker();
  void Revive(WorkerNode* worker, absl::Duration after);

  const uint64_t seed_;
  const ClusterShape shape_;
  World world_;
  Network network_;
  SimStreams streams_{&world_, &network_};
  ControlTruth control_;
  CoordinatorNode coordinator_;
  std::vector<std::unique_ptr<ShardNode>> shards_;
  std::vector<std::unique_ptr<WorkerNode>> workers_;
  std::vector<ClientJob> jobs_;
  Process client_;
  bool listed_ = false;

  absl::Time heal_at_;
  absl::Duration fault_interval_;
  bool may_crash_shard_ = false;
  bool shard_crashed_ = false;
};

// One seed, with the reference run where bits must be equal.
struct SeedResult {
  uint64_t seed = 0;
  uint64_t trace = 0;
  std::vector<Violation> violations;  // the first ones
  std::set<Promise> violated;
  std::map<std::string, uint64_t> counts;
  absl::Duration simulated;
};
SeedResult RunSeed(uint64_t seed);

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_CLUSTER_H_
