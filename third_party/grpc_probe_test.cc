// Protobuf and gRPC code generation, end to end over a local port.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "third_party/probe_message.pb.h"
#include "third_party/probe_service.grpc.pb.h"

namespace starling::probe {
namespace {

class EchoService final : public Probe::Service {
  grpc::Status Echo(grpc::ServerContext*, const Ping* request, Ping* reply) override {
    *reply = *request;
    return grpc::Status::OK;
  }
};

TEST(GrpcProbe, EchoesOverALocalPort) {
  EchoService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  const auto stub = Probe::NewStub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
  Ping request;
  request.set_text("starling");
  request.mutable_sent_at()->set_seconds(7);
  Ping reply;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  const grpc::Status status = stub->Echo(&context, request, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.SerializeAsString(), request.SerializeAsString());
}

}  // namespace
}  // namespace starling::probe
