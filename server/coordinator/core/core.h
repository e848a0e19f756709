// The coordinator core: its verbs, one file each (on_*.cc), and the state that they share. Internal
// to this folder.
#ifndef STARLING_SERVER_COORDINATOR_CORE_CORE_H_
#define STARLING_SERVER_COORDINATOR_CORE_CORE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/placement/layout.h"
#include "server/coordinator/core/checkpoints.h"
#include "server/coordinator/core/coordinator.h"
#include "server/coordinator/core/daemon.h"
#include "server/coordinator/core/job.h"
#include "server/coordinator/core/records.h"
#include "server/coordinator/core/state.pb.h"
#include "server/coordinator/core/views.h"
#include "server/coordinator/curves/job_curve.h"
#include "server/coordinator/explain/evidence.h"
#include "server/coordinator/guard/policy_guard.h"
#include "server/coordinator/leases/lease_table.h"

namespace starling::coordinator {

class Core {
 public:
  Core(const CoordinatorOptions& options) : options_(options) {}

  absl::Status Load(const StoreSnapshot& snapshot);  // snapshot.cc
  void Start(absl::Time now, absl::Time wall, Actions& actions);
  void Step(const Event& event, absl::Time now, Actions& actions);
  bool AsksForDisk(const SubmitRequest& request) const;
  std::optional<CheckpointInfo> FindCheckpoint(const SubmitRequest& request) const;
  uint64_t generation() const { return cluster_.generation(); }

 private:
  // snapshot.cc
  using StoredCurves = std::map<uint64_t, std::map<uint32_t, StoredCurve>>;  // by job and chunk
  absl::Status LoadRecord(const std::string& key, const std::string& value, StoredCurves& curves);
  absl::Status LoadJobRecord(const std::string& key, const std::string& value,
                             StoredCurves& curves);

  absl::Status CheckReferences(const Job& job) const;  // snapshot.cc
  static absl::Status PlanPartitions(Job& job);  // snapshot.cc: partition sizes; checks the digest
  void RestoreJob(Job& job);                     // snapshot.cc: derives state from the records

  // ---- Verbs: one file each ----
  void On(const event::Submit& event);
  void On(const event::GetJob& event);
  void On(const event::ListJobs& event);
  void On(const event::ListWorkers& event);
  void On(const event::ListShards& event);
  void On(const event::Overview& event);
  void On(const event::CancelJob& event);
  void On(const event::DeleteJob& event);
  void On(const event::SetPolicy& event);
  void On(const event::Curves& event);
  void On(const event::Logs& event);
  void On(const event::Explain& event);
  void On(const event::CreateCheckpoint& event);
  void On(const event::ListCheckpoints& event);
  void On(const event::DeleteCheckpoint& event);
  void On(const event::Register& event);
  void On(const event::WorkerReport& event);
  void On(const event::ShardReport& event);
  void On(const event::OutputWritten& event);
  void On(const event::CheckpointMade& event);
  void On(const event::CheckpointSealed& event);
  void On(const event::CheckpointDropped& event);
  void On(const event::CheckpointsFound& event);
  void On(const event::CheckpointRead& event);
  void On(const event::CallGone& event);
  void On(const event::Tick& event);

  // on_client.cc
  template <typename List, typename Event, typename Daemons, typename Add>
  void ReplyWithPage(const Event& event, const Daemons& daemons, const Add& add);

  // on_submit.cc
  absl::Status CheckSubmission(const SubmitRequest& request) const;
  absl::Status CheckTensorboard(const JobSpec& spec) const;
  absl::Status CheckDevice(const JobSpec& spec) const;
  bool AskWorkerToInspect(Submission& submission);
  void FinishSubmission(const std::string& key, const Inspection& inspection);
  void RefuseSubmission(const std::string& key, const absl::Status& error);
  std::string NameOf(const SubmitRequest& request) const;
  absl::StatusOr<Job> MakeJob(const Submission& submission, const Inspection& inspection) const;
  void Accept(Job job, CallId call);
  void RejectSubmission(const std::string& key, absl::Status status);

  // restore.cc: a job whose first values come from a checkpoint
  absl::Status TakeSource(const event::Submit& event, Submission& submission);
  static absl::Status ResolveModelOf(const Submission& submission, const Inspection& inspection,
                                     JobSpec& spec);
  absl::Status CheckSameData(const Submission& submission, const Inspection& inspection) const;
  absl::Status StartFrom(const Submission& submission, Job& job) const;
  static absl::Status CheckManifestNumbers(const CheckpointManifest& manifest,
                                           uint64_t epoch_steps);
  static void ContinueFrom(const CheckpointManifest& manifest, Job& job);
  static void SetProgress(const CheckpointManifest& manifest, Job& job);
  bool HasPassed(const Job& job, const CheckpointId& id) const;
  std::set<CheckpointId> SourcesInUse() const;
  static void OpenEvaluations(Job& job);

  // rollback.cc: a job that has lost values goes back to a checkpoint, or begins again
  static bool RollsBack(const Job& job);
  bool IsOwn(const Job& job, const CheckpointId& id) const;
  static const Restore& FirstSource(const Job& job);
  const CheckpointInfo* FindToGoBackTo(const Job& job, uint64_t below = UINT64_MAX) const;
  std::string UnreadableText(const Job& job) const;
  bool BeginsAgain(const Job& job) const;
  bool MayRollBack(const Job& job, bool counts) const;
  std::string HowToContinue(const Job& job) const;
  std::string WhyNoRollback(const Job& job) const;
  void BeginRollback(Job& job, const std::string& what, bool counts, absl::Duration wait);
  void AdvanceRollback(Job& job);
  void TakeRead(Job& job, const CheckpointId& id,
                const absl::StatusOr<CheckpointManifest>& manifest);
  bool StartsOver(const Job& job, const CheckpointId& id) const;
  static absl::Status CheckContinues(const Job& job, const CheckpointManifest& manifest);
  std::vector<std::string> VoidBehind(Job& job, const CheckpointManifest& manifest);
  void RollBack(Job& job, const std::optional<CheckpointId>& id, const CheckpointManifest& source);
  std::string WhatRollbackWaitsFor(const Job& job) const;
  void AddRestarts(const Job& job, JobStatus& status) const;

  // on_checkpoint.cc: one that is being taken
  bool WantsCheckpoint(const Job& job) const;
  bool MayTakeCheckpoint(const Job& job) const;
  void NoteCheckpointDue(Job& job, uint64_t done) const;
  void BeginCheckpoints();
  void BeginCheckpoint(Job& job);
  bool CutsAtBoundary(const Job& job) const;
  std::optional<uint64_t> FindBoundary(const Job& job) const;
  static bool WaitsForEvaluation(const Job& job, uint64_t step);
  void DecideCheckpoint(Job& job, uint64_t step);
  void AdvanceCheckpoint(Job& job);
  void AdvanceParts(Job& job);
  void TakeCheckpointPart(Shard& shard, const HeldJob& held);
  absl::Duration CutDeadline(const Job& job) const;
  std::string WhoIsLate(const Job& job) const;
  void NoCheckpointYet(Job& job, const std::string& why, absl::Duration wait);
  void FailCheckpoint(Job& job, const std::string& why);
  void GiveUpAttempt(Job& job);
  void EndCheckpoints(Job& job);
  Job* FindAttempt(const CheckpointId& id);
  static void AddCheckpoint(const Job& job, ShardJob& orders);

  // on_checkpoint_sealed.cc: its manifest, which makes it one
  void SealAttempt(Job& job);
  absl::StatusOr<CheckpointManifest> MakeManifest(const Job& job) const;

  // checkpoint_status.cc
  std::string WhatCheckpointWaitsFor(const Job& job) const;
  void AddCheckpoint(const Job& job, JobStatus& status) const;

  // on_checkpoint_calls.cc: those that are there, and who asks for one
  absl::Status CheckCheckpointRoot() const;
  absl::Status CheckCheckpoints() const;
  absl::Status CheckSources() const;
  void FindSealed(Job& job);
  void NoteUnreadable(std::map<CheckpointId, std::string> unreadable);
  void PassUsedUids();
  std::string WhyBlind(const Shard& shard) const;
  std::string BlindText(const std::vector<const Shard*>& shards) const;
  bool StillLooks(const Shard& shard) const;
  void AnswerCheckpoint(uint64_t uid, uint64_t number, const CallReply& reply);
  void DropCheckpoint(const CheckpointId& id);
  void DropSurplus(const Job& job);
  void LookForCheckpoints();
  void DoubtMark();
  std::string NotListedText() const;
  std::string NotWritableText() const;
  void ExpireCheckpointCalls();

  // on_output.cc
  absl::Status CheckOutput(const JobSpec& spec) const;
  static bool ClaimsOutput(const Job& job);
  static bool AwaitsOutput(const Job& job);
  std::string OutputPath(const JobSpec& spec) const;
  void PlanOutput(Job& job) const;
  void BeginOutput(Job& job);
  void OrderOutput(Job& job);
  void EndOutput(Job& job, const absl::StatusOr<uint64_t>& bytes);

  // on_wall_time.cc
  static bool IsOfWallTime(const PolicyRecord& record);
  static bool IsStopped(const Job& job);
  void StopTraining(Job& job);
  void EndTraining(Job& job, uint64_t step);
  static std::optional<uint32_t> LastEpochToTest(const Job& job);

  // on_policy.cc
  static void StartPolicies(Job& job);
  static absl::Status CheckShares(const JobSpec& spec);
  absl::Status CheckMemoryForBsp(const Job& job) const;
  absl::Status CheckPolicyChange(const Job& job, const Policy& policy) const;
  StoredPolicy& NewPolicy(Job& job, const Policy& policy, const std::string& by);
  void AddPolicy(Job& job, const Policy& policy, const std::string& by, uint64_t nonce);
  uint64_t AddCheckpointPolicy(Job& job);
  static bool DropPolicies(Job& job, const std::function<bool(const PolicyRecord&)>& drops);
  static void DropCheckpointPolicies(Job& job);
  static bool DropUndecidedCheckpointPolicies(Job& job);
  void AdvancePolicy(Job& job);
  std::optional<uint64_t> DecideStep(const Job& job, uint64_t number) const;
  static uint64_t ItemsOfPolicy(const Job& job, uint64_t items);
  static void KeepSpeed(Job& job, uint32_t worker);
  static void DropTrainingTable(Job& job);

  // on_guard.cc
  static PolicyGuard* GuardOf(Job& job);
  static void WatchLag(Job& job);
  void AdvanceGuard(Job& job);
  static bool KeepTrend(Job& job);

  // on_curves.cc
  void AdvanceCurve(Job& job, bool last);
  JobCurve::Moment CurveMoment(Job& job, uint64_t step, double seconds, absl::Time wall) const;
  void SaveCurve(Job& job);
  void DeleteCurve(const Job& job);
  static void RestoreCurve(Job& job, std::map<uint32_t, StoredCurve> chunks);
  void TellCurve(const Job& job, const CurvePoint* point, const EpochResult* result,
                 bool over = false);
  void TellCurveAgain(const Job& job);

  // on_explain.cc: evidence is recorded as it arrives and collected on request
  void NoteCounters(Worker& worker);
  void NoteCounters(Job& job, uint32_t partition) const;
  void NoteDeparture(const Worker& worker, const std::string& why);
  void NoteSteps(Job& job, uint64_t done) const;
  void NoteEvaluation(Job& job) const;
  explain::Evidence GatherEvidence(const Job& job) const;
  explain::WorkerEvidence EvidenceOf(const Worker& worker) const;
  void AddMembers(const Job& job, explain::Evidence& evidence) const;
  void AddShards(const Job& job, explain::Evidence& evidence) const;
  void AddCopies(const Job& job, explain::Evidence& evidence) const;
  void AddCheckpoint(const Job& job, explain::Evidence& evidence) const;
  double SecondsSince(absl::Time time) const;

  // on_register.cc
  std::string WhyRefused(const RegisterRequest& request) const;
  const Daemon* FindByName(Role role, const std::string& name) const;
  void Admit(const RegisterRequest& request, CallId call);
  void AnswerRegistration(const Daemon& daemon, CallId call);
  void AnswerRegistration(RegisterReply reply, CallId call);
  void ResolveRegistration(const Daemon& owner);  // the owner has reported, or is lost

  // on_worker_report.cc
  bool RefuseStaleCoordinator(CallId call, uint64_t reported_generation);
  bool RefuseOtherCluster(CallId call, uint64_t reported_cluster);
  bool RefuseImpostor(CallId call, const Daemon& daemon, const std::string& caller);
  void AnswerFenced(const Worker& worker, const event::WorkerReport& event);
  void TakeWorkerReport(Worker& worker, const WorkerReport& report, bool first);
  void Join(Worker& worker, Job& job);
  void TakeMembership(Worker& worker, bool first);  // first: the first report in this generation
  void TakeMetrics(Job& job, const WorkerReport& report);
  void TakeFault(Worker& worker, const Fault& fault);

  // non_finite.cc: losses and gradients that are not finite
  void TakeNonFinite(Worker& worker, Job& job, const Fault& fault, const std::string& text);
  bool MayDropValues(const Job& job) const;
  void Diverge(Job& job, const std::string& what);
  void ReviewNonFinite(Job& job);
  bool Blame(const Worker& worker, Job& job);
  void Quarantine(Worker& worker, Job& job);
  bool MayBeChecked(const Job& job, uint32_t suspect) const;
  static bool Exists(const Job& job, const ItemAt& at);
  static bool IsDone(const Job& job, const ItemAt& at);

  // on_shard_report.cc
  void TakeHeld(Shard& shard, const ShardReport& report);
  void SetHeld(Shard& shard, const HeldJob& held);
  void DropHeld(Shard& shard, uint64_t uid);
  void CountViews(const Shard& shard, uint64_t uid, int sign);  // of one job
  void TakePartition(Shard& shard, const PartitionStatus& status);

  // members.cc: rosters, and which worker serves which job
  void AddMember(Job& job, Worker& worker);
  void RemoveMember(Worker& worker, const std::string& why);
  void Order(Worker& worker, uint64_t job);
  void SetAside(Worker& worker, Job& job, Fault::Kind kind, const std::string& why);
  bool OthersMayServe(const Job& job, const Worker* but) const;
  static bool IsSetAside(const Worker& worker, const Job& job);
  void AskAgain(const Worker& left);
  void LetAskAgain(Worker& worker) const;
  void EndUnserved(Job& job);
  std::string WhyNobodyServes(const Job& job) const;
  std::vector<const Worker*> SetAsideFor(const Job& job) const;
  void Lose(Worker& worker, const std::string& why);
  void Lose(Shard& shard, const std::string& why);
  std::vector<Worker*> Serving(uint64_t job);

  // schedule.cc
  void Schedule();
  static bool HasDevice(const Worker& worker, const Job& job);
  static bool MayServe(const Worker& worker, const Job& job);
  static bool MayTake(const Worker& worker, const Job& job);
  bool IsFree(const Worker& worker) const;
  // Workers that may serve a job: free ones, and workers of running jobs.
  struct Supply {
    struct Holder {
      uint32_t has = 0;     // all its workers
      uint32_t usable = 0;  // those of them that may serve the job
      uint32_t spare = 0;   // those of them beyond the holder's workers.min
    };
    uint32_t free = 0;
    std::map<uint64_t, Holder> holders;  // by job
    uint32_t all() const;
    uint32_t available() const;  // workers that the job could have at once
  };
  Supply SupplyFor(const Job* job, const Job* kept_for) const;
  std::vector<Worker*> WorkersFor(const Job& job, uint32_t count, const Job* kept_for);
  void Give(Job& job, const std::vector<Worker*>& workers);
  bool MayHaveTurn(const Job& job) const;
  void NoteTurn(Job& job);
  void LookAtPending();
  const Job* JobWithTurn() const;
  const Job* JobThatComesBack() const;
  static bool Ran(const Job& job);
  static const Job* KeptFor(const Job& job, const Job* back, const Job* turn);
  bool StartIfPossible(Job& job, const Job* turn);
  void StartJob(Job& job, const std::vector<Worker*>& workers, const std::vector<ShardId>& places);
  std::vector<ShardLoad> LiveShards(bool alone) const;
  std::vector<ShardLoad> ShardsFor(const Job& job) const;
  std::vector<ShardId> Place(const Job& job, const std::vector<ShardLoad>& shards) const;
  std::string MemoryText(const Job& job, const std::vector<ShardLoad>& shards) const;
  absl::Status CheckShardMemory(const Job& job) const;
  static uint32_t LeastToStart(const Job& job);
  static uint32_t MostWorkers(const Job& job);
  uint32_t Room(const Job& job);
  std::string WaitsFor(const Job& job) const;

  // copies.cc: which shards have copies of which partitions
  static bool Replicates(const Job& job, size_t shards);  // given so many live shards
  void ChangeViews(Job& job, const std::function<void()>& change);
  bool BackupLives(const View& view) const;
  bool PrimaryHasReported(const View& view, absl::Time at) const;
  static uint64_t CopyBytes(const Job& job, uint32_t partition);
  void LoseCopies(Job& job, const Shard& shard, const std::string& why);
  void GiveBackups(Job& job);
  std::vector<WantsBackup> WantBackups(const Job& job, bool twice) const;
  std::vector<BackupPlace> FindBackups(const std::vector<WantsBackup>& wanting) const;
  void TakeBackup(Job& job, const Shard& shard, const PartitionStatus& status);
  bool ReplacePrimary(Job& job, const Shard& shard, const PartitionStatus& status);
  void NoteCopy(Job& job, const PartitionStatus& status) const;
  void DropStalledBackups(Job& job);

  // undecided.cc: partitions that do not reach the one that decides about their step
  void NoteUndecided(Job& job, const PartitionStatus& status) const;
  void MoveUndecided(Job& job);
  bool MoveLeads(Job& job, const std::vector<uint32_t>& partitions, const std::string& why);
  void AddUndecided(const Job& job, explain::Evidence& evidence) const;
  void DropBackupsOfEnded();
  void NoteUnread(Job& job, const Shard& shard, const std::string& why);
  std::string WhyUnread(const Job& job, const Shard& shard) const;
  void SetUnfit(Job& job, uint64_t primary, uint64_t shard, const std::string& why) const;
  const Unfit* FindUnfit(const Job& job, const View& view, const Shard& shard) const;
  static uint32_t WholePartitions(const Job& job);
  void AddCopies(const Job& job, JobStatus& status) const;
  double SilentCopySeconds(const Job& job, const View& view) const;
  std::string CopyTrouble(const Job& job, const View& view) const;
  std::string WhyNoBackup(const Job& job, const View& view) const;

  // silence.cc: shards that do not answer
  void TakeHeartbeats(const std::vector<event::Heartbeat>& heartbeats);
  void TakeAwaited(Shard& shard) const;
  void Hear(Shard& shard, absl::Time at);
  void Suspect(Shard& shard, const std::string& why);
  void SuspectUnreached(const Worker& worker);
  void SuspectUnreached(const Shard& reporter, const ShardReport& report);
  void Ask(const Shard& shard);
  void Trust(Shard& shard);
  static absl::Time TrustedUntil(const Shard& shard, const std::string& why);
  bool IsPresent(const Shard& shard) const;
  absl::Duration AnswerWait(const Shard& shard) const;
  absl::Time SilentFrom(const Daemon& daemon) const;
  bool IsSteady(const Shard& shard) const;
  absl::Time ClaimedSince(const Daemon& daemon) const;
  bool IsDeaf();
  void LookForSilence();
  void LookForSilence(Shard& shard);
  void Miss(Shard& shard, const std::string& why);
  void MoveAway(Shard& shard);
  void MoveAway(Job& job, Shard& shard);
  bool MayMove(const Archived& archived, const Shard& shard) const;
  bool PassOverJobs(const Shard& shard, Shard::JobsPass& pass,
                    const std::function<bool(uint64_t uid, const Archived&)>& may_change,
                    const std::function<void(Job&)>& visit);

  // drain.cc: shards that are asked to stop
  // Partitions of jobs that run and that concern a shard.
  struct DrainCount {
    bool elsewhere = false;     // another shard takes copies, or may come back and do so
    size_t here = 0;            // led here
    size_t copying = 0;         // led elsewhere, and may get a second copy elsewhere
    size_t alone = 0;           // led elsewhere, and may not
    uint64_t wanted_bytes = 0;  // for copies that there is room for, and that are not made yet
    std::string job, why;       // of one of them
  };
  bool Drains(uint32_t id) const;
  bool TakesCopies(const Shard& shard) const;
  void TakeDraining(Shard& shard, bool draining);
  void NoteHandedOver(const Job& job, const View& view, uint32_t from);
  void HandOver(Job& job);
  void HandOver(Job& job, Shard& shard);
  bool MayGetCopy(const Job& job, const View& view, const std::vector<ShardLoad>& loads) const;
  DrainCount CountOn(Shard& shard);
  DrainOrders DrainOf(const DrainCount& count, const Shard& shard) const;
  void StepDrain(Shard& shard);
  void TakeLeave(Shard& shard, CallId call);

  // drain_ended.cc: and values of jobs that are over
  struct EndedJob {
    uint64_t uid = 0;
    bool fixed = false;   // it cannot be copied
    bool result = false;  // see Archived
    absl::Span<const Archived::Partition> on;
  };
  // For copies of such values, now.
  struct EndedRoom {
    std::vector<ShardLoad> loads;
    uint64_t bytes = 0;
    size_t jobs = 0;
  };
  std::vector<WantsBackup> WantEndedCopies(const EndedJob& job, const Shard& shard) const;
  EndedRoom FindEndedRoom(uint64_t wanted_bytes);
  std::vector<BackupPlace> FindEndedPlaces(const EndedJob& job, const Shard& shard,
                                           const EndedRoom& room) const;
  bool MayHandOver(const EndedJob& job, const Shard& shard) const;
  void HandOverEnded(Shard& shard, uint64_t wanted_bytes);
  void HandOverEnded(Job& job, Shard& shard, EndedRoom& room);
  void CopyEnded(Job& job, Shard& shard, EndedRoom& room);
  void CountEnded(const EndedJob& job, Shard& shard);
  static bool LearnsEnded(const Job& job, const View& view);
  static bool LearnsEnded(const Job& job, const Shard& shard);
  void DropLearnersOfEnded(Job& job);
  static void AddEndedCopies(const Job& job, const Shard& shard, ShardJob& orders);
  void TakeEndedCopies(Shard& shard, const HeldJob& held);

  // progress.cc: epochs, cuts, leases, evaluation, the end
  void Advance(Job& job);
  void CutEpoch(Job& job);
  void GrantTraining(Job& job);
  void GrantEvaluation(Job& job);
  static uint64_t EvaluationItems(const Job& job);
  void JoinTable(Job& job, LeaseTable& table);
  bool MarkCovered(Job& job, LeaseTable& table);
  EpochResult& RecordEpoch(Job& job, uint32_t epoch, uint64_t step);
  static void TakeTrainLoss(const Job& job, EpochResult& result);
  void SaveTrainLoss(Job& job, uint32_t epoch);
  LeaseTableOptions TableOptions(const Job& job, Purpose purpose, uint32_t epoch,
                                 uint64_t items) const;
  bool IsDeserted(const Job& job);
  void FinishIfDone(Job& job);
  void End(Job& job, JobState state, const std::string& reason);
  void ReleaseRun(Job& job);

  // status.cc
  static std::string PolicyText(const Policy& policy);  // "ssp(2)"

  // orders.cc
  WorkerOrders BuildOrders(const Worker& worker);
  void NoteOrders(Worker& worker);
  void AddUnseen(const Worker& worker, uint64_t seen, WorkerOrders& orders) const;
  ShardJob BuildShardJob(const Job& job) const;
  void NoteOrders(Shard& shard, uint64_t uid);
  void NoteDropped(Shard& shard, uint64_t uid);
  void AddChanges(const Shard& shard, uint64_t seen, ShardOrders& orders);
  void AddUnseen(const Shard& shard, uint64_t uid, uint64_t seen, ShardJob& orders);
  uint64_t NextVersion(Daemon& daemon) const;
  bool IsOn(uint64_t uid, const Shard& shard) const;
  std::set<uint64_t> JobsOn(const Shard& shard) const;
  template <typename D>
  void Park(D& daemon, CallId call, uint64_t orders_seen) {
    if (daemon.parked) AnswerHeld(daemon);  // only a daemon's newest call is held
    daemon.parked = ParkedCall{call, now_ + options_.report_hold, orders_seen};
  }
  void Settle(Worker& worker);  // answers the held report if the orders changed
  void Settle(Shard& shard);
  void AnswerHeld(Worker& worker);
  bool KeepsOldOrders(const Worker& worker);
  void AnswerHeld(Shard& shard);
  template <typename Answer>
  Answer NewAnswer() const {  // with the coordinator's generation and cluster
    Answer answer;
    answer.set_generation(generation());
    answer.set_cluster(cluster_.cluster());
    return answer;
  }
  template <typename Orders>
  void TellToRejoin(CallId call) {
    Orders orders = NewAnswer<Orders>();
    orders.set_rejoin(true);
    Reply(call, std::move(orders));
  }
  void TouchJob(const Job& job);  // the orders of its workers and shards may have changed

  // status.cc
  // Which epochs a status lists: all, the newest, or evaluated ones only (see event::Curves).
  enum class Epochs { kAll, kNewest, kTested };
  JobStatus StatusOf(const Job& job, Epochs epochs = Epochs::kAll) const;
  JobStatus ListedStatusOf(const Job& job) const;
  std::string StateOf(const Worker& worker) const;
  static std::string StateOf(const Shard& shard);
  JobReply DescribeJob(const Job& job) const;
  std::string ReasonOf(const Job& job) const;
  static void AddEpochs(const Job& job, Epochs epochs, JobStatus& status);
  static void NoteTested(Job& job, uint32_t epoch);
  template <typename Status>
  Status DaemonStatus(const Daemon& daemon) const;  // the fields that all daemons have
  WorkerStatus StatusOf(const Worker& worker) const;
  ShardStatus StatusOf(const Shard& shard) const;
  template <typename Reply>
  void AddWarnings(Reply& reply) const {
    for (std::string& warning : Warnings()) reply.add_warnings(std::move(warning));
  }
  std::vector<std::string> Warnings() const;  // status.cc
  static void AddPolicies(const Job& job, JobStatus& status);
  static std::string WhyNotReproducible(const Job& job, uint64_t end);  // "": it is, up to there
  void AddAverages(const Job& job, JobStatus& status) const;
  void AddWorkerMetrics(const Job& job, JobStatus& status) const;

  // backup_workers.cc
  const Worker* RepeatedBy(const Worker& worker) const;
  double NewSamplesPerSecond(const Worker& worker) const;
  void AddLateWorkers(const Job& job, JobStatus& status) const;

  // status.cc
  void AddShardMetrics(const Job& job, JobStatus& status) const;
  static void AddReported(const Job& job, JobStatus& status);
  uint64_t StepsDone(const Job& job) const;
  uint64_t StepsReported(const Job& job) const;  // by the shards, even after the job's end

  // jobs.cc
  void Enlist(const Job& job);
  void SetState(Job& job, JobState state);
  void Forget(Job& job);
  Job* FindJob(const std::string& name);
  Job* FindJob(uint64_t uid);  // archive.cc
  Job* FindRunning(uint64_t uid);
  std::vector<Job*> JobsIn(JobState state);  // ascending uid
  const std::set<uint64_t>& UidsIn(JobState state) const;
  uint64_t OlderThan(uint64_t uid, const std::vector<JobState>& states) const;
  void CountView(const Job& job, const View& view, int sign);
  void CountView(uint64_t uid, const Archived::Partition& on, int sign);

  // archive.cc
  bool MayArchive(const Job& job) const;
  static std::vector<Archived::Partition> OnShards(const Job& job, const View& view);
  static std::vector<Archived::Partition> OnShards(const Job& job);
  static Archived Pack(Job& job);  // moves the job's content out
  void Unpack(const Archived& archived, Job& job);
  void Archive();

  // forget.cc: deletes lost daemons and ended jobs after a while
  void ForgetDaemons();
  void ForgetJobs();
  void MakePlaceForName(Role role);
  bool MayForget(const Worker& worker) const;
  bool MayForget(const Shard& shard) const;
  template <typename Daemons>
  void ForgetSome(Daemons& daemons, size_t at_most, bool at_once);
  void ForgetRecord(const Worker& worker) { Delete(records::Worker(worker.id())); }
  void ForgetRecord(const Shard& shard) { Delete(records::Shard(shard.id())); }
  std::string RetentionText() const;
  std::string KeptUntil(const Job& job) const;

  // values.cc: the readable values of a job's partitions, ascending; empty before the job has run.
  // The values of an ended job are final once settled. Until then a partition is unknown if its
  // shard has not sent its last report.
  std::vector<PartitionValues> ValuesOf(const Job& job) const;
  // The version at which all BSP partitions are read. None: no partition is in BSP, or a partition
  // has not reported.
  std::optional<uint64_t> SealedSteps(const Job& job) const;
  // Whether the job is over and state.values has the readable version of each partition. Shards may
  // then free everything else.
  static bool ValuesSettled(const Job& job);
  static bool HasLostValues(const StoredJobState& state);
  static bool IsResult(const StoredJobState& state);
  void SettleValues(Job& job);
  void LoseValues(Job& job, const Shard& shard, const std::vector<uint32_t>& partitions,
                  const std::string& why);

  // cut_off.cc
  bool OthersReach(const Job& job, const Worker& but, const LinkStatus& link) const;
  void SetAsideWhoIsCutOff(Worker& worker);

  // on_tick.cc
  void LoseTheSilent(bool deaf);  // `deaf`: those that are silent since their name was claimed
  bool Hangs(const Worker& worker) const;
  void SetAsideWhoHangs();
  void TakeBack(Worker& worker);
  void ExpireSubmissions();

  // Common.
  void NoticePause();
  template <typename Do>
  void ForEachDaemon(const Do& act) {
    for (auto& [id, worker] : workers_) act(worker);
    for (auto& [id, shard] : shards_) act(shard);
  }
  void Reply(CallId call, CallReply reply);
  void Log(Job& job, const std::string& text);
  void AnswerLogs();
  absl::Status NoSuchJob(const std::string& name) const;
  void SaveCluster();
  void Save(const Worker& worker);
  void Save(const Shard& shard);
  int64_t RunningMicros(const Job& job) const;
  double RunningSeconds(const Job& job) const;
  void SaveState(Job& job);
  absl::Time wall() const { return now_ + wall_ahead_; }  // shown to users only
  static std::string TimeText(absl::Time time);
  void Put(const std::string& key, std::string value);
  void Delete(const std::string& key);
  void Flush(Actions& actions, bool tick);

  // ---- Constant after construction ----
  const CoordinatorOptions options_;

  // ---- Durable ----
  StoredCluster cluster_;
  std::map<uint32_t, Worker> workers_;
  std::map<uint32_t, Shard> shards_;
  std::map<uint64_t, Job> jobs_;          // by uid: jobs that may change, and unpacked ones
  std::map<uint64_t, Archived> archive_;  // all other jobs: ended and packed

  // ---- Volatile ----
  // Indexes of jobs_ and archive_.
  std::map<std::string, uint64_t> by_name_;
  std::map<std::string, std::string> by_output_;  // job names by output file
  std::map<JobState, std::set<uint64_t>> by_state_;
  // Ended jobs, by ended_number and uid.
  std::set<std::pair<uint64_t, uint64_t>> ended_;

  // What is on disk, less what is being deleted. Unknown until the disk has answered.
  KnownCheckpoints checkpoints_;
  std::map<CheckpointId, std::string> unreadable_checkpoints_;  // and why
  bool checkpoints_listed_ = false;
  absl::Status checkpoints_marked_;                          // whether the folder takes new ones
  absl::Time checkpoints_marked_at_ = absl::InfinitePast();  // when it got this one's nonce
  std::string checkpoints_trouble_;                          // why they are not listed
  absl::Time list_checkpoints_at_;  // when they are to be listed; infinite: it has been ordered
  absl::Time doubt_mark_at_ = absl::InfiniteFuture();  // from when on they are listed for a doubt
  std::map<CheckpointId, std::vector<CallId>> dropping_;  // and who waits for that
  std::set<CheckpointId> being_read_;                     // for jobs that go back
  std::vector<PendingCheckpoint> checkpoint_calls_;
  std::deque<std::pair<uint64_t, CheckpointInfo>> checkpoints_made_;  // lately, by nonce

  std::map<std::string, Submission> submissions_;  // by job name
  std::map<std::pair<Role, std::string>, PendingRegistration> registrations_;
  std::vector<PendingLogs> logs_;
  absl::Time forgets_at_;  // when ForgetDaemons next does something
  bool retention_acted_ = false;
  // Jobs that retention deleted: the name, and why and when.
  std::deque<std::pair<std::string, std::string>> deleted_lately_;
  uint64_t workers_lost_ = 0, shards_lost_ = 0, jobs_failed_ = 0;  // see ClusterView
  uint64_t last_inspect_ = 0;
  uint64_t last_order_ = 0;
  uint64_t last_question_ = 0;
  std::set<uint64_t> ended_copied_;  // jobs that are over, and of which copies are being made
  uint64_t ended_changes_ = 0;       // of where values of such jobs are
  absl::Duration deaf_for_;          // for how long nobody has been heard
  bool memory_awaited_ = false;      // a PENDING job waits for shard memory
  absl::Time pending_seen_;          // when LookAtPending last ran
  absl::Time last_step_;
  absl::Time started_;

  // ---- The current step ----
  absl::Time now_;
  absl::Duration wall_ahead_;  // wall time minus now_, at the last tick
  StoreBatch batch_;
  std::vector<std::pair<CallId, CallReply>> replies_;
  std::vector<CurveNews> curve_news_;
  std::vector<JobReply> outputs_;
  Actions disk_actions_;  // of checkpoints
  std::vector<action::AskShard> questions_;
  std::vector<std::string> sentences_;
  std::set<uint32_t> touched_workers_;
  std::set<uint32_t> touched_shards_;  // those with a new report
  // Shard and job whose orders may have changed.
  std::set<std::pair<uint32_t, uint64_t>> touched_jobs_;
  std::set<uint64_t> advance_;   // jobs
  std::set<uint64_t> unpacked_;  // ended jobs that may be archived
  bool schedule_ = false;
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_CORE_H_
