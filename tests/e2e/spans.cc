// spans ADDRESS [CERTIFICATE KEY AUTHORITIES]: prints a daemon's recent spans (proto/daemon.proto,
// SpansReply) as JSON; with a client's files, over TLS.
#include <google/protobuf/util/json_util.h>

#include <iostream>
#include <string>

#include "absl/time/clock.h"
#include "common/transport/grpc_util.h"
#include "proto/daemon.grpc.pb.h"

namespace starling {
namespace {

int Main(const std::string& address, std::shared_ptr<const LinkSecurity> security) {
  const auto stub = Daemon::NewStub(MakeChannel(address, std::move(security)));
  grpc::ClientContext context;
  AddIdentity({PeerRole::kClient, "spans"}, &context);
  context.set_deadline(GrpcDeadline(absl::Seconds(10)));
  SpansReply reply;
  if (const grpc::Status status = stub->Spans(&context, SpansRequest(), &reply); !status.ok()) {
    std::cerr << "spans of " << address << ": " << FromGrpc(status) << "\n";
    return 1;
  }
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(reply, &json, options).ok()) return 1;
  std::cout << json << "\n";
  return 0;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) {
  if (argc == 2) return starling::Main(argv[1], nullptr);
  if (argc != 5) {
    std::cerr << "usage: spans ADDRESS [CERTIFICATE KEY AUTHORITIES]\n";
    return 2;
  }
  const auto security = starling::LinkSecurity::Tls({argv[2], argv[3], argv[4]},
                                                    {"starling", starling::PeerRole::kClient});
  if (security.ok()) return starling::Main(argv[1], *security);
  std::cerr << "spans: " << security.status() << "\n";
  return 1;
}
