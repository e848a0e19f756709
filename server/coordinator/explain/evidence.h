// What the coordinator knows of a job when a user asks what is wrong with it. The core collects it
// (core/on_explain.cc); Explain judges it.
#ifndef STARLING_SERVER_COORDINATOR_EXPLAIN_EVIDENCE_H_
#define STARLING_SERVER_COORDINATOR_EXPLAIN_EVIDENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/coordinator.pb.h"

namespace starling::explain {

// All times are in seconds.

struct LinkEvidence {
  std::string shard;        // its name
  LinkStatus link;          // its counters hold the growth within the worker's window
  double down_seconds = 0;  // since it was first reported down; 0: up
};

struct WorkerEvidence {
  std::string name;
  std::string address;
  bool member = false;           // false: chosen but not ready yet
  double silent_seconds = 0;     // since its last report
  double preparing_seconds = 0;  // since it was chosen; 0 for members
  double window_seconds = 0;     // span of `times` and `links`, up to its last report
  StepTimes times;               // growth within the window
  std::vector<LinkEvidence> links;
  std::string trouble;      // see WorkerReport
  std::string repeated_by;  // the backup worker that computes its part of each step, too
};

// A member that was lost and has not returned.
struct LostEvidence {
  std::string name;
  std::string address;
  std::string why;            // "no report for 5.0 s"
  double silent_seconds = 0;  // since its last report
};

// A worker without enough memory for the job, which runs without it.
struct SetAsideEvidence {
  std::string name;
  std::string address;
  std::string why;
  enum class Cause {
    kNoMemory,    // `why` has the sizes
    kUnfit,       // it cannot serve the job at all
    kSuspected,   // it found values that are not finite; others do the same work
    kQuarantined  // it did so again and again, and others did not
  };
  Cause cause = Cause::kNoMemory;
};

struct ShardEvidence {
  std::string name;
  std::string address;
  double silent_seconds = 0;
  uint32_t cores = 0;        // of its machine; 0: unknown
  std::string trouble = {};  // see ShardReport
};

struct PartitionEvidence {
  uint32_t partition = 0;
  std::string shard;          // its name
  double window_seconds = 0;  // span of `times`
  PartitionTimes times;       // growth within the window
};

// A partition whose primary waits for its whole backup.
struct CopyEvidence {
  uint32_t partition = 0;
  std::string shard;   // of the primary
  std::string backup;  // its shard
  std::string backup_address;
  double silent_seconds = 0;  // since the backup last had more
  uint64_t behind = 0;        // records
};

// A partition that does not reach the one that decides about its step.
struct UndecidedEvidence {
  uint32_t partition = 0;
  std::string shard;    // of its primary
  std::string decider;  // the shard that decides
  std::string decider_address;
  double seconds = 0;
  std::string why;
};

// Of a job whose checkpoints do not get through.
struct CheckpointEvidence {
  double seconds = 0;  // since one was due, or since the first of these that failed; 0: all is well
  std::string trouble;    // why the last attempt failed; empty: it did not
  std::string waits_for;  // what one that is wanted waits for now
  std::string last;       // "is of step 812", with its age; empty: there is none
};

struct Evidence {
  std::string job;
  JobState state = JOB_STATE_UNSPECIFIED;
  std::string reason;          // PENDING: what it waits for; FAILED: why
  double pending_seconds = 0;  // since it was submitted, while PENDING
  double running_seconds = 0;
  uint64_t steps = 0;          // done
  double stalled_seconds = 0;  // since the last step, or since the job started to run
  // Since its first worker joined or its last one left, or since it started to run.
  double staffed_seconds = 0;
  bool evaluating = false;
  double evaluation_stalled_seconds = 0;  // since an item was last granted or finished
  Policy policy;                          // in force
  double policy_change_seconds = 0;       // since a change was asked for that is pending; 0: none
  std::string next_policy;                // "ssp(2)"
  double recovering_seconds = 0;          // since the coordinator's start; 0: recovery is over
  std::vector<std::string> unheard;       // "worker-1 (10.0.0.3:7071)": not heard of yet
  double liveness_seconds = 0;            // silence after which a daemon is considered lost
  uint32_t workers_min = 0;
  uint32_t workers_max = 0;
  uint32_t micro_batches = 0;           // per step
  uint32_t backup_workers = 0;          // as the job file says
  std::vector<WorkerEvidence> workers;  // that serve it or prepare to
  std::vector<LostEvidence> lost;
  std::vector<SetAsideEvidence> set_aside;
  std::vector<ShardEvidence> shards;  // that hold its partitions
  std::vector<PartitionEvidence> partitions;
  std::vector<CopyEvidence> copies;
  std::vector<UndecidedEvidence> undecided;
  // For a job that is to be replicated: since some partition has lacked a whole backup, how many
  // do, and why one of them does.
  double unreplicated_seconds = 0;
  uint32_t unreplicated = 0;
  std::string copies_trouble;
  CheckpointEvidence checkpoint;
  // Of a job that has taken no checkpoint since it went back to one: when, to which, and why.
  std::string went_back;
};

}  // namespace starling::explain

#endif  // STARLING_SERVER_COORDINATOR_EXPLAIN_EVIDENCE_H_
