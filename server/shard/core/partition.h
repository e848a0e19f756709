// One copy of a job's partition, as a pure core: docs/protocol.md, sections 2 to 4, 7 and 12. As
// the primary it decides; as the backup it repeats the primary's records. The same events at the
// same times give the same actions; no I/O, no threads, no clock.
//
//   Partition partition(MakePartitionConfig(job, layout, id, self).value());
//   partition.Step(OrdersReceived{...}, now, actions);  // the values are initialised
//   partition.Step(FrameReceived{connection, header, payload}, now, actions);
//   for (PartitionAction& action : actions) ...  // in order; then actions.clear()
//
// Before the first orders, every frame is answered with kNotHosted.
#ifndef STARLING_SERVER_SHARD_CORE_PARTITION_H_
#define STARLING_SERVER_SHARD_CORE_PARTITION_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/limits.h"
#include "common/protocol/types.h"
#include "common/reduce/subtree_sum.h"
#include "server/shard/core/events.h"
#include "server/shard/core/held_step.h"
#include "server/shard/core/lateness.h"
#include "server/shard/core/partition_config.h"
#include "server/shard/core/partition_log.h"
#include "server/shard/core/partition_state.h"
#include "server/shard/core/step_decider.h"

namespace starling {

class PartitionStatus;  // proto/coordinator.proto

inline constexpr absl::Duration kShardTickPeriod = absl::Milliseconds(100);
// A frame with a later roster, view, policy or epoch waits this long for the matching orders.
inline constexpr absl::Duration kParkedFrameDeadline = absl::Seconds(10);
// How often the deciding partition is asked, and after how many such reports without an answer the
// status tells.
inline constexpr absl::Duration kReportPeriod = absl::Milliseconds(500);
inline constexpr int64_t kUnansweredReports = 6;
// How often a silent backup is asked where it is, how soon one that refused or was cut off is asked
// again (twice as late each time, at most kAskBackupLate), and how long it may leave frames
// unanswered.
inline constexpr absl::Duration kAskBackupPeriod = absl::Milliseconds(500);
inline constexpr absl::Duration kAskBackupSoon = absl::Milliseconds(50);
inline constexpr absl::Duration kAskBackupLate = absl::Seconds(1);
inline constexpr absl::Duration kBackupSilence = absl::Seconds(10);

using PartitionActions = std::vector<PartitionAction>;

// How often each path was taken. The simulator fails if one stays zero.
struct PartitionCounters {
  uint64_t already_counted = 0;
  uint64_t joined = 0;
  uint64_t blocked_pulls = 0;
  uint64_t superseded_pulls = 0;
  uint64_t parked = 0;
  uint64_t fenced = 0;
  uint64_t refused = 0;
  uint64_t replaced_sums = 0;
  uint64_t duplicate_sums = 0;
  uint64_t sealed = 0;
  uint64_t cuts = 0;
  uint64_t drains = 0;          // for a coming policy
  uint64_t policies = 0;        // switches
  uint64_t earlier_policy = 0;  // requests under a policy that has ended
  uint64_t held_sums = 0;
  uint64_t decisions = 0;
  uint64_t repeated_reports = 0;
  uint64_t duplicate_reports = 0;
  uint64_t stale_decisions = 0;
  uint64_t promotions = 0;      // from backup to primary
  uint64_t snapshots = 0;       // taken for a backup
  uint64_t wholes = 0;          // times that a backup had everything committed
  uint64_t resumed = 0;         // backups that went on after their last record
  uint64_t stale_answers = 0;   // answers of another view or another round of asking
  uint64_t learned = 0;         // snapshots received completely
  uint64_t repeated = 0;        // records of a primary
  uint64_t repeated_again = 0;  // records that had come before
  uint64_t early_records = 0;   // records that came before the snapshot was complete
  uint64_t fenced_records = 0;  // frames of replication of another view
  uint64_t captures = 0;        // for checkpoints
  uint64_t missed_captures = 0;
  uint64_t late_steps = 0;  // of slices, with backup workers: who was late is known
};

// How a copy starts.
enum class FirstState : uint8_t {
  kFirstValues,  // with the job's first values
  kNothing       // empty: a learner, which waits for a snapshot
};

// One thread at a time.
class Partition {
 public:
  explicit Partition(PartitionConfig config, FirstState first = FirstState::kFirstValues);
  Partition(const Partition&) = delete;
  Partition& operator=(const Partition&) = delete;

  // Appends actions, to be carried out in order. `now` never goes back.
  void Step(const PartitionEvent& event, absl::Time now, PartitionActions& actions);

  // Whether workers wait for values. The status says for how long, so it then changes with time
  // alone.
  bool HoldsTrainingPulls() const;

  // `observer` is called within Step for each record that takes effect, after applied() includes
  // it.
  void ObserveEffects(std::function<void(const Record&)> observer) {
    effect_observer_ = std::move(observer);
  }

  // For the shard's report to the coordinator.
  PartitionStatus Status() const;

  const PartitionConfig& config() const { return config_; }
  const PartitionCounters& counters() const { return counters_; }
  const PartitionLog& log() const { return log_; }
  // The state as of the last record that took effect. Peers are answered from it.
  const PartitionState& applied() const { return applied_; }
  // The state as of the last ordered record. Decisions are made from it.
  const PartitionState& ordered() const { return ordered_; }
  // Payload bytes of the frames that wait for orders.
  uint64_t parked_bytes() const;
  // Frames that wait for orders. If this copy is dropped, the host answers them.
  std::vector<std::pair<ConnectionId, FrameHeader>> ParkedFrames() const;
  // False of a learner until its snapshot is complete.
  bool has_copy() const { return has_copy_; }
  bool leads() const { return IsPrimary(); }
  const std::string& backup_address() const { return backup_address_; }

 private:
  using Waiter = PartitionLog::Waiter;
  using Waiters = PartitionLog::Waiters;

  // Work on a slice that is not in a record yet.
  struct SliceWork {
    SliceWork(const PartitionConfig::SliceInfo& info, uint32_t leaves, uint32_t backup_workers)
        : info(info), tree(leaves), lateness(backup_workers) {}

    PartitionConfig::SliceInfo info;
    SubtreeSum tree;                   // BSP: sums of step Sealed()
    Waiters unsealed;                  // BSP: senders of the contributions in the tree
    std::optional<Origin> overflowed;  // BSP: sender of a contribution in the tree that overflowed
    Lateness lateness;                 // BSP
  };

  // A contribution that is being verified or, in SSP and async, ordered but not applied yet.
  struct InFlight {
    FrameHeader header;
    Waiters waiters;
  };
  using InFlightKey = std::pair<SliceId, WorkRange>;

  struct Parked {
    FrameReceived frame;
    absl::Time deadline;
  };
  struct ParkedUse {
    size_t frames = 0;
    size_t bytes = 0;
  };

  // What to do with a frame.
  struct Verdict {
    enum Kind { kPass, kRefuse, kPark } kind = kPass;
    Answer answer = Answer::kNone;
    std::string text;
  };

  enum class PullState { kWait, kAnswered };
  struct WaitingPull : Waiter {
    absl::Time since;  // its arrival
  };
  // Training pulls are keyed by replica, so that a newer one supersedes an older one; others by
  // connection.
  struct PullKey {
    SliceId slice;
    WorkPurpose purpose;
    bool reader;
    uint64_t puller;
    friend auto operator<=>(const PullKey&, const PullKey&) = default;
  };

  static bool AddWaiter(Waiters& waiters, const Waiter& added, size_t limit);
  static void Forget(Waiters& waiters, ConnectionId connection);

  // on_frame.cc
  void On(const FrameReceived& frame);
  void OnFrame(const FrameReceived& frame, absl::Time deadline);
  bool IsOvertaken(const FrameReceived& frame);
  Verdict CheckForm(const FrameHeader& header) const;
  Verdict CheckClose(const FrameHeader& header) const;
  Verdict CheckWork(const FrameHeader& header) const;
  std::string StaleViewText(const FrameHeader& header) const;
  Verdict CheckFences(const FrameHeader& header) const;
  void Park(const FrameReceived& frame, absl::Time deadline);
  void Unpark();
  void ExpireParked();
  void On(const ConnectionDown& down);

  // on_push.cc
  void OnPush(const FrameReceived& frame, absl::Time deadline);
  bool Covers(const SliceWork& slice, const FrameHeader& header) const;
  bool OpensTooMuch(uint32_t epoch, uint64_t item) const;
  bool Join(const FrameReceived& frame, SliceWork& slice);
  Waiters* FindSeal(const SliceWork& slice, const WorkRange& work);
  void TakeWaiter(Waiters& waiters, const FrameReceived& frame);
  size_t WaitersMax() const;
  bool EpochMustWait(uint32_t epoch) const;
  bool PolicyMustEnd(const WorkRange& work) const;

  // on_verified.cc
  void On(const Verified& verified);
  void RefuseInFlight(BufferId payload, Answer answer, const std::string& text);
  void RefuseNonFinite(BufferId payload, uint32_t element);
  void RefuseAsSent(BufferId payload, Answer answer, const std::string& text,
                    absl::string_view remedy);
  void OrderContribution(BufferId payload);
  void AddToTree(BufferId payload);
  InFlight TakeInFlight(BufferId payload);
  void Seal(SliceWork& slice, const FrameHeader& last, BufferId sum);
  UpdateScalars DecideScalars(const SliceWork& slice, const WorkRange& item, uint64_t samples,
                              Lsn base) const;

  // on_decision.cc
  void Hold(Record record, BufferId sum, Waiters waiters);
  void On(const Measured& measured);
  void RefuseHeld(Answer answer, const std::string& text);
  std::string OverflowText(SliceId slice, int64_t element, int64_t step) const;
  std::string NotFiniteText(SliceId slice, int64_t element, int64_t step) const;
  size_t UndecidedSlices(Clock step) const;
  void TryReport();
  std::string UndecidedText() const;
  void On(const DecisionReceived& decision);
  void OnReport(const FrameReceived& frame);
  void OrderDecision();
  void FinishDecision();
  void AnswerReport(const Waiter& waiter, Answer answer, const StepDecision& decision);

  // on_overflow.cc
  bool NextLossScale(SliceId slice, bool skipped, int log2, int64_t step, const Origin& origin,
                     LossScale::State* next);
  int LossScaleOf(SliceId slice, uint64_t version) const;

  // on_applied.cc
  static void MustRepeat(const Record& record, uint64_t digest, PartitionState& state);
  void Order(Record record, BufferId payload, Waiters waiters);
  void NoteOrdered(const Record& record);
  void Advance();
  void TakeEffect(PartitionLog::Entry entry);
  void On(const Applied& applied);
  void StopAt(PartitionLog::Entry& entry, const std::string& why);
  void FinishApply(PartitionLog::Entry& entry);

  // on_close.cc
  void OnClose(const FrameReceived& frame);
  void TryCloses();
  bool CloseIsReady(const ClockTable::Replica& replica, const FrameHeader& request,
                    bool behind_others) const;
  void OrderClose(ReplicaId replica, const Waiter& waiter);
  void AnswerKnownClose(ReplicaId replica, const Waiter& waiter);
  void FinishClose(const PartitionLog::Entry& entry);
  Clock EnterClock(ReplicaId replica) const;
  Clock SkipClockMax(const ClockTable::Replica& replica) const;

  // on_pull.cc
  void OnPull(const FrameReceived& frame);
  PullState TryPull(const WaitingPull& pull);
  PullState TryEvaluationPull(const WaitingPull& pull);
  PullState TryBspPull(const WaitingPull& pull);
  uint64_t NewestVersion(SliceId slice) const;
  bool IsGone(const SliceWork& slice, uint64_t version) const;
  PullState ReadVersion(const WaitingPull& pull);
  void TryPullsOf(SliceId slice);
  void TryAllPulls();
  void SendSlice(const WaitingPull& pull, ValueSource source, uint64_t version, Lsn position);
  void EndHold(const WaitingPull& pull);
  void ErasePulls(absl::FunctionRef<bool(const WaitingPull&)> over);

  // on_orders.cc
  void On(const OrdersReceived& orders);
  void TakeView(const OrdersReceived& orders);
  void Lead();
  void TakeRoster(const RosterList& roster);
  void TakeEpoch(const OrdersReceived& orders);
  // Refuses waiting closes and pulls of non-members.
  void RefuseStrangers(const std::string& text);

  // on_policy.cc
  void TakePolicies(const OrdersReceived& orders);
  void TakePolicy(const PolicyAt& policy);
  void TryPolicy();
  void FinishPolicy();
  bool IsDrained(uint64_t step) const;
  static bool IsReaderPull(const FrameHeader& header) {
    return header.type == FrameType::kPull && (header.flags & frame_flags::kReader) != 0;
  }
  static bool IsTrainingRequest(const FrameHeader& header);
  bool IsOfEarlierPolicy(const FrameHeader& header) const;
  void OnEarlierPolicy(const FrameReceived& frame);
  void AnswerEarlierPolicy(const Waiter& waiter);

  // on_cut.cc
  void TryCut();
  void FinishCut(std::optional<uint32_t> copy_before);

  // on_checkpoint.cc
  void TakeCheckpoint(const OrdersReceived& orders);
  void TryCheckpoint();
  bool MayHandOut(const PartitionLog::Entry& entry);
  void Capture(const CutState& state);
  void Miss(const absl::Status& why);

  // on_backup.cc: a primary's side of replication
  void BeginTalk();
  void AskAgain(absl::Time at);
  absl::Duration AskBackOff();
  void Ask();
  void TryTalk();
  FrameHeader ToBackup() const;
  void On(const BackupAnswered& answer);
  void On(const BackupDown& down);
  void On(const SnapshotTaken& taken);
  void Follow(Lsn has);
  void SendSnapshotFrames();
  void SendRecords();
  void Commit();

  // on_replicated.cc: a backup's side
  bool TakesFrom(const FrameReceived& frame);
  void RefuseReplicated(const FrameReceived& frame, Answer answer, const std::string& text);
  void AnswerPrimary(const FrameReceived& frame);
  void OnAsked(const FrameReceived& frame);
  void On(const RecordReceived& received);
  bool RepeatRecord(const Record& record, BufferId payload);
  bool IsSame(const CopyDigests& primary);
  void On(const SnapshotReceived& received);
  void BeginLearning(const FrameHeader& first);
  bool AddState(const SnapshotReceived& received);
  bool ReadState(const FrameReceived& frame);
  bool TakeTensor(const FrameReceived& frame);
  bool FinishLearning(const FrameReceived& frame);

  // partition.cc
  bool IsPrimary() const { return view_.value != 0 && primary_ == config_.self && has_copy_; }
  void On(const ShardTick&) {}
  void Settle();
  template <typename T>
  void Do(T action) {
    actions_->push_back(std::move(action));
  }
  SliceWork* FindSlice(SliceId id);
  const SliceWork* FindSlice(SliceId id) const;
  uint64_t Sealed(const SliceWork& slice) const;  // BSP: sealed steps, including held ones
  FrameHeader AnswerTo(const FrameHeader& request, FrameType type, Answer answer) const;
  void Ack(const Waiter& waiter, Answer answer, Lsn position, Clock clock);
  void Refuse(const Waiter& waiter, Answer answer, const std::string& text, Clock clock = 0);
  void Refuse(const FrameReceived& frame, const Verdict& verdict);

  const PartitionConfig config_;
  std::function<void(const Record&)> effect_observer_;  // empty: none

  // Ordered by the coordinator.
  Generation generation_;
  ViewNumber view_;
  ViewNumber since_;  // the view in which this copy became the primary
  ShardId primary_;
  ShardId backup_;
  std::string backup_address_;
  std::deque<PolicyAt> policies_;  // not in force here yet, ascending
  PolicyNumber in_force_;          // policies up to this one may be in force
  PolicyNumber drained_for_;       // everything before this policy's step is applied
  uint32_t open_epoch_ = 0;
  uint32_t discard_cuts_before_ = 0;

  PartitionLog log_;
  PartitionState applied_;
  PartitionState ordered_;
  std::string encoded_;  // the record that is being ordered; kept to reuse its memory
  // The newest stream of each member.
  absl::btree_map<ReplicaId, std::pair<Incarnation, ConnectionId>> streams_;
  absl::btree_map<SliceId, SliceWork> slices_;
  absl::btree_map<BufferId, InFlight> in_flight_;
  absl::btree_map<InFlightKey, BufferId> in_flight_by_key_;
  absl::btree_map<InFlightKey, ReplicaId> counted_from_;  // kept only while kBatchKey is masked

  // Waiting requests.
  std::deque<Parked> parked_;
  absl::btree_map<ConnectionId, ParkedUse> parked_use_;
  absl::btree_map<ReplicaId, std::deque<Waiter>> closes_;
  absl::btree_map<PullKey, WaitingPull> pulls_;

  // A primary's talk with its backup in one view (docs/decisions/0012).
  struct Talk {
    enum class Stage : uint8_t { kNone, kAsking, kTaking, kCopying, kFollowing };
    Stage stage = Stage::kNone;
    uint64_t round = 0;  // of asking; in all frames and their answers; grows across views
    absl::Time ask_at;   // kAsking
    absl::Time not_before = absl::InfinitePast();  // no question; stays across views
    absl::Time heard;  // when the last answer came, or the first unanswered frame was sent
    int refusals = 0;  // and breaks of the link, since the backup last followed
    Lsn acked;         // the backup has everything up to here
    Lsn sent;
    Lsn snapshot_at;
    uint64_t frames = 0, frames_sent = 0, frames_acked = 0;  // of the snapshot
    // The backup had everything committed: in this view the primary commits nothing alone any more.
    bool whole = false;
  };
  Talk talk_;

  // The newest updates of which IsChecked while there is a backup, and the digests of their slices
  // after them. As many as may be ordered at the backup and not applied at the primary.
  std::deque<std::pair<Lsn, uint64_t>> checks_;
  bool differs_ = false;  // from the primary

  // What a backup knows of its primary.
  bool has_copy_;
  uint64_t primary_round_ = 0;  // the newest
  struct Learner {
    uint64_t round = 0;
    uint64_t next = 0;  // frame
    std::string state;  // the parts received so far
    std::optional<PartitionState> read;
    absl::btree_map<SliceId, uint32_t> missing;  // tensors: bit p is TensorPart p
    uint64_t begun_steps = 0;
    std::deque<std::pair<Record, BufferId>> tail;  // records that came before it was complete
  };
  Learner learner_;

  // Decisions about the whole job.
  ViewNumber decider_view_;
  HeldStep held_;
  std::optional<StepDecider> decider_;              // set in the deciding partition
  absl::btree_map<PartitionId, Waiter> reporters_;  // reports that wait for the pending decision

  // From this step of the job on, nothing is done, so nothing changes any more.
  std::optional<uint64_t> training_end_;

  std::optional<CheckpointAt> checkpoint_;  // ordered, and not answered
  uint64_t last_checkpoint_ = 0;            // the number of the newest one that was ordered

  uint64_t begun_steps_ = 0;  // no contribution to this step of the job or a later one has come

  // What Settle must check again because of the event.
  bool recheck_cut_ = false;
  bool recheck_policy_ = false;
  bool recheck_parked_ = false;
  bool recheck_closes_ = false;
  bool recheck_pulls_ = false;
  bool lsn_blocked_ = false;  // a pull waits for a position that has not taken effect
  bool unparking_ = false;
  std::optional<uint32_t> late_copy_;  // only while kCutBeforeNext is masked

  std::string fault_;
  bool diverged_ = false;  // the fault is the job's own: sums that are not finite, or no scale left
  bool log_stopped_ = false;  // because of the fault: a record will never take effect
  // Of the current Step.
  absl::Time now_;
  PartitionActions* actions_ = nullptr;

  // Total time for which finished training pulls were held back.
  absl::Duration pulls_held_for_;
  uint64_t values_sent_ = 0;  // answers to training pulls
  uint64_t lag_max_ = 0;
  std::array<uint64_t, limits::kLagBuckets> lag_histogram_{};
  PartitionCounters counters_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_CORE_PARTITION_H_
