// Evidence of a healthy job, for tests to modify.
#ifndef STARLING_SERVER_COORDINATOR_EXPLAIN_TESTING_HEALTHY_JOB_H_
#define STARLING_SERVER_COORDINATOR_EXPLAIN_TESTING_HEALTHY_JOB_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "server/coordinator/explain/evidence.h"

namespace starling::explain {

// Three workers and two shards of two partitions each, under SSP(2), observed for 20 s in which
// each worker did 100 steps of 32 samples: 170 ms of computing and 30 ms of everything else.
inline Evidence HealthyJob() {
  constexpr int kSteps = 100;
  Evidence evidence;
  evidence.job = "digits";
  evidence.state = RUNNING;
  evidence.running_seconds = 60;
  evidence.steps = 900;
  evidence.stalled_seconds = 0.1;
  evidence.staffed_seconds = 59;
  evidence.policy.set_kind(Policy::SSP);
  evidence.policy.set_staleness(2);
  evidence.liveness_seconds = 5;
  evidence.workers_min = 1;
  evidence.workers_max = 3;
  evidence.micro_batches = 4;
  for (int shard = 0; shard < 2; ++shard) {
    evidence.shards.push_back(
        {absl::StrCat("shard-", shard), absl::StrCat("10.0.1.", shard, ":70"), 0.1, 4});
    for (uint32_t partition = 2 * shard; partition < 2u * shard + 2; ++partition) {
      PartitionEvidence of{partition, absl::StrCat("shard-", shard), 20, {}};
      of.times.set_pushes(3 * kSteps);
      of.times.set_applies(3 * kSteps);
      of.times.set_pulls(3 * kSteps);
      of.times.set_received_bytes(3 * kSteps * 1000000);
      of.times.set_queue(0.001 * 3 * kSteps);
      of.times.set_verify(0.0004 * 3 * kSteps);
      of.times.set_apply(0.0006 * 3 * kSteps);
      evidence.partitions.push_back(of);
    }
  }
  for (int i = 0; i < 3; ++i) {
    WorkerEvidence worker;
    worker.name = absl::StrCat("worker-", i);
    worker.address = absl::StrCat("10.0.2.", i, ":70");
    worker.member = true;
    worker.silent_seconds = 0.05;
    worker.window_seconds = 20;
    worker.times.set_units(kSteps);
    worker.times.set_samples(32 * kSteps);
    worker.times.set_total(0.195 * kSteps);
    worker.times.set_data(0.005 * kSteps);
    worker.times.set_forward(0.06 * kSteps);
    worker.times.set_backward(0.11 * kSteps);
    worker.times.set_pull(0.01 * kSteps);
    worker.times.set_wait(0.01 * kSteps);
    worker.times.set_push(0.003 * kSteps);
    worker.times.set_idle(0.002 * kSteps);
    for (const ShardEvidence& shard : evidence.shards) {
      LinkEvidence link;
      link.shard = shard.name;
      link.link.set_address(shard.address);
      link.link.set_connected(true);
      link.link.set_sent_bytes(2 * kSteps * 1000000);
      link.link.set_received_bytes(2 * kSteps * 1000000);
      link.link.set_sending_seconds(0.004 * kSteps);
      link.link.set_receiving_seconds(0.004 * kSteps);
      link.link.set_round_trip_seconds(0.0004);
      link.link.set_push_seconds(0.006 * 2 * kSteps);
      link.link.set_pushes(2 * kSteps);
      worker.links.push_back(link);
    }
    evidence.workers.push_back(worker);
  }
  return evidence;
}

// Every step of `worker` takes `seconds_per_step` longer in `phase`.
inline void AddToPhase(WorkerEvidence& worker, const std::string& phase, double seconds_per_step) {
  StepTimes& times = worker.times;
  const double more = seconds_per_step * static_cast<double>(times.units());
  if (phase == "push") return times.set_push(times.push() + more);
  if (phase == "idle") return times.set_idle(times.idle() + more);
  times.set_total(times.total() + more);
  if (phase == "data") times.set_data(times.data() + more);
  if (phase == "forward") times.set_forward(times.forward() + more);
  if (phase == "pull") times.set_pull(times.pull() + more);
  if (phase == "wait") times.set_wait(times.wait() + more);
}

}  // namespace starling::explain

#endif  // STARLING_SERVER_COORDINATOR_EXPLAIN_TESTING_HEALTHY_JOB_H_
