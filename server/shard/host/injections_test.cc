#include "server/shard/host/injections.h"

#include "gtest/gtest.h"

namespace starling {
namespace {

TEST(InjectionsTest, AreReadAndMeanAllPartitionsOrOne) {
  ShardInjections none;
  ASSERT_TRUE(ReadInjections("", "", "", &none).ok());
  EXPECT_EQ(none.ApplyWait(PartitionId(3)), absl::ZeroDuration());
  ShardInjections all;
  ASSERT_TRUE(ReadInjections("0.05s", "20ms", "16777216", &all).ok());
  EXPECT_EQ(all.ApplyWait(PartitionId(3)), absl::Milliseconds(50));
  EXPECT_EQ(all.queue_wait, absl::Milliseconds(20));
  EXPECT_EQ(all.old_values_bytes_max, 16777216u);
  EXPECT_FALSE(none.old_values_bytes_max.has_value());
  ShardInjections one;
  ASSERT_TRUE(ReadInjections("0.05s@3", "", "", &one).ok());
  EXPECT_EQ(one.ApplyWait(PartitionId(3)), absl::Milliseconds(50));
  EXPECT_EQ(one.ApplyWait(PartitionId(2)), absl::ZeroDuration());
}

TEST(InjectionsTest, WhatIsNoTimeIsRefusedByTheFlagsName) {
  ShardInjections injections;
  for (const char* wrong : {"1", "-1s", "0s", "2h", "1s@", "1s@x", "@3"}) {
    const absl::Status status = ReadInjections(wrong, "", "", &injections);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong;
    EXPECT_NE(status.message().find("--inject-apply-wait"), absl::string_view::npos);
  }
  const absl::Status status = ReadInjections("", "soon", "", &injections);
  EXPECT_NE(status.message().find("--inject-queue-wait"), absl::string_view::npos);
  for (const char* wrong : {"0", "-1", "16M"}) {
    const absl::Status refused = ReadInjections("", "", wrong, &injections);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << wrong;
    EXPECT_NE(refused.message().find("--inject-old-values"), absl::string_view::npos);
  }
}

}  // namespace
}  // namespace starling
