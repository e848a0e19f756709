// X.509 certificates of our links: what a certificate says about its owner, and whether a trusted
// authority has signed it. No I/O, no clock; exposes no OpenSSL type.
//
// A certificate names its owner in exactly one subject alternative name of type URI:
// starling://CLUSTER/ROLE, as in starling://prod/worker. Host names are ignored: the holder of a
// shard's key is a shard, wherever it listens.
#ifndef STARLING_COMMON_TRANSPORT_CERTIFICATE_H_
#define STARLING_COMMON_TRANSPORT_CERTIFICATE_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/transport/handshake_refusals.h"
#include "common/transport/identity.h"

namespace starling {

struct CertificateOwner {
  std::string cluster;  // see CheckName
  PeerRole role = PeerRole::kClient;
  friend bool operator==(const CertificateOwner&, const CertificateOwner&) = default;
};

std::string OwnerUri(const CertificateOwner& owner);  // "starling://prod/worker"

// kPermissionDenied has what was expected and what came.
absl::StatusOr<CertificateOwner> ParseOwnerUri(absl::string_view uri);

// One certificate, parsed from PEM.
struct CertificateFacts {
  std::string subject;  // RFC 2253 format, at most 200 characters
  absl::Time not_after;
  // kPermissionDenied: not exactly one URI, or a URI of another form.
  absl::StatusOr<CertificateOwner> owner;
};

// Reads the first certificate in `pem`. kInvalidArgument: there is none.
absl::StatusOr<CertificateFacts> ReadCertificate(absl::string_view pem);

// kInvalidArgument: `key_pem` is not an unencrypted private key, or does not belong to the first
// certificate in `certificate_pem`.
absl::Status CheckKey(absl::string_view certificate_pem, absl::string_view key_pem);

enum class CertificateUse { kClient, kServer };

// The trusted authorities' certificates. Thread-safe.
class CertificateAuthorities {
 public:
  // kInvalidArgument: no certificate in `pem`, or one that cannot be read.
  static absl::StatusOr<std::unique_ptr<const CertificateAuthorities>> Read(absl::string_view pem);
  virtual ~CertificateAuthorities() = default;

  struct Refusal {
    HandshakeRefusal reason;
    std::string text;  // "the certificate of CN=worker has expired: 2026-01-31T12:00:00+00:00"
  };
  // Whether an authority has signed `leaf_pem`, possibly through certificates in `chain_pem`, and
  // it is valid at `now` for `use`: nullopt, or why it is refused.
  virtual std::optional<Refusal> Check(absl::string_view leaf_pem, absl::string_view chain_pem,
                                       CertificateUse use, absl::Time now) const = 0;
};

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_CERTIFICATE_H_
