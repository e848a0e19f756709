// Runs the coordinator's core: one thread owns it, events come from anywhere, its actions are
// carried out in order. Decides nothing.
#ifndef STARLING_SERVER_COORDINATOR_HOST_COORDINATOR_HOST_H_
#define STARLING_SERVER_COORDINATOR_HOST_COORDINATOR_HOST_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "common/admin/health.h"
#include "common/event_loop/threaded_loop.h"
#include "server/coordinator/core/coordinator.h"
#include "server/coordinator/host/control_traffic.h"
#include "server/coordinator/host/curve_writer.h"
#include "server/coordinator/host/output_writer.h"
#include "server/coordinator/store/state_store.h"

namespace grpc {
class Service;
}

namespace starling {

class CoordinatorHost final : private CoordinatorSink {
 public:
  // Answers one call; runs once, on the host's thread.
  using Done = std::function<void(CoordinatorReply)>;
  using MakeEvent = std::function<CoordinatorEvent(CallId)>;

  // Reads the store and starts the core. `on_fatal` is called, once, when the store fails: from
  // then on every call is answered kUnavailable, and the process must end. `read` is for
  // spec.output.
  static absl::StatusOr<std::unique_ptr<CoordinatorHost>> Start(
      const CoordinatorOptions& options, std::unique_ptr<StateStore> store,
      std::function<void(const absl::Status&)> on_fatal, ReadValues read = nullptr);
  ~CoordinatorHost() override;  // Stop()

  // Thread-safe. The id is for Gone.
  CallId Call(MakeEvent make_event, Done done);
  // A submission: where the core asks for it, first looks whether its folder for event files can be
  // written; kDeadlineExceeded where that is not known after 10 s.
  CallId Submit(const SubmitRequest& request, Done done);
  // The caller hung up. Its `done` runs with kCancelled, unless it ran already. Thread-safe.
  void Gone(CallId call);

  // Answers everything that waits, now and later, with kUnavailable. Thread-safe, blocks shortly.
  void BeginShutdown();
  // BeginShutdown, and ends the thread. What was answered before is durable.
  void Stop();

  uint64_t generation() const { return generation_; }

  // Thread-safe.
  ControlTraffic& worker_traffic() { return worker_traffic_; }
  ControlTraffic& shard_traffic() { return shard_traffic_; }

  void WatchWith(admin::Health* health) { health->Watch(&loop_, "coordinator"); }

 private:
  CoordinatorHost(const CoordinatorOptions& options, std::unique_ptr<Coordinator> core,
                  std::unique_ptr<StateStore> store,
                  std::function<void(const absl::Status&)> on_fatal, ReadValues read);

  void Persist(const StoreBatch& batch) override;
  void Reply(CallId call, CoordinatorReply reply) override;
  void WriteCurve(const CurveNews& news) override;
  void WriteOutput(const JobReply& job) override;
  void Log(absl::string_view sentence) override;

  void Step(const CoordinatorEvent& event);
  void Tick();
  void AskForFolder(CallId call, const SubmitRequest& request);
  void Answer(CallId call, CoordinatorReply reply);
  void AnswerAll(const absl::Status& status);

  const std::function<void(const absl::Status&)> on_fatal_;
  uint64_t generation_ = 0;  // constant after Start
  std::atomic<uint64_t> next_call_ = 1;
  ControlTraffic worker_traffic_;
  ControlTraffic shard_traffic_;

  // The loop's thread only.
  std::unique_ptr<Coordinator> core_;
  std::unique_ptr<StateStore> store_;
  std::map<CallId, Done> waiting_;
  size_t folders_asked_ = 0;  // checks under way, those of calls that were answered included
  absl::Status closed_;       // not OK: no more steps; what every call gets

  CurveWriter curves_;
  OutputWriter outputs_;
  ThreadedLoop loop_;  // last: its thread ends first
};

// The service in proto/coordinator_service.proto; for RpcServer::Options::services. Every call must
// carry an identity; daemons must register under the name and role that they carry.
std::shared_ptr<grpc::Service> MakeCoordinatorService(CoordinatorHost* host);

}  // namespace starling

#endif  // STARLING_SERVER_COORDINATOR_HOST_COORDINATOR_HOST_H_
