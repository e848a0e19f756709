// The hand-driven cluster over mutual TLS, and callers with certificates of every kind.
#ifndef STARLING_TESTS_INTEGRATION_PROTECTED_CLUSTER_H_
#define STARLING_TESTS_INTEGRATION_PROTECTED_CLUSTER_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/transport/testing/certificates.h"
#include "tests/integration/hand_cluster.h"

namespace starling {

inline constexpr char kCluster[] = "prod";

class ProtectedClusterTest : public ClusterTest {
 protected:
  std::shared_ptr<const LinkSecurity> SecurityOf(PeerRole role) override {
    std::shared_ptr<const LinkSecurity>& security = securities_[role];
    if (security == nullptr) {
      auto made = LinkSecurity::Tls(Renew(role, authority_.certificate()), {kCluster, role});
      EXPECT_TRUE(made.ok()) << made.status();
      security = *made;
    }
    return security;
  }

  // Issues a new certificate for the role, with the authorities that it trusts.
  TlsFiles Renew(PeerRole role, const std::string& authorities) {
    return WriteTlsFiles(testing::TempDir() + "/" + PeerRoleName(role),
                         authority_.Issue({kCluster, role}), authorities);
  }

  const TestAuthority authority_;
  std::map<PeerRole, std::shared_ptr<const LinkSecurity>> securities_;
};

// A channel with this certificate, or with none, that does not verify the server.
inline std::shared_ptr<grpc::Channel> StrangerChannel(const std::string& address,
                                                      const TestCertificate* certificate) {
  static const auto* const anybody = new TestAuthority("asked by nobody");
  std::vector<grpc::experimental::IdentityKeyCertPair> own;
  if (certificate != nullptr) own.push_back({certificate->key, certificate->certificate});
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(
      std::make_shared<grpc::experimental::StaticDataCertificateProvider>(anybody->certificate(),
                                                                          own));
  options.watch_root_certs();
  if (certificate != nullptr) options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(std::make_shared<grpc::experimental::NoOpCertificateVerifier>());
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::experimental::TlsCredentials(options), arguments);
}

// Calls the method, sends one message, and reads to the end; returns the call's status. kOk if the
// method answers and ends well. `before` and `after`: metadata around the identity's.
using Metadata = std::vector<std::pair<std::string, std::string>>;
inline absl::Status StrangerCalls(const std::shared_ptr<grpc::Channel>& channel,
                                  const std::string& method, const Identity& identity,
                                  const std::string& message, const Metadata& before = {},
                                  const Metadata& after = {}) {
  grpc::ClientContext context;
  for (const auto& [key, value] : before) context.AddMetadata(key, value);
  AddIdentity(identity, &context);
  for (const auto& [key, value] : after) context.AddMetadata(key, value);
  context.set_deadline(GrpcDeadline(kLong));
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  const auto call = stub.PrepareCall(&context, method, &queue);
  const auto done = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(&queue);
  bool going = done();
  const grpc::Slice slice(message);
  if (going) {
    call->WriteLast(grpc::ByteBuffer(&slice, 1), {}, &queue);
    going = done();
  }
  grpc::ByteBuffer reply;
  while (going) {
    call->Read(&reply, &queue);
    going = done();
  }
  grpc::Status status;
  call->Finish(&status, &queue);
  done();
  return FromGrpc(status);
}

}  // namespace starling

#endif  // STARLING_TESTS_INTEGRATION_PROTECTED_CLUSTER_H_
