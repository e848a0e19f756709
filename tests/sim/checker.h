// A job's promises, checked against what really happened. The checker sees everything and changes
// nothing in the cluster.
#ifndef STARLING_TESTS_SIM_CHECKER_H_
#define STARLING_TESTS_SIM_CHECKER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/placement/layout.h"
#include "common/protocol/frame.h"
#include "common/protocol/record.h"
#include "common/protocol/types.h"
#include "server/shard/core/partition_state.h"
#include "tests/sim/decision_truth.h"
#include "tests/sim/workload.h"
#include "tests/sim/world.h"

namespace starling::sim {

// What a VALUE frame really contains, apart from its bytes.
struct ValueTruth {
  RunId run;
  uint64_t version = 0;  // BSP: sealed steps
  size_t applied = 0;    // SSP, async: updates included
  Lsn lsn;
  PolicyNumber policy;       // the partition's
  PolicyNumber pull_policy;  // the puller's
  struct Active {
    Incarnation incarnation;
    Clock joined = 0;
  };
  std::vector<Active> active;  // active members when it was sent
};

// One run of a job, an era, as it really is.
class JobTruth {
 public:
  // `before`: of the run whose checkpoint it goes on from; null: it begins with step 0. Must
  // outlive this.
  JobTruth(World* world, const Workload* workload, const JobDescription& description,
           const JobTruth* before = nullptr);

  const Workload& workload() const { return *workload_; }
  const Layout& layout() const { return layout_; }
  RunId run() const { return run_; }
  ConsistencyPolicy PolicyOf(PolicyNumber number) const;
  uint64_t first_step() const { return first_step_; }
  const JobTruth* before() const { return before_; }

  // ---- The state at a step of which all below is applied ----
  // Whether the slice's first updates, so many, are those of the steps below.
  bool IsPrefix(SliceId slice, uint64_t steps) const;
  // Whether it was in force at the step: several changes may have taken effect there.
  bool WasPolicyAt(uint64_t step, const ConsistencyPolicy& policy) const;
  uint64_t SkippedBelow(uint64_t step) const;
  int LossScaleAt(uint64_t step) const { return decisions_.LossScaleAt(step); }

  // ---- Shards ----
  void OnRoster(PartitionId partition, const RosterList& roster);
  // A partition accepts a push, and will count it. It has led since view `since`, and is in `view`.
  void OnAccepted(PartitionId partition, const FrameHeader& push, RunId run, ViewNumber since,
                  ViewNumber view);
  void OnPolicyOrdered(PartitionId partition, const PolicyAt& policy);
  void OnPolicySwitched(PartitionId partition, PolicyNumber number);
  // stop.wallTime: a partition hears that this step and later ones do not run.
  void OnTrainingEnd(PartitionId partition, uint64_t step);
  void OnApplied(PartitionId partition, const Record& record, const FrameHeader& push);
  // The squared norm of one slice's gradient in a step, if the job clips.
  void OnNorm(SliceId slice, const WorkRange& work, double norm2) {
    decisions_.OnNorm(slice, work, norm2);
  }
  // The copy made at the epoch's cut is read, and has these values.
  void OnCut(SliceId slice, uint32_t epoch, const Values& values);
  // BSP: a client reads exactly this version.
  void OnVersionRead(SliceId slice, uint64_t version, const Values& values);
  // `state`: of the copy that answers; nullptr: of one whose job is over.
  ValueTruth OnValueAnswered(PartitionId partition, SliceId slice, uint64_t version, Lsn lsn,
                             const PartitionState* state = nullptr) const;

  // ---- Workers ----
  void OnEntered(WorkerId worker, Incarnation incarnation, Clock clock, PolicyNumber policy);
  void OnParked(Incarnation incarnation);
  void OnClosed(Incarnation incarnation);  // counts as parked if a roster has removed it
  void OnGone(Incarnation incarnation);    // the process died or was fenced
  // The worker cannot open the job, or cannot compute one of its units.
  void OnWorkerFault(const std::string& worker) { faulty_workers_.insert(worker); }
  void OnUnit(Incarnation incarnation, Clock clock, const WorkRange& item);
  void OnAllValues(Incarnation incarnation,
                   Clock clock);  // the unit's forward pass has all values
  void OnPushAcked(const FrameHeader& ack, SliceId slice, const WorkRange& work);
  void OnInstalled(Incarnation incarnation, SliceId slice, Clock clock, const ValueTruth& value,
                   const Values& bytes);

  // ---- The end ----
  void OnSucceeded(const ReadValues& values, const JobReply& reply);
  void OnFailed(const ReadValues& values, const JobReply& reply);
  uint64_t final_hash() const { return final_hash_; }
  bool over() const { return over_; }
  bool succeeded() const { return succeeded_; }
  uint64_t final_steps() const { return final_steps_; }  // set together with final_hash()
  bool AnyStepDone() const;                              // a step counts on all partitions
  bool served() const { return served_; }                // some partition has heard of a member
  // Names of workers that ever had a fault.
  const std::set<std::string>& faulty_workers() const { return faulty_workers_; }

 private:
  struct Replica {
    bool active = false;
    Clock joined = 0;
    Clock computing = -1;
    PolicyNumber policy;
    std::map<Clock, WorkRange> units;
    std::map<SliceId, Lsn> seen;
  };
  struct SliceTruth {
    std::map<ItemKey, int> times;     // how often it was counted
    std::map<ItemKey, size_t> order;  // updates applied before it was first counted
    std::map<ItemKey, Lsn> position;  // of the record that first counted it
    size_t applied = 0;
    Lsn acked;  // the newest record that counted an acked push
  };

  bool IsMember(Incarnation incarnation) const;
  bool Counted(SliceId slice, const WorkRange& item, size_t before) const;
  ItemKey ItemOfStep(uint64_t step) const;
  void BeginAt(const Restore& restore, const JobTruth& before);
  const Values& ExpectedAtStep(SliceId slice, uint64_t step);
  void CheckExact(SliceId slice, Clock clock, const ValueTruth& value, const Values& bytes);
  void CheckPolicies(const JobStatus& status) const;
  void CheckFinite(const std::vector<ValuesPtr>& values) const;
  Values ExpectedAt(SliceId slice, Lsn position) const;
  void CheckAcked(const ReadValues& values, const std::set<PartitionId>& but) const;
  void CheckCounted(const ReadValues& values, const JobReply& reply) const;
  bool CheckStopped(const JobStatus& status) const;
  void CheckEpochs(const JobStatus& status) const;

  World* const world_;
  const Workload* const workload_;
  const RunId run_;
  const JobTruth* const before_;
  const uint64_t first_step_;
  Layout layout_;
  DecisionTruth decisions_;
  std::vector<SliceTruth> slices_;
  std::map<std::pair<SliceId, uint32_t>, Values> cuts_;  // expected, by epoch
  std::map<PartitionId, RosterList> rosters_;
  std::map<PolicyNumber, PolicyAt> policies_;    // as ordered
  std::map<PartitionId, PolicyNumber> ordered_;  // the newest of each partition
  std::map<PartitionId, PolicyNumber> followed_;
  std::map<SliceId, std::pair<uint64_t, Values>> expected_;  // and the steps that they include
  std::map<Incarnation, Replica> replicas_;
  std::optional<uint64_t> training_end_;  // as partitions heard
  std::set<std::string> faulty_workers_;
  uint64_t final_hash_ = 0;
  uint64_t final_steps_ = 0;
  bool over_ = false;
  bool succeeded_ = false;
  bool served_ = false;
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_CHECKER_H_
