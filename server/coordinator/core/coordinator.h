// The coordinator's pure core: jobs, rosters, views, epochs, leases, results (docs/protocol.md,
// sections 4, 5 and 7). No I/O, no threads, no clock, no randomness: the same events at the same
// times give the same actions. Its host (server/coordinator/host), on gRPC or in the simulator
// (tests/sim), decides nothing.
//
//   auto core = Coordinator::Create(options, *store->Load());
//   (*core)->Start(now, wall, actions);
//   (*core)->Step(event::WorkerReport{call, report}, now, actions);
#ifndef STARLING_SERVER_COORDINATOR_CORE_COORDINATOR_H_
#define STARLING_SERVER_COORDINATOR_CORE_COORDINATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/checkpoint/names.h"
#include "common/checkpoint/store.h"
#include "common/protocol/ids.h"
#include "common/protocol/limits.h"
#include "common/version/version.h"
#include "proto/checkpoint.pb.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/store/state_store.h"

namespace starling::coordinator {

// An RPC that waits for its answer. The host chooses the id, which is unique within the process.
// The answer may come long after the event: reports are held up to `report_hold`, registrations up
// to `liveness` (after a start, plus `start_grace`), submissions up to `submit_deadline`, calls for
// a checkpoint up to `checkpoint_deadline`, and logs for as long as the request says.
using CallId = Id<struct CallIdTag, uint64_t>;

// ---- Events ---------------------------------------------------------------------------------

namespace event {

template <typename Request>
struct Call {
  CallId call;
  Request request = {};
};

// What the host found on disk (AsksForDisk). `tensorboard`: whether event files can be written to
// the spec's folder; OK if that was not checked. `from`: the manifest of FindCheckpoint; unset if
// there was none to read.
struct Submit : Call<SubmitRequest> {
  absl::Status tensorboard = absl::OkStatus();
  std::optional<absl::StatusOr<CheckpointManifest>> from = std::nullopt;
};
struct GetJob : Call<JobRequest> {};
struct ListJobs : Call<ListJobsRequest> {};
struct ListWorkers : Call<ListWorkersRequest> {};
struct ListShards : Call<ListShardsRequest> {};
struct Overview {
  CallId call;
};
struct CancelJob : Call<JobRequest> {};
struct DeleteJob : Call<JobRequest> {};
struct SetPolicy : Call<SetPolicyRequest> {};
// `brief`: only evaluated epochs, evenly spaced, at most limits::kCurvePointsMax of them.
struct Curves : Call<CurvesRequest> {
  bool brief = false;
};
struct Logs : Call<LogsRequest> {};
struct Explain : Call<ExplainRequest> {};
struct CreateCheckpoint : Call<CreateCheckpointRequest> {};
struct ListCheckpoints : Call<ListCheckpointsRequest> {};
struct DeleteCheckpoint : Call<DeleteCheckpointRequest> {};
struct Register : Call<RegisterRequest> {};
// `caller`: the name in the connection's identity; empty if it has none (the simulator).
struct WorkerReport {
  CallId call;
  starling::WorkerReport report;
  std::string caller = {};
};
struct ShardReport {
  CallId call;
  starling::ShardReport report;
  std::string caller = {};
};
// The answer to action::WriteOutput: the file's size, or why it could not be written.
struct OutputWritten {
  uint64_t job = 0;  // uid
  absl::StatusOr<uint64_t> bytes;
};
// The answers to action::MakeCheckpoint, SealCheckpoint, DropCheckpoint, ListCheckpoints and
// ReadCheckpoint.
struct CheckpointMade {
  CheckpointId id;
  absl::Status status;
};
struct CheckpointSealed {
  CheckpointId id;
  absl::StatusOr<CheckpointInfo> info;
};
struct CheckpointDropped {
  CheckpointId id;
  absl::Status status;
};
struct CheckpointsFound {
  absl::StatusOr<FoundCheckpoints> checkpoints;
};
struct CheckpointRead {
  CheckpointId id;
  absl::StatusOr<CheckpointManifest> manifest;
};
// The caller hung up: no answer is needed.
struct CallGone {
  CallId call;
};
// A heartbeat of a shard, or that its connection broke while one was held.
struct Heartbeat {
  HeartbeatRequest request = {};
  std::string caller = {};  // as of a report
  absl::Time at = {};       // when it came, as `now`
  bool broke = false;
  bool called = false;  // an answer to a call (AskShard): it may have no connection here yet
};
// At least every kCoordinatorTickPeriod.
struct Tick {
  absl::Time wall;
  std::vector<Heartbeat> heartbeats = {};  // since the last tick
};

}  // namespace event

using Event =
    std::variant<event::Submit, event::GetJob, event::ListJobs, event::ListWorkers,
                 event::ListShards, event::Overview, event::CancelJob, event::DeleteJob,
                 event::SetPolicy, event::Curves, event::Logs, event::Explain,
                 event::CreateCheckpoint, event::ListCheckpoints, event::DeleteCheckpoint,
                 event::Register, event::WorkerReport, event::ShardReport, event::OutputWritten,
                 event::CheckpointMade, event::CheckpointSealed, event::CheckpointDropped,
                 event::CheckpointsFound, event::CheckpointRead, event::CallGone, event::Tick>;

inline constexpr absl::Duration kCoordinatorTickPeriod = absl::Milliseconds(25);

// ---- Actions --------------------------------------------------------------------------------

// A snapshot of the cluster for the coordinator's own admin port. Its size is bounded.
struct ClusterView {
  absl::Time time;
  uint64_t generation = 0;  // of the coordinator
  ListJobsReply jobs;       // live ones, newest first, then the most recently ended, latest first
  ListWorkersReply workers;
  ListShardsReply shards;
  // Counts by state.
  std::map<JobState, uint64_t> job_counts;
  std::map<std::string, uint64_t> worker_counts;
  std::map<std::string, uint64_t> shard_counts;
  // Since this coordinator's start.
  uint64_t workers_lost = 0;  // fell silent without leaving
  uint64_t shards_lost = 0;
  uint64_t jobs_failed = 0;
};

// The answer to a call: its reply message, or the error. Each call is answered at most once.
using CallReply = std::variant<absl::Status, SubmitReply, JobReply, ListJobsReply, ListWorkersReply,
                               ListShardsReply, ClusterView, Empty, SetPolicyReply, CurvesReply,
                               LogsReply, ExplainReply, CreateCheckpointReply, ListCheckpointsReply,
                               RegisterReply, WorkerOrders, ShardOrders>;

// News of a job's curve, for the event files that its spec asks for.
struct CurveNews {
  uint64_t job = 0;  // uid
  std::string folder;
  // Files of earlier coordinators, and of earlier eras, are void from this step on.
  uint64_t session_step = 0;
  uint32_t era = 0;
  std::optional<CurvePoint> point;
  std::optional<EpochResult> result;
  bool over = false;  // no news follow
};

namespace action {

// StateStore::Apply. The batch must be durable before the next action, which may reveal it to
// others. If the store fails, the process must end; the next start reads what is durable.
struct Persist {
  StoreBatch batch;
};

struct Reply {
  CallId call;
  CallReply reply;
};

// Must not block on the folder. If a write fails, only the files are incomplete.
struct WriteCurve {
  CurveNews news;
};

// Writes job.spec.output beneath output_root from the values that job.values names, and answers
// with event::OutputWritten. Must not block. Repeated after a restart if no answer was stored.
struct WriteOutput {
  JobReply job;
};

// These five must not block. They are done, and answered, in their order; after a stop perhaps not
// all of them.
//
// Makes the folder of a checkpoint, with the nonce in it. Its id was never used before.
struct MakeCheckpoint {
  CheckpointId id;
  uint64_t nonce = 0;
};
// All files are written: makes it a checkpoint, durably.
struct SealCheckpoint {
  CheckpointId id;
  CheckpointManifest manifest;
};
// Removes a checkpoint, whole or not. The answer comes when nobody finds it any more.
struct DropCheckpoint {
  CheckpointId id;
};
// Lists all that are there. `first`: then removes what earlier coordinators of this cluster left
// unfinished, and writes the nonce by which shards find that they see the same folder; else nothing
// is removed, since attempts may be under way, and the nonce is written only where the folder has
// another one: that of a coordinator of this cluster that outlived this one's start. `known`: one
// of this cluster's was written there (or jobs begin with what is there), so a folder without any
// is not mounted: kUnavailable, and nothing is written.
struct ListCheckpoints {
  uint64_t cluster = 0;
  uint64_t nonce = 0;
  bool first = false;
  bool known = false;
  // Those of this cluster that were there, but for what is being deleted: a folder that has another
  // nonce and lacks one of them is not the same folder: kUnavailable, and nothing is written.
  std::vector<CheckpointId> there = {};
};
// Reads the manifest of a checkpoint to which a job goes back, and every byte of its files.
// kUnavailable, kDeadlineExceeded, kResourceExhausted, kPermissionDenied, kCancelled: another
// attempt may succeed. `nonce`, if it is not 0, was written to the folder, for `cluster`: what
// fails where it is missing is kAborted.
struct ReadCheckpoint {
  CheckpointInfo info;
  uint64_t cluster = 0;
  uint64_t nonce = 0;
};
// Answer this shard's heartbeat with the question, now or when it comes. Questions ascend.
struct AskShard {
  uint32_t shard = 0;
  uint64_t incarnation = 0;
  uint64_t question = 0;
  // Not empty: also call it there. If a shard of this name answers, that is a heartbeat (`called`)
  // which has the question.
  std::string address = {}, name = {};
};

// A sentence for the daemon's own log.
struct Log {
  std::string sentence;
};

}  // namespace action

// Carried out in order.
using Action =
    std::variant<action::Persist, action::Reply, action::WriteCurve, action::WriteOutput,
                 action::MakeCheckpoint, action::SealCheckpoint, action::DropCheckpoint,
                 action::ListCheckpoints, action::ReadCheckpoint, action::AskShard, action::Log>;
using Actions = std::vector<Action>;

// ---- The core -------------------------------------------------------------------------------

struct CoordinatorOptions {
  // The cluster's id if the state has none yet: random, not 0. It distinguishes daemons of another
  // cluster, whose numbers may be the same.
  uint64_t new_cluster = 1;
  std::string version = std::string(ReleaseVersion());  // daemons of another version are refused
  uint32_t protocol = ProtocolVersion();                // and so are daemons with another protocol
  bool insecure = false;                       // started with --insecure; every status says so
  absl::Duration liveness = absl::Seconds(5);  // silence after which a daemon is considered lost
  // Added to `liveness` for a daemon of which nothing was heard since the start.
  absl::Duration start_grace = absl::Seconds(5);
  // Silence after which what a shard has elsewhere, too, goes on there. What it alone has waits for
  // it until `liveness`.
  absl::Duration shard_liveness = absl::Seconds(2);
  // Heartbeats count for this long after the last report: the shard's own thread may hang.
  absl::Duration report_liveness = absl::Seconds(30);
  // A shard whose connections break is asked twice, and has so long for each answer.
  absl::Duration answer_wait = absl::Milliseconds(150);
  // The same for one of which nothing was heard since the start: it is asked at its own address, to
  // which a connection is made first.
  absl::Duration call_wait = absl::Milliseconds(500);
  absl::Duration report_hold = absl::Milliseconds(100);
  absl::Duration submit_deadline = absl::Minutes(limits::kSubmitMinutesMax);
  // For a worker to inspect the data.
  absl::Duration inspect_deadline = absl::Minutes(limits::kInspectMinutesMax);
  absl::Duration inspector_wait = absl::Seconds(15);    // how long a submission waits for a worker
  absl::Duration release_deadline = absl::Seconds(30);  // for a worker to release a job
  // For a worker to open the data and connect to the shards.
  absl::Duration prepare_deadline = absl::Minutes(5);
  // A job that has waited this long may have its turn (docs/operations.md, "Which job gets
  // workers").
  absl::Duration patience = absl::Minutes(10);
  // A job that was served fails after all workers that might serve it have been set aside for this
  // long.
  absl::Duration unserved_wait = absl::Minutes(5);
  // A computing worker is considered hung when it has made no progress for the longer of these two
  // times, and a worker is cut off that has not reached a shard for as long, though others have. It
  // is asked again `hang_rest` after it has released the job; the rest doubles each time.
  absl::Duration hang_least = absl::Seconds(30);
  double hang_units = 10;  // units of the job, at that worker's speed
  absl::Duration hang_rest = absl::Minutes(1);
  absl::Duration metrics_wait = absl::Seconds(1);  // for the last losses, after a job's last cut
  absl::Duration lease_ahead = absl::Seconds(30);
  uint32_t lease_items_min = 2;
  uint32_t lease_items_max = limits::kLeasesPerWorkerMax;
  // How long the names of daemons that left or were lost are kept, so that the names of short-lived
  // pods do not accumulate. A shard's name is kept while a kept job has values there.
  absl::Duration forget_left = absl::Minutes(10);
  absl::Duration forget_lost = absl::Hours(1);
  // Retention: ended jobs beyond this number are deleted, oldest first, and so are jobs that ended
  // longer ago than this. SIZE_MAX and InfiniteDuration: none.
  size_t keep_ended_jobs = limits::kJobsMax - limits::kJobsMax / 10;
  absl::Duration keep_ended_for = absl::InfiniteDuration();
  // How many of the most recently ended jobs each overview lists, so that their last metrics are
  // scraped.
  size_t overview_ended = 16;
  // Jobs may name folders for event files beneath this one; empty: none.
  std::string tensorboard_root;
  // spec.output may name files beneath this folder; empty: none.
  std::string output_root;
  // The folder of checkpoints, which all shards see, too; empty: none are taken.
  std::string checkpoint_root;
  // Random, not 0: proves that shards see the same folder.
  uint64_t checkpoint_nonce = 1;
  // When checkpoints are taken of jobs whose file does not say it; unset: only on request.
  std::optional<Checkpoint> default_checkpoint;
  absl::Duration checkpoint_deadline = absl::Minutes(limits::kCheckpointMinutesMax);
  // The commands that start daemons, for messages to users.
  std::string worker_command = "starling-worker";
  std::string shard_command = "starling-ps";
};

class Core;  // server/coordinator/core/core.h

// How daemons follow their orders:
// * A worker that is ordered to serve a job gets the job, its views, policy and roster. It prepares
//   and reports `prepared` with `run`. Only then does it become a member, with a new roster.
// * Orders without a job, or with another one, mean: finish the current unit, park, drop the job,
//   and report `run` unset. The worker stays a member until that report, or until release_deadline.
// * A lease that is missing from new orders is dropped if it was not begun. A lease that was begun
//   may be finished: its key makes it count once.
// * Order versions are (generation << 32) + n, so they also grow across a coordinator's restarts.
// * A lease id encodes what the lease covers (server/coordinator/leases/lease_id.h), so a restarted
//   coordinator learns from WorkerReport.leases_held what workers are doing.
//
// One thread at a time. There are two clocks. `now` (MonotonicNow) never goes back within a process
// and means nothing to the next process. Silence, deadlines, leases and the running time of jobs
// follow it. `wall`, absl::Now at the start and at each tick, is shown to users and may jump either
// way.
class Coordinator {
 public:
  // Starts from the store's content; empty: a new cluster. kDataLoss names the unreadable record.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(const CoordinatorOptions& options,
                                                             const StoreSnapshot& snapshot);
  ~Coordinator();

  // Once, before the first Step: takes the next generation.
  void Start(absl::Time now, absl::Time wall, Actions& actions);

  // Appends to `actions`.
  void Step(const Event& event, absl::Time now, Actions& actions);

  // True: the submission has passed all checks that need no disk, and before it calls Step the host
  // must read the manifest of FindCheckpoint, if there is one, and check the folder for event files
  // of the spec, which is the manifest's if the request has none. False: it may call Step at once.
  bool AsksForDisk(const SubmitRequest& request) const;
  // The checkpoint that `request.from` names. Unset: none, or it is not known.
  std::optional<CheckpointInfo> FindCheckpoint(const SubmitRequest& request) const;

  uint64_t generation() const;

 private:
  explicit Coordinator(std::unique_ptr<Core> core);

  std::unique_ptr<Core> core_;
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_COORDINATOR_H_
