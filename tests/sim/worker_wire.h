// What the checkers learn from a worker's frames, and the damage that the network does to them.
#ifndef STARLING_TESTS_SIM_WORKER_WIRE_H_
#define STARLING_TESTS_SIM_WORKER_WIRE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>

#include "tests/sim/checker.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"
#include "worker/host/job_runner.h"

namespace starling::sim {

class WorkerWire {
 public:
  WorkerWire(World* world, Network* network) : world_(world), network_(network) {}

  void Restart();  // the process has a new life
  // Frames of the run belong to this job.
  void Serve(RunId run, JobTruth* truth) { jobs_[run] = truth; }

  // Right before a frame leaves. May damage a push, or send a forged one first.
  void OnSending(const Network::StreamPtr& link, Message* message);
  void OnDelivered(const FrameHeader& header, const ValueTruth& truth);

  // The truth about the value that came for this slice and version, once. nullopt: none came.
  std::optional<ValueTruth> TakeTruth(RunId run, session::Params params, SliceId slice,
                                      Clock version);

  // As in the last frame.
  Incarnation incarnation() const { return incarnation_; }
  // The worker has closed the job. It counts as parked if a roster has removed it, since it then
  // parks nowhere.
  void OnClosed(RunId run);
  // The worker is gone, or about to become another incarnation.
  void OnGone();

 private:
  struct Push {
    FrameHeader header;
    uint64_t bytes = 0;  // a hash of them
  };
  struct Pull {
    Lsn min_lsn;
    session::Params params = session::Params::kLive;
    Clock version = 0;
    bool open = true;  // no value has come since it was sent
  };
  using Value = std::tuple<RunId, session::Params, SliceId, Clock>;

  void Track(const FrameHeader& sent, JobTruth* truth);
  void OnPush(const Network::StreamPtr& link, JobTruth* truth, Message* message);
  void Forge(const Network::StreamPtr& link, const JobTruth& truth, const FrameHeader& push,
             size_t elements);
  void OnValue(const FrameHeader& header, const ValueTruth& truth, JobTruth* job);

  World* const world_;
  Network* const network_;
  std::map<RunId, JobTruth*> jobs_;
  WorkerId id_;
  Incarnation incarnation_;
  PolicyNumber policy_;              // of the frames that it sends
  bool entering_ = false;            // ENTER was sent, and no pull after it
  std::map<uint64_t, Push> pushes_;  // sent, by request
  std::map<uint64_t, Pull> pulls_;   // sent, by request
  std::map<Value, ValueTruth> values_;
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_WORKER_WIRE_H_
