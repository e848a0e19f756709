// The daemons' interface for the client's verbs: what each reports about itself. Tests fake it;
// grpc_client.h is the real one.
#ifndef STARLING_TOOLS_CLI_DAEMONS_H_
#define STARLING_TOOLS_CLI_DAEMONS_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/daemon.pb.h"

namespace starling::cli {

// Every call has a deadline. Errors say which address was not reached, and why. Keeps
// its connections. Thread-safe.
class Daemons {
 public:
  virtual ~Daemons() = default;

  virtual absl::StatusOr<InfoReply> Info(const std::string& address) = 0;
  virtual absl::StatusOr<NodeReply> Node(const std::string& address) = 0;
  // Asks the daemon at `address` to measure its path to another.
  virtual absl::StatusOr<MeasureReply> Measure(const std::string& address,
                                               const MeasureRequest& request) = 0;
  // Spans by the daemon's own clock, of which Info tells the time.
  virtual absl::StatusOr<SpansReply> Spans(const std::string& address,
                                           const SpansRequest& request) = 0;
};

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_DAEMONS_H_
