// An event loop on simulated time: one of the threads of a simulated process.
#ifndef STARLING_TESTS_SIM_SIM_LOOP_H_
#define STARLING_TESTS_SIM_SIM_LOOP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "common/event_loop/event_loop.h"
#include "tests/sim/world.h"

namespace starling::sim {

// Every task is an event of the world at the loop's process: no task runs after the process has
// died, and tasks of a paused process run when it continues. A posted task runs a little later, so
// that the loops of a process overtake each other as threads do; within a loop the order stays. A
// due timer precedes posted tasks. Each task keeps its loop busy for a random time, sometimes a
// long one. `world` and `process` outlive the loop.
class SimLoop final : public EventLoop {
 public:
  // `blocks`: its tasks may block on a disk (World::Sleep).
  SimLoop(World* world, const Process* process, bool blocks = false);
  ~SimLoop() override;

  absl::Time Now() const override;
  bool Post(Task task) override;
  TimerId PostAt(absl::Time when, Task task) override;
  bool Cancel(TimerId timer) override;
  // In a process that has died, posting fails, and posted tasks are destroyed without running.
  void Stop() override;
  bool InLoop() const override;

 private:
  struct State;

  const std::shared_ptr<State> state_;  // shared with the world's events
};

// The loops that use disks block.
MakeEventLoop MakeSimLoops(World* world, const Process* process);

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_SIM_LOOP_H_
