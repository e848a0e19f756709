// Measures this process's path to another daemon, by calls of its Echo (proto/daemon.proto).
#ifndef STARLING_COMMON_DAEMON_MEASURE_H_
#define STARLING_COMMON_DAEMON_MEASURE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/transport/identity.h"
#include "common/transport/link_security.h"
#include "proto/daemon.pb.h"

namespace grpc {
class ServerContext;
}

namespace starling {

inline constexpr uint64_t kEchoBytesMax = 1 << 20;      // in one call, in each direction
inline constexpr uint64_t kMeasureBytesMax = 64 << 20;  // in one measurement, in each direction
inline constexpr double kMeasureSecondsMax = 10;
inline constexpr int kMeasurementsMax = 2;  // of one daemon at once

// kInvalidArgument names what is out of range.
absl::Status CheckEcho(const EchoRequest& request);
absl::Status CheckMeasure(const MeasureRequest& request);

// Answers an echo that CheckEcho takes.
EchoReply AnswerEcho(const EchoRequest& request);

// Of a request that CheckMeasure takes: blocks until it is done, the deadline is over, or the call
// `asked_by` is cancelled. What goes wrong on the way is in the reply's `error`; what was measured
// until then stays.
MeasureReply MeasurePath(const MeasureRequest& request, const Identity& self,
                         std::shared_ptr<const LinkSecurity> security,
                         const grpc::ServerContext& asked_by);

}  // namespace starling

#endif  // STARLING_COMMON_DAEMON_MEASURE_H_
