// Where a job's computing time goes.
#ifndef STARLING_WORKER_EXECUTOR_EXECUTOR_TIMES_H_
#define STARLING_WORKER_EXECUTOR_EXECUTOR_TIMES_H_

namespace starling {

// Where the time of training units went since the executor was created, in seconds, averaged over
// its lanes. Counters only grow, except `pending`. The time that lanes wait for each other at a
// unit's end is part of `total` only.
struct ExecutorTimes {
  double total = 0;     // from a unit's start to its end
  double data = 0;      // in BatchSource, also while the device computes
  double forward = 0;   // on an asynchronous device: until the loss is available
  double backward = 0;  // including the sums
  double values = 0;    // in SliceGate, less `held`
  double held = 0;
  double push = 0;     // in GradientSink::Acquire
  double pending = 0;  // in the current phase, which is counted when it ends
};

}  // namespace starling

#endif  // STARLING_WORKER_EXECUTOR_EXECUTOR_TIMES_H_
