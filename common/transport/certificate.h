// X.509 certificates as our links use them: what one says of its owner, and whether authorities
// that we trust have signed it. No I/O, no clock; no OpenSSL type shows.
//
// A certificate names its owner in exactly one subject alternative name of type URI:
// starling://CLUSTER/ROLE, as starling://prod/worker. Host names in it are not looked at: who owns
// the key of a shard's certificate is a shard, wherever it listens.
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

// kPermissionDenied says what was expected and what came.
absl::StatusOr<CertificateOwner> ParseOwnerUri(absl::string_view uri);

// One certificate, as read from PEM.
struct CertificateFacts {
  std::string subject;  // as RFC 2253 writes it, at most 200 characters
  absl::Time not_before;
  absl::Time not_after;
  // KPermissionDenied: not exactly one URI, or another kind.
  absl::StatusOr<CertificateOwner> owner;
};

// Of the first certificate in `pem`. kInvalidArgument: there is none.
absl::StatusOr<CertificateFacts> ReadCertificate(absl::string_view pem);

// kInvalidArgument: `key_pem` is no unencrypted private key, or not that of the first certificate
// in `certificate_pem`.
absl::Status CheckKey(absl::string_view certificate_pem, absl::string_view key_pem);

enum class CertificateUse { kClient, kServer };

// The certificates of authorities that are trusted. Thread-safe.
class CertificateAuthorities {
 public:
  // kInvalidArgument: no certificate in `pem`, or one that cannot be read.
  static absl::StatusOr<std::unique_ptr<const CertificateAuthorities>> Read(absl::string_view pem);
  virtual ~CertificateAuthorities() = default;

  struct Refusal {
    HandshakeRefusal reason;
    std::string text;  // "the certificate of CN=worker has expired: 2026-01-31T12:00:00+00:00"
  };
  // Whether `leaf_pem` was signed by an authority, perhaps over certificates in `chain_pem`, and is
  // good at `now` for such a use: nothing, or why it is refused.
  virtual std::optional<Refusal> Check(absl::string_view leaf_pem, absl::string_view chain_pem,
                                       CertificateUse use, absl::Time now) const = 0;
};

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_CERTIFICATE_H_
