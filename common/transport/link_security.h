// How this process protects its links: mutual TLS, loopback only, or not at all (on request).
// docs/security.md has the consequences. Exposes no gRPC type.
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

// PEM files. They are reloaded when they change.
struct TlsFiles {
  std::string certificate;  // of this process, then the intermediates up to the authority
  std::string key;          // unencrypted
  std::string authorities;  // trusted on both sides of a link
  friend bool operator==(const TlsFiles&, const TlsFiles&) = default;
};

// State shared by all links of a process. Thread-safe.
class LinkSecurity {
 public:
  // Plain, loopback only; never null. A null pointer to a LinkSecurity means the same.
  static std::shared_ptr<const LinkSecurity> Loopback();
  // Plain, at any address.
  static std::shared_ptr<const LinkSecurity> Insecure();
  // kInvalidArgument, with the file and the remedy: a file is missing or malformed, key and
  // certificate do not match, the certificate has expired, or its cluster or role is not that of
  // `self`.
  static absl::StatusOr<std::shared_ptr<const LinkSecurity>> Tls(const TlsFiles& files,
                                                                 const CertificateOwner& self);
  ~LinkSecurity();
  LinkSecurity(const LinkSecurity&) = delete;
  LinkSecurity& operator=(const LinkSecurity&) = delete;

  bool tls() const { return mode_ == Mode::kTls; }
  bool insecure() const { return mode_ == Mode::kInsecure; }  // --insecure
  const CertificateOwner& self() const { return self_; }      // with TLS
  const TlsFiles& files() const { return files_; }            // with TLS

  // What this process's server refused.
  RefusalCounters& refusals() const { return refusals_; }

  // With TLS: checks that a currently trusted authority has signed the peer's certificate. Refused
  // callers are counted, and logged now and then.
  std::optional<CertificateAuthorities::Refusal> CheckCertificate(absl::string_view leaf_pem,
                                                                  absl::string_view chain_pem,
                                                                  CertificateUse use) const;

  // When this process's own certificate expires; without TLS, never.
  absl::Time valid_until() const;

  // For common/transport: an object made once and shared by all links.
  std::shared_ptr<void> Shared(const std::function<std::shared_ptr<void>()>& make) const;

 private:
  enum class Mode { kLoopback, kInsecure, kTls };
  explicit LinkSecurity(Mode mode) : mode_(mode) {}

  using Contents = TlsFiles;  // of the files, in place of their names
  absl::StatusOr<Contents> ReadFiles() const;
  absl::Status CheckOwn(const Contents& contents, const CertificateAuthorities& authorities) const;
  absl::Status Install(const Contents& contents);
  void Watch();

  const Mode mode_;
  TlsFiles files_;  // constant, like self_
  CertificateOwner self_;
  mutable RefusalCounters refusals_;

  mutable Mutex mutex_;
  std::shared_ptr<const CertificateAuthorities> authorities_ ABSL_GUARDED_BY(mutex_);
  absl::Time valid_until_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  mutable absl::Time complained_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar stopping_;
  // Separate: `make` takes gRPC locks, under which gRPC calls CheckCertificate, which takes mutex_.
  mutable absl::Mutex shared_mutex_;
  mutable std::shared_ptr<void> shared_ ABSL_GUARDED_BY(shared_mutex_);
  Contents contents_;  // owned by the watcher thread once it runs
  std::thread watcher_;
};

// Null and plain mean the same: loopback addresses only.
inline bool UsesTls(const LinkSecurity* security) { return security != nullptr && security->tls(); }

// Whether a process may listen on the address, or connect to it. kInvalidArgument: not "host:port",
// or, without TLS and --insecure, not a loopback address (127.x.x.x, [::1], localhost); the message
// says why, and what to do.
absl::Status CheckListenAddress(absl::string_view address, const LinkSecurity* security = nullptr);
absl::Status CheckPeerAddress(absl::string_view address, const LinkSecurity* security = nullptr);

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_LINK_SECURITY_H_
