// For the core's own tests: a coordinator core on a store in memory, with the simplest workers and
// shards: they follow orders, do one item a round, and lose no message. Faults of the network and
// real sessions and partitions are tested in tests/sim.
#ifndef STARLING_SERVER_COORDINATOR_CORE_TESTING_MINI_CLUSTER_H_
#define STARLING_SERVER_COORDINATOR_CORE_TESTING_MINI_CLUSTER_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/names.h"
#include "common/control/shard_orders.h"
#include "common/control/shard_reports.h"
#include "proto/checkpoint.pb.h"
#include "server/coordinator/core/coordinator.h"

namespace starling::coordinator {

class MiniCluster {
 public:
  struct MiniWorker {
    RegisterReply identity;
    uint64_t nonce = 0;
    uint64_t process = 0;
    uint64_t sequence = 0;
    WorkerOrders orders;
    uint64_t orders_seen = 0;
    CallId call;                // of the report under way; 0: none
    bool alive = true;          // reports
    bool idle_hands = false;    // reports, but does no work
    bool stuck = false;         // the same, and has begun the first of its leases
    bool holds_losses = false;  // does not report what it has finished
    bool lies = false;          // reports training done that it does not do
    bool draining = false;
    bool drained = false;
    bool stubborn = false;     // never gives a job back
    bool never_holds = false;  // does not hear that it is to hold
    std::string inspect_error;
    std::vector<std::string> inspect_warnings;
    bool inspects = true;
    bool prepares = true;
    std::string no_room;                           // not empty: why it has no memory for any job
    Fault::Kind cannot = Fault::KIND_UNSPECIFIED;  // serve any job, because of this, as are:
    std::string why_not;
    Activity activity;
    uint64_t data_digest = 0;  // with `prepared`, and of inspections
    Run run;
    std::vector<StepMetrics> finished;
    std::set<uint64_t> done;  // leases done and still in the orders
    std::vector<Inspection> inspections;
    Fault fault;  // until it has released its run
    uint64_t generation = 0;
    uint64_t items = 0;  // done in all
    int described = 0;   // how often it was sent a job's description
    // As reported with the job that it serves. Each round of work adds `pace` to `times`.
    StepTimes times, pace;
    std::vector<LinkStatus> links;
    double samples_per_second = 0, hidden_share = 0;
    Repeats repeats;  // if its worker is not 0
  };
  struct MiniShard {
    RegisterReply identity;
    uint64_t nonce = 0;
    uint64_t sequence = 0;
    ShardOrderBook orders;
    std::map<uint64_t, JobDescription> descriptions;  // by job, until it has ended here
    ShardReports reports;
    int described = 0;  // how often it was sent a job's description
    // By job, of those that have not ended here: partitions.
    std::map<uint64_t, std::set<uint32_t>> hosted;
    int ended = 0;  // jobs of which it was told to keep only the values
    // Of these, by job: partitions that have ended here, and copies that were ordered since.
    struct Ended {
      Run run;
      std::set<uint32_t> partitions;
      std::map<uint32_t, EndedCopyOrders> copies;
      size_t made = 0;  // of them, as it has reported
    };
    std::map<uint64_t, Ended> over;
    std::string refuses_ended;  // not empty: why it cannot make such copies
    bool copies_ended = true;   // its release can
    uint64_t orders_seen = 0;
    CallId call;
    bool alive = true;
    bool beats = true;   // its heartbeats come, and it answers questions
    uint64_t asked = 0;  // the newest question
    // Not alive, as its connections to the coordinator are broken, but it answers at its address.
    bool listens = false;
    bool draining = false;
    bool drained = false;
    DrainOrders drain;  // the last ones
    uint64_t generation = 0;
    std::map<uint64_t, bool> bsp;  // by job uid: the policy that its partitions follow is BSP
    bool deaf = false;             // it follows no new policy
    bool lags = false;             // its partitions do not come to where one begins
    std::string refuses;           // not empty: why it can hold no partition
    bool diverges = false;         // that is because values are not finite
    std::string refuses_backups;   // the same, of backups alone
    bool differs = false;          // that is because its copies differ from their primaries
    std::optional<uint64_t> memory_room;  // if not the cluster's
    std::string no_memory;  // not empty: why its primaries stop, though their values are good
    bool copies = true;     // backups of its partitions get what they lack
    std::vector<std::string> unreached;  // addresses of shards, as it reports them
    // Addresses of shards whose decisions about steps do not come.
    std::set<std::string> undecided;
    std::set<std::string> cut;  // addresses to which it has no link: so are backups there
    uint64_t frames = 0;        // of a snapshot that such a backup has
    uint64_t sealed_ahead = 0;  // steps that they have sealed in BSP beyond those that count
    // Of checkpoints: it keeps what its partitions have at the step, and writes that.
    uint64_t checkpoint_nonce = 0;            // what it has found, once it was told to look
    bool checkpoint_looks = true;             // once it is told to
    std::string checkpoint_error;             // not empty: why it finds nothing
    std::string checkpoint_fails;             // not empty: why it cannot write
    bool checkpoint_misses = false;           // hears of each checkpoint too late
    bool checkpoint_waits = false;            // never comes to the step
    uint64_t checkpoint_bytes = 100;          // of its file, of which it writes
    uint64_t checkpoint_pace = 100;           // so many in a round
    std::optional<uint32_t> checkpoint_copy;  // the epoch of whose cut the file has a copy
    uint64_t checkpoint_skipped = 0;
    std::map<uint64_t, CheckpointPart> parts;  // by job
    // Of each of its partitions. Each report adds `pace` to `times`.
    PartitionTimes times, pace;
  };

  explicit MiniCluster(CoordinatorOptions options = {});

  // ---- The coordinator ----
  void StartCoordinator();  // on what the store holds
  // From the next start on.
  void UseOptions(CoordinatorOptions options) { options_ = std::move(options); }
  void Step(const Event& event);
  void Tick();
  // The answer, or nullptr while the call is held.
  const CallReply* Answer(CallId call) const;
  // The same, which is then forgotten.
  std::optional<CallReply> TakeAnswer(CallId call);
  // Makes a new call and returns its answer, after as many rounds as it is held.
  template <typename Event, typename... Request>
  CallReply Ask(const Request&... request) {
    const CallId call = NewCall();
    Step(Event{call, request...});
    return Await(call);
  }
  CallReply Await(CallId call);
  CallId NewCall() { return CallId(++last_call_); }

  // ---- Daemons ----
  RegisterReply Register(Role role, const std::string& name, const std::string& address,
                         uint64_t nonce, bool gpu = false, uint64_t process = 0);
  // `process` 0: a new one, like `nonce` of Register.
  void AddWorker(const std::string& name, bool gpu = false, uint64_t process = 0);
  void AddShard(const std::string& name);
  void Rejoin(const std::string& worker);  // after its process was started again

  // Of the shard, now.
  event::Heartbeat Heartbeat(const MiniShard& shard) const;

  // ---- Time ----
  // One round of 50 ms: daemons report and work, the coordinator ticks.
  void Round();
  // False: it did not become true within the time.
  bool RunUntil(const std::function<bool()>& condition, absl::Duration limit = absl::Minutes(2));
  void RunFor(absl::Duration time);

  // ---- Questions ----
  static JobSpec Spec(const std::string& name, Policy::Kind policy, uint32_t workers_min,
                      uint32_t workers_max);
  CallReply Submit(const JobSpec& spec, uint64_t nonce = 0, bool dry_run = false);
  CallReply Submit(const SubmitRequest& request);
  JobReply Get(const std::string& job);
  JobStatus Status(const std::string& job) { return std::move(*Get(job).mutable_status()); }
  bool IsIn(const std::string& job, JobState state) { return Status(job).state() == state; }
  std::string JobLog(const std::string& job);  // one sentence a line

  absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  absl::Duration wall_ahead;  // of `now`
  std::unique_ptr<Coordinator> core;
  StoreSnapshot store;
  std::map<std::string, MiniWorker> workers;
  std::map<std::string, MiniShard> shards;
  uint64_t train_samples = 40;
  uint64_t test_samples = 20;
  double train_loss = 0.5;  // of each batch from here on
  // Each micro-batch of a BSP step is reported separately, as by a worker of its own.
  bool bsp_in_parts = false;
  uint64_t recent_lag = 0;  // as shards report it, as are:
  uint64_t memory_room = uint64_t{1} << 40;
  uint64_t bsp_bytes_more = 0;  // of each partition
  // By job uid and epoch: items that are covered on all partitions, and how often each was counted.
  std::map<uint64_t, std::map<uint32_t, std::map<uint64_t, int>>> covered;
  // Of the last report of a shard and the last orders to one.
  size_t report_bytes = 0, orders_bytes = 0;
  std::vector<CurveNews> curve_news;
  int questions = 0;                     // to shards
  int calls_to_shards = 0;               // of these questions, those asked at their addresses, too
  std::vector<JobReply> outputs;         // that were to be written
  std::vector<uint64_t> roster_numbers;  // as seen in orders, in order
  // The disk of checkpoints. It answers once a round.
  bool disk_hangs = false;
  bool mounted = true;                             // else the coordinator sees an empty folder
  absl::Status makes, seals, drops, lists, marks;  // how it does
  uint64_t root_nonce = 0;                         // in the folder
  std::set<CheckpointId> folders;                  // of those that are being taken
  std::map<CheckpointId, CheckpointManifest> checkpoints;
  std::map<CheckpointId, std::string> unreadable;
  absl::Status reads;                            // how it does
  std::map<CheckpointId, absl::Status> damaged;  // how it reads these
  std::vector<uint64_t> read;                    // numbers of those that were to be read
  std::vector<CheckpointId> dropped;

 private:
  void CarryOut(Actions actions);
  void Do(const action::Persist& action);
  void Do(action::Reply& action);
  void Do(const action::WriteCurve& action) { curve_news.push_back(action.news); }
  void Do(const action::WriteOutput& action) { outputs.push_back(action.job); }
  void Do(const action::MakeCheckpoint& action);
  void Do(const action::SealCheckpoint& action) { disk_.push_back(action); }
  void Do(const action::DropCheckpoint& action) { disk_.push_back(action); }
  void Do(const action::ListCheckpoints& action) { disk_.push_back(action); }
  void Do(const action::ReadCheckpoint& action) { disk_.push_back(action); }
  void Do(const action::AskShard& action);
  void Do(const action::Log&) {}
  void AnswerDisk();
  Event AnswerOfDisk(const Action& action);
  void Report(MiniWorker& worker);
  void Report(MiniShard& shard);
  void ReportEnd(MiniShard& shard, uint64_t uid);
  void ReportCheckpoint(MiniShard& shard, const ShardJob& orders, ShardReport& report);
  static void Grow(const StepTimes& pace, StepTimes& times);
  void DoWork(MiniWorker& worker);
  void DoBspWork(MiniWorker& worker);
  void TakeOrders(MiniWorker& worker, const WorkerOrders& orders);
  uint64_t Covered(uint64_t uid) const;             // items
  uint64_t Begun(const JobDescription& job) const;  // steps of the job
  void CoverBefore(const JobDescription& job);
  void TakeOrders(MiniShard& shard, const ShardOrders& orders);
  PartitionStatus StatusOf(MiniShard& shard, const ShardJob& orders,
                           const PartitionOrders& partition);
  // `roster` null: it is left out.
  void CheckDurable(const Run& run, const Roster* roster, uint32_t epoch) const;

  CoordinatorOptions options_;
  std::map<uint64_t, uint64_t> policies_;  // by job uid: the number that its partitions follow
  std::map<uint64_t, uint32_t> eras_;      // by job uid: the newest that a shard has heard of
  uint64_t last_call_ = 0;
  uint64_t last_nonce_ = 0;
  uint64_t last_root_nonce_ = 0;  // a coordinator's
  std::map<uint64_t, CallReply> answers_;
  std::vector<std::string> listened_;  // shards that have answered at their addresses
  std::deque<Action> disk_;            // what it was asked for
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_TESTING_MINI_CLUSTER_H_
