// Jobs that ask for a device.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DevicesTest : public CoordinatorTest {
 protected:
  static JobSpec On(DeviceKind device, uint32_t min, uint32_t max) {
    JobSpec spec = Ssp("a", min, max);
    spec.set_device(device);
    return spec;
  }
};

TEST_F(DevicesTest, AJobForGpusIsRefusedWhereNobodyHasOne) {
  cluster.AddShard("ps-0");
  Workers(2);
  const absl::Status status = SubmitError(On(DEVICE_GPU, 1, 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "workers.device is gpu, but no worker of this cluster has a GPU: worker-0 computes "
            "on cpu (avx2), because there is no driver; worker-1 computes on cpu (avx2), because "
            "there is no driver. Start a worker on a machine with a GPU, or submit with "
            "workers.device: auto");
  Submit(On(DEVICE_AUTO, 1, 1));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(DevicesTest, OfManyWorkersSomeAreNamed) {
  cluster.AddShard("ps-0");
  Workers(7);
  EXPECT_THAT(std::string(SubmitError(On(DEVICE_GPU, 1, 1)).message()),
              AllOf(HasSubstr("worker-3 computes"), HasSubstr("; and 3 more. Start")));
}

TEST_F(DevicesTest, AJobForGpusIsServedByThoseThatHaveOneAlone) {
  cluster.AddShard("ps-0");
  cluster.AddWorker("worker-0");
  cluster.AddWorker("worker-1", /*gpu=*/true);
  cluster.AddWorker("worker-2");
  Submit(On(DEVICE_GPU, 1, 3));
  ASSERT_TRUE(Ends("a", SUCCEEDED));
  EXPECT_EQ(cluster.workers["worker-0"].items, 0u);
  EXPECT_GT(cluster.workers["worker-1"].items, 0u);
  EXPECT_EQ(cluster.workers["worker-2"].items, 0u);
}

TEST_F(DevicesTest, AJobForCpusIsServedByAll) {
  cluster.AddShard("ps-0");
  cluster.AddWorker("worker-0", /*gpu=*/true);
  Submit(On(DEVICE_CPU, 1, 1));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(DevicesTest, AJobWaitsForMoreWorkersWithAGpu) {
  cluster.AddShard("ps-0");
  cluster.AddWorker("worker-0", /*gpu=*/true);
  cluster.AddWorker("worker-1");
  Submit(On(DEVICE_GPU, 2, 2));
  EXPECT_EQ(cluster.Status("a").state(), PENDING);
  EXPECT_THAT(
      cluster.Status("a").reason(),
      HasSubstr("needs 2 workers with a GPU (workers.min); the cluster has 1: start 1 more"));
  cluster.AddWorker("worker-2", /*gpu=*/true);
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(DevicesTest, RightAfterARestartTheWorkersThatWereThereCount) {
  cluster.AddShard("ps-0");
  cluster.AddWorker("worker-0", /*gpu=*/true);
  cluster.RunFor(absl::Seconds(1));
  cluster.StartCoordinator();
  Submit(On(DEVICE_GPU, 1, 1));
  EXPECT_TRUE(Ends("a", SUCCEEDED));
}

TEST_F(DevicesTest, ALostGpuIsNone) {
  cluster.AddShard("ps-0");
  cluster.AddWorker("worker-0", /*gpu=*/true);
  cluster.AddWorker("worker-1");
  cluster.RunFor(absl::Seconds(1));
  cluster.workers["worker-0"].alive = false;
  cluster.RunFor(absl::Minutes(1));
  EXPECT_THAT(std::string(SubmitError(On(DEVICE_GPU, 1, 1)).message()),
              HasSubstr("no worker of this cluster has a GPU: worker-1 computes on"));
}

}  // namespace
}  // namespace starling::coordinator
