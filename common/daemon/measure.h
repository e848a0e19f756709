// Measures this process's path to another daemon with calls of its Echo (proto/daemon.proto).
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

inline constexpr uint64_t kEchoBytesMax = 1 << 20;      // per call and direction
inline constexpr uint64_t kMeasureBytesMax = 64 << 20;  // per measurement and direction
inline constexpr double kMeasureSecondsMax = 10;
inline constexpr int kMeasurementsMax = 2;  // per daemon at one time

// kInvalidArgument names what is out of range.
absl::Status CheckEcho(const EchoRequest& request);
absl::Status CheckMeasure(const MeasureRequest& request);

// `request` has passed CheckEcho.
EchoReply AnswerEcho(const EchoRequest& request);

// `request` has passed CheckMeasure. Blocks until it is done, the deadline passes, or the call
// `asked_by` is cancelled. An error on the path goes into the reply's `error`; what was measured
// before it stays.
MeasureReply MeasurePath(const MeasureRequest& request, const Identity& self,
                         std::shared_ptr<const LinkSecurity> security,
                         const grpc::ServerContext& asked_by);

}  // namespace starling

#endif  // STARLING_COMMON_DAEMON_MEASURE_H_
