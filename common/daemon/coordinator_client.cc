#include "common/daemon/coordinator_client.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/object_pool.h"
#include "common/daemon/role.h"
#include "common/transport/grpc_util.h"
#include "common/version/version.h"
#include "proto/coordinator_service.grpc.pb.h"

namespace starling {
namespace {

// One in flight, and another while its answer is late.
constexpr size_t kReportsAtFirst = 4;

class GrpcCoordinatorClient final : public CoordinatorClient {
 public:
  GrpcCoordinatorClient(const std::string& address, const Identity& self,
                        std::shared_ptr<const LinkSecurity> security)
      : address_(address),
        self_(IdentityToString(self)),
        stub_(CoordinatorService::NewStub(
            MakeChannel(address, std::move(security), {PeerRole::kCoordinator}))) {
    absl::MutexLock lock(&mutex_);
    calls_.reserve(2 * kReportsAtFirst);
  }

  ~GrpcCoordinatorClient() override {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    for (grpc::ClientContext* context : calls_) context->TryCancel();
    mutex_.Await(absl::Condition(
        +[](std::vector<grpc::ClientContext*>* calls) { return calls->empty(); }, &calls_));
  }

  void Register(const RegisterRequest& request, absl::Duration timeout,
                Done<RegisterReply> done) override {
    Start(registers_, request, timeout, std::move(done),
          [this](auto... a) { stub_->async()->Register(a...); });
  }
  void ReportWorker(const WorkerReport& report, absl::Duration timeout,
                    Done<WorkerOrders> done) override {
    Start(worker_reports_, report, timeout, std::move(done),
          [this](auto... a) { stub_->async()->ReportWorker(a...); });
  }
  void ReportShard(const ShardReport& report, absl::Duration timeout,
                   Done<ShardOrders> done) override {
    Start(shard_reports_, report, timeout, std::move(done),
          [this](auto... a) { stub_->async()->ReportShard(a...); });
  }
  void Heartbeat(const HeartbeatRequest& request, absl::Duration timeout,
                 Done<HeartbeatReply> done) override {
    Start(heartbeats_, request, timeout, std::move(done),
          [this](auto... a) { stub_->async()->Heartbeat(a...); });
  }

 private:
  absl::Status NoCoordinatorThere() const {
    return absl::UnimplementedError(absl::StrCat(
        "what listens at ", address_, " is no coordinator: a shard or a worker has other ports"));
  }

  template <typename Request, typename Reply>
  struct Call {
    std::optional<grpc::ClientContext> context;
    Request request;
    Reply reply;
    Done<Reply> done;
    std::shared_ptr<Call> self;  // while in flight
    void Recycle() {
      context.reset();
      done = nullptr;
    }
  };

  template <typename Request, typename Reply, typename Method>
  void Start(ObjectPool<Call<Request, Reply>>& calls, const Request& request,
             absl::Duration timeout, Done<Reply> done, Method method) {
    const std::shared_ptr<Call<Request, Reply>> made = calls.Get();
    Call<Request, Reply>* const call = made.get();
    call->self = made;
    call->request = request;
    call->reply.Clear();
    call->done = std::move(done);
    grpc::ClientContext* const context = &call->context.emplace();
    AddIdentityText(self_, context);
    context->set_deadline(GrpcDeadline(timeout));
    {
      absl::MutexLock lock(&mutex_);
      calls_.push_back(context);
      if (closing_) context->TryCancel();
    }
    method(context, &call->request, &call->reply, [this, call](grpc::Status status) {
      if (status.ok()) {
        call->done(std::move(call->reply));
      } else {
        call->done(status.error_code() == grpc::StatusCode::UNIMPLEMENTED ? NoCoordinatorThere()
                                                                          : FromGrpc(status));
      }
      grpc::ClientContext* const over = &*call->context;
      std::shared_ptr<Call<Request, Reply>> last = std::move(call->self);
      absl::MutexLock lock(&mutex_);
      calls_.erase(std::find(calls_.begin(), calls_.end(), over));
      last.reset();
    });
  }

  const std::string address_;
  const std::string self_;  // as text
  const std::unique_ptr<CoordinatorService::Stub> stub_;
  absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mutex_);  // in flight
  ObjectPool<Call<RegisterRequest, RegisterReply>> registers_;
  ObjectPool<Call<WorkerReport, WorkerOrders>> worker_reports_{kReportsAtFirst};
  ObjectPool<Call<ShardReport, ShardOrders>> shard_reports_{kReportsAtFirst};
  ObjectPool<Call<HeartbeatRequest, HeartbeatReply>> heartbeats_;
};

}  // namespace

std::unique_ptr<CoordinatorClient> MakeCoordinatorClient(
    const std::string& address, const Identity& self,
    std::shared_ptr<const LinkSecurity> security) {
  return std::make_unique<GrpcCoordinatorClient>(address, self, std::move(security));
}

RegisterRequest MakeRegisterRequest(const Identity& self, const std::string& address,
                                    bool insecure) {
  RegisterRequest request;
  request.set_role(RoleOf(self.role));
  request.mutable_version()->set_version(std::string(ReleaseVersion()));
  request.mutable_version()->set_protocol(ProtocolVersion());
  request.set_name(self.name);
  request.set_address(address);
  request.set_insecure(insecure);
  std::random_device random;
  request.set_nonce((uint64_t{random()} << 32) | random());
  static const uint64_t process = request.nonce();  // its first
  request.set_process(process);
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) == 0) request.set_host(host);
  request.set_cores(std::thread::hardware_concurrency());
  return request;
}

}  // namespace starling
