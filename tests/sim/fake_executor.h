// What stands in for a worker's data, device and executor: opening a job takes simulated time, and
// so does a unit, whose gradients are the workload's.
#ifndef STARLING_TESTS_SIM_FAKE_EXECUTOR_H_
#define STARLING_TESTS_SIM_FAKE_EXECUTOR_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/sim/worker_wire.h"
#include "tests/sim/world.h"
#include "worker/host/served_job.h"
#include "worker/host/unit_runner.h"

namespace starling::sim {

class Cluster;

// What a job that found no memory anywhere fails with.
inline constexpr char kNoMemory[] = "the neighbour has the device's memory";

// What is wrong with a worker, which others lack. Every message holds kWorkerFault.
struct WorkerFault {
  absl::Status status;
  bool device_lost = false;
};
inline constexpr char kWorkerFault[] = "simulated fault";

// Has memory for one job at a time.
class FakeDevice {
 public:
  // Held until the last pointer is gone, or the process. Null: it is held already.
  std::shared_ptr<void> TakeMemory(const Process* by);
  // The one that took it last.
  const Process* holder() const { return holder_; }

 private:
  std::weak_ptr<void> memory_;
  const Process* holder_ = nullptr;
  uint32_t life_ = 0;  // of the holder
};

// What a host is given for one life of a process, and what outlives that.
class FakeExecutor {
 public:
  FakeExecutor(Cluster* cluster, Process* process, WorkerWire* wire);
  ~FakeExecutor();

  // How long a micro-batch takes.
  void set_micro_batch_time(absl::Duration time) { micro_batch_time_ = time; }
  // Both compute on one device.
  void ShareDeviceWith(FakeExecutor& other) { device_ = other.device_; }
  // From the next unit on that is computed nothing gets on any more in this life of the process.
  void Hang();
  // The next unit fails before its end.
  void FailUnit(const WorkerFault& fault);

  std::unique_ptr<JobOpener> MakeOpener();
  MakeUnitRunner RunnerMaker();

 private:
  class Job;
  class Opener;
  class Runner;
  class Gradients;

  // A value is in a copy of the parameters.
  void OnInstalled(JobTruth* truth, session::Params params, SliceId slice, Clock version,
                   const Values& bytes);

  Cluster* const cluster_;
  World* const world_;
  Process* const process_;
  WorkerWire* const wire_;
  const std::shared_ptr<Gradients> gradients_;
  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  absl::Duration micro_batch_time_ = absl::Milliseconds(2);
  Runner* runner_ = nullptr;  // the present life's
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_FAKE_EXECUTOR_H_
