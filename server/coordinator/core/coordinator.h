// The coordinator's pure core: jobs, rosters, views, epochs, leases, results (docs/protocol.md,
// sections 4, 5 and 7). No I/O, no threads, no clock, no randomness: the same events at the same
// times give the same actions. The gRPC service (server/coordinator/host) and the simulator
// (tests/sim) are its adaptors; they decide nothing.
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
#include "common/protocol/ids.h"
#include "common/protocol/limits.h"
#include "common/version/version.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/store/state_store.h"

namespace starling::coordinator {

// An RPC that waits for its answer; unique within the process, chosen by the adaptor, which must
// also be ready to get the answer long after the event (report calls are held up to `report_hold`,
// registrations up to `liveness` and, after a start, `start_grace`, submissions up to
// `inspect_deadline`, logs as long as the request says).
using CallId = Id<struct CallIdTag, uint64_t>;

// ---- Events ---------------------------------------------------------------------------------

namespace event {

template <typename Request>
struct Call {
  CallId call;
  Request request = {};
};

// `tensorboard`: whether the spec's folder for event files can be written; OK where nobody looked
// (AsksForFolder).
struct Submit : Call<SubmitRequest> {
  absl::Status tensorboard = absl::OkStatus();
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
// `brief`: of a job's epochs only evaluated ones, evenly, limits::kCurvePointsMax of them at most.
struct Curves : Call<CurvesRequest> {
  bool brief = false;
};
struct Logs : Call<LogsRequest> {};
struct Explain : Call<ExplainRequest> {};
struct Register : Call<RegisterRequest> {};
// `caller`: the name that the connection's identity carries; empty where there is none (the
// simulator).
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
struct CallGone {
  CallId call;
};  // the caller hung up: the call needs no answer any more
// At least every kCoordinatorTickPeriod.
struct Tick {
  absl::Time wall;
};

}  // namespace event

using Event = std::variant<event::Submit, event::GetJob, event::ListJobs, event::ListWorkers,
                           event::ListShards, event::Overview, event::CancelJob, event::DeleteJob,
                           event::SetPolicy, event::Curves, event::Logs, event::Explain,
                           event::Register, event::WorkerReport, event::ShardReport,
                           event::OutputWritten, event::CallGone, event::Tick>;

inline constexpr absl::Duration kCoordinatorTickPeriod = absl::Milliseconds(25);

// ---- Actions --------------------------------------------------------------------------------

// The cluster at one moment, for the coordinator's own admin port: bounded, however much there is.
struct ClusterView {
  absl::Time time;
  uint64_t generation = 0;  // of the coordinator
  ListJobsReply jobs;  // that live, the newest first, and those that ended last, the last first
  ListWorkersReply workers;
  ListShardsReply shards;
  // How many there are, by state.
  std::map<JobState, uint64_t> job_counts;
  std::map<std::string, uint64_t> worker_counts;
  std::map<std::string, uint64_t> shard_counts;
  // Since this coordinator's start.
  uint64_t workers_lost = 0;  // fell silent without leaving, as are:
  uint64_t shards_lost = 0;
  uint64_t jobs_failed = 0;
};

// The answer to a call: its reply message, or why not. Each call is answered at most once.
using CallReply = std::variant<absl::Status, SubmitReply, JobReply, ListJobsReply, ListWorkersReply,
                               ListShardsReply, ClusterView, Empty, SetPolicyReply, CurvesReply,
                               LogsReply, ExplainReply, RegisterReply, WorkerOrders, ShardOrders>;

// News of a job's curve, for the event files that its spec asks for.
struct CurveNews {
  uint64_t job = 0;  // uid
  std::string folder;
  // What files of coordinators before say of this step and later ones is void.
  uint64_t session_step = 0;
  std::optional<CurvePoint> point;
  std::optional<EpochResult> result;
  bool over = false;  // none will come after it
};

namespace action {

// StateStore::Apply. Durable before the next action: that may tell others of it. A store that fails
// must end the process; the next start reads what is durable.
struct Persist {
  StoreBatch batch;
};

struct Reply {
  CallId call;
  CallReply reply;
};

// Must not block for the folder. What cannot be written is missing from the files alone.
struct WriteCurve {
  CurveNews news;
};

// Writes job.spec.output beneath output_root from the values that job.values names, and answers
// with event::OutputWritten. Must not block. Comes again after a restart where no answer was
// stored.
struct WriteOutput {
  JobReply job;
};

// A sentence for the daemon's own log.
struct Log {
  std::string sentence;
};

}  // namespace action

// To be carried out in order.
using Action = std::variant<action::Persist, action::Reply, action::WriteCurve, action::WriteOutput,
                            action::Log>;
using Actions = std::vector<Action>;

// ---- The core -------------------------------------------------------------------------------

struct CoordinatorOptions {
  // The cluster's id where the state has none yet: drawn at random, not 0. It tells daemons of
  // another cluster apart, whatever their numbers are.
  uint64_t new_cluster = 1;
  std::string version = std::string(ReleaseVersion());  // daemons of another are refused
  uint32_t protocol = ProtocolVersion();                // and so are those that speak another
  bool insecure = false;                          // started with --insecure: every status says so
  absl::Duration liveness = absl::Seconds(5);     // silence after which a daemon is taken off
  absl::Duration start_grace = absl::Seconds(5);  // added to it right after a start
  absl::Duration report_hold = absl::Milliseconds(100);
  absl::Duration inspect_deadline = absl::Minutes(5);   // for a worker to look at the data
  absl::Duration inspector_wait = absl::Seconds(15);    // for there to be one
  absl::Duration release_deadline = absl::Seconds(30);  // a worker that gives up a job for another
  // For data to be opened and shards to be reached.
  absl::Duration prepare_deadline = absl::Minutes(5);
  // A job that has waited this long may have its turn (docs/operations.md, "Which job gets
  // workers").
  absl::Duration patience = absl::Minutes(10);
  // A job that was served fails when all who might serve it have been set aside for this long.
  absl::Duration unserved_wait = absl::Minutes(5);
  // A worker that computes hangs when it has not got on for the longer of these. It is asked again
  // a while after it has let the job go, twice as long each time.
  absl::Duration hang_least = absl::Seconds(30);
  double hang_units = 10;  // of the job, as they take on that worker
  absl::Duration hang_rest = absl::Minutes(1);
  absl::Duration metrics_wait = absl::Seconds(1);  // for the last losses, after a job's last cut
  absl::Duration lease_ahead = absl::Seconds(30);
  uint32_t lease_items_min = 2;
  uint32_t lease_items_max = limits::kLeasesPerWorkerMax;
  // Names of daemons that are gone are forgotten after so long, those of shards only where no kept
  // job has values there: names of pods that come and go are not kept for ever.
  absl::Duration forget_left = absl::Minutes(10);
  absl::Duration forget_lost = absl::Hours(1);
  // Retention: of jobs that are over the oldest are deleted beyond so many, and those that ended
  // longer ago than that. SIZE_MAX and InfiniteDuration: none is.
  size_t keep_ended_jobs = limits::kJobsMax - limits::kJobsMax / 10;
  absl::Duration keep_ended_for = absl::InfiniteDuration();
  // Jobs that ended last, which each overview has, so that their last figures are scraped.
  size_t overview_ended = 16;
  // Beneath it lie the folders for event files that jobs may name; empty: jobs may name none.
  std::string tensorboard_root;
  // Beneath it lie the files that spec.output may name; empty: jobs may name none.
  std::string output_root;
  // What starts a daemon, for messages to people.
  std::string worker_command = "starling-worker";
  std::string shard_command = "starling-ps";
};

class Core;  // server/coordinator/core/core.h

// How daemons meet their orders:
// * A worker that shall serve a job gets orders with the job, views, policy and roster; it
// prepares,
//   reports `prepared` with `run`, and only then becomes a member (the roster grows by it).
// * Orders without a job (or with another one): finish the unit in hand, park, drop the job, report
//   `run` unset. The worker stays a member until that report, or until release_deadline.
// * A lease that is no longer in the orders is dropped if it was not begun; one that was begun may
// be
//   finished (its key makes it count once).
// * Versions of orders are (generation << 32) + n: they grow across a coordinator's restarts, too.
// * Lease ids say what they cover (server/coordinator/leases/lease_id.h), so that a coordinator
// that
//   starts again learns from WorkerReport.leases_held what is being worked on.
//
// One thread at a time. There are two clocks. `now` never goes back within a process, and means
// nothing to the next one (MonotonicNow): silence, deadlines, leases and the running time of jobs
// follow it. `wall`, absl::Now at the start and at each tick, is what people are shown, and may
// jump either way.
class Coordinator {
 public:
  // From what the store holds; empty: a new cluster. kDataLoss names the record that cannot be
  // read.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(const CoordinatorOptions& options,
                                                             const StoreSnapshot& snapshot);
  ~Coordinator();

  // Once, before the first Step: takes the next generation.
  void Start(absl::Time now, absl::Time wall, Actions& actions);

  // Appends to `actions`.
  void Step(const Event& event, absl::Time now, Actions& actions);

  // Whether only the submission's folder for event files is still to be looked at before the event
  // may come: all else that can be said at once is well. Otherwise the event may come at once.
  bool AsksForFolder(const SubmitRequest& request) const;

  uint64_t generation() const;

 private:
  explicit Coordinator(std::unique_ptr<Core> core);

  std::unique_ptr<Core> core_;
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_COORDINATOR_H_
