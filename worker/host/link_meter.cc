#include "worker/host/link_meter.h"

#include <algorithm>

namespace starling {
namespace {

// Recent figures cover the current window and the previous one.
constexpr absl::Duration kWindow = absl::Seconds(5);
// Intervals that a value on its way may still overlap.
constexpr size_t kIntervalsMax = 64;

void AddStats(const FrameStream::Stats& stats, LinkStatus& status) {
  status.set_sent_bytes(status.sent_bytes() + stats.sent_payload_bytes);
  status.set_received_bytes(status.received_bytes() + stats.received_payload_bytes);
  status.set_shared_bytes(status.shared_bytes() + stats.shared_payload_bytes);
  status.set_sending_seconds(status.sending_seconds() + stats.sending_seconds);
}

}  // namespace

void LinkMeter::Connecting(ShardId shard, const std::string& address) {
  Link& link = links_[shard];
  link.receiving.reserve(kIntervalsMax + 1);
  LinkStatus& status = link.status;
  status.set_shard(shard.value);
  status.set_address(address);
}

void LinkMeter::Up(ShardId shard) {
  const auto it = links_.find(shard);
  if (it != links_.end()) it->second.status.set_connected(true);
}

void LinkMeter::Down(ShardId shard, const FrameStream::Stats& stats, const std::string& error) {
  const auto it = links_.find(shard);
  if (it == links_.end()) return;
  it->second.status.set_connected(false);
  it->second.status.set_last_error(error);
  AddStats(stats, it->second.status);
}

void LinkMeter::Answered(ShardId shard, FrameType request, SliceId slice, absl::Duration took,
                         absl::Duration held, absl::Time now) {
  const auto it = links_.find(shard);
  if (it == links_.end()) return;
  Link& link = it->second;
  const absl::Duration under_way = std::max(took - held, absl::ZeroDuration());
  const double seconds = absl::ToDoubleSeconds(under_way);
  if (request == FrameType::kPush) {
    link.status.set_pushes(link.status.pushes() + 1);
    link.status.set_push_seconds(link.status.push_seconds() + seconds);
    link.acknowledged[slice] = now;
  } else if (request == FrameType::kPull) {
    link.status.set_pulls(link.status.pulls() + 1);
    link.status.set_pull_seconds(link.status.pull_seconds() + seconds);
    const auto pushed = link.acknowledged.find(slice);
    const bool after = pushed != link.acknowledged.end() && pushed->second > now - under_way;
    AddReceiving(link, {after ? pushed->second : now - under_way, now});
  }
  Roll(link, now);
  link.least[1] = std::min(link.least[1], under_way);
}

// Values arrive in the order of their ends, so a value overlaps only with the last intervals, which
// are merged.
void LinkMeter::AddReceiving(Link& link, Interval value) {
  absl::Duration added = value.end - value.begin;
  while (!link.receiving.empty() && link.receiving.back().end >= value.begin) {
    const Interval& last = link.receiving.back();
    added -= last.end - std::max(last.begin, value.begin);
    value.begin = std::min(last.begin, value.begin);
    link.receiving.pop_back();
  }
  link.receiving.push_back(value);
  if (link.receiving.size() > kIntervalsMax) link.receiving.erase(link.receiving.begin());
  link.status.set_receiving_seconds(link.status.receiving_seconds() + absl::ToDoubleSeconds(added));
}

void LinkMeter::Roll(Link& link, absl::Time now) {
  if (now < link.window_begin + kWindow) return;
  const bool next = now < link.window_begin + 2 * kWindow;
  link.least = {next ? link.least[1] : absl::InfiniteDuration(), absl::InfiniteDuration()};
  link.window_begin = now;
}

void LinkMeter::Report(absl::FunctionRef<FrameStream::Stats(ShardId)> stats_of, absl::Time now,
                       WorkerReport* report) {
  for (auto& [shard, link] : links_) {
    Roll(link, now);
    LinkStatus& status = *report->add_links();
    status = link.status;
    AddStats(stats_of(shard), status);
    const absl::Duration least = std::min(link.least[0], link.least[1]);
    if (least != absl::InfiniteDuration()) {
      status.set_round_trip_seconds(absl::ToDoubleSeconds(least));
    }
  }
}

}  // namespace starling
