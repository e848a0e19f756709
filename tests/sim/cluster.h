// A whole cluster in one thread: coordinator, shards, workers, a client, and their faults.
#ifndef STARLING_TESTS_SIM_CLUSTER_H_
#define STARLING_TESTS_SIM_CLUSTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/checkpoint/testing/memory_disk.h"
#include "tests/sim/checker.h"
#include "tests/sim/checkpoint_truth.h"
#include "tests/sim/control_truth.h"
#include "tests/sim/coordinator_node.h"
#include "tests/sim/network.h"
#include "tests/sim/reader.h"
#include "tests/sim/rollback_truth.h"
#include "tests/sim/shard_process.h"
#include "tests/sim/shard_watch.h"
#include "tests/sim/sim_disk.h"
#include "tests/sim/sim_streams.h"
#include "tests/sim/worker_node.h"
#include "tests/sim/workload.h"
#include "tests/sim/world.h"

namespace starling::sim {

// What a job goes on from, in another cluster.
struct Source {
  std::shared_ptr<MemoryDisk> disk;
  std::string checkpoint;
  const Workload* workload = nullptr;
  const JobTruth* truth = nullptr;               // of the run that it is of
  const CheckpointTruth* checkpoints = nullptr;  // of its cluster
  bool damaged = false;                          // since it was made
};

struct ClusterShape {
  int shards = 2;
  int workers = 3;
  bool faults = true;
  int jobs = 1;
  bool in_turn = false;          // each job is submitted when the one before is over
  uint64_t steps = 0;            // of each job, without a limit of its time; 0: as its spec says
  bool checkpoints = false;      // jobs take them
  const Source* from = nullptr;  // the one job goes on from it; else jobs begin with step 0
  const std::set<FaultId>* allowed = nullptr;  // the only faults that happen; null: all
};

class Cluster : private StreamObserver {
 public:
  Cluster(uint64_t seed, const ClusterShape& shape);

  // Runs until all jobs are over and checked, or time is up (G8).
  void Run();

  World& world() { return world_; }
  Network& network() { return network_; }
  SimStreams& streams() { return streams_; }
  CoordinatorNode& coordinator() { return coordinator_; }

  // Of the first job; 0 if it did not succeed.
  uint64_t final_hash() const;
  uint64_t final_steps() const { return jobs_.front().truth()->final_steps(); }
  // Of the first job's newest run; null: no daemon has heard of it.
  const JobTruth* first_truth() const { return jobs_.front().truth(); }
  const Workload& first_workload() const { return jobs_.front().workload; }
  CheckpointTruth& checkpoints() { return checkpoints_; }
  const std::shared_ptr<MemoryDisk>& stored() const { return stored_; }

  // ---- For the nodes ----
  ShardWatch& watch() { return watch_; }
  JobTruth* Truth(const JobDescription& job);
  // nullptr: Truth was never called for this run.
  JobTruth* TruthOf(RunId run);
  const Workload& WorkloadOf(const std::string& job_name) const;
  // With which fault opening the job fails on this worker; nullptr: none.
  const WorkerFault* OpenFault(const std::string& job_name, const std::string& worker) const;

  // The checkpoint root, for a process that starts; null: there is none.
  std::shared_ptr<CheckpointDisk> MountDisk(Process* process, bool shard);

  // A shard that drains may leave, and why.
  void OnShardLeaves(const ShardProcess& shard, const std::string& text);
  // See CoordinatorNode::on_replaced.
  void OnShardReplaced(uint64_t incarnation, absl::Duration unheard);

  // Errors: kUnavailable if no answer came, or the coordinator's refusal.
  void Register(Process* caller, const RegisterRequest& request,
                std::function<void(absl::StatusOr<RegisterReply>)> done);

  // A shard's heartbeat, which is not the coordinator's own thread's. Errors: kUnavailable.
  void Heartbeat(Process* caller, const HeartbeatRequest& request,
                 std::function<void(absl::StatusOr<HeartbeatReply>)> done);

  // Its calls to shards at their own addresses.
  std::unique_ptr<coordinator::ShardAsker> MakeAsker(Process* process);

  // A call whose answer is a Reply or a status: the coordinator's, or kUnavailable if no answer
  // came in time.
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

  // The same; `serve` passes the call to the coordinator.
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

  // A call whose answer is a Reply, or nothing: lost, refused, or too late.
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
  void OnSending(const Process& by, const Network::StreamPtr& link, Message* message) override;
  ValueTruth OnValueSent(const Process& by, const FrameHeader& header,
                         absl::Span<const uint8_t> bytes) override;
  void OnDelivered(const Process& to, bool server, const FrameHeader& header,
                   const ReceivedPayload& payload, const ValueTruth& truth) override;

  struct ClientJob {
    Workload workload;
    uint64_t nonce = 0;
    uint64_t uid = 0;
    std::optional<absl::Duration> cancel_after;  // counted from its submission
    std::optional<absl::Duration> read_every;    // by a client, while it runs
    bool to_delete = false;
    std::optional<absl::Duration> checkpoint_every;  // asked for by a client, while it runs
    std::map<std::string, WorkerFault> open_faults;  // by worker
    int calls = 0;                                   // in flight, that name the job
    bool over = false;
    bool deleted = false;
    JobReply end;                                          // the coordinator's, once it is over
    JobStatus status;                                      // as last polled
    bool values_lost = false;                              // of a partition; shards keep the others
    ReadValues values;                                     // as read at its end
    bool read_again = false;                               // or not to be: see RollShards
    std::map<uint32_t, std::unique_ptr<JobTruth>> truths;  // by era, those that daemons heard of

    // The newest one's; null: there is none.
    JobTruth* truth() const { return truths.empty() ? nullptr : truths.rbegin()->second.get(); }
    bool served() const;                           // in some era
    std::set<std::string> faulty_workers() const;  // in all eras
  };

  // Of a client that waits, and before it asks again.
  static constexpr absl::Duration kPollPeriod = absl::Milliseconds(100);

  const JobTruth* TruthBefore(const JobDescription& description);
  bool AllOver() const;
  // Incarnations of shards that run, are registered, and do not drain.
  std::set<uint64_t> LivingShards() const;
  // Whether some partition has no whole copy on a shard that lives and is heard.
  bool IsLost(absl::Span<const View> views) const;
  // All jobs are placed, and every partition has two copies on shards that live, as the coordinator
  // has it in its store: one that starts meanwhile may be placed on a shard that is dead.
  bool AllWhole() const;

  // client.cc
  void OnRefusedCall(const absl::Status& status);
  void Submit(size_t job);
  void PlanSwitches(size_t job);
  void SetPolicy(size_t job, const Policy& policy, uint64_t nonce);
  void Poll(size_t job);
  void NoteSetAside(const JobStatus& status);
  void ListJobs();
  void PlanCalls(size_t job);
  void Cancel(size_t job);
  void ReadNow(size_t job);
  void Delete(size_t job);
  void ReadDeleted(size_t job, int times);
  void Settle();
  std::string WhyNotSettled() const;

  // job_end.cc
  void OnEnd(size_t job, const JobReply& reply);
  void Finish(size_t job, const JobReply& reply, const ReadValues& values);
  bool RefusesDamage(const JobStatus& status) const;
  bool MayEndEarly(const ClientJob& job, const JobStatus& status);

  // checkpoints.cc
  void PlanCheckpoints(size_t job);
  void AskForCheckpoint(size_t job, uint64_t nonce);
  void OnNoCheckpoint(size_t job, const absl::Status& status);
  void PlanToAsk(size_t job);
  void DeleteCheckpoint(const std::string& id);
  void PlanDiskFaults();
  void NextDiskFault(uint64_t number);
  void KillAtDisk(Process* process);

  // faults.cc
  void PlanFaults();
  void PlanOpenFaults(size_t job);
  void PlanUnitFaults();
  void PlanLinkFaults();
  void PlanLosses();
  void LoseBothCopies(uint64_t number, bool early);
  void NextFault(uint64_t number);
  bool Due(const char* kind, const Process& who);
  void Heal();
  void CutWorker(Random& random);
  void HangWorker(Random& random);
  void CrashWorker(Random& random);
  void CrashCoordinator(Random& random);
  void StartCoordinatorAgain(Random& random);
  void CrashShard(Random& random);
  void CutOffShard(Random random);
  void ExhaustShard(Random& random);
  void StepWall(Random& random);
  void Pause(Random& random);
  void DrainWorker(Random& random);
  void DrainShard(Random& random);
  void Revive(WorkerNode* worker, absl::Duration after);
  void RollShards(size_t next);
  void ReadAgain(size_t job);
  void ReadAllAgain(size_t job);

  const uint64_t seed_;
  const ClusterShape shape_;
  World world_;
  Network network_;
  SimStreams streams_{&world_, &network_};
  // As it is stored. Without checkpoints nobody sees it.
  const std::shared_ptr<MemoryDisk> stored_;
  CheckpointTruth checkpoints_;
  SimDisk disk_{&world_, stored_, &checkpoints_};
  RollbackTruth rollbacks_;
  ControlTruth control_;
  CoordinatorNode coordinator_;
  ShardWatch watch_{this};
  std::vector<std::unique_ptr<ShardProcess>> shards_;
  std::vector<std::unique_ptr<WorkerNode>> workers_;
  std::vector<ClientJob> jobs_;
  // Of shards, by process: the life in which it registered last, and its incarnation.
  std::map<const Process*, std::pair<uint32_t, uint64_t>> registered_;
  Process client_;
  std::unique_ptr<Reader> reader_;
  bool listed_ = false;
  int last_reads_ = 0;  // in flight, of deleted jobs
  bool settled_ = false;

  absl::Time heal_at_;
  absl::Time losses_until_;  // of both copies; not before heal_at_
  absl::Duration fault_interval_;
  uint64_t planned_ = 0;     // the number of the fault that is due
  const bool loses_copies_;  // both of a partition
  bool may_crash_shard_ = false;
  bool shard_crashed_ = false;
  bool shard_lost_ = false;  // one that had the only copy of something
  bool lost_before_rolling_ = false;
  bool may_exhaust_shard_ = false;
  bool shard_exhausted_ = false;  // a shard had no memory for a while
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_CLUSTER_H_
