#include "server/shard/host/routes.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

TEST(Routes, OnlyTheShardThatTheViewNamesReplicates) {
  Routes routes;
  const Routes::Key key(JobUid(7), PartitionId(2)), other(JobUid(7), PartitionId(3));
  EXPECT_TRUE(routes.MayReplicate("ps-1", key, ViewNumber(4))) << "the partition refuses it";
  routes.SetLeaders({{key, {ViewNumber(4), "ps-0"}}});
  EXPECT_TRUE(routes.MayReplicate("ps-0", key, ViewNumber(4)));
  EXPECT_FALSE(routes.MayReplicate("ps-1", key, ViewNumber(4)));
  EXPECT_TRUE(routes.MayReplicate("ps-1", key, ViewNumber(5))) << "it may have been told earlier";
  EXPECT_TRUE(routes.MayReplicate("ps-1", other, ViewNumber(4)));
  routes.SetLeaders({});
  EXPECT_TRUE(routes.MayReplicate("ps-1", key, ViewNumber(4)));
}

TEST(Routes, AWorkerSpeaksForItselfAlone) {
  Routes routes;
  routes.SetNames({{WorkerId(3), "worker-3"}});
  EXPECT_TRUE(routes.MaySpeakFor("worker-3", WorkerId(3)));
  EXPECT_FALSE(routes.MaySpeakFor("worker-4", WorkerId(3)));
  EXPECT_TRUE(routes.MaySpeakFor("worker-3", WorkerId(4))) << "the partition refuses it";
}

}  // namespace
}  // namespace starling
