// A bounded run of the simulator; tools/sim.sh runs more.
#include <gtest/gtest.h>

#include "tests/sim/seed.h"

namespace starling::sim {
namespace {

constexpr uint64_t kSeeds = 50;

TEST(Simulation, KeepsItsPromises) {
  std::map<std::string, uint64_t> counts;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const SeedResult result = RunSeed(seed);
    for (const Violation& v : result.violations) {
      ADD_FAILURE() << "seed " << seed << ": " << PromiseName(v.promise) << ": " << v.what;
    }
    for (const auto& [what, times] : result.counts) counts[what] += times;
  }
  for (const char* what :
       {"dedup hits", "joined retries", "blocked pulls", "fenced requests", "replaced subtrees",
        "coordinator restarts", "policy switches", "policies that waited for another",
        "requests of an earlier policy", "worker rejoins", "fault: no memory for a job",
        "runs compared with a solo run", "checkpoints that were made",
        "jobs that went on from a checkpoint", "rollbacks"}) {
    EXPECT_GT(counts[what], 0u) << what;
  }
  EXPECT_GT(counts["operations of the disk that took time"],
            counts["operations of the disk that took no time"]);
}

// In this one a reader has a small window, and a slice is larger.
TEST(Simulation, AFrameThatIsLargerThanItsWindowGoesAlone) {
  SeedResult result = RunSeed(3204);
  for (const Violation& v : result.violations) ADD_FAILURE() << PromiseName(v.promise) << v.what;
  EXPECT_GT(result.counts["frames larger than their window"], 0u);
}

TEST(Simulation, SameSeedSameTrace) {
  for (uint64_t seed : {3, 17, 29}) EXPECT_EQ(RunSeed(seed).trace, RunSeed(seed).trace) << seed;
  EXPECT_NE(RunSeed(3).trace, RunSeed(4).trace);
}

}  // namespace
}  // namespace starling::sim
