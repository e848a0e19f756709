#include "common/transport/access.h"

#include <gtest/gtest.h>

#include <string>

namespace starling {
namespace {

TEST(Access, SaysWhoMayAndWhoAsked) {
  EXPECT_TRUE(CheckCall("/starling.CoordinatorService/Submit", PeerRole::kClient).ok());
  const absl::Status status = CheckCall("/starling.CoordinatorService/Submit", PeerRole::kWorker);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(
      status.message(),
      "/starling.CoordinatorService/Submit may be called by a client; the caller is a worker");
}

TEST(Access, WhatHasNoRowIsNobodys) {
  for (const PeerRole role : kPeerRoles) {
    EXPECT_EQ(CheckCall("/starling.CoordinatorService/Abdicate", role).code(),
              absl::StatusCode::kUnimplemented);
    EXPECT_EQ(CheckCall("", role).code(), absl::StatusCode::kUnimplemented);
  }
  EXPECT_TRUE(SendersOf(static_cast<FrameType>(kFrameTypeLast + 1)).empty());
}

TEST(Access, NamesSets) {
  EXPECT_EQ(RoleSet{}.ToString(), "nobody");
  EXPECT_EQ((RoleSet{PeerRole::kShard, PeerRole::kWorker}).ToString(), "worker or shard");
  EXPECT_EQ(kAllRoles.ToString(), "client or worker or shard or coordinator");
}

TEST(Access, WorkersPushAndShardsDecide) {
  for (uint8_t type = 1; type <= kFrameTypeLast; ++type) {
    FrameHeader header;
    header.type = static_cast<FrameType>(type);
    for (const PeerRole role : kPeerRoles) {
      const absl::Status status = CheckFrameSender(header, role);
      // Readers' pulls carry a flag.
      const bool reader = header.type == FrameType::kPull && role != PeerRole::kWorker;
      EXPECT_EQ(status.ok(), SendersOf(header.type).has(role) && !reader)
          << FrameTypeName(header.type) << " " << PeerRoleName(role);
      EXPECT_EQ(status.code(),
                status.ok() ? absl::StatusCode::kOk : absl::StatusCode::kPermissionDenied);
    }
  }
  EXPECT_EQ(SendersOf(FrameType::kPush), RoleSet{PeerRole::kWorker});
  EXPECT_EQ(SendersOf(FrameType::kDecision), RoleSet{PeerRole::kShard});
  EXPECT_EQ(SendersOf(FrameType::kReplicate), RoleSet{PeerRole::kShard});
}

TEST(Access, AllButWorkersReadOnly) {
  for (const PeerRole reader : {PeerRole::kClient, PeerRole::kShard, PeerRole::kCoordinator}) {
    FrameHeader pull;
    pull.type = FrameType::kPull;
    EXPECT_FALSE(CheckFrameSender(pull, reader).ok());
    pull.flags = frame_flags::kReader;
    EXPECT_TRUE(CheckFrameSender(pull, reader).ok());
    pull.type = FrameType::kPush;
    EXPECT_FALSE(CheckFrameSender(pull, reader).ok());
  }
}

}  // namespace
}  // namespace starling
