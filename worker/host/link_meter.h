// Measures a worker's links to shards, for LinkStatus in its report (proto/coordinator.proto).
#ifndef STARLING_WORKER_HOST_LINK_METER_H_
#define STARLING_WORKER_HOST_LINK_METER_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/protocol/frame.h"
#include "common/protocol/ids.h"
#include "common/transport/transport.h"
#include "proto/coordinator.pb.h"

namespace starling {

// Not thread-safe. The caller passes the time, which never goes back.
class LinkMeter {
 public:
  // A link lasts from its first Connecting to Forget. Its streams may change meanwhile.
  void Connecting(ShardId shard, const std::string& address);
  void Up(ShardId shard);
  // `stats`: the stream's final ones.
  void Down(ShardId shard, const FrameStream::Stats& stats, const std::string& error);
  void Forget(ShardId shard) { links_.erase(shard); }

  // A request of this type for the slice was answered after `took`; the shard held it back for
  // `held` of that. A pull follows its slice's push on the wire, so no value is on its way before
  // the push is acknowledged.
  void Answered(ShardId shard, FrameType request, SliceId slice, absl::Duration took,
                absl::Duration held, absl::Time now);

  // Adds all links to the report. `stats_of`: the open stream's statistics, or zero.
  void Report(absl::FunctionRef<FrameStream::Stats(ShardId)> stats_of, absl::Time now,
              WorkerReport* report);

 private:
  struct Interval {
    absl::Time begin, end;
  };
  struct Link {
    LinkStatus status;  // excluding the open stream's bytes
    absl::Time window_begin = absl::InfinitePast();
    std::array<absl::Duration, 2> least = {absl::InfiniteDuration(), absl::InfiniteDuration()};
    // The last intervals with values on their way, ascending and disjoint.
    std::vector<Interval> receiving;
    std::map<SliceId, absl::Time> acknowledged;  // each slice's latest push
  };
  static void Roll(Link& link, absl::Time now);
  static void AddReceiving(Link& link, Interval value);

  std::map<ShardId, Link> links_;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_LINK_METER_H_
