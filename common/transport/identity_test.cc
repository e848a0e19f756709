#include "common/transport/identity.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "common/protocol/limits.h"
#include "common/version/version.h"

namespace starling {
namespace {

absl::StatusOr<PeerIdentity> Check(std::map<std::string, std::string> metadata) {
  return CheckPeer(
      [&](absl::string_view key) -> absl::string_view { return metadata[std::string(key)]; });
}

TEST(Identity, RoundTrips) {
  const Identity identity{PeerRole::kWorker, "worker-0"};
  EXPECT_EQ(IdentityToString(identity), "worker:worker-0");
  EXPECT_EQ(ParseIdentity("worker:worker-0").value(), identity);
}

TEST(Identity, RefusesOthers) {
  for (const char* text : {"", "worker", "worker:", ":a", "king:a", "worker:a b", "worker:a\nb",
                           "worker:-a", "worker:../a", "worker:a:b"}) {
    EXPECT_EQ(ParseIdentity(text).status().code(), absl::StatusCode::kUnauthenticated) << text;
  }
}

TEST(Identity, NamesAreBounded) {
  EXPECT_TRUE(CheckName("name", std::string(limits::kNameBytesMax, 'a')).ok());
  EXPECT_FALSE(CheckName("name", std::string(limits::kNameBytesMax + 1, 'a')).ok());
  EXPECT_FALSE(CheckName("name", "").ok());
}

TEST(Identity, PeerWithoutIdentityIsUnauthenticated) {
  EXPECT_EQ(Check({}).status().code(), absl::StatusCode::kUnauthenticated);
}

TEST(Identity, OtherProtocolIsRefusedNamingBothVersions) {
  const auto peer =
      Check({{kIdentityKey, "worker:w"}, {kVersionKey, "9.8.7"}, {kProtocolKey, "4000"}});
  EXPECT_EQ(peer.status().code(), absl::StatusCode::kFailedPrecondition);
  const std::string message(peer.status().message());
  for (const std::string& part :
       {std::string("9.8.7"), std::string("4000"), std::string(ReleaseVersion()),
        std::to_string(ProtocolVersion()), std::string("worker:w")}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(Identity, GoodPeer) {
  const auto peer = Check({{kIdentityKey, "client:me"},
                           {kVersionKey, "0.1.0"},
                           {kProtocolKey, std::to_string(ProtocolVersion())}});
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->identity, (Identity{PeerRole::kClient, "me"}));
  EXPECT_EQ(peer->version, "0.1.0");
}

}  // namespace
}  // namespace starling
