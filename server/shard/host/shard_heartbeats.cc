#include "server/shard/host/shard_heartbeats.h"

#include <algorithm>
#include <utility>

namespace starling {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(1);
// The coordinator holds each for 100 ms. One that does not, or fails, is called no more often.
constexpr absl::Duration kPeriod = absl::Milliseconds(50);

}  // namespace

ShardHeartbeats::ShardHeartbeats(std::unique_ptr<EventLoop> loop,
                                 std::unique_ptr<CoordinatorClient> client)
    : client_(std::move(client)), loop_(std::move(loop)) {}

ShardHeartbeats::~ShardHeartbeats() { Stop(); }

void ShardHeartbeats::Begin(ShardId shard, Incarnation incarnation, uint64_t cluster) {
  loop_->Post([this, shard, incarnation, cluster] {
    HeartbeatRequest& request = request_.emplace();
    request.set_shard(shard.value);
    request.set_incarnation(incarnation.value);
    request.set_cluster(cluster);
    Send();
  });
}

void ShardHeartbeats::Pause() {
  loop_->Post([this] { request_.reset(); });
}

void ShardHeartbeats::Send() {
  if (client_ == nullptr || !request_ || under_way_ || waits_) return;
  under_way_ = true;
  sent_at_ = loop_->Now();
  client_->Heartbeat(*request_, kTimeout, [this](absl::StatusOr<HeartbeatReply> reply) {
    loop_->Post([this, reply = std::move(reply)] { OnReply(reply); });
  });
}

void ShardHeartbeats::OnReply(const absl::StatusOr<HeartbeatReply>& reply) {
  under_way_ = false;
  const bool asked = reply.ok() && request_ && reply->question() > request_->asked();
  if (asked) request_->set_asked(reply->question());
  if (asked || loop_->Now() >= sent_at_ + kPeriod) return Send();
  waits_ = true;
  loop_->PostAt(sent_at_ + kPeriod, [this] {
    waits_ = false;
    Send();
  });
}

void ShardHeartbeats::Stop() {
  loop_->Post([this] { client_.reset(); });
  loop_->Stop();
}

}  // namespace starling
