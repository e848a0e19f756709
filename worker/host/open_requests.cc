#include "worker/host/open_requests.h"

#include "absl/algorithm/container.h"
#include "common/base/reserve_nodes.h"

namespace starling {

void OpenRequests::Reserve(size_t requests) {
  ReserveNodes(
      requests, [](uint64_t i) { return Id(ShardId(), i); }, &open_);
}

void OpenRequests::Sent(ShardId shard, const FrameHeader& header, uint64_t flow, WorkerId repeats,
                        absl::Time now) {
  const Id id(shard, header.request_id);
  if (header.type == FrameType::kPull) {
    const bool evaluation = header.key.work.purpose == WorkPurpose::kEvaluate;
    Id& newest = newest_pull_[{header.key.slice, evaluation}];
    open_.erase(newest);
    newest = id;
  }
  open_[id] = {.type = header.type,
               .sent = now,
               .clock = header.clock,
               .slice = header.key.slice,
               .flow = flow,
               .repeats = repeats};
}

std::optional<OpenRequests::Request> OpenRequests::Answered(ShardId shard, uint64_t request_id) {
  const auto it = open_.find({shard, request_id});
  if (it == open_.end()) return std::nullopt;
  const Request request = it->second;
  open_.erase(it);
  return request;
}

void OpenRequests::Forget(ShardId shard) {
  const auto to_shard = [shard](const Id& id) { return id.first == shard; };
  std::erase_if(open_, [&](const auto& request) { return to_shard(request.first); });
  std::erase_if(newest_pull_, [&](const auto& newest) { return to_shard(newest.second); });
}

void OpenRequests::Clear() {
  open_.clear();
  newest_pull_.clear();
}

// Fast, since few closes are ever open.
bool OpenRequests::transferring() const {
  return absl::c_any_of(
      open_, [](const auto& request) { return request.second.type != FrameType::kClose; });
}

}  // namespace starling
