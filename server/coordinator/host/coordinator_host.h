// Runs the coordinator's core. One thread owns it; events come from any thread; actions are carried
// out in order. The host decides nothing.
#ifndef STARLING_SERVER_COORDINATOR_HOST_COORDINATOR_HOST_H_
#define STARLING_SERVER_COORDINATOR_HOST_COORDINATOR_HOST_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/admin/health.h"
#include "common/checkpoint/disk.h"
#include "common/event_loop/threaded_loop.h"
#include "proto/checkpoint.pb.h"
#include "server/coordinator/core/coordinator.h"
#include "server/coordinator/host/checkpoint_keeper.h"
#include "server/coordinator/host/control_traffic.h"
#include "server/coordinator/host/curve_writer.h"
#include "server/coordinator/host/heartbeat_desk.h"
#include "server/coordinator/host/output_writer.h"
#include "server/coordinator/host/shard_asker.h"
#include "server/coordinator/store/state_store.h"

namespace starling::coordinator {

class CoordinatorHost {
 public:
  struct Parts {
    std::unique_ptr<StateStore> store;
    // Called once, on the host's thread, when the store fails. From then on every call fails with
    // kUnavailable, and the process must end.
    std::function<void(const absl::Status&)> on_fatal;
    ReadValues read = nullptr;  // for spec.output
    // What options.checkpoint_root names; null: it is empty.
    std::shared_ptr<CheckpointDisk> checkpoints = nullptr;
    // Of shards that were not heard of since the start; null: only their heartbeats count.
    std::unique_ptr<ShardAsker> asker = nullptr;
    MakeEventLoop make_loop = ThreadedLoop::Make;
    std::function<absl::Time()> wall = absl::Now;  // thread-safe; shown to users only
  };
  // Receives a call's answer. Runs once, on the host's thread, or on the caller's after Stop.
  using Done = std::function<void(CallReply)>;
  using MakeEvent = std::function<Event(CallId)>;

  // Reads the store and starts the core, on the caller's thread.
  static absl::StatusOr<std::unique_ptr<CoordinatorHost>> Start(const CoordinatorOptions& options,
                                                                Parts parts);
  ~CoordinatorHost();  // Stop()

  // Thread-safe. Returns the id for Gone. If the core asks for it, first reads the checkpoint that
  // a submission starts from, and checks whether event files can be written to its folder;
  // kDeadlineExceeded if that takes more than 10 s.
  CallId Call(MakeEvent make_event, Done done);
  // The caller hung up: `done` runs with kCancelled, unless it has already run. Thread-safe.
  void Gone(CallId call);

  // Answers all pending and later calls with kUnavailable. Thread-safe. Blocks briefly.
  void BeginShutdown();
  // Calls BeginShutdown and ends the thread. State behind earlier answers is durable.
  void Stop();

  uint64_t generation() const { return generation_; }

  HeartbeatDesk& heartbeats() { return heartbeats_; }

  // Thread-safe.
  ControlTraffic& worker_traffic() { return worker_traffic_; }
  ControlTraffic& shard_traffic() { return shard_traffic_; }

  void WatchWith(admin::Health* health) { health->Watch(loop_.get(), "coordinator"); }

 private:
  CoordinatorHost(const CoordinatorOptions& options, std::unique_ptr<Coordinator> core,
                  Parts parts);

  void Step(const Event& event);
  void CarryOut(Actions actions);
  void Do(const action::Persist& action);
  void Do(action::Reply& action);
  void Do(const action::WriteCurve& action);
  void Do(const action::WriteOutput& action);
  void Do(const action::MakeCheckpoint& action);
  void Do(const action::SealCheckpoint& action);
  void Do(const action::DropCheckpoint& action);
  void Do(const action::ListCheckpoints& action);
  void Do(const action::ReadCheckpoint& action);
  void Do(const action::AskShard& action);
  void Do(const action::Log& action);

  void Tick();
  void PostStep(Event event);
  void AskDisk(CallId call, const SubmitRequest& request);
  void AskForFolder(event::Submit event, EventLoop::TimerId timer);
  void EndAsking(event::Submit event, EventLoop::TimerId timer);
  void Answer(CallId call, CallReply reply);
  void AnswerAll(const absl::Status& status);

  const std::function<void(const absl::Status&)> on_fatal_;
  const std::function<absl::Time()> wall_;
  uint64_t generation_ = 0;  // constant after Start
  std::atomic<uint64_t> next_call_ = 1;
  ControlTraffic worker_traffic_;
  ControlTraffic shard_traffic_;

  // The loop's thread only.
  std::unique_ptr<Coordinator> core_;
  std::unique_ptr<StateStore> store_;
  std::map<CallId, Done> waiting_;
  size_t disk_asked_ = 0;  // submissions of which the disk is asked, and those answered meanwhile
  absl::Status closed_;    // not OK: the core has stopped, and every call gets this status

  CurveWriter curves_;
  OutputWriter outputs_;
  CheckpointKeeper checkpoints_;
  HeartbeatDesk heartbeats_;
  std::unique_ptr<EventLoop> loop_;  // last: its thread ends first
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_HOST_COORDINATOR_HOST_H_
