// The decision round of a job that clips its whole gradient, on one shard and on two.
#include "tests/integration/hand_cluster.h"

namespace starling {
namespace {

// Every gradient is 1 everywhere: its norm is the square root of the number of parameters.
class GlobalClipTest : public ClusterTest {
 protected:
  // All values after 12 steps on this many shards.
  std::vector<float> Train(int shards) {
    for (int i = 1; i < shards; ++i) AddShard(absl::StrCat("ps-", i));
    AwaitShards();
    JobSpec spec = Spec("job", Policy::BSP);
    spec.mutable_clip()->set_scope(Clip::GLOBAL);
    spec.mutable_clip()->set_norm(0.5);
    BeginJob(spec);
    if (testing::Test::HasFailure()) return {};
    EXPECT_EQ(worker_->shards(), static_cast<size_t>(shards));
    worker_->Enter();
    const std::vector<float> before = worker_->PullAll(0);
    for (uint64_t step = 0; step < 12 && !testing::Test::HasFailure(); ++step)
      worker_->Step(step, static_cast<Clock>(step));
    const std::vector<float> after = worker_->PullAll(12);
    const auto scale =
        static_cast<float>(0.5 / (std::sqrt(static_cast<double>(before.size())) + 1e-6));
    for (size_t i = 0; i < after.size(); ++i) {
      float expected = before[i];
      for (int step = 0; step < 12; ++step) expected = expected - kRate * scale;
      EXPECT_EQ(after[i], expected) << "element " << i;
    }
    return after;
  }
};

TEST_F(GlobalClipTest, OneShardDecidesForItself) { Train(1); }

// The job has two partitions.
TEST_F(GlobalClipTest, TwoShardsAgree) { Train(2); }

}  // namespace
}  // namespace starling
