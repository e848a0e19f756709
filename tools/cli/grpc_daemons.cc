#include "tools/cli/grpc_daemons.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/transport/grpc_util.h"
#include "proto/daemon.grpc.pb.h"

namespace starling::cli {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(5);

class GrpcDaemons : public Daemons {
 public:
  explicit GrpcDaemons(std::shared_ptr<const LinkSecurity> security)
      : security_(std::move(security)) {}

  absl::StatusOr<InfoReply> Info(const std::string& address) override {
    return Call<InfoReply>(&Daemon::Stub::Info, address, InfoRequest(), kDeadline);
  }
  absl::StatusOr<NodeReply> Node(const std::string& address) override {
    return Call<NodeReply>(&Daemon::Stub::Node, address, NodeRequest(), kDeadline);
  }
  absl::StatusOr<MeasureReply> Measure(const std::string& address,
                                       const MeasureRequest& request) override {
    return Call<MeasureReply>(&Daemon::Stub::Measure, address, request,
                              kDeadline + absl::Seconds(request.deadline_seconds()));
  }

 private:
  template <typename Reply, typename Request>
  absl::StatusOr<Reply> Call(grpc::Status (Daemon::Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Reply*),
                             const std::string& address, const Request& request,
                             absl::Duration deadline) const {
    const std::unique_ptr<Daemon::Stub> stub = Daemon::NewStub(MakeChannel(address, security_));
    grpc::ClientContext context;
    AddIdentity({PeerRole::kClient, "cli"}, &context);
    context.set_deadline(GrpcDeadline(deadline));
    Reply reply;
    const absl::Status status = FromGrpc((stub.get()->*method)(&context, request, &reply));
    if (status.ok()) return reply;
    return absl::Status(status.code(), absl::StrCat(address, ": ", std::string(status.message())));
  }

  const std::shared_ptr<const LinkSecurity> security_;
};

}  // namespace

std::unique_ptr<Daemons> MakeGrpcDaemons(std::shared_ptr<const LinkSecurity> security) {
  return std::make_unique<GrpcDaemons>(std::move(security));
}

}  // namespace starling::cli
