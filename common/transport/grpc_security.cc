#include "common/transport/grpc_security.h"

#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/transport/grpc_util.h"

namespace starling {
namespace {

using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::FileWatcherCertificateProvider;
using grpc::experimental::TlsCustomVerificationCheckRequest;

constexpr unsigned kRefreshSeconds = 1;

absl::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

absl::string_view View(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

// The owner that a connection's certificate names.
absl::StatusOr<CertificateOwner> OwnerOf(const std::vector<absl::string_view>& uris,
                                         const CertificateOwner& self) {
  if (uris.size() != 1) {
    return absl::PermissionDeniedError(
        absl::StrCat("expected a certificate with one URI, starling://", self.cluster,
                     "/ROLE, among its subject alternative names; it has ", uris.size()));
  }
  absl::StatusOr<CertificateOwner> owner = ParseOwnerUri(uris[0]);
  if (!owner.ok() || owner->cluster == self.cluster) return owner;
  return absl::PermissionDeniedError(absl::StrCat("expected a certificate of the cluster ",
                                                  self.cluster, ", got one of ", OwnerUri(*owner)));
}

// Verifies certificates in place of gRPC, which checks that the peer has the key: so that a refusal
// has a reason that can be counted. Called on gRPC threads, once per handshake.
class Verifier final : public ExternalCertificateVerifier {
 public:
  // `servers`: the roles that may be called; nullopt: this process is the server.
  Verifier(std::shared_ptr<const LinkSecurity> security, std::optional<RoleSet> servers)
      : security_(std::move(security)), servers_(servers) {}

  bool Verify(TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    *status = ToGrpc(Judge(*request));
    return true;
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  absl::Status Judge(TlsCustomVerificationCheckRequest& request) const {
    const auto refusal = security_->CheckCertificate(
        View(request.peer_cert()), View(request.peer_cert_full_chain()),
        servers_.has_value() ? CertificateUse::kServer : CertificateUse::kClient);
    if (refusal.has_value()) return absl::UnauthenticatedError(refusal->text);
    if (!servers_.has_value()) return absl::OkStatus();  // each call is checked later
    std::vector<absl::string_view> uris;
    for (const grpc::string_ref& uri : request.uri_names()) uris.push_back(View(uri));
    const absl::StatusOr<CertificateOwner> owner = OwnerOf(uris, security_->self());
    if (!owner.ok() || servers_->has(owner->role)) return owner.status();
    return absl::PermissionDeniedError(absl::StrCat("expected the certificate of a ",
                                                    servers_->ToString(), " there, got one of ",
                                                    OwnerUri(*owner)));
  }

  const std::shared_ptr<const LinkSecurity> security_;
  const std::optional<RoleSet> servers_;
};

// One for all links of a process: each one has a thread.
std::shared_ptr<FileWatcherCertificateProvider> ProviderOf(const LinkSecurity& security) {
  return std::static_pointer_cast<FileWatcherCertificateProvider>(
      security.Shared([&files = security.files()]() -> std::shared_ptr<void> {
        return std::make_shared<FileWatcherCertificateProvider>(files.key, files.certificate,
                                                                files.authorities, kRefreshSeconds);
      }));
}

void SetUp(grpc::experimental::TlsCredentialsOptions* options,
           const std::shared_ptr<const LinkSecurity>& security, std::optional<RoleSet> servers) {
  options->watch_identity_key_cert_pairs();
  options->set_check_call_host(false);
  options->set_certificate_verifier(
      ExternalCertificateVerifier::Create<Verifier>(security, servers));
}

// The values of a connection's property.
std::vector<absl::string_view> Property(const grpc_auth_context* context, const char* name) {
  std::vector<absl::string_view> values;
  grpc_auth_property_iterator it = grpc_auth_context_find_properties_by_name(context, name);
  while (const grpc_auth_property* property = grpc_auth_property_iterator_next(&it)) {
    values.emplace_back(property->value, property->value_length);
  }
  return values;
}

// The first check of each call. Its state outlives the server's.
class Gate {
 public:
  explicit Gate(std::shared_ptr<const LinkSecurity> security) : security_(std::move(security)) {}

  static void Process(void* gate, grpc_auth_context* context, const grpc_metadata* metadata,
                      size_t count, grpc_process_auth_metadata_done_cb done, void* argument) {
    CallFacts call;
    bool identity = false, version = false, protocol = false;  // present
    for (size_t i = 0; i < count; ++i) {
      const absl::string_view key = View(metadata[i].key);
      const absl::string_view value = View(metadata[i].value);
      if (key == ":path") call.method = value;
      if (key == kIdentityKey) Take(value, kIdentityKey, &identity, &call.identity, &call.repeated);
      if (key == kVersionKey) Take(value, kVersionKey, &version, &call.version, &call.repeated);
      if (key == kProtocolKey) Take(value, kProtocolKey, &protocol, &call.protocol, &call.repeated);
    }
    call.certificate_uris = Property(context, GRPC_PEER_URI_PROPERTY_NAME);
    const LinkSecurity* const security = static_cast<Gate*>(gate)->security_.get();
    const absl::Status status = JudgeCall(call, security);
    if (absl::IsPermissionDenied(status) && security != nullptr) security->refusals().CountCall();
    done(argument, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.code()),
         std::string(status.message()).c_str());
  }
  static void Destroy(void* gate) { delete static_cast<Gate*>(gate); }

 private:
  static void Take(absl::string_view value, absl::string_view key, bool* seen,
                   absl::string_view* into, absl::string_view* repeated) {
    if (*seen) *repeated = key;
    *seen = true;
    *into = value;
  }

  const std::shared_ptr<const LinkSecurity> security_;
};

// gRPC's plain C++ credentials have no hook for a gate.
class GatedCredentials final : public grpc::ServerCredentials {
 public:
  GatedCredentials(grpc_server_credentials* credentials,
                   std::shared_ptr<const LinkSecurity> security)
      : credentials_(credentials) {
    grpc_server_credentials_set_auth_metadata_processor(
        credentials_, {&Gate::Process, &Gate::Destroy, new Gate(std::move(security))});
  }
  ~GatedCredentials() override { grpc_server_credentials_release(credentials_); }

 private:
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(
    std::shared_ptr<const LinkSecurity> security, RoleSet servers) {
  if (!UsesTls(security.get())) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(ProviderOf(*security));
  options.watch_root_certs();              // else gRPC uses the system's
  options.set_verify_server_certs(false);  // the verifier does, with a reason
  SetUp(&options, security, servers);
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    std::shared_ptr<const LinkSecurity> security) {
  if (!UsesTls(security.get())) {
    return std::make_shared<GatedCredentials>(grpc_insecure_server_credentials_create(), security);
  }
  grpc::experimental::TlsServerCredentialsOptions options(ProviderOf(*security));
  SetUp(&options, security, std::nullopt);
  // Requests a certificate but neither verifies nor requires it: the verifier refuses, and counts.
  options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
  return std::make_shared<GatedCredentials>(
      grpc_tls_server_credentials_create(options.c_credentials_options()), security);
}

absl::Status JudgeCall(const CallFacts& call, const LinkSecurity* security) {
  std::optional<PeerRole> role;
  if (UsesTls(security)) {
    const absl::StatusOr<CertificateOwner> owner = OwnerOf(call.certificate_uris, security->self());
    if (!owner.ok()) return owner.status();
    role = owner->role;
  }
  if (!call.repeated.empty()) {
    return absl::PermissionDeniedError(
        absl::StrCat("expected metadata ", call.repeated, " once, got it again"));
  }
  if (!call.identity.empty() || !IsGeneralMethod(call.method)) {
    const absl::StatusOr<PeerIdentity> peer = CheckPeer([&](absl::string_view key) {
      return key == kIdentityKey   ? call.identity
             : key == kVersionKey  ? call.version
             : key == kProtocolKey ? call.protocol
                                   : absl::string_view();
    });
    if (!peer.ok()) return peer.status();
    if (role.has_value() && peer->identity.role != *role) {
      return absl::PermissionDeniedError(
          absl::StrCat("the caller says that it is ", IdentityToString(peer->identity),
                       ", and its certificate is that of a ", PeerRoleName(*role)));
    }
    role = peer->identity.role;
  }
  return role.has_value() ? CheckCall(call.method, *role) : absl::OkStatus();
}

}  // namespace starling
