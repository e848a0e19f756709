// The coordinator's process: the real core on a store in memory. A crash keeps what was persisted.
#ifndef STARLING_TESTS_SIM_COORDINATOR_NODE_H_
#define STARLING_TESTS_SIM_COORDINATOR_NODE_H_

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "server/coordinator/core/coordinator.h"
#include "tests/sim/checker.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace starling::sim {

class CoordinatorNode : public Process {
 public:
  using Answer = std::function<void(CoordinatorReply)>;
  using MakeEvent = std::function<CoordinatorEvent(CallId)>;

  CoordinatorNode(World* world, ControlTruth* truth);

  void Start();
  void Crash();
  // Crashes in the middle of a step, after so many of its actions were carried out.
  void CrashAfterActions(int actions) { actions_left_ = actions; }
  // The process before this one goes on for a while, on state of its own that nobody will read
  // again.
  void LeaveZombie() { leave_zombie_ = true; }

  void Serve(const MakeEvent& event, uint64_t generation_seen, Answer answer);
  uint64_t generation() const { return core_ == nullptr ? 0 : core_->generation(); }

 private:
  // One running core.
  class Instance : public CoordinatorSink {
   public:
    Instance(CoordinatorNode* node, bool zombie) : node_(node), zombie_(zombie) {}
    void Persist(const StoreBatch& batch) override;
    void Reply(CallId call, CoordinatorReply reply) override;
    void Log(absl::string_view) override {}
    void WriteCurve(const CurveNews&) override {}
    void WriteOutput(const JobReply&) override {}  // no job here asks for one

    bool Counts();  // false: the process died before this action

    std::unique_ptr<Coordinator> core;
    std::map<CallId, Answer> calls;
    bool dead = false;

   private:
    CoordinatorNode* const node_;
    const bool zombie_;
    friend class CoordinatorNode;
  };

  void Step(const std::shared_ptr<Instance>& instance, const CoordinatorEvent& event);
  void Tick(std::shared_ptr<Instance> instance, absl::Time until);

  World* const world_;
  ControlTruth* const truth_;
  StoreSnapshot store_;
  std::shared_ptr<Instance> instance_;
  std::shared_ptr<Instance> zombie_;
  Coordinator* core_ = nullptr;
  uint64_t last_call_ = 0;
  int actions_left_ = -1;
  bool leave_zombie_ = false;
};

CoordinatorOptions SimCoordinatorOptions();

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_COORDINATOR_NODE_H_
