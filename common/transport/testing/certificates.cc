#include "common/transport/testing/certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace starling {
namespace {

template <typename T>
T* Check(T* made) {
  if (made != nullptr) return made;
  std::fprintf(stderr, "OpenSSL would not make a certificate for the test\n");
  std::abort();
}

std::string PemOf(X509* certificate) {
  BIO* const bio = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(bio, certificate);
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio, &text);
  std::string pem(text, static_cast<size_t>(size));
  BIO_free(bio);
  return pem;
}

std::string PemOf(EVP_PKEY* key) {
  BIO* const bio = BIO_new(BIO_s_mem());
  PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio, &text);
  std::string pem(text, static_cast<size_t>(size));
  BIO_free(bio);
  return pem;
}

void Extend(X509* certificate, int what, const std::string& value) {
  X509_EXTENSION* const extension =
      Check(X509V3_EXT_conf_nid(nullptr, nullptr, what, value.c_str()));
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

X509* Begin(const std::string& subject, absl::Time from, absl::Time to, EVP_PKEY* key) {
  static std::atomic<long> serial = 1;
  X509* const certificate = Check(X509_new());
  X509_set_version(certificate, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial.fetch_add(1));
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(subject.c_str()), -1, -1, 0);
  ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(from));
  ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(to));
  X509_set_pubkey(certificate, key);
  return certificate;
}

}  // namespace

struct TestAuthority::Keys {
  EVP_PKEY* key = Check(EVP_EC_gen("P-256"));
  X509* certificate = nullptr;
  ~Keys() {
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
};

TestAuthority::TestAuthority(const std::string& name) : keys_(std::make_unique<Keys>()) {
  keys_->certificate =
      Begin(name, absl::Now() - absl::Hours(24), absl::Now() + absl::Hours(24), keys_->key);
  Extend(keys_->certificate, NID_basic_constraints, "critical,CA:TRUE");
  Extend(keys_->certificate, NID_key_usage, "critical,keyCertSign");
  X509_set_issuer_name(keys_->certificate, X509_get_subject_name(keys_->certificate));
  X509_sign(keys_->certificate, keys_->key, EVP_sha256());
  certificate_ = PemOf(keys_->certificate);
}

TestAuthority::~TestAuthority() = default;

TestCertificate TestAuthority::Issue(const Wish& wish) const {
  EVP_PKEY* const key = Check(EVP_EC_gen("P-256"));
  X509* const certificate = Begin(wish.subject, wish.not_before, wish.not_after, key);
  X509_set_issuer_name(certificate, X509_get_subject_name(keys_->certificate));
  if (!wish.use.empty()) Extend(certificate, NID_ext_key_usage, wish.use);
  if (!wish.uris.empty()) {
    Extend(certificate, NID_subject_alt_name,
           absl::StrCat("URI:", absl::StrJoin(wish.uris, ",URI:")));
  }
  X509_sign(certificate, keys_->key, EVP_sha256());
  TestCertificate made{PemOf(certificate), PemOf(key)};
  X509_free(certificate);
  EVP_PKEY_free(key);
  return made;
}

TestCertificate TestAuthority::Issue(const CertificateOwner& owner) const {
  return Issue(Wish{.subject = PeerRoleName(owner.role), .uris = {OwnerUri(owner)}});
}

TestCertificate TestAuthority::IssueExpired(const CertificateOwner& owner) const {
  return Issue(Wish{.subject = PeerRoleName(owner.role),
                    .uris = {OwnerUri(owner)},
                    .not_before = absl::Now() - absl::Hours(2),
                    .not_after = absl::Now() - absl::Hours(1)});
}

TlsFiles WriteTlsFiles(const std::string& folder, const TestCertificate& own,
                       const std::string& authorities) {
  mkdir(folder.c_str(), 0700);
  const TlsFiles files{folder + "/tls.crt", folder + "/tls.key", folder + "/ca.crt"};
  const auto write = [](const std::string& path, const std::string& text) {
    std::ofstream(path + ".new", std::ios::trunc) << text;
    Check(std::rename((path + ".new").c_str(), path.c_str()) == 0 ? &text : nullptr);
  };
  write(files.certificate, own.certificate);
  write(files.key, own.key);
  write(files.authorities, authorities);
  return files;
}

}  // namespace starling
