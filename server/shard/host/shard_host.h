// A parameter-server shard without its network: it has partitions on event loops, passes frames to
// them, and carries out the coordinator's orders.
//
// Threads: the transport's thread reads frames and posts each to its partition's owner. Each
// partition has one owner, which uses it without locks. The control loop decides which partitions
// exist (shard::Shard) and talks to the coordinator. A loop of its own writes files of checkpoints.
// Only the table of routes is shared, under a mutex.
#ifndef STARLING_SERVER_SHARD_HOST_SHARD_HOST_H_
#define STARLING_SERVER_SHARD_HOST_SHARD_HOST_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/admin/admin.h"
#include "common/checkpoint/capture.h"
#include "common/checkpoint/disk.h"
#include "common/daemon/coordinator_client.h"
#include "common/event_loop/event_loop.h"
#include "common/trace/span_ring.h"
#include "common/transport/link_security.h"
#include "common/transport/transport.h"
#include "server/shard/core/shard.h"
#include "server/shard/host/checkpoint_writer.h"
#include "server/shard/host/connection.h"
#include "server/shard/host/injections.h"
#include "server/shard/host/partition_host.h"
#include "server/shard/host/routes.h"
#include "server/shard/host/shard_heartbeats.h"
#include "server/shard/host/shard_job.h"
#include "server/shard/host/shard_links.h"
#include "server/shard/host/shard_memory.h"
#include "server/shard/host/shard_metrics.h"
#include "server/shard/host/shard_reporter.h"

namespace starling {

class ShardHost {
 public:
  struct Options {
    Identity self;
    std::string coordinator;  // address; for messages
    std::shared_ptr<const LinkSecurity> security = nullptr;
    int owner_threads = 2;
    absl::Duration register_deadline = absl::Seconds(60);
    size_t report_bytes_max = limits::kControlChangesBytesMax;  // ShardReports
    ShardInjections inject;                                     // for tests
  };

  // The host's environment. All functions are thread-safe.
  struct Environment {
    MakeEventLoop make_loop;
    std::function<uint64_t()> available_memory;  // bytes: AvailableMemoryBytes
    std::function<void()> return_memory;         // ReturnFreedMemory
    std::function<std::shared_ptr<float>(size_t)> allocate = AllocateFloats;
    MakePlan make_plan = MakeShardJobPlan;
    std::shared_ptr<CheckpointDisk> checkpoint_disk = nullptr;  // null: no --checkpoint-root
    SpanRing* spans = nullptr;                                  // outlives the host
    PartitionObserver* observer = nullptr;                      // outlives the host; for tests
    // Called once if the shard cannot go on: no coordinator answered within `register_deadline`, or
    // it refused the shard. The process should then end.
    std::function<void(const absl::Status&)> on_failed;
  };

  // `streams`: for streams to deciding shards and to shards with backups.
  ShardHost(const Options& options, Environment environment, std::unique_ptr<StreamClient> streams);
  ~ShardHost();  // Stop()

  ShardHost(const ShardHost&) = delete;
  ShardHost& operator=(const ShardHost&) = delete;

  // Starts to register under `address`, at which others reach this shard. `heartbeats`: another
  // client of the same coordinator, with its own connection. Call once. Streams may arrive before.
  void Start(const std::string& address, std::unique_ptr<CoordinatorClient> coordinator,
             std::unique_ptr<CoordinatorClient> heartbeats);

  // RpcServer::Accept.
  absl::StatusOr<std::shared_ptr<StreamHandler>> Accept(std::shared_ptr<FrameStream> stream,
                                                        const PeerIdentity& peer);

  // Shows this shard on the admin port until Admin::BeginShutdown, which must come before
  // StopControl.
  void ShowOn(admin::Admin* admin);

  // Asks the coordinator to hand over what counts on this shard. `on_drain` gets what it says, on
  // the control loop, until StopControl (see ShardReporter). Call once, after Start.
  void Drain(std::function<void(const DrainOrders&)> on_drain);
  // Tells the coordinator that this shard leaves now. `done` runs on the control loop once that was
  // answered, after a second at most; it does not run if StopControl comes first.
  void Leave(std::function<void()> done);

  const ShardMemory& memory() const { return *memory_; }

  // Stops reports and ignores further orders. Idempotent.
  void StopControl();
  // Ends the threads. The server must have ended the streams before. Idempotent.
  void Stop();

 private:
  ShardMemory::Options MemoryOptions() const;
  uint64_t ForJobs(uint64_t available) const;
  absl::Status CheckMemory(const ShardJobPlan& plan, const ShardJob& job) const;
  void Tick(EventLoop* owner);
  // On the partition's owner.
  void StepReader(HostedPartition& partition, const std::function<void(EndedReader&)>& step);

  // Any thread.
  void TakeDecision(const FrameHeader& answer, std::string text);
  void TakeLocalReport(const FrameHeader& report);
  void TakeBackupAnswer(const FrameHeader& answer, std::string text);
  void TakeBackupDown(const Routes::Key& key, const std::string& address, std::string why);
  void TakeValue(const FrameHeader& header, ReceivedPayload payload);
  bool GiveUpCaptures();

  // On the control loop.
  void FindCheckpointRoot(uint64_t cluster, uint64_t nonce);
  void DoubtCheckpointRoot();
  void TakeCaptured(const shard::event::Captured& event, std::vector<CapturedBlock> blocks);
  PartitionHost::Environment EnvironmentOf(const shard::action::Create& action, EventLoop* owner);
  void Step(shard::Event event);
  void Do(const shard::action::Plan& action);
  void Do(const shard::action::Forget& action);
  void Do(const shard::action::Create& action);
  void Do(const shard::action::Order& action);
  void Do(const shard::action::End& action);
  void Do(const shard::action::CopyEnded& action);
  void Do(const shard::action::Shelve& action);
  void Do(const shard::action::Drop& action);
  void Do(const shard::action::ReturnMemory& action);
  void Do(const shard::action::Learn& action);
  void Do(const shard::action::BeginCheckpoint& action);
  void Do(const shard::action::WriteCheckpoint& action);
  void Do(const shard::action::DropCheckpoint& action);
  void Do(const shard::action::HoldRun& action);
  void Do(const shard::action::Report& action);
  void Do(const shard::action::ReportEnd& action);
  void Do(const shard::action::ReportNothingOfPartition& action);
  void Do(const shard::action::ReportNothingOfJob& action);
  void Do(const shard::action::ReportCheckpoint& action);

  // What a job's partitions have captured for a checkpoint.
  struct Capture {
    ShardCheckpoint orders;
    std::shared_ptr<CheckpointCapture> blocks;
  };

  const Options options_;
  const Environment environment_;
  std::unique_ptr<EventLoop> control_;
  std::vector<std::unique_ptr<EventLoop>> owners_;
  const std::shared_ptr<ShardMemory> memory_;
  Routes routes_;
  ShardMetrics metrics_;
  std::atomic<uint64_t> next_connection_ = 1;
  const std::shared_ptr<LocalConnection> local_;
  ShardLinks links_;
  const std::unique_ptr<CheckpointWriter> checkpoint_writer_;  // null: no disk
  std::atomic<bool> has_captures_ = false;                     // captures_ is not empty
  std::atomic<bool> control_stopped_ = false;
  std::atomic<bool> stopped_ = false;

  // Constant after Start.
  std::unique_ptr<ShardHeartbeats> heartbeats_;

  // On the control loop.
  shard::Shard core_;
  std::deque<shard::Event> events_;  // events that wait for the current one
  bool stepping_ = false;
  ShardId id_;
  std::map<RunId, std::shared_ptr<const ShardJobPlan>> plans_;  // of runs that are not over
  bool returns_memory_ = false;                                 // a ReturnMemory is pending
  std::function<void(const DrainOrders&)> on_drain_;
  std::map<JobUid, Capture> captures_;
  uint64_t checkpoint_nonce_ = 0;                   // found beneath the root
  bool finds_root_ = false;                         // it is being read
  absl::Time find_root_at_ = absl::InfinitePast();  // not earlier
  std::unique_ptr<ShardReporter> reporter_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_SHARD_HOST_H_
