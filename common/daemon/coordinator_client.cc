#include "common/daemon/coordinator_client.h"

#include <unistd.h>

#include <random>
#include <set>
#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/transport/grpc_util.h"
#include "common/version/version.h"
#include "proto/coordinator_service.grpc.pb.h"

namespace starling {
namespace {

class GrpcCoordinatorClient final : public CoordinatorClient {
 public:
  GrpcCoordinatorClient(const std::string& address, Identity self,
                        std::shared_ptr<const LinkSecurity> security)
      : self_(std::move(self)),
        stub_(CoordinatorService::NewStub(
            MakeChannel(address, std::move(security), {PeerRole::kCoordinator}))) {}

  ~GrpcCoordinatorClient() override {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    for (grpc::ClientContext* context : calls_) context->TryCancel();
    mutex_.Await(absl::Condition(
        +[](std::set<grpc::ClientContext*>* calls) { return calls->empty(); }, &calls_));
  }

  void Register(const RegisterRequest& request, absl::Duration timeout,
                Done<RegisterReply> done) override {
    Start(request, timeout, std::move(done), [this](auto... a) { stub_->async()->Register(a...); });
  }
  void ReportWorker(const WorkerReport& report, absl::Duration timeout,
                    Done<WorkerOrders> done) override {
    Start(report, timeout, std::move(done),
          [this](auto... a) { stub_->async()->ReportWorker(a...); });
  }
  void ReportShard(const ShardReport& report, absl::Duration timeout,
                   Done<ShardOrders> done) override {
    Start(report, timeout, std::move(done),
          [this](auto... a) { stub_->async()->ReportShard(a...); });
  }

 private:
  template <typename Request, typename Reply>
  struct Call {
    grpc::ClientContext context;
    Request request;
    Reply reply;
    Done<Reply> done;
  };

  template <typename Request, typename Reply, typename Method>
  void Start(const Request& request, absl::Duration timeout, Done<Reply> done, Method method) {
    auto* const call = new Call<Request, Reply>;
    call->request = request;
    call->done = std::move(done);
    AddIdentity(self_, &call->context);
    call->context.set_deadline(GrpcDeadline(absl::Now() + timeout));
    {
      absl::MutexLock lock(&mutex_);
      calls_.insert(&call->context);
      if (closing_) call->context.TryCancel();
    }
    method(&call->context, &call->request, &call->reply, [this, call](grpc::Status status) {
      if (status.ok()) {
        call->done(std::move(call->reply));
      } else {
        call->done(FromGrpc(status));
      }
      absl::MutexLock lock(&mutex_);
      calls_.erase(&call->context);
      delete call;
    });
  }

  const Identity self_;
  const std::unique_ptr<CoordinatorService::Stub> stub_;
  absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mutex_);
};

Role ToProto(PeerRole role) {
  return role == PeerRole::kWorker ? WORKER : role == PeerRole::kShard ? SHARD : CLIENT;
}

}  // namespace

std::unique_ptr<CoordinatorClient> MakeCoordinatorClient(
    const std::string& address, const Identity& self, std::shared_ptr<const LinkSecurity> security) {
  return std::make_unique<GrpcCoordinatorClient>(address, self, std::move(security));
}

RegisterRequest MakeRegisterRequest(const Identity& self, const std::string& address,
                                    bool insecure) {
  RegisterRequest request;
  request.set_role(ToProto(self.role));
  request.mutable_version()->set_version(std::string(ReleaseVersion()));
  request.mutable_version()->set_protocol(ProtocolVersion());
  request.set_name(self.name);
  request.set_address(address);
  request.set_insecure(insecure);
  std::random_device random;
  request.set_nonce((uint64_t{random()} << 32) | random());
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) == 0) request.set_host(host);
  request.set_cores(std::thread::hardware_concurrency());
  return request;
}

}  // namespace starling
