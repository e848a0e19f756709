#include "tools/cli/grpc_daemon_peer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/transport/grpc_util.h"
#include "proto/daemon.grpc.pb.h"

namespace starling::cli {
namespace {

constexpr absl::Duration kCallDeadline = absl::Seconds(5);

class GrpcDaemonPeer final : public DaemonPeer {
 public:
  GrpcDaemonPeer(const std::string& address, std::shared_ptr<const LinkSecurity> security)
      : address_(address), stub_(Daemon::NewStub(MakeChannel(address, std::move(security)))) {}

  absl::StatusOr<int64_t> Clock() override {
    InfoReply reply;
    const absl::Status status = Call(&Daemon::Stub::Info, InfoRequest(), &reply);
    if (!status.ok()) return status;
    return static_cast<int64_t>(reply.now_us());
  }

  absl::StatusOr<Spans> ReadSpans(int64_t after_us, uint64_t after) override {
    SpansRequest request;
    request.set_after_us(static_cast<uint64_t>(std::max<int64_t>(0, after_us)));
    request.set_after(after);
    SpansReply reply;
    const absl::Status status = Call(&Daemon::Stub::Spans, request, &reply);
    if (!status.ok()) return status;
    Spans spans{.spans = {}, .dropped = reply.dropped(), .recorded = reply.recorded()};
    for (const Span& span : reply.spans()) {
      spans.spans.push_back({.name = span.name(),
                             .category = span.category(),
                             .begin_us = static_cast<int64_t>(span.begin_us()),
                             .duration_us = static_cast<int64_t>(span.duration_us()),
                             .thread = span.thread(),
                             .clock = span.clock(),
                             .slice = span.slice(),
                             .flow = span.flow()});
    }
    return spans;
  }

 private:
  template <typename Request, typename Reply>
  absl::Status Call(grpc::Status (Daemon::Stub::*method)(grpc::ClientContext*, const Request&,
                                                         Reply*),
                    const Request& request, Reply* reply) {
    grpc::ClientContext context;
    AddIdentity({PeerRole::kClient, "cli"}, &context);
    context.set_deadline(GrpcDeadline(kCallDeadline));
    const absl::Status status = FromGrpc((stub_.get()->*method)(&context, request, reply));
    if (status.ok()) return status;
    return absl::Status(status.code(), absl::StrCat(address_, ": ", std::string(status.message())));
  }

  const std::string address_;
  const std::unique_ptr<Daemon::Stub> stub_;
};

}  // namespace

std::unique_ptr<DaemonPeer> MakeGrpcDaemonPeer(const std::string& address,
                                               std::shared_ptr<const LinkSecurity> security) {
  return std::make_unique<GrpcDaemonPeer>(address, std::move(security));
}

}  // namespace starling::cli
