// spans [--after N] ADDRESS [CERTIFICATE KEY AUTHORITIES]: prints a daemon's recent spans
// (proto/daemon.proto, SpansReply) as JSON, without the first N that it recorded; with a client's
// files, over TLS.
#include <google/protobuf/util/json_util.h>

#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "common/transport/grpc_util.h"
#include "proto/daemon.grpc.pb.h"

namespace starling {
namespace {

int Print(uint64_t after, const std::string& address,
          std::shared_ptr<const LinkSecurity> security) {
  const auto stub = Daemon::NewStub(MakeChannel(address, std::move(security)));
  grpc::ClientContext context;
  AddIdentity({PeerRole::kClient, "spans"}, &context);
  context.set_deadline(GrpcDeadline(absl::Seconds(10)));
  SpansRequest request;
  request.set_after(after);
  SpansReply reply;
  if (const grpc::Status status = stub->Spans(&context, request, &reply); !status.ok()) {
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

int Main(std::vector<std::string> arguments) {
  uint64_t after = 0;
  if (arguments.size() > 1 && arguments[0] == "--after") {
    if (!absl::SimpleAtoi(arguments[1], &after)) {
      std::cerr << "spans: --after: expected a number, got " << arguments[1] << "\n";
      return 2;
    }
    arguments.erase(arguments.begin(), arguments.begin() + 2);
  }
  if (arguments.size() == 1) return Print(after, arguments[0], nullptr);
  if (arguments.size() != 4) {
    std::cerr << "usage: spans [--after N] ADDRESS [CERTIFICATE KEY AUTHORITIES]\n";
    return 2;
  }
  const auto security = LinkSecurity::Tls({arguments[1], arguments[2], arguments[3]},
                                          {"starling", PeerRole::kClient});
  if (security.ok()) return Print(after, arguments[0], *security);
  std::cerr << "spans: " << security.status() << "\n";
  return 1;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) { return starling::Main({argv + 1, argv + argc}); }
