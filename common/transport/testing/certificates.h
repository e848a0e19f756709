// An authority that signs what a test requests, good or bad.
#ifndef STARLING_COMMON_TRANSPORT_TESTING_CERTIFICATES_H_
#define STARLING_COMMON_TRANSPORT_TESTING_CERTIFICATES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/transport/certificate.h"
#include "common/transport/link_security.h"

namespace starling {

struct TestCertificate {
  std::string certificate;  // PEM, like `key`
  std::string key;
};

// CHECKs every step: a test without certificates has nothing to test.
class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name = "test authority");
  ~TestAuthority();

  const std::string& certificate() const { return certificate_; }

  struct Wish {
    std::string subject = "test";
    std::vector<std::string> uris;
    absl::Time not_before = absl::Now() - absl::Hours(1);
    absl::Time not_after = absl::Now() + absl::Hours(1);
    std::string use = "clientAuth,serverAuth";  // extended key usage
  };
  TestCertificate Issue(const Wish& wish) const;
  TestCertificate Issue(const CertificateOwner& owner) const;
  TestCertificate IssueExpired(const CertificateOwner& owner) const;

 private:
  struct Keys;
  const std::unique_ptr<Keys> keys_;
  std::string certificate_;
};

// Writes the three files into the folder, replacing existing ones, and returns their names.
TlsFiles WriteTlsFiles(const std::string& folder, const TestCertificate& own,
                       const std::string& authorities);

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_TESTING_CERTIFICATES_H_
