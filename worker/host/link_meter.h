// How a worker's links to the shards fare: LinkStatus of its report (proto/coordinator.proto).
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

// Not thread-safe. Time is the caller's and never goes back.
class LinkMeter {
 public:
  // A link lasts from its first Connecting to Forget; streams may come and go meanwhile.
  void Connecting(ShardId shard, const std::string& address);
  void Up(ShardId shard);
  // `stats`: the stream's, at its end.
  void Down(ShardId shard, const FrameStream::Stats& stats, const std::string& error);
  void Forget(ShardId shard) { links_.erase(shard); }

  // A request of this type for the slice had its answer after `took`, of which the shard held it
  // back for `held`. A pull follows its slice's push, and is behind it on the wire: until the push
  // is acknowledged, no value is on its way.
  void Answered(ShardId shard, FrameType request, SliceId slice, absl::Duration took,
                absl::Duration held, absl::Time now);

  // All links. `stats_of`: of the stream that is open, or zero.
  void Report(absl::FunctionRef<FrameStream::Stats(ShardId)> stats_of, absl::Time now,
              WorkerReport* report);

 private:
  struct Interval {
    absl::Time begin, end;
  };
  struct Link {
    LinkStatus status;  // without the open stream's bytes
    absl::Time window_begin = absl::InfinitePast();
    std::array<absl::Duration, 2> least = {absl::InfiniteDuration(), absl::InfiniteDuration()};
    // The last ones in which values were on their way, ascending, apart.
    std::vector<Interval> receiving;
    std::map<SliceId, absl::Time> acknowledged;  // each slice's latest push
  };
  static void Roll(Link& link, absl::Time now);
  static void AddReceiving(Link& link, Interval value);

  std::map<ShardId, Link> links_;
};

}  // namespace starling

#endif  // STARLING_WORKER_HOST_LINK_METER_H_
