// What the checkers know of a worker from its frames, and what the network does to them.
#ifndef STARLING_TESTS_SIM_WORKER_WIRE_H_
#define STARLING_TESTS_SIM_WORKER_WIRE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>

#include "tests/sim/checker.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"
#include "worker/host/unit_runner.h"

namespace starling::sim {

class WorkerWire {
 public:
  WorkerWire(World* world, Network* network) : world_(world), network_(network) {}

  void Restart();  // another life of the process
  // Frames of the run are about this job.
  void Serve(RunId run, JobTruth* truth) { jobs_[run] = truth; }

  // Right before a frame leaves: a push may be damaged, or a forged one goes before it.
  void OnSending(const Network::StreamPtr& link, Message* message);
  void OnDelivered(const FrameHeader& header, const ValueTruth& truth);

  // The value that came for this slice and version, as it really is; once. nullopt: none came.
  std::optional<ValueTruth> TakeTruth(session::Params params, SliceId slice, Clock version);

  // Of the last frame.
  Incarnation incarnation() const { return incarnation_; }
  // The worker is gone, or about to be another incarnation.
  void OnGone();

 private:
  struct Push {
    FrameHeader header;
    uint64_t bytes = 0;  // a hash of what was sent
  };
  struct Pull {
    Lsn min_lsn;
    session::Params params = session::Params::kLive;
    Clock version = 0;
    bool open = true;  // no value has come since it was sent
  };
  using Value = std::tuple<session::Params, SliceId, Clock>;

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
  std::map<uint64_t, Pull> pulls_;   // the same
  std::map<Value, ValueTruth> values_;
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_WORKER_WIRE_H_
