// A worker's process: the real session core, and an executor whose work takes simulated time.
#ifndef STARLING_TESTS_SIM_WORKER_NODE_H_
#define STARLING_TESTS_SIM_WORKER_NODE_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/checker.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"
#include "worker/core/session.h"

namespace starling::sim {

class Cluster;

// What a job that found no memory anywhere fails with.
inline constexpr char kNoMemory[] = "the neighbour has the device's memory";

class WorkerNode : public Process {
 public:
  WorkerNode(Cluster* cluster, const std::string& process_name, uint64_t seed);

  void Start();
  void Crash();
  void Drain();  // SIGTERM
  bool exited() const { return exited_; }

  // How long a micro-batch takes.
  void set_micro_batch_time(absl::Duration time) { micro_batch_time_ = time; }

  // Both compute on one device, which has memory for one of them at a time.
  void ShareDeviceWith(WorkerNode* other) { neighbour_ = other; }

  void CutStreams();
  std::string ToString() const;

 private:
  struct Held {
    ValuesPtr values;
    Clock version = -1;
    uint8_t loss_scale_log2 = 0;
  };
  struct Job {
    RunId run;
    JobTruth* truth = nullptr;
    std::vector<Held> copies[2];  // by Params
    std::optional<session::action::Compute> unit;
    bool running = false;
    bool has_memory = true;  // of its device: takes it, or has taken it
  };

  void Step(session::Event event);
  void Tick();
  void Do(session::action::Register& a);
  void Do(session::action::Report& a);
  void Do(session::action::Connect& a);
  void Do(session::action::Disconnect& a);
  void Do(session::action::Send& a);
  void Do(session::action::Prepare& a);
  void Do(session::action::CloseJob& a);
  void Do(session::action::Inspect& a);
  void Do(session::action::Prefetch& a);
  void Do(session::action::Compute& a);
  void Do(session::action::Abandon& a);
  void Do(session::action::InstallValue& a);
  void Do(session::action::ForgetValues& a);
  void Do(session::action::ReleaseBuffer& a);
  void Do(session::action::Exit& a);

  bool HasMemory() const { return alive && job_.has_value() && job_->has_memory; }
  void OnMessage(ShardId shard, uint64_t stream, const Message& message);
  void Track(const FrameHeader& sent);
  void MaybeRun();
  void RunTraining(const std::vector<ValuesPtr>& values);
  void RunEvaluation();
  void Forge(const Network::StreamPtr& stream, const session::action::Send& a);

  Cluster* const cluster_;
  World* const world_;
  const uint64_t seed_;
  absl::Duration micro_batch_time_ = absl::Milliseconds(2);
  WorkerNode* neighbour_ = nullptr;  // on the same device

  std::unique_ptr<session::Session> session_;
  bool exited_ = false;
  WorkerId id_;
  Incarnation incarnation_;
  uint64_t generation_ = 0;  // the highest that it heard of
  std::map<ShardId, Network::StreamPtr> streams_;
  std::map<ShardId, uint64_t> connecting_;
  uint64_t connects_ = 0;
  std::map<BufferId, ValuesPtr> buffers_;
  std::map<BufferId, ValueTruth> truths_;
  std::map<uint64_t, FrameHeader> pushes_;  // sent, by request
  std::map<uint64_t, Lsn> pulls_;           // their lower bounds, by request
  uint64_t last_buffer_ = 0;
  std::optional<Job> job_;
  PolicyNumber policy_;    // of the frames that it sends
  bool entering_ = false;  // ENTER was sent, and no pull after it
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_WORKER_NODE_H_
