#include "server/coordinator/host/shard_asker.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/transport/grpc_util.h"
#include "proto/daemon.grpc.pb.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(1);

class GrpcShardAsker final : public ShardAsker {
 public:
  GrpcShardAsker(const Identity& self, std::shared_ptr<const LinkSecurity> security)
      : self_(self), security_(std::move(security)) {}

  ~GrpcShardAsker() override {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    for (const std::shared_ptr<Call>& call : calls_) call->context.TryCancel();
    mutex_.Await(absl::Condition(
        +[](std::set<std::shared_ptr<Call>>* calls) { return calls->empty(); }, &calls_));
  }

  void Ask(const std::string& address, const std::string& name,
           std::function<void()> answered) override {
    const auto call = std::make_shared<Call>();
    call->stub = Daemon::NewStub(MakeChannel(address, security_, {PeerRole::kShard}));
    AddIdentity(self_, &call->context);
    call->context.set_deadline(GrpcDeadline(kTimeout));
    std::vector<std::shared_ptr<Call>> over;
    {
      absl::MutexLock lock(&mutex_);
      over.swap(over_);
      calls_.insert(call);
      if (closing_) call->context.TryCancel();
    }
    call->stub->async()->Info(
        &call->context, &call->request, &call->reply,
        [this, call = call.get(), name, answered = std::move(answered)](const grpc::Status& s) {
          const InfoReply& reply = call->reply;
          if (s.ok() && reply.role() == SHARD && reply.name() == name) answered();
          Drop(call);
        });
  }

 private:
  struct Call {
    std::unique_ptr<Daemon::Stub> stub;
    grpc::ClientContext context;
    InfoRequest request;
    InfoReply reply;
  };

  // Does not delete it: a process's last channel must not end on gRPC's own thread, which that end
  // joins.
  void Drop(const Call* call) {
    absl::MutexLock lock(&mutex_);
    for (auto it = calls_.begin(); it != calls_.end(); ++it) {
      if (it->get() != call) continue;
      over_.push_back(*it);
      calls_.erase(it);
      return;
    }
  }

  const Identity self_;
  const std::shared_ptr<const LinkSecurity> security_;
  absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);    // under way
  std::vector<std::shared_ptr<Call>> over_ ABSL_GUARDED_BY(mutex_);  // since the last Ask
};

}  // namespace

std::unique_ptr<ShardAsker> MakeShardAsker(const Identity& self,
                                           std::shared_ptr<const LinkSecurity> security) {
  return std::make_unique<GrpcShardAsker>(self, std::move(security));
}

}  // namespace starling::coordinator
