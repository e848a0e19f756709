// A daemon's interface for `starling trace`. Tests fake it; grpc_daemon_peer.h is the real one.
#ifndef STARLING_TOOLS_CLI_DAEMON_PEER_H_
#define STARLING_TOOLS_CLI_DAEMON_PEER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/trace/merge.h"

namespace starling::cli {

// Every call has a deadline and makes one attempt. Not thread-safe.
class DaemonPeer {
 public:
  virtual ~DaemonPeer() = default;

  // The clock of its spans, in microseconds.
  virtual absl::StatusOr<int64_t> Clock() = 0;

  struct Spans {
    std::vector<trace::RecordedSpan> spans;
    uint64_t dropped = 0;   // of the spans requested
    uint64_t recorded = 0;  // since the process started
  };
  // The spans that end after `after_us`, without the first `after` that it recorded.
  virtual absl::StatusOr<Spans> ReadSpans(int64_t after_us, uint64_t after) = 0;
};

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_DAEMON_PEER_H_
