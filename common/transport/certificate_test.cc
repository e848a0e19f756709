#include "common/transport/certificate.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/transport/testing/certificates.h"

namespace starling {
namespace {

const CertificateOwner kWorker{"prod", PeerRole::kWorker};

TEST(OwnerUri, RoundTrips) {
  for (const PeerRole role : kPeerRoles) {
    const CertificateOwner owner{"a.b-c", role};
    EXPECT_EQ(ParseOwnerUri(OwnerUri(owner)).value(), owner);
  }
  EXPECT_EQ(OwnerUri(kWorker), "starling://prod/worker");
}

TEST(OwnerUri, RefusesOthers) {
  for (const char* uri :
       {"", "starling://", "starling://prod", "starling://prod/", "starling:///worker",
        "starling://prod/king", "starling://prod/worker/0", "spiffe://prod/worker",
        "STARLING://prod/worker", "starling://pr od/worker", "starling://prod/Worker"}) {
    const absl::Status status = ParseOwnerUri(uri).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << uri;
    EXPECT_NE(status.message().find("starling://CLUSTER/ROLE"), absl::string_view::npos) << status;
  }
}

TEST(OwnerUri, WhatAStrangerWroteIsShownWithoutControlCharacters) {
  const absl::Status status = ParseOwnerUri("evil\n\x1b[2Jtext").status();
  EXPECT_NE(status.message().find("evil??[2Jtext"), absl::string_view::npos) << status;
}

TEST(Certificates, FactsAreRead) {
  const TestAuthority authority;
  const auto facts = ReadCertificate(authority.Issue(kWorker).certificate);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->subject, "CN=worker");
  EXPECT_EQ(facts->owner.value(), kWorker);
  EXPECT_GT(facts->not_after, absl::Now());
  EXPECT_EQ(ReadCertificate("nonsense").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Certificates, OneUriAndNoMore) {
  const TestAuthority authority;
  for (const std::vector<std::string>& uris :
       std::vector<std::vector<std::string>>{{}, {OwnerUri(kWorker), "starling://prod/shard"}}) {
    const auto facts = ReadCertificate(authority.Issue({.uris = uris}).certificate);
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_EQ(facts->owner.status().code(), absl::StatusCode::kPermissionDenied) << uris.size();
  }
}

TEST(Certificates, KeysBelongToThem) {
  const TestAuthority authority;
  const TestCertificate mine = authority.Issue(kWorker), other = authority.Issue(kWorker);
  EXPECT_TRUE(CheckKey(mine.certificate, mine.key).ok());
  EXPECT_NE(CheckKey(mine.certificate, other.key).message().find("another certificate"),
            absl::string_view::npos);
  EXPECT_NE(CheckKey(mine.certificate, "nonsense").message().find("no PEM private key"),
            absl::string_view::npos);
}

class Judged : public testing::Test {
 protected:
  std::optional<HandshakeRefusal> Check(const std::string& leaf,
                                        CertificateUse use = CertificateUse::kClient,
                                        absl::Time now = absl::Now()) {
    const auto authorities = CertificateAuthorities::Read(authority_.certificate());
    const auto refusal = (*authorities)->Check(leaf, "", use, now);
    if (!refusal.has_value()) return std::nullopt;
    text_ = refusal->text;
    return refusal->reason;
  }

  const TestAuthority authority_;
  std::string text_;
};

TEST_F(Judged, GoodOnes) {
  const std::string leaf = authority_.Issue(kWorker).certificate;
  EXPECT_EQ(Check(leaf), std::nullopt) << text_;
  EXPECT_EQ(Check(leaf, CertificateUse::kServer), std::nullopt) << text_;
}

TEST_F(Judged, None) { EXPECT_EQ(Check(""), HandshakeRefusal::kNoCertificate); }

TEST_F(Judged, Nonsense) { EXPECT_EQ(Check("nonsense"), HandshakeRefusal::kInvalid); }

// The same name with another key: a name proves nothing.
TEST_F(Judged, AnotherAuthority) {
  const TestAuthority other;
  EXPECT_EQ(Check(other.Issue(kWorker).certificate), HandshakeRefusal::kUnknownAuthority) << text_;
  EXPECT_EQ(Check(other.certificate()), HandshakeRefusal::kUnknownAuthority) << text_;
  EXPECT_NE(text_.find("test authority"), std::string::npos) << text_;
}

TEST_F(Judged, Dates) {
  const std::string leaf = authority_.Issue(kWorker).certificate;
  EXPECT_EQ(Check(leaf, CertificateUse::kClient, absl::Now() + absl::Hours(2)),
            HandshakeRefusal::kExpired);
  EXPECT_NE(text_.find("CN=worker has expired: 2"), std::string::npos) << text_;
  EXPECT_EQ(Check(leaf, CertificateUse::kClient, absl::Now() - absl::Hours(2)),
            HandshakeRefusal::kNotYetValid);
  EXPECT_EQ(Check(authority_.IssueExpired(kWorker).certificate), HandshakeRefusal::kExpired);
}

TEST_F(Judged, Purpose) {
  const std::string leaf =
      authority_.Issue({.uris = {OwnerUri(kWorker)}, .use = "clientAuth"}).certificate;
  EXPECT_EQ(Check(leaf), std::nullopt) << text_;
  EXPECT_EQ(Check(leaf, CertificateUse::kServer), HandshakeRefusal::kInvalid);
}

TEST(Authorities, NonsenseIsRefused) {
  EXPECT_EQ(CertificateAuthorities::Read("nonsense").status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A bundle trusts both authorities during a rotation. If it is truncated or damaged in the middle,
// it must not lose an authority silently.
TEST(Authorities, OneThatIsDamagedIsNotLeftOut) {
  const TestAuthority one("one"), two("two");
  const std::string& good = one.certificate();
  const std::string& second = two.certificate();
  std::string broken = second;
  broken.replace(broken.size() / 2, 4, "!!!!");
  for (const std::string& bad :
       {good + second.substr(0, second.size() / 2), good + second.substr(0, 28), good + broken,
        good + broken + good, second.substr(0, second.size() / 2) + good, broken + good}) {
    const absl::Status status = CertificateAuthorities::Read(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(status.message().find("damaged"), absl::string_view::npos) << status;
  }
  EXPECT_TRUE(CertificateAuthorities::Read(good + "\nand a comment\n" + second + "\n").ok());
  EXPECT_TRUE(CertificateAuthorities::Read(good + good).ok());
}

TEST(Authorities, Several) {
  const TestAuthority one("one"), two("two");
  const auto both = CertificateAuthorities::Read(one.certificate() + two.certificate());
  ASSERT_TRUE(both.ok()) << both.status();
  for (const TestAuthority* authority : {&one, &two}) {
    EXPECT_FALSE(
        (*both)
            ->Check(authority->Issue(kWorker).certificate, "", CertificateUse::kClient, absl::Now())
            .has_value());
  }
}

}  // namespace
}  // namespace starling
