// The host of a worker's session (worker/core). It turns what happens to streams, the coordinator,
// computation and data into events, and carries out actions in order. It decides nothing.
#ifndef STARLING_WORKER_HOST_WORKER_HOST_H_
#define STARLING_WORKER_HOST_WORKER_HOST_H_

#include <functional>
#include <map>
#include <memory>
#include <memory_resource>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/admin/admin.h"
#include "common/admin/readiness.h"
#include "common/daemon/coordinator_client.h"
#include "common/event_loop/event_loop.h"
#include "common/trace/span_ring.h"
#include "common/transport/payload_copies.h"
#include "common/transport/transport.h"
#include "worker/core/session.h"
#include "worker/host/buffer_table.h"
#include "worker/host/job_opening.h"
#include "worker/host/job_runner.h"
#include "worker/host/link_meter.h"
#include "worker/host/open_requests.h"
#include "worker/host/overlap_meter.h"
#include "worker/host/progress.h"
#include "worker/host/time_spent.h"
#include "worker/host/worker_metrics.h"

namespace starling {

struct WorkerHostOptions {
  session::SessionOptions session;                         // its name is the worker's name
  RegisterRequest registration;                            // with the process's nonce
  std::string coordinator;                                 // its address, for messages
  absl::Duration coordinator_timeout = absl::Seconds(60);  // limit for the first registration
  // For tests that need stale updates: each push is held back this long.
  absl::Duration push_delay;
};

// Observes the session's events and actions, in order, on the session's loop.
class SessionWatch {
 public:
  virtual void OnEvent(const session::Session& session, const session::Event& event) = 0;
  // Called before the action is carried out.
  virtual void OnAction(const session::Action& action) = 0;

 protected:
  ~SessionWatch() = default;
};

// The parts that a host owns and uses.
struct WorkerHostParts {
  std::unique_ptr<EventLoop> session;  // runs the host
  std::unique_ptr<CoordinatorClient> coordinator;
  std::unique_ptr<StreamClient> streams;
  MakeJobRunner runner;
  SessionWatch* watch = nullptr;  // not owned; may be null; outlives the host
};

// Runs on the session's loop, which owns everything here unless stated otherwise. The parts have
// threads of their own: see docs/thread_model.md.
class WorkerHost final : private UnitListener {
 public:
  // `spans` outlives the host. `on_exit` is called once, on the session's loop, when the session
  // has ended. It must not destroy the host.
  WorkerHost(WorkerHostOptions options, WorkerHostParts parts, SpanRing* spans,
             std::function<void(absl::Status)> on_exit);
  ~WorkerHost();
  WorkerHost(const WorkerHost&) = delete;
  WorkerHost& operator=(const WorkerHost&) = delete;

  void Start();
  // Finishes the unit, pushes, leaves and exits. Thread-safe.
  void Drain();
  // Shows this worker on the admin port until Admin::BeginShutdown, which must come before this is
  // destroyed.
  void ShowOn(admin::Admin* admin);

 private:
  class ShardStream;

  void Step(session::Event event);
  void Tick();

  // One per action; see worker/core/events.h.
  void Do(session::action::Register action);
  void Do(session::action::Report action);
  void Do(session::action::Connect action);
  void Do(session::action::Disconnect action);
  void Do(session::action::Send action);
  void Do(session::action::Prepare action);
  void Do(session::action::CloseJob action);
  void Do(session::action::Inspect action);
  void Do(session::action::Prefetch action);
  void Do(session::action::Compute action);
  void Do(session::action::Abandon action);
  void Do(session::action::InstallValue action);
  void Do(session::action::ForgetValues action);
  void Do(session::action::ReleaseBuffer action);
  void Do(session::action::Warn action);
  void Do(session::action::Exit action);

  void OnFrame(ShardId shard, uint64_t connection, const FrameHeader& header,
               ReceivedPayload payload);
  void OnStreamDown(ShardId shard, uint64_t connection, const absl::Status& status);
  bool IsCurrent(ShardId shard, uint64_t connection) const;
  void OnRegisterFailed(const absl::Status& status);
  void OnReportFailed(const absl::Status& status);
  void Transmit(ShardId shard, const FrameHeader& header, OutgoingPayload payload);
  void Remember(ShardId shard, const FrameHeader& header);
  SliceArrival Answered(ShardId shard, const FrameHeader& header);
  void MeterRequests();  // after each change of requests_
  void AddTimes(absl::Time now, WorkerReport* report);
  void OnOpened(const JobDescription& description, OpenedJob opened);
  void BeginJob(std::shared_ptr<ServedJob> job);
  // Counts a unit of training or evaluation, with its samples and the time that its lanes waited.
  void CountUnit(uint64_t samples, absl::Duration waited);

  // UnitListener: each posts to the session's loop.
  void OnBegin() override;
  void OnGradient(session::event::SliceGradient gradient,
                  std::shared_ptr<GradientBuffer> buffer) override;
  void OnComputed(session::event::UnitComputed unit, absl::Duration waited) override;
  void OnFailed(session::event::UnitFailed unit, absl::Duration waited) override;
  void OnStopped(session::UnitId unit) override;

  const WorkerHostOptions options_;
  SpanRing* const spans_;
  SessionWatch* const watch_;  // may be null
  const std::function<void(absl::Status)> on_exit_;

  // The session's loop only.
  std::pmr::unsynchronized_pool_resource memory_;  // for short-lived data of units, reused
  session::Session session_;
  session::Actions actions_;  // of the current step
  PayloadCopies copies_;      // of values that came through shared memory
  BufferTable buffers_;
  OverlapMeter meter_;
  LinkMeter links_;
  TimeSpent<session::Activity> activity_;  // since the job was prepared
  uint64_t units_ = 0;                     // training units computed for this job
  uint64_t samples_ = 0;                   // in those units
  std::map<ShardId, std::shared_ptr<ShardStream>> streams_;
  uint64_t last_connection_ = 0;
  OpenRequests requests_;  // for spans and meters
  std::shared_ptr<ServedJob> job_;
  std::pmr::set<WorkRange> asked_{&memory_};  // ranges requested ahead
  WorkPurpose computing_ = WorkPurpose::kTrain;
  WorkerId repeats_;            // whose part of a step the current unit is, too; 0: nobody's
  WorkerMetrics metrics_;       // any thread
  admin::Readiness readiness_;  // any thread
  bool exited_ = false;
  bool registered_once_ = false;
  absl::Time started_;
  absl::Time last_answer_;  // from the coordinator
  absl::Time last_complaint_ = absl::InfinitePast();
  std::string trouble_;  // see WorkerReport

  Progress progress_;  // any thread

  // The parts that call back. They are destroyed in reverse order.
  const std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<JobRunner> runner_;
  std::unique_ptr<StreamClient> stream_client_;
  std::unique_ptr<CoordinatorClient> coordinator_;
  JobOpening opening_;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_WORKER_HOST_H_
