#include <grpcpp/grpcpp.h>

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/transport/grpc_util.h"
#include "proto/coordinator_service.grpc.pb.h"
#include "server/coordinator/host/coordinator_service.h"

namespace starling::coordinator {
namespace {

ControlTraffic& TrafficOf(CoordinatorHost* host, PeerRole role) {
  return role == PeerRole::kWorker ? host->worker_traffic() : host->shard_traffic();
}

template <typename Reply>
void CountOrders(const Reply&, CoordinatorHost*) {}  // not an answer to a report
template <>
void CountOrders(const WorkerOrders& orders, CoordinatorHost* host) {
  host->worker_traffic().CountOrders(orders.ByteSizeLong());
}
template <>
void CountOrders(const ShardOrders& orders, CoordinatorHost* host) {
  host->shard_traffic().CountOrders(orders.ByteSizeLong());
}

// One call. Lives until gRPC is done with it. Occupies no thread while it waits.
template <typename Reply>
class CallReactor final : public grpc::ServerUnaryReactor {
 public:
  explicit CallReactor(absl::Status refused) { Finish(ToGrpc(refused)); }

  CallReactor(CoordinatorHost* host, Reply* reply, CoordinatorHost::MakeEvent make_event)
      : host_(host) {
    call_ = host->Call(std::move(make_event), Answer(reply)).value;
  }

  void OnCancel() override {
    if (host_ != nullptr) host_->Gone(CallId(call_));
  }
  void OnDone() override { delete this; }

 private:
  CoordinatorHost::Done Answer(Reply* reply) {
    return [this, reply](CallReply answer) {
      if (Reply* const message = std::get_if<Reply>(&answer)) {
        *reply = std::move(*message);
        CountOrders(*reply, host_);
        Finish(grpc::Status::OK);
      } else if (const absl::Status* const status = std::get_if<absl::Status>(&answer)) {
        Finish(ToGrpc(*status));
      } else {
        Finish(ToGrpc(absl::InternalError("the coordinator sent a reply of the wrong type")));
      }
    };
  }

  CoordinatorHost* const host_ = nullptr;
  std::atomic<uint64_t> call_ = 0;
};

// A heartbeat: it never waits for the coordinator's own thread.
class HeartbeatReactor final : public grpc::ServerUnaryReactor {
 public:
  explicit HeartbeatReactor(const absl::Status& refused) { Finish(ToGrpc(refused)); }

  HeartbeatReactor(HeartbeatDesk* desk, const HeartbeatRequest& request, const std::string& caller,
                   HeartbeatReply* reply)
      : desk_(desk) {
    call_ = desk->Take(request, caller, [this, reply](absl::StatusOr<HeartbeatReply> answer) {
      if (answer.ok()) *reply = *std::move(answer);
      Finish(ToGrpc(answer.status()));
    });
  }

  void OnCancel() override {
    if (desk_ != nullptr) desk_->Gone(call_);
  }
  void OnDone() override { delete this; }

 private:
  HeartbeatDesk* const desk_ = nullptr;
  std::atomic<uint64_t> call_ = 0;
};

const char* RoleName(Role role) {
  switch (role) {
    case WORKER: return PeerRoleName(PeerRole::kWorker);
    case SHARD: return PeerRoleName(PeerRole::kShard);
    default: return "other";
  }
}

class CoordinatorGrpcService final : public CoordinatorService::CallbackService {
 public:
  explicit CoordinatorGrpcService(CoordinatorHost* host) : host_(host) {}

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;

  Reactor* Register(Context* context, const RegisterRequest* request,
                    RegisterReply* reply) override {
    absl::StatusOr<PeerIdentity> peer = CheckCaller(*context);
    if (peer.ok() &&
        (request->name() != peer->identity.name ||
         RoleName(request->role()) != absl::string_view(PeerRoleName(peer->identity.role)))) {
      return new CallReactor<RegisterReply>(absl::PermissionDeniedError(
          absl::StrCat(IdentityToString(peer->identity), " cannot register as ",
                       RoleName(request->role()), " ", request->name())));
    }
    return Start<event::Register>(peer.status(), request, reply);
  }

  Reactor* ReportWorker(Context* context, const WorkerReport* request,
                        WorkerOrders* reply) override {
    return StartReport<event::WorkerReport>(*context, PeerRole::kWorker, request, reply);
  }

  Reactor* ReportShard(Context* context, const ShardReport* request, ShardOrders* reply) override {
    return StartReport<event::ShardReport>(*context, PeerRole::kShard, request, reply);
  }

  Reactor* Heartbeat(Context* context, const HeartbeatRequest* request,
                     HeartbeatReply* reply) override {
    absl::StatusOr<PeerIdentity> peer = CheckCaller(*context);
    if (!peer.ok()) return new HeartbeatReactor(peer.status());
    if (peer->identity.role != PeerRole::kShard)
      return new HeartbeatReactor(OnlyA(PeerRole::kShard, *peer));
    return new HeartbeatReactor(&host_->heartbeats(), *request, peer->identity.name, reply);
  }

// A call that any identity may make.
#define STARLING_CALL(NAME, REQUEST, REPLY)                                        \
  Reactor* NAME(Context* context, const REQUEST* request, REPLY* reply) override { \
    return Start<event::NAME>(CheckCaller(*context).status(), request, reply);     \
  }
  STARLING_CALL(Submit, SubmitRequest, SubmitReply)
  STARLING_CALL(GetJob, JobRequest, JobReply)
  STARLING_CALL(ListJobs, ListJobsRequest, ListJobsReply)
  STARLING_CALL(ListWorkers, ListWorkersRequest, ListWorkersReply)
  STARLING_CALL(ListShards, ListShardsRequest, ListShardsReply)
  STARLING_CALL(CancelJob, JobRequest, Empty)
  STARLING_CALL(DeleteJob, JobRequest, Empty)
  STARLING_CALL(SetPolicy, SetPolicyRequest, SetPolicyReply)
  STARLING_CALL(Curves, CurvesRequest, CurvesReply)
  STARLING_CALL(Logs, LogsRequest, LogsReply)
  STARLING_CALL(Explain, ExplainRequest, ExplainReply)
  STARLING_CALL(CreateCheckpoint, CreateCheckpointRequest, CreateCheckpointReply)
  STARLING_CALL(ListCheckpoints, ListCheckpointsRequest, ListCheckpointsReply)
  STARLING_CALL(DeleteCheckpoint, DeleteCheckpointRequest, Empty)
#undef STARLING_CALL

 private:
  static absl::Status OnlyA(PeerRole role, const PeerIdentity& peer) {
    return absl::PermissionDeniedError(absl::StrCat("only a ", PeerRoleName(role),
                                                    " may make this call, not ",
                                                    IdentityToString(peer.identity)));
  }

  template <typename Event, typename Request, typename Reply>
  Reactor* StartReport(const Context& context, PeerRole role, const Request* request,
                       Reply* reply) {
    absl::StatusOr<PeerIdentity> peer = CheckCaller(context);
    if (!peer.ok()) return new CallReactor<Reply>(peer.status());
    if (peer->identity.role != role) return new CallReactor<Reply>(OnlyA(role, *peer));
    TrafficOf(host_, role).CountReport(request->ByteSizeLong());
    return new CallReactor<Reply>(host_, reply,
                                  [request = *request, caller = peer->identity.name](CallId call) {
                                    return Event{call, request, caller};
                                  });
  }

  template <typename Event, typename Request, typename Reply>
  Reactor* Start(const absl::Status& allowed, const Request* request, Reply* reply) {
    if (!allowed.ok()) return new CallReactor<Reply>(allowed);
    // A copy, since the call and its request may be gone before the event is made.
    return new CallReactor<Reply>(host_, reply, [request = *request](CallId call) {
      return Event{call, request};
    });
  }

  CoordinatorHost* const host_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeCoordinatorService(CoordinatorHost* host) {
  return std::make_shared<CoordinatorGrpcService>(host);
}

}  // namespace starling::coordinator
