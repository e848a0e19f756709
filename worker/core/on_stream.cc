// Streams to the shards, and the open requests on them.
#include <algorithm>

#include "common/defences.h"
#include "worker/core/core.h"

namespace starling::session {

// Keeps one stream to each primary, at its present address and incarnation.
void Core::SyncStreams() {
  std::vector<Wanted>& wanted = wanted_streams_;
  wanted.clear();
  if (job_.has_value() &&
      (job_->phase == JobPhase::kServing || job_->phase == JobPhase::kLeaving)) {
    for (const auto& [partition, view] : job_->views) {
      if (view.primary() != 0) wanted.push_back({ShardId(view.primary()), partition, &view});
    }
  }
  // Sorted by shard; the view of a shard's last partition counts.
  std::sort(wanted.begin(), wanted.end(), [](const Wanted& a, const Wanted& b) {
    return a.shard != b.shard ? a.shard < b.shard : b.partition < a.partition;
  });
  wanted.erase(std::unique(wanted.begin(), wanted.end(),
                           [](const Wanted& a, const Wanted& b) { return a.shard == b.shard; }),
               wanted.end());
  for (auto it = streams_.begin(); it != streams_.end();) {
    const auto want = std::find_if(wanted.begin(), wanted.end(),
                                   [&](const Wanted& w) { return w.shard == it->first; });
    const bool same = want != wanted.end() && want->view->primary_address() == it->second.address &&
                      Incarnation(want->view->primary_incarnation()) == it->second.incarnation;
    if (same) {
      ++it;
      continue;
    }
    Do(action::Disconnect{it->first});
    it = streams_.erase(it);
  }
  for (const auto& [shard, partition, view] : wanted) {
    StreamState& stream = streams_[shard];
    stream.address = view->primary_address();
    stream.incarnation = Incarnation(view->primary_incarnation());
    if (stream.up || stream.connecting || now_ < stream.retry.at) continue;
    stream.connecting = true;
    Do(action::Connect{shard, stream.address});
  }
}

void Core::DisconnectAll() {
  for (const auto& [shard, stream] : streams_) Do(action::Disconnect{shard});
  streams_.clear();
}

// All open requests are sent again, in their original order.
void Core::On(const event::StreamUp& e) {
  const auto it = streams_.find(e.shard);
  if (it == streams_.end() || !it->second.connecting) return;
  it->second.up = true;
  it->second.connecting = false;
  it->second.retry.Succeeded();
  if (!job_.has_value() || DefenceMasked(Defence::kSendAgain)) return;
  for (auto& [id, request] : job_->requests) {
    const auto view = job_->views.find(request.header.partition);
    if (view != job_->views.end() && view->second.primary() == e.shard.value) Transmit(request);
  }
}

void Core::On(const event::StreamDown& e) {
  const auto it = streams_.find(e.shard);
  if (it == streams_.end()) return;
  // A stream that was up is reopened at once; a stream that could not be opened is retried later.
  if (!it->second.up) it->second.retry.Failed(now_, options_);
  if (it->second.up) {
    it->second.down_since = now_;
    news_ = true;  // the coordinator asks the shard whether it lives
  }
  it->second.up = false;
  it->second.connecting = false;
}

// A request keeps its id, bytes and fields. Only its view and a pull's lower bound are updated.
// Without a stream it waits for StreamUp.
void Core::Transmit(Request& request) {
  request.again = absl::InfiniteFuture();
  const auto view = job_->views.find(request.header.partition);
  if (view == job_->views.end()) return;
  const auto stream = streams_.find(ShardId(view->second.primary()));
  if (stream == streams_.end() || !stream->second.up) return;
  request.header.view = ViewNumber(view->second.number());
  if (request.kind == RequestKind::kPull &&
      request.header.key.work.purpose != WorkPurpose::kEvaluate) {
    request.header.min_lsn = job_->seen[request.header.partition.value];
  }
  Do(action::Send{stream->first, request.header, request.buffer});
}

void Core::SendAgainDue() {
  if (!job_.has_value()) return;
  for (auto& [id, request] : job_->requests) {
    if (request.again <= now_) Transmit(request);
  }
}

// The caller fills in the rest of the header and calls Transmit.
Request& Core::NewRequest(RequestKind kind, FrameType type, PartitionId partition) {
  const uint64_t id = next_request_++;
  Request& request = job_->requests[id];
  request.kind = kind;
  FrameHeader& h = request.header;
  h.type = type;
  h.request_id = id;
  h.partition = partition;
  h.key.run = job_->run;
  h.roster = job_->roster.number;
  h.policy = job_->policy_number;
  h.origin = {ReplicaId(worker_.value), worker_, incarnation_, 0};
  return request;
}

}  // namespace starling::session
