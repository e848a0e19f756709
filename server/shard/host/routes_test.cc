#include "server/shard/host/routes.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

TEST(Routes, OnlyTheShardThatTheViewNamesReplicates) {
  Routes routes;
  const RunId run{JobUid(7), 1}, earlier{JobUid(7), 0};
  const PartitionId partition(2), other(3);
  const auto may = [&](const char* name, const RunId& of, PartitionId p, uint64_t view) {
    return routes.MayReplicate(name, of, p, ViewNumber(view));
  };
  EXPECT_TRUE(may("ps-1", run, partition, 4)) << "the partition refuses it";
  routes.SetLeaders({{{run.job, partition}, {run, ViewNumber(4), "ps-0"}}});
  EXPECT_TRUE(may("ps-0", run, partition, 4));
  EXPECT_FALSE(may("ps-1", run, partition, 4));
  EXPECT_TRUE(may("ps-1", run, partition, 5)) << "it may have been told earlier";
  EXPECT_TRUE(may("ps-1", run, other, 4));
  EXPECT_TRUE(may("ps-1", earlier, partition, 4)) << "the partition says that the run is over";
  routes.SetLeaders({});
  EXPECT_TRUE(may("ps-1", run, partition, 4));
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
