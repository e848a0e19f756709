// What the core says of backup workers, and how many workers their jobs use.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/testing/coordinator_fixture.h"

namespace starling::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BackupWorkersTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    cluster.train_samples = 24'000;  // a job that does not end
    cluster.AddShard("ps-0");
  }
  static JobSpec Bsp(uint32_t min, uint32_t max, uint32_t backup) {
    JobSpec spec = MiniCluster::Spec("a", Policy::BSP, min, max);
    spec.set_workers_backup(backup);
    return spec;
  }
  bool Has(uint32_t workers) {
    return cluster.RunUntil([&] { return cluster.Status("a").workers() == workers; });
  }
  WorkerStatus Worker(const std::string& name) {
    const CallReply reply = cluster.Ask<event::ListWorkers>(ListWorkersRequest());
    for (const WorkerStatus& worker : std::get<ListWorkersReply>(reply).workers()) {
      if (worker.name() == name) return worker;
    }
    return {};
  }
};

TEST_F(BackupWorkersTest, WhoRepeatsWhosePartIsSaid) {
  Workers(3);
  Submit(Bsp(3, 3, 1));
  ASSERT_TRUE(Has(3));
  for (const auto& [name, speed] : {std::pair("worker-0", 100.0), {"worker-1", 10.0}})
    cluster.workers[name].samples_per_second = speed;
  MiniCluster::MiniWorker& backup = cluster.workers["worker-2"];
  backup.samples_per_second = 90;
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.Status("a").samples_per_second(), 200);
  EXPECT_THAT(cluster.Status("a").late_workers(), IsEmpty());
  EXPECT_EQ(Worker("worker-2").repeats(), "");

  // What both compute counts once.
  backup.repeats.set_worker(cluster.workers["worker-1"].identity.id());
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(cluster.Status("a").samples_per_second(), 190);
  EXPECT_THAT(cluster.Status("a").late_workers(), IsEmpty()) << "it was never late";
  EXPECT_EQ(Worker("worker-2").repeats(), "worker-1");
  backup.repeats.set_late_seconds(1.25);
  cluster.RunFor(absl::Seconds(1));
  EXPECT_THAT(cluster.Status("a").late_workers(),
              ElementsAre("worker-1, late by 1.25 s in all: worker-2 repeats its part"));
  EXPECT_EQ(Worker("worker-2").late_seconds(), 1.25);

  // One that has left is no member any more.
  cluster.workers["worker-1"].alive = false;
  ASSERT_TRUE(Has(2));
  EXPECT_THAT(cluster.Status("a").late_workers(), IsEmpty());
  EXPECT_EQ(Worker("worker-2").repeats(), "");
}

TEST_F(BackupWorkersTest, TheyNeedNoPartOfAStep) {
  Workers(8);
  EXPECT_THAT(std::string(SubmitError(Bsp(6, 8, 1)).message()),
              HasSubstr("5 workers cannot share the 4 micro-batches"));
  Submit(Bsp(6, 8, 2));
  ASSERT_TRUE(Has(6));
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(cluster.Status("a").workers(), 6u) << "four that share 4 micro-batches, and two";
}

TEST_F(BackupWorkersTest, OtherPoliciesWarn) {
  Workers(1);
  JobSpec spec = Ssp("a", 1, 2);
  spec.set_workers_backup(1);
  Submit(spec);
  EXPECT_THAT(cluster.Status("a").warnings(),
              ElementsAre(HasSubstr("workers.backup is not used until the job changes to bsp")));
}

}  // namespace
}  // namespace starling::coordinator
