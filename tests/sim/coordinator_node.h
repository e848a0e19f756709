// The coordinator's process: the real host on simulated loops and a store in memory. A crash keeps
// what was persisted.
#ifndef STARLING_TESTS_SIM_COORDINATOR_NODE_H_
#define STARLING_TESTS_SIM_COORDINATOR_NODE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/checkpoint/disk.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/core/state.pb.h"
#include "server/coordinator/host/coordinator_host.h"
#include "tests/sim/control_truth.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace starling::sim {

// The process that the network reaches. Each start runs as a process of its own, so that one may
// outlive the next start as a zombie.
class CoordinatorNode : public Process {
 public:
  using Answer = std::function<void(coordinator::CallReply)>;
  using MakeEvent = coordinator::CoordinatorHost::MakeEvent;

  CoordinatorNode(World* world, ControlTruth* truth);
  ~CoordinatorNode();

  void Start();
  void Crash();
  // Crashes after so many more of its writes and answers, in the middle of what it does.
  void CrashAfterActions(int actions) { actions_left_ = actions; }
  // The running process continues for a while after its crash, on a state that is never read again.
  void LeaveZombie() { leave_zombie_ = true; }
  // The next write fails, so the process must end.
  void FailStore() { store_fails_ = true; }
  void PauseUntil(absl::Time time);
  // Whether `process` is that of the present start.
  bool Runs(const Process* process) const;

  // A call. It may reach a zombie of the generation that its caller knows, and its caller may hang
  // up before it is answered. `answer` runs at most once.
  void Serve(const MakeEvent& event, uint64_t generation_seen, Answer answer);
  void ServeSubmit(const SubmitRequest& request, Answer answer);
  void ServeHeartbeat(const HeartbeatRequest& request, const std::string& caller,
                      std::function<void(absl::StatusOr<HeartbeatReply>)> answer);
  // Called when a job that runs goes on with a backup in the place of this incarnation of a shard,
  // as is durable now. `unheard`: for how long this process had no heartbeat of it.
  std::function<void(uint64_t incarnation, absl::Duration unheard)> on_replaced;
  // The checkpoint root as a process sees it that starts now; null: there is none.
  std::function<std::shared_ptr<CheckpointDisk>(Process* process)> mount;
  // How it calls shards.
  std::function<std::unique_ptr<coordinator::ShardAsker>(Process* process)> make_asker;
  // A job's record and state as they are durable.
  struct StoredRun {
    JobDescription description;
    StoredJobState state;
  };
  // Called when they have changed.
  std::function<void(uint64_t uid, const StoredRun& before, const StoredRun& after)> on_stored;
  uint64_t new_cluster = 1;  // not 0
  uint64_t generation() const;
  // The job's views as they are durable: empty if it is not placed, or deleted.
  absl::Span<const View> StoredViews(uint64_t job) const;
  // Whether so many jobs are placed, and every partition of each has two whole copies among these
  // incarnations of shards.
  bool AllWhole(size_t jobs, const std::set<uint64_t>& living) const;
  // Partitions that this incarnation of a shard leads without a whole backup, as is durable.
  struct Only {
    size_t running = 0;  // of jobs that run
    size_t over = 0;     // of others, of which no values are lost
  };
  Only OnlyOn(uint64_t incarnation) const;
  // Since the last heartbeat that this life of the coordinator had of it.
  absl::Duration Unheard(uint64_t incarnation) const;

 private:
  class Instance;
  class Store;

  void Kill(const std::shared_ptr<Instance>& instance);
  void Bury(const std::weak_ptr<Instance>& killed, absl::Duration after);
  void NoteReplaced(const std::vector<View>& before,
                    const google::protobuf::RepeatedPtrField<View>& after) const;
  coordinator::CoordinatorHost::Done CountedAnswer(const std::shared_ptr<Instance>& instance,
                                                   Answer answer);

  World* const world_;
  ControlTruth* const truth_;
  coordinator::StoreSnapshot store_;
  std::map<uint64_t, StoredRun> stored_;              // in store_, by job
  std::map<uint64_t, std::vector<View>> views_;       // in store_, by job
  std::set<uint64_t> running_;                        // jobs, in store_
  std::map<uint64_t, absl::Time> heartbeats_;         // of this life, by incarnation: the last ones
  std::vector<std::shared_ptr<Instance>> instances_;  // all, as the world may refer to any
  std::shared_ptr<Instance> instance_;
  std::shared_ptr<Instance> zombie_;
  int actions_left_ = -1;
  bool leave_zombie_ = false;
  bool store_fails_ = false;
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_COORDINATOR_NODE_H_
