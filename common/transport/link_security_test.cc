#include "common/transport/link_security.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/transport/testing/certificates.h"

namespace starling {
namespace {

const CertificateOwner kShard{"prod", PeerRole::kShard};

TEST(Addresses, OnlyLoopbackWithoutTls) {
  const auto insecure = LinkSecurity::Insecure();
  for (const char* good : {"127.0.0.1:0", "127.1.2.3:80", "localhost:7070", "[::1]:0"}) {
    EXPECT_TRUE(CheckListenAddress(good).ok()) << good;
    EXPECT_TRUE(CheckPeerAddress(good).ok()) << good;
  }
  for (const char* open :
       {"0.0.0.0:0", "10.0.0.1:7070", "[::]:0", "example.org:1", "128.0.0.1:1"}) {
    const absl::Status status = CheckPeerAddress(open, LinkSecurity::Loopback().get());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << open;
    EXPECT_NE(status.message().find("--insecure"), absl::string_view::npos) << status;
    EXPECT_EQ(CheckListenAddress(open).code(), absl::StatusCode::kInvalidArgument) << open;
    EXPECT_TRUE(CheckListenAddress(open, insecure.get()).ok()) << open;
  }
  for (const char* name : {"starling-coordinator:7070", "a_b.example.org:1", "[fd00::1]:80"}) {
    EXPECT_TRUE(CheckPeerAddress(name, insecure.get()).ok()) << name;
  }
  // The last ones are targets that gRPC would take for more than a host and a port.
  for (const char* bad : {"127.0.0.1",
                          "127.0.0.1:x",
                          ":7070",
                          "127.0.0.1:70000",
                          "",
                          "127.0.0.1:+80",
                          "127.0.0.1: 80",
                          "[]:80",
                          "[::1:80",
                          "[localhost]:80",
                          "[fe80::1%eth0]:80",
                          "::1:80",
                          "a b:80",
                          "a\n:80",
                          "unix:/run/x:1",
                          "unix:x:1",
                          "unix:1:1",
                          "unix-abstract:x:1",
                          "dns://8.8.8.8/name:80",
                          "dns:name:80",
                          "ipv4:127.0.0.1:80",
                          "127.0.0.1:1,127.0.0.1:2",
                          "user@host:80",
                          "host%41:80",
                          "xds:///a:80",
                          "127.0.0.1:80/x:80",
                          "host?a=b:80",
                          "host#a:80"}) {
    for (const absl::Status& status :
         {CheckPeerAddress(bad, insecure.get()), CheckListenAddress(bad, insecure.get()),
          CheckListenAddress(bad)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    }
  }
}

class Files : public testing::Test {
 protected:
  Files() : folder_(absl::StrCat(testing::TempDir(), "/", counter_++)) {}

  std::string Refused(const TestCertificate& own, const std::string& authorities,
                      const CertificateOwner& self = kShard) {
    const auto security = LinkSecurity::Tls(WriteTlsFiles(folder_, own, authorities), self);
    return security.ok() ? "" : std::string(security.status().message());
  }

  static int counter_;
  const std::string folder_;
  const TestAuthority authority_;
};
int Files::counter_ = 0;

TEST_F(Files, GoodOnes) {
  const TlsFiles files = WriteTlsFiles(folder_, authority_.Issue(kShard), authority_.certificate());
  const auto security = LinkSecurity::Tls(files, kShard);
  ASSERT_TRUE(security.ok()) << security.status();
  EXPECT_TRUE((*security)->tls());
  EXPECT_FALSE((*security)->insecure());
  EXPECT_LT((*security)->valid_until(), absl::Now() + absl::Hours(2));
  EXPECT_TRUE(CheckListenAddress("0.0.0.0:0", security->get()).ok());
}

TEST_F(Files, EachMistakeIsNamedWithItsFile) {
  const TestCertificate good = authority_.Issue(kShard);
  const TestAuthority other;
  struct Case {
    std::string said;
    std::string part;
  };
  for (const Case& c : std::vector<Case>{
           {Refused({"", good.key}, authority_.certificate()), "--tls-cert"},
           {Refused({"nonsense", good.key}, authority_.certificate()), "no PEM certificate"},
           {Refused({good.certificate, "nonsense"}, authority_.certificate()),
            "no PEM private key"},
           {Refused({good.certificate, authority_.Issue(kShard).key}, authority_.certificate()),
            "another certificate"},
           {Refused(good, "nonsense"), "--tls-ca"},
           {Refused(good, other.certificate()), "no authority that is trusted"},
           {Refused(authority_.IssueExpired(kShard), authority_.certificate()), "has expired"},
           {Refused(good, authority_.certificate(), {"prod", PeerRole::kWorker}),
            "expected a certificate of starling://prod/worker, got one of starling://prod/shard"},
           {Refused(good, authority_.certificate(), {"test", PeerRole::kShard}), "--cluster"},
           {Refused(authority_.Issue({.uris = {OwnerUri(kShard)}, .use = "clientAuth"}),
                    authority_.certificate()),
            "is refused"}}) {
    EXPECT_NE(c.said.find(c.part), std::string::npos) << c.said << "\nshould say " << c.part;
    EXPECT_NE(c.said.find(folder_), std::string::npos) << c.said;
  }
}

// The certificate is replaced first, as by tools that replace one file after the other. The key is
// a pipe: its reader gets the old key, and then finds the new one in its place.
TEST_F(Files, AKeyThatIsJustBeingReplacedIsWaitedFor) {
  const TestCertificate before = authority_.Issue(kShard), after = authority_.Issue(kShard);
  const TlsFiles files = WriteTlsFiles(folder_, after, authority_.certificate());
  const std::string new_key = files.key + ".new";
  ASSERT_EQ(rename(files.key.c_str(), new_key.c_str()), 0);
  ASSERT_EQ(mkfifo(files.key.c_str(), 0600), 0);
  std::thread replacing([&] {
    std::ofstream pipe(files.key);  // waits for a reader
    EXPECT_EQ(rename(new_key.c_str(), files.key.c_str()), 0);
    pipe << before.key;
  });
  const auto security = LinkSecurity::Tls(files, kShard);
  replacing.join();
  EXPECT_TRUE(security.ok()) << security.status();
}

TEST_F(Files, NewAuthoritiesAreTakenUp) {
  const TlsFiles files = WriteTlsFiles(folder_, authority_.Issue(kShard), authority_.certificate());
  const auto security = LinkSecurity::Tls(files, kShard);
  ASSERT_TRUE(security.ok()) << security.status();
  const TestAuthority other("other authority");  // authorities are identified by name
  const std::string stranger = other.Issue({"prod", PeerRole::kWorker}).certificate;
  EXPECT_TRUE((*security)->CheckCertificate(stranger, "", CertificateUse::kClient).has_value());
  EXPECT_EQ((*security)->refusals().handshakes(HandshakeRefusal::kUnknownAuthority), 1u);

  WriteTlsFiles(folder_, authority_.Issue(kShard), authority_.certificate() + other.certificate());
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while ((*security)->CheckCertificate(stranger, "", CertificateUse::kServer).has_value()) {
    ASSERT_LT(absl::Now(), deadline) << "the new authorities were not taken up";
    absl::SleepFor(absl::Milliseconds(20));
  }
}

// Invalid files are not loaded, and the valid ones stay in use.
TEST_F(Files, BadOnesAreNot) {
  const TlsFiles files = WriteTlsFiles(folder_, authority_.Issue(kShard), authority_.certificate());
  const auto security = LinkSecurity::Tls(files, kShard);
  ASSERT_TRUE(security.ok()) << security.status();
  const absl::Time before = (*security)->valid_until();
  const auto wish = [](int hours) {
    return TestAuthority::Wish{.uris = {OwnerUri(kShard)},
                               .not_after = absl::Now() + absl::Hours(hours)};
  };
  const TestAuthority other;
  WriteTlsFiles(folder_, other.Issue(wish(100)), authority_.certificate());
  const absl::Time bad_until = absl::Now() + absl::Seconds(5);  // enough time to read them
  while (absl::Now() < bad_until) {
    ASSERT_EQ((*security)->valid_until(), before);
    absl::SleepFor(absl::Milliseconds(100));
  }
  WriteTlsFiles(folder_, authority_.Issue(wish(10)), authority_.certificate());
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while ((*security)->valid_until() == before) {
    ASSERT_LT(absl::Now(), deadline) << "the good certificate was not taken up";
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_LT((*security)->valid_until(), absl::Now() + absl::Hours(11));
}

}  // namespace
}  // namespace starling
