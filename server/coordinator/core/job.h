// What the coordinator knows about a job, its submission and pending calls about it. Internal to
// this folder.
#ifndef STARLING_SERVER_COORDINATOR_CORE_JOB_H_
#define STARLING_SERVER_COORDINATOR_CORE_JOB_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/checkpoint/names.h"
#include "common/data_plan/job_steps.h"
#include "proto/checkpoint.pb.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/core/coordinator.h"
#include "server/coordinator/core/partition_reports.h"
#include "server/coordinator/core/range_sums.h"
#include "server/coordinator/core/state.pb.h"
#include "server/coordinator/core/views.h"
#include "server/coordinator/curves/job_curve.h"
#include "server/coordinator/explain/window.h"
#include "server/coordinator/guard/policy_guard.h"
#include "server/coordinator/leases/lease_table.h"

namespace starling::coordinator {

struct Departure {  // a member that was lost
  std::string address;
  std::string why;
  absl::Time last_heard;
};

// A global batch, by its item in an epoch's pass.
struct ItemAt {
  Purpose purpose = PURPOSE_UNSPECIFIED;
  uint32_t epoch = 0;
  uint64_t item = 0;
  auto operator<=>(const ItemAt&) const = default;
};

// A worker found that an item is not finite.
struct Suspicion {
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  std::string name;    // of the worker
  bool asked = false;  // it may do the item itself, so that it proves nothing when that is done
};

struct Evaluation {
  std::optional<LeaseTable> leases;
  RangeSums sums;
};
// The progress of an evaluation: items done, and items held by each worker.
struct EvaluationSeen {
  uint32_t epoch = 0;
  uint64_t done = 0;                  // items
  std::map<uint32_t, uint64_t> held;  // by worker: how many
  bool operator==(const EvaluationSeen&) const = default;
};

// How far the backup of a partition has come in one view, by its primary's reports.
struct CopyProgress {
  uint64_t view = 0;
  uint64_t frames = 0;  // a learner: the most of a snapshot that it had
  uint64_t lsn = 0;     // a whole one: of the primary, which goes on with its backup alone
  bool waits = false;   // it lacks something
  absl::Time since;     // when it last came further, or began to lack something
};
// A shard that gets no copy for a while.
struct Unfit {
  absl::Time until;
  int times = 0;
  std::string why;
};

// A checkpoint that is being taken (on_checkpoint.cc). Not durable: a restart ends it.
struct CheckpointAttempt {
  enum class Stage {
    kMaking,    // the disk makes its folder
    kDeciding,  // its step is that of a change of policy, which is not decided yet
    kCutting,   // partitions come to the step, and keep their values as of then
    kWriting,   // all do; shards write them
    kSealing,   // all are written; the disk gets the manifest
    kDropping   // it has failed; the disk removes its folder
  };
  struct Part {  // of a shard
    std::string name;
    uint64_t incarnation = 0;
    uint32_t partitions = 0;  // that it leads
    CheckpointPart said;      // last
  };
  CheckpointId id;
  uint64_t nonce = 0;
  bool asked_for = false;
  Stage stage = Stage::kMaking;
  absl::Time begun;
  absl::Time since;                // when `stage` began
  bool given_up = false;           // it has failed, but the disk has not answered yet
  std::optional<uint64_t> policy;  // number of that change
  uint64_t step = 0;
  // As of the decision. Parts come from these shards alone.
  std::vector<uint32_t> leaders;   // shards by partition
  std::map<uint32_t, Part> parts;  // by shard
  std::string created;
  int64_t running_us = 0;  // running time when all had captured
};
// What is known of a job's checkpoints besides those on disk. Not durable.
struct CheckpointProgress {
  std::optional<CheckpointAttempt> attempt;
  absl::Time last_cut;  // when the last one was decided, or when the job started
  absl::Time due_since = absl::InfiniteFuture();  // by its rule
  absl::Time retry_at = absl::InfinitePast();
  int misses = 0;            // in a row
  int failed = 0;            // in a row
  absl::Time failing_since;  // the first of these
  uint64_t failures = 0;     // in all
  std::string trouble;       // of the last one; empty: it succeeded
  double last_seconds = 0;   // that the last one took
  // Steps that were done at `paced`, and those of the half second before.
  absl::Time paced;
  uint64_t paced_steps = 0, recent_steps = 0;
};

// Of a job that rolls back (rollback.cc). Not durable: a restart begins anew.
struct RollbackProgress {
  absl::Time begun = absl::InfinitePast();  // when the values were lost, or found not to be finite
  std::optional<CheckpointId> reading;
  uint64_t manifest_digest = 0;      // of that
  absl::Time since;                  // when it was asked for
  uint64_t tried_from = UINT64_MAX;  // numbers of checkpoints from here on could not be read
  std::string trouble;               // why the last one of these could not
  int tries = 0;                     // of the one that is read: the disk failed so often
  absl::Time again_at = absl::InfinitePast();
  bool listed_again = false;  // as none of those that were known could be read
};

struct Job {
  StoredJob stored;  // durable, like the next two
  StoredJobState state;
  std::map<uint32_t, EpochResult> results;

  std::vector<uint32_t> tested;  // ascending: epochs whose results are evaluated
  std::vector<uint64_t> partition_elements;
  std::vector<uint64_t> partition_bytes;  // planned
  PartitionReports partitions;            // empty once the job is over and settled
  uint64_t views_number = 1;              // grows with each change of the views
  uint64_t output_views = 0;              // that with which the output was ordered last
  // By incarnations of a partition's primary (0: of any) and of the unfit shard.
  std::map<std::pair<uint64_t, uint64_t>, Unfit> unfit;
  // By incarnations of shards that see the folder of checkpoints, and could not read that with
  // which the job begins there.
  std::map<uint64_t, Unfit> unread;
  std::map<uint32_t, CopyProgress> copies;  // by partition, of those that have a backup
  // By partition: since when it says that it does not reach the one that decides about its step.
  std::map<uint32_t, absl::Time> undecided;
  // Since when a job that is over waits for primaries whose backups may not answer.
  absl::Time backups_awaited = absl::InfiniteFuture();
  absl::Time backups_at = absl::InfinitePast();            // when it next looks for backups
  absl::Time unreplicated_since = absl::InfiniteFuture();  // while it should be replicated
  std::optional<LeaseTable> training;                      // of state.epoch; SSP and async
  std::map<uint32_t, Evaluation> evaluations;  // epochs that have ended but are not evaluated
  std::map<uint32_t, RangeSums> train_sums;
  // The first step whose losses this coordinator receives; an earlier coordinator received the
  // previous ones. None: a partition has not reported its coverage yet.
  std::optional<uint64_t> losses_from = 0;
  std::map<uint32_t, double> seconds_per_item;  // by worker; outlives the lease tables
  bool recovering = false;                      // after a start: no grants until all have reported
  bool coverage_changed = false;                // free items may turn out to be covered
  absl::Time pending_since;
  absl::Time running_since;  // when state.running_us was last brought up to date
  absl::Time coverage_read;  // when the shards' coverage was last marked in `training`
  absl::Time last_cut;
  std::optional<double> loss;        // smoothed
  std::optional<PolicyGuard> guard;  // if the job has one
  uint64_t windows_kept = 0;         // the guard's windows when its trend was last stored
  std::string guarded_policy;        // PolicyText of the one that the guard judges
  CheckpointProgress checkpoint;
  RollbackProgress rollback;
  JobCurve curve;  // durable, except for the last seconds before a crash
  absl::Time curve_saved;
  uint32_t curve_chunks = 0;   // its stored records
  uint64_t curve_session = 0;  // the first step that this coordinator has not read from the store
  absl::Time ended_at;         // if the job is over
  std::string unreadable;      // why this version cannot read the job's layout; empty: it can
  std::optional<int64_t> labels_per_sample;
  std::deque<LogEntry> log;
  uint64_t last_log = 0;
  // Evidence for `starling explain`.
  std::vector<explain::Window<PartitionTimes>> partition_counters;
  std::map<std::string, Departure> departed;  // by name, until the worker returns
  absl::Time policy_asked;                    // when its newest policy was requested
  absl::Time staffed;  // when its first worker joined or its last one left, whichever came later
  uint64_t steps_seen = 0;
  absl::Time stepped;                             // when the last step finished
  std::optional<EvaluationSeen> evaluation_seen;  // the first evaluation in progress
  absl::Time evaluation_moved;                    // when evaluation_seen last changed

  std::string inspector;  // the worker that inspected the data; empty after a restart
  // Of items that are not done yet. Not durable, like the next.
  std::map<ItemAt, Suspicion> non_finite;
  // By whether it was in BSP, and worker: how often others found finite values where it did not.
  std::map<std::pair<bool, uint32_t>, int> blamed;
  bool told_waiting = false;  // the log says what the job waits for
  bool has_turn = false;      // PENDING: see MayHaveTurn
  // Since when every worker that could serve it has been set aside.
  absl::Time unserved_since = absl::InfiniteFuture();

  uint64_t uid() const { return stored.description().run().job_uid(); }
  const Run& run() const { return stored.description().run(); }
  const JobSpec& spec() const { return stored.description().spec(); }
  const std::string& name() const { return spec().name(); }
  uint64_t samples() const { return stored.description().train_samples(); }
  // Steps, counted as in common/data_plan/job_steps.h.
  uint32_t epochs() const { return JobEpochs(spec(), samples()); }
  uint64_t steps() const { return JobSteps(spec(), samples()); }
  uint64_t epoch_steps() const { return StepsInFullEpoch(spec(), samples()); }
  // Where its first values are from: the steps that were done by an earlier run.
  uint64_t first_step() const { return stored.description().restore().step(); }
  uint64_t steps_in(uint32_t epoch) const { return StepsInEpoch(spec(), samples(), epoch); }
  bool evaluates_at(uint32_t epoch) const { return EvaluatesAt(spec(), samples(), epoch); }
  bool running() const { return state.state() == RUNNING; }
  bool over() const { return state.state() != RUNNING && state.state() != PENDING; }
  std::vector<LeaseTable*> lease_tables();  // progress.cc: evaluations before training
  // on_policy.cc
  const PolicyRecord& policy() const;  // in force
  PolicyRecord* next_policy();
  const PolicyRecord* next_policy() const;
  bool holds() const;
  bool bsp() const { return policy().policy().kind() == Policy::BSP; }
};

// A job that is over, serialized.
struct Archived {
  struct Partition {  // a copy of one
    uint32_t shard = 0;
    uint64_t incarnation = 0;  // of the shard
    uint64_t elements = 0;
    uint64_t bytes = 0;  // planned
    bool backup = false;
    bool learning = false;  // with `backup`
  };
  absl::Time ended_at;
  bool gone = false;          // some of its values are lost, so that nobody can read it
  bool fixed = false;         // its layout is not known here, so that it cannot be copied
  bool result = false;        // it succeeded, and its values are in no file of the coordinator
  std::vector<Partition> on;  // a primary's copy, then its backup's, if any
  std::string bytes;          // an ArchivedJob
};

struct Submission {  // a worker inspects its data
  CallId call;
  SubmitRequest request;
  uint64_t inspect = 0;
  uint32_t worker = 0;                           // 0: none found yet
  std::map<uint32_t, std::string> refused_by;    // names of workers that cannot serve it, by id
  absl::Status error;                            // the first worker's error
  absl::Time deadline = absl::InfiniteFuture();  // set when a worker is asked
  absl::Time without_worker;                     // since when no worker was available to ask
  absl::Time until;                              // when it is refused, whatever has happened
  // Where its first values come from, if not from its seed (restore.cc).
  std::optional<CheckpointManifest> from;
  Restore::Mode mode = Restore::MODE_UNSPECIFIED;
  uint64_t manifest_digest = 0;

  absl::Status Refusal() const;
};

struct PendingCheckpoint {  // held until the checkpoint is there, or has failed
  CallId call;
  uint64_t uid = 0;  // of the job
  uint64_t nonce = 0;
  uint64_t number = 0;  // of the attempt; 0: of the next one
  absl::Time until;
};

struct PendingRegistration {  // held until the name's owner reports or is lost
  CallId call;
  RegisterRequest request;
  absl::Time since;  // of this process
  absl::Time first;  // of any that asked for the name without a break
};

struct PendingLogs {
  CallId call;
  LogsRequest request;
  uint64_t uid = 0;
  absl::Time until;
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_JOB_H_
