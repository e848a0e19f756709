// The session's state and its verbs, one file each. Private to this folder.
#ifndef STARLING_WORKER_CORE_CORE_H_
#define STARLING_WORKER_CORE_CORE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/core/session.h"

namespace starling::session {

// When to try again, and the current wait.
struct Retry {
  absl::Time at = absl::InfinitePast();
  absl::Duration wait = absl::ZeroDuration();

  // Schedules the next attempt after a wait that doubles each time.
  void Failed(absl::Time now, const SessionOptions& options);
  void Succeeded() { *this = Retry(); }
};

enum class Life : uint8_t { kNew, kRegistering, kRegistered, kExited };

enum class JobPhase : uint8_t {
  kPreparing,  // the host opens data and plans memory
  kServing,
  kLeaving,  // starts no new unit; closes when nothing is open
  kBroken,   // a fault was reported; waits for orders that take the job away
};

// Membership in the partitions' minimum.
enum class Presence : uint8_t { kParked, kEntering, kActive, kParking };

enum class RequestKind : uint8_t { kPush, kClose, kEnter, kSkip, kPark, kPull };

// A request without an answer: sent, or waiting for its stream.
struct Request {
  RequestKind kind = RequestKind::kPush;
  FrameHeader header;
  BufferId buffer;
  UnitId unit;                                // kPush, kClose
  absl::Time again = absl::InfiniteFuture();  // when to send it again after a temporary refusal
  Retry retry;
  int bad_digests = 0;
};

inline bool IsEvaluationPull(const Request& request) {
  return request.kind == RequestKind::kPull &&
         request.header.key.work.purpose == WorkPurpose::kEvaluate;
}

struct Unit {
  UnitId id;
  WorkPurpose purpose = WorkPurpose::kTrain;
  WorkRanges ranges;
  WorkRange item;       // the work that CLOSE names
  bool closes = false;  // false: evaluation, or extra work for a step that another unit closes
  WorkerId repeats;     // a backup worker: whose part it is; 0: its own
  Lease lease;          // id 0: BSP training
  Clock clock = 0;
  uint64_t job_step = 0;
  absl::Time began;

  bool computed = false;
  std::vector<uint32_t> arrived;      // per slice: ranges whose gradient has arrived
  std::vector<uint32_t> slices_left;  // per partition: slices with unsent pushes
  uint32_t partitions_left = 0;       // partitions whose CLOSE was not sent
  uint32_t pushes_open = 0;
  uint32_t closes_open = 0;

  bool pushed_any() const {
    return std::any_of(arrived.begin(), arrived.end(), [](uint32_t ranges) { return ranges > 0; });
  }
  bool done() const {
    return computed && partitions_left == 0 && closes_open == 0 && pushes_open == 0;
  }
};

// A slice's values in one of the executor's copies.
struct Held {
  Clock version = -1;  // -1: none
  Clock newest = -1;   // the highest ever seen
  Lsn lsn;
  uint64_t request = 0;  // the open pull; 0: none
  Clock wanted = -1;     // the open pull's clock
};

struct StreamState {
  std::string address;
  Incarnation incarnation;
  bool up = false;
  bool connecting = false;
  absl::Time down_since = absl::InfinitePast();
  Retry retry;
};

// The part of a BSP step that was computed, and under which roster.
struct StepWork {
  RosterNumber roster;
  WorkRanges ranges;
};

struct JobState {
  // `memory`: for short-lived data of units; outlives this.
  explicit JobState(std::pmr::memory_resource* memory)
      : entered_at(memory), units(memory), step_work(memory), requests(memory), done(memory) {}

  JobDescription description;
  RunId run;
  JobPhase phase = JobPhase::kPreparing;
  bool prepared = false;  // data, memory and all streams have been ready
  bool member = false;    // the roster contains this incarnation
  absl::Time leave_by = absl::InfiniteFuture();

  std::vector<SliceShape> slices;
  std::vector<uint32_t> contributing;  // per partition: slices with gradients
  uint64_t steps = 0;                  // per full epoch
  uint64_t steps_in_job = 0;
  uint32_t micro_batches = 1;
  uint32_t backup = 0;  // backup workers (common/placement/layout.h)

  absl::btree_map<PartitionId, View> views;
  RosterList roster;
  // The policy in use; becomes the ordered one as soon as the current unit allows.
  ConsistencyPolicy policy;
  PolicyNumber policy_number;
  ConsistencyPolicy ordered_policy;
  PolicyNumber ordered_policy_number;
  // Steps from here on belong to the next policy.
  uint64_t policy_end = std::numeric_limits<uint64_t>::max();
  bool hold = false;  // no new training unit
  uint32_t epoch = 0;
  bool training_open = false;
  std::vector<Lease> evaluation;  // ordered leases that were not begun
  std::vector<Lease> training;

  Presence presence = Presence::kParked;
  uint32_t answers_left = 0;                     // partitions that have not answered ENTER or PARK
  std::pmr::map<PartitionId, Clock> entered_at;  // from the answers to ENTER so far
  Clock clock = 0;                               // of the next unit
  std::vector<Held> live;
  std::vector<Held> snapshot;
  std::vector<Lsn> seen;  // per partition: the highest position seen in values and acks

  std::pmr::map<UnitId, Unit> units;  // units that are not done
  UnitId computing;                   // 0: none
  std::pmr::map<Clock, StepWork> step_work;
  // BSP with backup workers: by how much members were late in all, in microseconds of all slices.
  struct LateSums {
    uint64_t lately = 0;  // halved as steps pass
    uint64_t in_all = 0;
  };
  absl::btree_map<WorkerId, LateSums> late_us;
  absl::btree_map<SliceId, Clock> late_counted;   // the newest version
  Clock late_age = 0;                             // steps / kStepsToHalf of the newest sum
  Clock late_from = 0;                            // the roster is that of steps from here on
  absl::Time stepped_at = absl::InfinitePast();   // when the last step was over
  std::array<absl::Duration, 8> step_times = {};  // of the last steps
  uint64_t steps_timed = 0;
  std::pmr::map<uint64_t, Request> requests;           // by request id, so in the order of sending
  std::pmr::map<uint64_t, Lease> done;                 // reported until orders drop them
  absl::btree_set<std::pair<ShardId, Answer>> warned;  // refusals that were logged
  WorkRanges prefetched;                               // the last list, made for the state below
  uint64_t prefetched_orders = 0;
  Clock prefetched_clock = -1;
  UnitId prefetched_unit;

  bool bsp() const { return policy.kind == PolicyKind::kBsp; }
};

class Core {
 public:
  explicit Core(SessionOptions options) : options_(std::move(options)) {}

  void Step(const Event& event, absl::Time now, Actions& actions);
  Activity activity() const;
  std::string ToString() const;

 private:
  // on_register.cc
  void On(const event::Registered& e);
  void On(const event::RegisterFailed& e);
  void MaybeRegister();
  void Rejoin(absl::string_view why);

  // on_orders.cc
  void On(const event::Orders& e);
  void On(const event::ReportFailed& e);
  void TakeOrders(const WorkerOrders& orders);
  bool HasDescription(const WorkerOrders& orders);
  void UpdateJob(const WorkerOrders& orders);
  void UpdatePolicy(const WorkerOrders& orders);
  void TakePolicy();
  bool IsDelivered(UnitId id) const;
  void UpdateViews(const WorkerOrders& orders);
  void UpdateLeases(const WorkerOrders& orders);
  void UpdateInspections(const WorkerOrders& orders);
  void On(const event::Inspected& e);

  // on_job.cc: prepare, leave, close
  void On(const event::JobPrepared& e);
  void On(const event::Drain& e);
  void MaybeStartJob();
  bool TakenAway() const;
  void MaybeFinishLeaving();
  void MaybePrepared();
  void MaybeExit();
  bool NobodyFinishesWithUs() const;
  void Leave();
  void CloseJob();
  void Break(Fault::Kind kind, std::string message);
  void BreakNonFinite(const Unit* unit, const WorkRange& range, const std::string& what);

  // on_stream.cc
  void On(const event::StreamUp& e);
  void On(const event::StreamDown& e);
  void SyncStreams();
  void DisconnectAll();
  void Transmit(Request& request);
  void SendAgainDue();
  Request& NewRequest(RequestKind kind, FrameType type, PartitionId partition);

  // on_frame.cc
  void On(const event::Frame& e);
  void OnAck(uint64_t id, const FrameHeader& header);
  void OnValue(uint64_t id, const event::Frame& e);
  void OnRefused(uint64_t id, const event::Frame& e);
  bool DropStaleEvaluation(uint64_t id);
  void Answered(uint64_t id);
  void Drop(uint64_t id);
  void DropRequests(absl::FunctionRef<bool(const Request&)> over);

  // presence.cc
  void StepPresence();
  bool WantsToEnter() const;
  bool WantsToLeave() const;
  bool AllAnswered() const { return job_->answers_left == 0; }
  void SendEnters();
  void SendParks();
  void SendToAll(RequestKind kind, uint16_t flags);
  void BecomeActive();

  // on_unit.cc
  void On(const event::SliceGradient& e);
  void On(const event::UnitComputed& e);
  void On(const event::UnitFailed& e);
  void SendClose(Unit& unit, PartitionId partition);
  void AbandonComputing();
  void DropUnit(UnitId id);
  void ForgetStepWithoutUnits(Clock step);
  void DropTraining();
  void MaybeDone(UnitId id);
  std::string Blame(const Unit* unit) const;

  // schedule.cc
  void Schedule();
  void StartEvaluation();
  bool StartTraining();
  bool StartStep();
  void StartMissing();
  uint64_t JobStep(const WorkRange& item) const;
  bool HasTraining() const;
  bool MayBegin() const;
  size_t TrainingUnits() const;
  bool Sealed(Clock step) const;
  WorkRanges Assigned(Clock step) const;
  bool MayPutOff(Clock step) const;
  void BeginMore(Clock step, WorkRanges ranges, WorkerId repeats);
  void Begin(Unit unit);
  void KeepCounts(Unit& unit);
  void Want(SliceId slice, Params params, Clock clock);
  void TellPrefetch();
  bool WindingDown() const;

  // backup.cc
  using MemberIndices = absl::InlinedVector<size_t, 16>;
  std::optional<size_t> OwnIndex() const;
  uint64_t Sharing() const;
  WorkRanges PartOf(size_t member, Clock step) const;
  MemberIndices Latest() const;
  std::optional<size_t> PartOwner() const;
  WorkerId Repeated() const;
  void TakeLate(Clock version, const FrameHeader& value);
  uint64_t MicrosOfMore(uint32_t larger, uint32_t smaller) const;
  void ForgetOldLateness(Clock step);
  void ForgetLatenessOfStrangers();
  void TurnToLatest();
  void NoteStep();
  absl::Time OverdueAt(const Unit& unit) const;
  void HelpOverdueStep();
  void AddRepeats(WorkerReport& report) const;

  // on_report.cc
  void MaybeReport();
  WorkerReport MakeReport();

  void On(const event::Tick&) {}
  void Pump();
  void Do(Action action) { actions_->push_back(std::move(action)); }
  void Release(BufferId buffer);

  const SessionOptions options_;
  absl::Time now_;
  Actions* actions_ = nullptr;  // of the current Step

  Life life_ = Life::kNew;
  uint64_t registration_ = 0;
  Retry register_retry_;
  WorkerId worker_;
  Incarnation incarnation_;
  Generation generation_;  // the highest seen in this cluster
  uint64_t cluster_ = 0;

  bool draining_ = false;
  bool idle_ = false;         // had no work when the drain began
  absl::Status exit_status_;  // after a complete drain
  absl::Time drain_began_;
  absl::Time drain_by_ = absl::InfiniteFuture();
  absl::Time drained_at_ = absl::InfiniteFuture();  // since when no job is left
  absl::Time coordinator_heard_ = absl::InfinitePast();
  absl::Time shard_heard_ = absl::InfinitePast();
  uint64_t drained_sequence_ = 0;  // of the first report with `drained`

  uint64_t sequence_ = 0;
  uint64_t sequence_taken_ = 0;
  int reports_under_way_ = 0;
  bool news_ = false;  // something to report since the last report
  absl::Time reported_at_ = absl::InfinitePast();
  Retry report_retry_;
  uint64_t orders_version_ = 0;
  WorkerOrders orders_;       // the last orders, completed, without the job's description
  JobDescription described_;  // the last description received
  bool have_orders_ = false;

  struct Finished {
    uint64_t sequence = 0;  // of the first report that contained it; 0: none yet
    RunId run;
    StepMetrics metrics;
  };
  // For short-lived data of units, reused. Declared before the members that allocate from it.
  std::pmr::unsynchronized_pool_resource memory_;
  std::vector<std::vector<uint32_t>> spare_counts_;  // of finished units, for reuse
  struct Wanted {
    ShardId shard;
    PartitionId partition;
    const View* view;
  };
  std::vector<Wanted> wanted_streams_;  // scratch of SyncStreams

  std::pmr::deque<Finished> finished_{&memory_};  // at most options_.metrics_waiting
  absl::btree_map<uint64_t, std::optional<Inspection>> inspections_;  // by request; set: answered
  std::optional<Fault> fault_;

  absl::btree_map<ShardId, StreamState> streams_;
  std::optional<JobState> job_;
  uint64_t next_request_ = 1;
  uint64_t next_unit_ = 1;
};

WorkRange RangeOf(const Work& work);
void SetWork(const WorkRange& range, Work* work);

// The parts of `wanted` that `have` lacks, as aligned ranges in ascending order.
WorkRanges Missing(const WorkRanges& wanted, const WorkRanges& have);

}  // namespace starling::session

#endif  // STARLING_WORKER_CORE_CORE_H_
