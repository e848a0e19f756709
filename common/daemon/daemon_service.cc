#include "common/daemon/daemon_service.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/daemon/measure.h"
#include "common/daemon/node.h"
#include "common/daemon/role.h"
#include "common/transport/grpc_util.h"
#include "common/version/version.h"
#include "proto/daemon.grpc.pb.h"

namespace starling {
namespace {

class DaemonService final : public Daemon::Service {
 public:
  DaemonService(const DaemonInfo& info, const SpanRing* spans) : info_(info), spans_(spans) {}

  grpc::Status Info(grpc::ServerContext* context, const InfoRequest*, InfoReply* reply) override {
    if (const auto peer = CheckCaller(*context); !peer.ok()) return ToGrpc(peer.status());
    reply->set_role(RoleOf(info_.self.role));
    reply->set_name(info_.self.name);
    reply->mutable_version()->set_version(std::string(ReleaseVersion()));
    reply->mutable_version()->set_protocol(ProtocolVersion());
    reply->set_uptime_seconds(absl::ToDoubleSeconds(MonotonicNow() - started_));
    reply->set_instruction_set(info_.instruction_set);
    reply->set_now_us(Shown(SpanRing::NowMicros()));
    reply->set_unix_us(Shown(static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()))));
    reply->set_admin_address(info_.admin_address);
    return grpc::Status::OK;
  }

  grpc::Status Spans(grpc::ServerContext* context, const SpansRequest* request,
                     SpansReply* reply) override {
    if (const auto peer = CheckCaller(*context); !peer.ok()) return ToGrpc(peer.status());
    reply->set_now_us(Shown(SpanRing::NowMicros()));
    if (spans_ == nullptr) return grpc::Status::OK;
    const SpanRing::Snapshot snapshot =
        spans_->Read(Recorded(request->after_us()), request->after());
    reply->set_dropped(snapshot.dropped);
    reply->set_recorded(snapshot.recorded);
    for (const TraceSpan& from : snapshot.spans) {
      Span* const to = reply->add_spans();
      to->set_name(std::string(from.name()));
      to->set_category(std::string(SpanCategoryName(from.category)));
      to->set_begin_us(Shown(from.begin_us));
      to->set_duration_us(from.duration_us);
      to->set_thread(from.thread);
      to->set_clock(from.clock);
      to->set_slice(from.slice);
      to->set_flow(from.flow);
    }
    return grpc::Status::OK;
  }

  grpc::Status Node(grpc::ServerContext* context, const NodeRequest*, NodeReply* reply) override {
    if (const auto peer = CheckCaller(*context); !peer.ok()) return ToGrpc(peer.status());
    *reply = DescribeNode();
    if (info_.addresses == nullptr) return grpc::Status::OK;
    const DaemonAddresses::All addresses = info_.addresses->Get();
    reply->set_bound_address(addresses.bound);
    reply->set_advertised_address(addresses.advertised);
    reply->set_coordinator_address(addresses.coordinator);
    return grpc::Status::OK;
  }

  grpc::Status Echo(grpc::ServerContext* context, const EchoRequest* request,
                    EchoReply* reply) override {
    if (const auto peer = CheckCaller(*context); !peer.ok()) return ToGrpc(peer.status());
    if (const absl::Status status = CheckEcho(*request); !status.ok()) return ToGrpc(status);
    *reply = AnswerEcho(*request);
    reply->set_now_us(Shown(reply->now_us()));
    reply->set_unix_us(Shown(reply->unix_us()));
    return grpc::Status::OK;
  }

  // Holds a gRPC thread, and gRPC starts others for other calls: so the number of these is bounded.
  grpc::Status Measure(grpc::ServerContext* context, const MeasureRequest* request,
                       MeasureReply* reply) override {
    if (const auto peer = CheckCaller(*context); !peer.ok()) return ToGrpc(peer.status());
    if (const absl::Status status = CheckMeasure(*request); !status.ok()) return ToGrpc(status);
    if (measuring_.fetch_add(1) < kMeasurementsMax) {
      *reply = MeasurePath(*request, info_.self, info_.security, *context);
      measuring_.fetch_sub(1);
      return grpc::Status::OK;
    }
    measuring_.fetch_sub(1);
    return ToGrpc(absl::ResourceExhaustedError(absl::StrCat(
        kMeasurementsMax, " measurements are under way on ", info_.self.name, ": try again")));
  }

 private:
  // Applies the clock offset that others see.
  uint64_t Shown(uint64_t micros) const { return Shifted(micros, Offset()); }
  uint64_t Recorded(uint64_t micros) const { return Shifted(micros, -Offset()); }
  int64_t Offset() const { return absl::ToInt64Microseconds(info_.clock_offset); }
  static uint64_t Shifted(uint64_t micros, int64_t by) {
    return by < 0 && micros < static_cast<uint64_t>(-by) ? 0 : micros + static_cast<uint64_t>(by);
  }

  const DaemonInfo info_;
  const SpanRing* const spans_;
  const absl::Time started_ = MonotonicNow();
  std::atomic<int> measuring_ = 0;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeDaemonService(const DaemonInfo& info, const SpanRing* spans) {
  return std::make_shared<DaemonService>(info, spans);
}

}  // namespace starling
