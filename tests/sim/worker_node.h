// A worker's process: the real host on simulated loops, streams and calls, with an executor whose
// work takes simulated time.
#ifndef STARLING_TESTS_SIM_WORKER_NODE_H_
#define STARLING_TESTS_SIM_WORKER_NODE_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "common/trace/span_ring.h"
#include "tests/sim/fake_executor.h"
#include "tests/sim/worker_wire.h"
#include "tests/sim/world.h"
#include "worker/host/worker_host.h"

namespace starling::sim {

class Cluster;

class WorkerNode final : public Process, private SessionWatch {
 public:
  WorkerNode(Cluster* cluster, const std::string& process_name, uint64_t seed);
  // The process dies: nothing runs in it any more.
  ~WorkerNode() {
    alive = false;
    ++life;
  }

  void Start();
  void Crash();
  void Drain();  // SIGTERM
  bool exited() const { return exited_; }
  // It continues to report, but its computation hangs from the next unit on.
  void Hang() { executor_.Hang(); }
  void FailUnit(const WorkerFault& fault) { executor_.FailUnit(fault); }
  void SpoilGradients() { executor_.SpoilGradients(); }

  // How long a micro-batch takes.
  void set_micro_batch_time(absl::Duration time) { executor_.set_micro_batch_time(time); }

  // How much longer an evaluation takes than it would.
  void set_evaluation_factor(double factor) { executor_.set_evaluation_factor(factor); }

  // Both compute on one device, which has memory for one of them at a time.
  void ShareDeviceWith(WorkerNode* other) { executor_.ShareDeviceWith(other->executor_); }

  void CutStreams();
  WorkerWire& wire() { return wire_; }
  std::string ToString() const;

 private:
  void OnEvent(const session::Session& session, const session::Event& event) override;
  void OnAction(const session::Action& action) override;
  void OnExit(const absl::Status& status);

  Cluster* const cluster_;
  World* const world_;
  const uint64_t seed_;
  WorkerWire wire_;
  FakeExecutor executor_;
  SpanRing spans_{16};

  bool exited_ = false;
  uint64_t generation_ = 0;                    // the highest that it has heard of
  bool old_orders_ = false;                    // the event is orders of a lower one
  std::set<ShardId> up_;                       // streams, as the session knows
  const session::Session* session_ = nullptr;  // the host's
  std::unique_ptr<WorkerHost> host_;
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_WORKER_NODE_H_
