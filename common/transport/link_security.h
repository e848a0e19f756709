// How this process protects its links: mutual TLS, or loopback alone, or nothing at all because it
// was told so. docs/security.md says what follows from each. No gRPC type shows.
#ifndef STARLING_COMMON_TRANSPORT_LINK_SECURITY_H_
#define STARLING_COMMON_TRANSPORT_LINK_SECURITY_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/sync/mutex.h"
#include "common/transport/certificate.h"
#include "common/transport/handshake_refusals.h"
#include "common/transport/identity.h"

namespace starling {

// PEM files. They are read again when they change.
struct TlsFiles {
  std::string certificate;  // of this process, then those between it and the authority
  std::string key;          // without a password
  std::string authorities;  // whom this process trusts, on both sides of a link
};

// What is shared by all links of a process. Thread-safe.
class LinkSecurity {
 public:
  // Not null, but plain: what a null pointer to a LinkSecurity means, too.
  static std::shared_ptr<const LinkSecurity> Loopback();
  // Plain, at any address.
  static std::shared_ptr<const LinkSecurity> Insecure();
  // kInvalidArgument, with the file and what to do: a file is not there or not what it should be,
  // key and certificate do not belong together, the certificate has expired, or is of another
  // cluster or role than `self`.
  static absl::StatusOr<std::shared_ptr<const LinkSecurity>> Tls(const TlsFiles& files,
                                                                 const CertificateOwner& self);
  ~LinkSecurity();
  LinkSecurity(const LinkSecurity&) = delete;
  LinkSecurity& operator=(const LinkSecurity&) = delete;

  bool tls() const { return mode_ == Mode::kTls; }
  bool insecure() const { return mode_ == Mode::kInsecure; }  // --insecure
  const CertificateOwner& self() const { return self_; }      // with TLS
  const TlsFiles& files() const { return files_; }            // with TLS

  // What this process's server has refused.
  RefusalCounters& refusals() const { return refusals_; }

  // With TLS: whether the peer's certificate is one of an authority that is trusted now. A
  // handshake of a caller that is refused is counted, and logged now and then.
  std::optional<CertificateAuthorities::Refusal> CheckCertificate(absl::string_view leaf_pem,
                                                                  absl::string_view chain_pem,
                                                                  CertificateUse use) const;

  // When this process's own certificate ends; without TLS, never.
  absl::Time valid_until() const;

  // For common/transport: what it makes once, and shares among all links.
  std::shared_ptr<void> Shared(const std::function<std::shared_ptr<void>()>& make) const;

 private:
  enum class Mode { kLoopback, kInsecure, kTls };
  explicit LinkSecurity(Mode mode) : mode_(mode) {}

  struct Contents {  // of the files
    std::string certificate;
    std::string key;
    std::string authorities;
    friend bool operator==(const Contents&, const Contents&) = default;
  };
  absl::StatusOr<Contents> ReadFiles() const;
  absl::Status CheckOwn(const Contents& contents, const CertificateAuthorities& authorities) const;
  absl::Status Install(const Contents& contents);
  void Watch();

  const Mode mode_;
  TlsFiles files_;  // constant, as is:
  CertificateOwner self_;
  mutable RefusalCounters refusals_;

  mutable Mutex mutex_;
  std::shared_ptr<const CertificateAuthorities> authorities_ ABSL_GUARDED_BY(mutex_);
  absl::Time valid_until_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  mutable absl::Time complained_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar stopping_;
  // Its own: `make` takes locks of gRPC, under which gRPC asks CheckCertificate, which takes
  // mutex_.
  mutable absl::Mutex shared_mutex_;
  mutable std::shared_ptr<void> shared_ ABSL_GUARDED_BY(shared_mutex_);
  Contents contents_;  // the watching thread's, once it runs
  std::thread watcher_;
};

// Null and plain are the same: at loopback addresses alone.
inline bool UsesTls(const LinkSecurity* security) { return security != nullptr && security->tls(); }

// Whether a process may listen there, or open a link to there. kInvalidArgument: not "host:port",
// or, without TLS and without --insecure, not a loopback address (127.x.x.x, [::1], localhost):
// says why, and what to do.
absl::Status CheckListenAddress(absl::string_view address, const LinkSecurity* security = nullptr);
absl::Status CheckPeerAddress(absl::string_view address, const LinkSecurity* security = nullptr);

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_LINK_SECURITY_H_
