#include "common/transport/certificate.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace starling {
namespace {

constexpr absl::string_view kScheme = "starling://";
constexpr size_t kShownMax = 200;  // of text from a peer
// OpenSSL's "112 bits": RSA of at least 2048 bits, no SHA-1.
constexpr int kSecurityLevel = 2;

template <typename T, void (*kFree)(T*)>
struct Deleter {
  void operator()(T* t) const { kFree(t); }
};
template <typename T, void (*kFree)(T*)>
using Owned = std::unique_ptr<T, Deleter<T, kFree>>;

void FreeBio(BIO* bio) { BIO_free(bio); }
void FreeStack(STACK_OF(X509) * stack) { sk_X509_pop_free(stack, X509_free); }
void FreeNames(GENERAL_NAMES* names) { GENERAL_NAMES_free(names); }

using Bio = Owned<BIO, FreeBio>;
using Certificate = Owned<X509, X509_free>;
using Stack = Owned<STACK_OF(X509), FreeStack>;
using Names = Owned<GENERAL_NAMES, FreeNames>;
using Key = Owned<EVP_PKEY, EVP_PKEY_free>;
using Store = Owned<X509_STORE, X509_STORE_free>;
using StoreContext = Owned<X509_STORE_CTX, X509_STORE_CTX_free>;

Bio Reading(absl::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Supplies an empty password, so that OpenSSL does not prompt for one.
int NoPassword(char*, int, int, void*) { return 0; }

int Occurrences(absl::string_view text, absl::string_view what) {
  int found = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++found;
  return found;
}

// All of them, or an error: a skipped certificate would be missed only when it is needed.
absl::StatusOr<std::vector<Certificate>> ReadAll(absl::string_view pem) {
  ERR_clear_error();
  std::vector<Certificate> all;
  const Bio bio = Reading(pem);
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr))
    all.emplace_back(next);
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  const bool at_end =
      ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  const int begun = Occurrences(pem, "-----BEGIN CERTIFICATE-----");
  if (at_end && all.size() >= static_cast<size_t>(begun)) return all;
  return absl::InvalidArgumentError(absl::StrCat("certificate ", all.size() + 1, " of ", begun,
                                                 " in it cannot be read: it is damaged"));
}

// At least one certificate.
absl::StatusOr<std::vector<Certificate>> ReadSome(absl::string_view pem) {
  absl::StatusOr<std::vector<Certificate>> all = ReadAll(pem);
  if (all.ok() && all->empty()) {
    return absl::InvalidArgumentError("there is no PEM certificate in it");
  }
  return all;
}

std::string SubjectOf(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253);
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, std::min<size_t>(static_cast<size_t>(size), kShownMax));
}

absl::Time TimeOf(const ASN1_TIME* time) {
  tm broken = {};
  if (ASN1_TIME_to_tm(time, &broken) != 1) return absl::InfinitePast();
  return absl::FromTM(broken, absl::UTCTimeZone());
}

// Text from a peer, made safe for a message.
std::string Shown(absl::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, kShownMax)) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown;
}

absl::StatusOr<CertificateOwner> OwnerOf(X509* certificate) {
  std::vector<std::string> uris;
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  if (uris.size() == 1) return ParseOwnerUri(uris[0]);
  return absl::PermissionDeniedError(absl::StrCat(
      "expected a certificate with one URI, starling://CLUSTER/ROLE, among its subject "
      "alternative names; it has ",
      uris.empty() ? "none" : Shown(absl::StrJoin(uris, ", "))));
}

HandshakeRefusal ReasonOf(int error) {
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED: return HandshakeRefusal::kExpired;
    case X509_V_ERR_CERT_NOT_YET_VALID: return HandshakeRefusal::kNotYetValid;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_CERT_UNTRUSTED: return HandshakeRefusal::kUnknownAuthority;
    default: return HandshakeRefusal::kInvalid;
  }
}

CertificateAuthorities::Refusal Refuse(int error, X509* certificate) {
  const std::string subject = SubjectOf(certificate);
  const HandshakeRefusal reason = ReasonOf(error);
  switch (reason) {
    case HandshakeRefusal::kExpired:
      return {reason, absl::StrCat("the certificate of ", subject, " has expired: ",
                                   absl::FormatTime(TimeOf(X509_get0_notAfter(certificate)),
                                                    absl::UTCTimeZone()))};
    case HandshakeRefusal::kNotYetValid:
      return {reason, absl::StrCat("the certificate of ", subject, " is not good before ",
                                   absl::FormatTime(TimeOf(X509_get0_notBefore(certificate)),
                                                    absl::UTCTimeZone()))};
    case HandshakeRefusal::kUnknownAuthority:
      return {reason,
              absl::StrCat("no authority that is trusted here has signed the certificate of ",
                           subject)};
    default:
      return {reason, absl::StrCat("the certificate of ", subject,
                                   " is refused: ", X509_verify_cert_error_string(error))};
  }
}

class OpenSslAuthorities final : public CertificateAuthorities {
 public:
  explicit OpenSslAuthorities(Store store) : store_(std::move(store)) {}

  std::optional<Refusal> Check(absl::string_view leaf_pem, absl::string_view chain_pem,
                               CertificateUse use, absl::Time now) const override {
    if (leaf_pem.empty()) {
      return Refusal{HandshakeRefusal::kNoCertificate, "the peer has shown no certificate"};
    }
    const absl::StatusOr<std::vector<Certificate>> read = ReadSome(leaf_pem);
    absl::StatusOr<std::vector<Certificate>> chain = ReadAll(chain_pem);
    if (!read.ok() || !chain.ok()) {
      return Refusal{HandshakeRefusal::kInvalid, "the peer's certificate cannot be read"};
    }
    const std::vector<Certificate>& leaf = *read;
    const Stack between(sk_X509_new_null());
    for (Certificate& certificate : *chain) {
      sk_X509_push(between.get(), certificate.release());
    }
    const StoreContext context(X509_STORE_CTX_new());
    X509_STORE_CTX_init(context.get(), store_.get(), leaf[0].get(), between.get());
    X509_STORE_CTX_set_default(context.get(),
                               use == CertificateUse::kClient ? "ssl_client" : "ssl_server");
    X509_VERIFY_PARAM* const parameters = X509_STORE_CTX_get0_param(context.get());
    X509_VERIFY_PARAM_set_time(parameters, absl::ToTimeT(now));
    X509_VERIFY_PARAM_set_auth_level(parameters, kSecurityLevel);
    // The only trusted authority may be one below a root.
    X509_VERIFY_PARAM_set_flags(parameters, X509_V_FLAG_PARTIAL_CHAIN);
    if (X509_verify_cert(context.get()) == 1) return std::nullopt;
    const int error = X509_STORE_CTX_get_error(context.get());
    X509* const culprit = X509_STORE_CTX_get_current_cert(context.get());
    ERR_clear_error();
    return Refuse(error, culprit == nullptr ? leaf[0].get() : culprit);
  }

 private:
  const Store store_;
};

}  // namespace

std::string OwnerUri(const CertificateOwner& owner) {
  return absl::StrCat(kScheme, owner.cluster, "/", PeerRoleName(owner.role));
}

absl::StatusOr<CertificateOwner> ParseOwnerUri(absl::string_view uri) {
  absl::string_view rest = uri;
  const size_t slash =
      absl::ConsumePrefix(&rest, kScheme) ? rest.find('/') : absl::string_view::npos;
  if (slash != absl::string_view::npos) {
    const std::optional<PeerRole> role = PeerRoleFromName(rest.substr(slash + 1));
    const absl::string_view cluster = rest.substr(0, slash);
    if (role.has_value() && CheckName("cluster", cluster).ok()) {
      return CertificateOwner{std::string(cluster), *role};
    }
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "expected a certificate of starling://CLUSTER/ROLE, with the role client, worker, "
      "shard or coordinator; it is of ",
      Shown(uri)));
}

absl::StatusOr<CertificateFacts> ReadCertificate(absl::string_view pem) {
  STARLING_ASSIGN_OR_RETURN(const std::vector<Certificate> all, ReadSome(pem));
  X509* const first = all[0].get();
  return CertificateFacts{SubjectOf(first), TimeOf(X509_get0_notAfter(first)), OwnerOf(first)};
}

absl::Status CheckKey(absl::string_view certificate_pem, absl::string_view key_pem) {
  STARLING_ASSIGN_OR_RETURN(const std::vector<Certificate> all, ReadSome(certificate_pem));
  const Bio bio = Reading(key_pem);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr));
  const bool fits = key != nullptr && X509_check_private_key(all[0].get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError("there is no PEM private key, without a password, in it");
  }
  if (!fits) return absl::InvalidArgumentError("the private key belongs to another certificate");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<const CertificateAuthorities>> CertificateAuthorities::Read(
    absl::string_view pem) {
  STARLING_ASSIGN_OR_RETURN(const std::vector<Certificate> all, ReadSome(pem));
  Store store(X509_STORE_new());
  for (const Certificate& certificate : all) {
    if (X509_STORE_add_cert(store.get(), certificate.get()) == 1) continue;
    ERR_clear_error();
    return absl::InternalError(
        absl::StrCat("OpenSSL does not take the certificate of ", SubjectOf(certificate.get())));
  }
  return std::make_unique<const OpenSslAuthorities>(std::move(store));
}

}  // namespace starling
