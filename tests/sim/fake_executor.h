// Stands in for a worker's data, device and executor: opening a job and computing a unit take
// simulated time, and gradients are the workload's.
#ifndef STARLING_TESTS_SIM_FAKE_EXECUTOR_H_
#define STARLING_TESTS_SIM_FAKE_EXECUTOR_H_

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/sim/worker_wire.h"
#include "tests/sim/workload.h"
#include "tests/sim/world.h"
#include "worker/host/job_runner.h"

namespace starling::sim {

class Cluster;

// The message of a job that found no memory.
inline constexpr char kNoMemory[] = "the neighbour has the device's memory";

// A fault of one worker that others need not have. Its message contains kWorkerFault.
struct WorkerFault {
  absl::Status status;
  bool device_lost = false;
};
inline constexpr char kWorkerFault[] = "simulated fault";

// A device with memory for one job at a time.
class FakeDevice {
 public:
  // Held until the last pointer or the process is gone. nullptr: it is taken.
  std::shared_ptr<void> TakeMemory(const Process* by);
  // The process that took it last.
  const Process* holder() const { return holder_; }

 private:
  std::weak_ptr<void> memory_;
  const Process* holder_ = nullptr;
  uint32_t life_ = 0;  // of the holder
};

// What a host gets for one life of a process, and what outlives that life.
class FakeExecutor {
 public:
  FakeExecutor(Cluster* cluster, Process* process, WorkerWire* wire);
  ~FakeExecutor();

  // How long a micro-batch takes.
  void set_micro_batch_time(absl::Duration time) { micro_batch_time_ = time; }
  // How much longer an evaluation takes than it would.
  void set_evaluation_factor(double factor) { evaluation_factor_ = factor; }
  // Both compute on one device.
  void ShareDeviceWith(FakeExecutor& other) { device_ = other.device_; }
  // In this life of the process, computation hangs from the next unit on.
  void Hang();
  // From now on some gradients that it computes are not finite, of an item at most once.
  void SpoilGradients() { spoils_ = true; }
  // The next unit fails before its end.
  void FailUnit(const WorkerFault& fault);

  MakeJobRunner RunnerMaker();

 private:
  class Job;
  class Runner;
  class Gradients;

  // A value is in a copy of the parameters.
  void OnInstalled(JobTruth* truth, session::Params params, SliceId slice, Clock version,
                   const Values& bytes);
  bool Spoils(const Workload& workload, const WorkRange& range);

  Cluster* const cluster_;
  World* const world_;
  Process* const process_;
  WorkerWire* const wire_;
  const std::shared_ptr<Gradients> gradients_;
  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  absl::Duration micro_batch_time_ = absl::Milliseconds(2);
  double evaluation_factor_ = 1;
  bool spoils_ = false;
  // By job's name.
  std::set<std::pair<std::string, ItemKey>> spoiled_;
  Runner* runner_ = nullptr;  // of the present life
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_FAKE_EXECUTOR_H_
