#include "common/control/shard_reports.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

Run RunOf(uint64_t job, uint32_t era = 0) {
  Run run;
  run.set_job_uid(job);
  run.set_era(era);
  return run;
}

HeldJob Ended(const Run& run, uint64_t bytes) {
  HeldJob ended;
  *ended.mutable_run() = run;
  ended.set_value_bytes(bytes);
  return ended;
}

PartitionStatus Status(uint64_t job, uint32_t partition, uint64_t bytes = 100) {
  PartitionStatus status;
  *status.mutable_run() = RunOf(job);
  status.set_partition(partition);
  status.set_value_bytes(bytes);
  return status;
}

class ShardReportsTest : public testing::Test {
 protected:
  ShardReport Fill() {
    ShardReport report;
    reports_.Fill(++sequence_, report);
    return report;
  }
  static int Entries(const ShardReport& report) {
    return report.held_size() + report.partitions_size();
  }

  ShardReports reports_;
  uint64_t sequence_ = 0;
};

TEST_F(ShardReportsTest, AChangeIsToldUntilItWasTaken) {
  reports_.Hold(RunOf(7));
  reports_.Update(Status(7, 0));
  const ShardReport first = Fill();
  EXPECT_TRUE(first.whole());
  EXPECT_EQ(Entries(first), 2);
  EXPECT_EQ(Entries(Fill()), 2) << "the first may have been lost";
  reports_.Taken(1);
  EXPECT_EQ(Entries(Fill()), 0);
  EXPECT_FALSE(Fill().whole());

  reports_.Update(Status(7, 0));
  const ShardReport news = Fill();
  EXPECT_EQ(news.partitions_size(), 1);
  EXPECT_EQ(news.held_size(), 0) << "what the run holds is the same";
  reports_.Update(Status(7, 0));  // while that report is in flight
  reports_.Taken(sequence_);
  EXPECT_EQ(Fill().partitions_size(), 1) << "what was taken is older";
}

TEST_F(ShardReportsTest, AReportThatTookOverIsNotToldTwice) {
  reports_.Hold(RunOf(7));
  Fill();
  reports_.Update(Status(7, 1));
  EXPECT_EQ(Entries(Fill()), 2);
  reports_.Taken(1);  // the first answer is late
  EXPECT_EQ(Entries(Fill()), 2);
  reports_.Taken(2);
  EXPECT_EQ(Entries(Fill()), 0);
}

TEST_F(ShardReportsTest, ARunThatIsOverIsOneEntry) {
  reports_.Hold(RunOf(7));
  for (uint32_t p = 0; p < 64; ++p) reports_.Update(Status(7, p));
  const ShardReport live = Fill();
  ASSERT_EQ(live.held_size(), 1);
  EXPECT_EQ(live.held(0).value_bytes(), 6400u);
  reports_.End(Ended(RunOf(7), 6400));
  reports_.Update(Status(7, 3));  // late
  const ShardReport over = Fill();
  EXPECT_EQ(over.partitions_size(), 0);
  ASSERT_EQ(over.held_size(), 1);
  EXPECT_TRUE(over.held(0).over());
  EXPECT_EQ(over.held(0).value_bytes(), 6400u);
  reports_.Drop(7);
  EXPECT_EQ(Entries(Fill()), 0);
  EXPECT_FALSE(reports_.Holds(7));
}

TEST_F(ShardReportsTest, APartitionThatIsGoneIsNotCounted) {
  reports_.Hold(RunOf(7));
  reports_.Update(Status(7, 0));
  reports_.Update(Status(7, 1));
  reports_.DropPartition(7, 0);
  reports_.DropPartition(7, 5);
  const ShardReport report = Fill();
  EXPECT_EQ(report.partitions_size(), 1);
  EXPECT_EQ(report.held(0).value_bytes(), 100u);
  EXPECT_EQ(reports_.partitions(), 1u);
}

TEST_F(ShardReportsTest, APartOfACheckpointTravelsWithItsRun) {
  CheckpointPart part;
  part.set_number(4);
  part.set_state(CheckpointPart::WRITING);
  reports_.Checkpoint(RunOf(7), part);
  EXPECT_EQ(Entries(Fill()), 0) << "the run is not held";
  reports_.Hold(RunOf(7));
  reports_.Update(Status(7, 0));
  Fill();
  reports_.Taken(sequence_);
  reports_.Checkpoint(RunOf(7), part);
  const ShardReport report = Fill();
  EXPECT_EQ(report.partitions_size(), 0);
  ASSERT_EQ(report.held_size(), 1);
  EXPECT_EQ(report.held(0).checkpoint().number(), 4u);
  EXPECT_EQ(report.held(0).value_bytes(), 100u);
  reports_.Checkpoint(RunOf(7), CheckpointPart());
  EXPECT_FALSE(Fill().held(0).has_checkpoint());
  reports_.Checkpoint(RunOf(7), part);
  reports_.End(Ended(RunOf(7), 100));
  reports_.Checkpoint(RunOf(7), part);  // late
  EXPECT_FALSE(Fill().held(0).has_checkpoint());
}

TEST_F(ShardReportsTest, NothingOfAnEarlierEraIsTold) {
  const auto status = [](uint32_t era, uint32_t partition) {
    PartitionStatus status = Status(7, partition);
    *status.mutable_run() = RunOf(7, era);
    return status;
  };
  reports_.Hold(RunOf(7, 1));
  reports_.Update(status(1, 0));
  reports_.Update(status(2, 1));  // of a run that is not held (yet)
  EXPECT_EQ(Fill().partitions_size(), 1);
  reports_.Hold(RunOf(7, 2));
  reports_.Update(status(1, 0));  // late, like the next ones
  reports_.Hold(RunOf(7, 1));
  reports_.End(Ended(RunOf(7, 1), 100));
  CheckpointPart part;
  part.set_number(4);
  reports_.Checkpoint(RunOf(7, 1), part);
  const ShardReport report = Fill();
  EXPECT_EQ(report.partitions_size(), 0);
  ASSERT_EQ(report.held_size(), 1);
  EXPECT_EQ(report.held(0).run().era(), 2u);
  EXPECT_EQ(report.held(0).value_bytes(), 0u);
  EXPECT_FALSE(report.held(0).over());
  EXPECT_FALSE(report.held(0).has_checkpoint());
  EXPECT_EQ(reports_.partitions(), 0u);
  reports_.Update(status(2, 1));
  EXPECT_EQ(Fill().partitions_size(), 1);
  reports_.Hold(RunOf(7, 3));  // of two runs one is held
  EXPECT_EQ(Entries(Fill()), 1);
}

TEST_F(ShardReportsTest, AnotherCoordinatorIsToldAll) {
  reports_.Hold(RunOf(7));
  reports_.Update(Status(7, 0));
  Fill();
  reports_.Taken(1);
  reports_.TellAll();
  const ShardReport all = Fill();
  EXPECT_TRUE(all.whole());
  EXPECT_EQ(Entries(all), 2);
  reports_.Taken(1);  // from the previous coordinator
  EXPECT_TRUE(Fill().whole());
  reports_.Taken(2);
  EXPECT_FALSE(Fill().whole());
  reports_.Clear();
  const ShardReport nothing = Fill();
  EXPECT_TRUE(nothing.whole());
  EXPECT_EQ(Entries(nothing), 0);
}

// Each report is one message.
TEST_F(ShardReportsTest, WhatDoesNotFitComesWithTheNextReports) {
  reports_ = ShardReports(/*bytes_max=*/300);
  for (uint64_t job = 1; job <= 100; ++job) reports_.Hold(RunOf(job));
  for (uint64_t job = 1; job <= 100; ++job) reports_.Update(Status(job, 0));
  int told = 0, reports = 0;
  for (bool more = true; more; ++reports) {
    const ShardReport report = Fill();
    EXPECT_LT(report.ByteSizeLong(), 1000u);
    EXPECT_EQ(report.whole(), reports == 0);
    told += Entries(report);
    more = reports_.Taken(sequence_);
    EXPECT_EQ(more, report.more());
    reports_.Update(Status(1, 0));  // constant change does not put it first every time
  }
  EXPECT_GE(told, 200);
  EXPECT_GT(reports, 3);
}

// One report is lost, and the next has room for less because its first entry has grown.
TEST_F(ShardReportsTest, WhatAReportHasNoRoomForWasNotTakenWithIt) {
  reports_ = ShardReports(/*bytes_max=*/60);
  reports_.Hold(RunOf(7));
  reports_.Update(Status(7, 0));
  reports_.Update(Status(7, 1));
  EXPECT_EQ(Fill().partitions_size(), 2);  // lost
  PartitionStatus grown = Status(7, 0);
  grown.set_fault(std::string(200, 'x'));
  reports_.Update(grown);
  const ShardReport next = Fill();
  EXPECT_TRUE(next.more());
  EXPECT_EQ(next.partitions_size(), 1);
  reports_.Taken(sequence_);
  const ShardReport rest = Fill();
  ASSERT_EQ(rest.partitions_size(), 1);
  EXPECT_EQ(rest.partitions(0).partition(), 1u);
}

// A shard that leaves without a coordinator must know what a coordinator will find elsewhere.
TEST_F(ShardReportsTest, APartitionIsOnlyHereUntilItWasTakenThatItsBackupIsWhole) {
  const absl::Time now = absl::UnixEpoch();
  uint64_t lsn = 0;
  const auto update = [&](PartitionStatus status) {
    status.set_lsn(++lsn);
    reports_.Update(status, now);
  };
  reports_.Hold(RunOf(7));
  update(Status(7, 0));
  PartitionStatus backup = Status(7, 1);
  backup.set_backup(true);
  update(backup);
  EXPECT_EQ(reports_.OnlyHere(now), 1u);
  Fill();
  PartitionStatus whole = Status(7, 0);
  whole.set_view(2);
  whole.set_backup_whole(true);
  update(whole);
  reports_.Taken(1);
  EXPECT_EQ(reports_.OnlyHere(now), 1u) << "the first report did not say so";
  Fill();
  update(whole);  // other news of it
  Fill();
  reports_.Taken(2);
  EXPECT_EQ(reports_.OnlyHere(now), 0u);
  update(whole);
  EXPECT_EQ(reports_.OnlyHere(now), 0u);
  whole.set_view(3);  // another backup, which nobody has heard of yet
  update(whole);
  EXPECT_EQ(reports_.OnlyHere(now), 1u);
  Fill();
  reports_.Taken(sequence_);
  EXPECT_EQ(reports_.OnlyHere(now), 0u);
  reports_.End(Ended(RunOf(7), 100));
  EXPECT_EQ(reports_.OnlyHere(now), 0u);
}

// Without records nobody knows whether the shard with the other copy lives, on either side.
TEST_F(ShardReportsTest, APartitionIsOnlyHereIfNoRecordTookEffectLately) {
  const absl::Time now = absl::UnixEpoch();
  reports_.Hold(RunOf(7));
  PartitionStatus primary = Status(7, 0), backup = Status(7, 1);
  primary.set_backup_whole(true);
  backup.set_backup(true);
  const auto update = [&](uint64_t lsn, absl::Time at) {
    for (PartitionStatus* status : {&primary, &backup}) {
      status->set_lsn(lsn);
      reports_.Update(*status, at);
    }
  };
  update(5, now);
  Fill();
  reports_.Taken(sequence_);
  EXPECT_EQ(reports_.OnlyHere(now), 0u);
  update(5, now + absl::Seconds(1));
  EXPECT_EQ(reports_.OnlyHere(now + absl::Seconds(1)), 2u);
  update(6, now + absl::Seconds(2));
  EXPECT_EQ(reports_.OnlyHere(now + absl::Seconds(2)), 0u);
}

}  // namespace
}  // namespace starling
