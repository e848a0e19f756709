#include "common/daemon/measure.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/trace/span_ring.h"
#include "common/transport/grpc_util.h"
#include "proto/daemon.grpc.pb.h"

namespace starling {
namespace {

constexpr int kDelaySamples = 8;

// Calls one daemon's Echo, with one deadline for all calls.
class Path {
 public:
  Path(const MeasureRequest& request, const Identity& self,
       std::shared_ptr<const LinkSecurity> security, const grpc::ServerContext& asked_by)
      : self_(self),
        asked_by_(asked_by),
        stub_(Daemon::NewStub(MakeChannel(request.address(), std::move(security)))),
        deadline_(MonotonicNow() + absl::Seconds(request.deadline_seconds())) {}

  // Returns the call's duration; sets how far the peer's clock was ahead in the middle of it.
  absl::StatusOr<absl::Duration> Call(uint64_t there, uint64_t back, double* ahead_seconds) {
    // Cancels this call if the requester hangs up or our server cancels its call.
    const auto context = grpc::ClientContext::FromServerContext(asked_by_);
    AddIdentity(self_, context.get());
    context->set_deadline(GrpcDeadline(deadline_ - MonotonicNow()));
    context->set_wait_for_ready(false);
    EchoRequest request;
    request.set_payload(std::string(there, 'x'));
    request.set_reply_bytes(back);
    EchoReply reply;
    const absl::Time begin = MonotonicNow();
    const absl::Status status = FromGrpc(stub_->Echo(context.get(), request, &reply));
    const absl::Duration took = MonotonicNow() - begin;
    const absl::Time middle = absl::Now() - took / 2;
    if (!status.ok()) return status;
    if (reply.payload().size() != back) {
      return absl::DataLossError(
          absl::StrCat("expected ", back, " bytes back, got ", reply.payload().size()));
    }
    *ahead_seconds = 1e-6 * static_cast<double>(static_cast<int64_t>(reply.unix_us()) -
                                                absl::ToUnixMicros(middle));
    return took;
  }

  // Bytes per second, one way; each call's delay is subtracted.
  absl::StatusOr<double> Rate(uint64_t bytes, bool there, absl::Duration delay) {
    absl::Duration spent;
    double ahead = 0;
    for (uint64_t left = bytes; left > 0;) {
      const uint64_t chunk = std::min(left, kEchoBytesMax);
      STARLING_ASSIGN_OR_RETURN(const absl::Duration took,
                                Call(there ? chunk : 0, there ? 0 : chunk, &ahead));
      spent += std::max(took - delay, took / 20);
      left -= chunk;
    }
    return static_cast<double>(bytes) / std::max(1e-6, absl::ToDoubleSeconds(spent));
  }

 private:
  const Identity self_;
  const grpc::ServerContext& asked_by_;
  const std::unique_ptr<Daemon::Stub> stub_;
  const absl::Time deadline_;
};

absl::Status Measure(const MeasureRequest& request, Path& path, MeasureReply* reply) {
  absl::Duration delay = absl::InfiniteDuration();
  double ahead = 0;
  // The first call connects.
  for (int i = 0; i <= kDelaySamples; ++i) {
    STARLING_ASSIGN_OR_RETURN(const absl::Duration took, path.Call(0, 0, &ahead));
    if (i == 0 || took >= delay) continue;
    delay = took;
    reply->set_clock_ahead_seconds(ahead);
  }
  reply->set_delay_seconds(absl::ToDoubleSeconds(delay));
  if (request.bytes() == 0) return absl::OkStatus();
  STARLING_ASSIGN_OR_RETURN(const double to, path.Rate(request.bytes(), true, delay));
  reply->set_to_bytes_per_second(to);
  STARLING_ASSIGN_OR_RETURN(const double from, path.Rate(request.bytes(), false, delay));
  reply->set_from_bytes_per_second(from);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckEcho(const EchoRequest& request) {
  if (request.payload().size() <= kEchoBytesMax && request.reply_bytes() <= kEchoBytesMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("an echo carries at most ", kEchoBytesMax, " bytes in each direction, got ",
                   request.payload().size(), " and ", request.reply_bytes()));
}

absl::Status CheckMeasure(const MeasureRequest& request) {
  if (request.address().empty() || request.address().size() > 300) {
    return absl::InvalidArgumentError("expected the address of a daemon, as host:port");
  }
  if (request.bytes() > kMeasureBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected at most ", kMeasureBytesMax, " bytes to measure with, got ", request.bytes()));
  }
  const double seconds = request.deadline_seconds();
  if (seconds > 0 && seconds <= kMeasureSecondsMax) return absl::OkStatus();  // not NaN
  return absl::InvalidArgumentError(absl::StrCat("expected a deadline above 0 and of at most ",
                                                 kMeasureSecondsMax, " s, got ", seconds));
}

EchoReply AnswerEcho(const EchoRequest& request) {
  EchoReply reply;
  reply.set_payload(std::string(request.reply_bytes(), 'x'));
  reply.set_now_us(SpanRing::NowMicros());
  reply.set_unix_us(static_cast<uint64_t>(absl::ToUnixMicros(absl::Now())));
  return reply;
}

MeasureReply MeasurePath(const MeasureRequest& request, const Identity& self,
                         std::shared_ptr<const LinkSecurity> security,
                         const grpc::ServerContext& asked_by) {
  MeasureReply reply;
  if (const absl::Status status = CheckPeerAddress(request.address(), security.get());
      !status.ok()) {
    reply.set_error(std::string(status.message()));
    return reply;
  }
  Path path(request, self, std::move(security), asked_by);
  const absl::Status status = Measure(request, path, &reply);
  if (!status.ok()) {
    reply.set_error(absl::StrCat(request.address(), " was not reached within ",
                                 request.deadline_seconds(), " s: ", status.ToString()));
  }
  return reply;
}

}  // namespace starling
