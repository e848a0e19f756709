// What the coordinator knows of a job when somebody asks what is wrong with it. Made by its core
// (core/on_explain.cc), judged by Explain.
#ifndef STARLING_SERVER_COORDINATOR_EXPLAIN_EVIDENCE_H_
#define STARLING_SERVER_COORDINATOR_EXPLAIN_EVIDENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/coordinator.pb.h"

namespace starling::explain {

// All times in seconds.

struct LinkEvidence {
  std::string shard;        // its name
  LinkStatus link;          // counters: what they grew by within the worker's window
  double down_seconds = 0;  // since it was first reported down; 0: it is up
};

struct WorkerEvidence {
  std::string name;
  std::string address;
  bool member = false;           // false: it was chosen, and is not ready yet
  double silent_seconds = 0;     // since its last report
  double preparing_seconds = 0;  // since it was chosen, where it is no member
  double window_seconds = 0;     // that `times` and `links` span, up to its last report
  StepTimes times;               // what they grew by
  std::vector<LinkEvidence> links;
  std::string trouble;  // see WorkerReport
};

// A member that was lost and has not come back.
struct LostEvidence {
  std::string name;
  std::string address;
  std::string why;            // "no report for 5.0 s"
  double silent_seconds = 0;  // since its last report
};

// A worker that had no memory for the job, which does without it.
struct SetAsideEvidence {
  std::string name;
  std::string address;
  std::string why;
  bool no_memory = true;  // `why` has the sizes; otherwise it cannot serve the job at all
};

struct ShardEvidence {
  std::string name;
  std::string address;
  double silent_seconds = 0;
  uint32_t cores = 0;        // of its machine; 0: not known
  std::string trouble = {};  // see ShardReport
};

struct PartitionEvidence {
  uint32_t partition = 0;
  std::string shard;          // its name
  double window_seconds = 0;  // that `times` span
  PartitionTimes times;       // what they grew by
};

struct Evidence {
  std::string job;
  JobState state = JOB_STATE_UNSPECIFIED;
  std::string reason;          // PENDING: what it waits for; FAILED: why
  double pending_seconds = 0;  // since it was submitted, while PENDING
  double running_seconds = 0;
  uint64_t steps = 0;          // done
  double stalled_seconds = 0;  // since the last one, or since it began to run
  // Since its first worker joined or its last one left, or since it began to run.
  double staffed_seconds = 0;
  bool evaluating = false;
  double evaluation_stalled_seconds = 0;  // since something of it was granted, or done
  Policy policy;                          // in force
  double policy_change_seconds = 0;       // since one was asked for that is not in force; 0: none
  std::string next_policy;                // "ssp(2)"
  double recovering_seconds = 0;          // since the coordinator's start; 0: not (any more)
  std::vector<std::string> unheard;       // "worker-1 (10.0.0.3:7071)": what it waits for
  double liveness_seconds = 0;            // silence after which a daemon is given up
  uint32_t workers_min = 0;
  uint32_t workers_max = 0;
  uint32_t micro_batches = 0;           // of a step
  std::vector<WorkerEvidence> workers;  // that serve it or get ready to
  std::vector<LostEvidence> lost;
  std::vector<SetAsideEvidence> set_aside;
  std::vector<ShardEvidence> shards;  // that hold its partitions
  std::vector<PartitionEvidence> partitions;
};

}  // namespace starling::explain

#endif  // STARLING_SERVER_COORDINATOR_EXPLAIN_EVIDENCE_H_
