#include "server/shard/core/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace starling::shard {
namespace {

std::string KeyText(const PartitionKey& key) {
  return absl::StrCat("job ", key.first.value, " partition ", key.second.value);
}

struct Text {
  std::string operator()(const action::Plan& a) const {
    return absl::StrCat("plan job ", a.job.run().job_uid());
  }
  std::string operator()(const action::Forget& a) const {
    return absl::StrCat("forget the plan of job ", a.run.job.value,
                        a.run.era > 0 ? absl::StrCat(".", a.run.era) : "");
  }
  std::string operator()(const action::Create& a) const {
    return absl::StrCat("create ", KeyText(a.key), " as instance ", a.instance.value, ", view ",
                        a.orders.view.value, a.learns ? ", learns" : "");
  }
  std::string operator()(const action::Order& a) const {
    return absl::StrCat("order ", KeyText(a.key), ", view ", a.orders.view.value);
  }
  std::string operator()(const action::End& a) const {
    return absl::StrCat("end ", KeyText(a.key),
                        a.keep_version ? absl::StrCat(", keep version ", *a.keep_version) : "");
  }
  std::string operator()(const action::CopyEnded& a) const {
    return absl::StrCat("copy ", KeyText(a.key), " as instance ", a.instance.value, " from ",
                        a.address, ", view ", a.view.value,
                        a.version ? absl::StrCat(", version ", *a.version) : "", ", ",
                        a.values.size(), " slices");
  }
  std::string operator()(const action::Shelve& a) const {
    return absl::StrCat("shelve job ", a.job.value);
  }
  std::string operator()(const action::Drop& a) const {
    return absl::StrCat("drop ", KeyText(a.key));
  }
  std::string operator()(const action::ReturnMemory&) const { return "return memory"; }
  std::string operator()(const action::Learn& a) const {
    return absl::StrCat("learn ", a.names.size(), " names, ", a.deciders.size(), " deciders");
  }
  std::string operator()(const action::BeginCheckpoint& a) const {
    return absl::StrCat("begin checkpoint ", a.orders.id(), " of job ", a.job.value);
  }
  std::string operator()(const action::WriteCheckpoint& a) const {
    return absl::StrCat("write the checkpoint of job ", a.job.value);
  }
  std::string operator()(const action::DropCheckpoint& a) const {
    return absl::StrCat("drop the checkpoint of job ", a.job.value);
  }
  std::string operator()(const action::ReportCheckpoint& a) const {
    return absl::StrCat("report checkpoint {", a.part.ShortDebugString(), "}");
  }
  std::string operator()(const action::HoldRun& a) const {
    return absl::StrCat("hold run ", a.run.job_uid(), ".", a.run.era());
  }
  std::string operator()(const action::Report& a) const {
    return absl::StrCat("report job ", a.status.run().job_uid(), " partition ",
                        a.status.partition(), a.at_once ? " at once" : "",
                        a.status.fault().empty() ? "" : ": ", a.status.fault());
  }
  std::string operator()(const action::ReportEnd& a) const {
    std::string text =
        absl::StrCat("report the end of job ", a.ended.run().job_uid(), ": ", a.ended.value_bytes(),
                     " bytes, ", a.ended.partitions(), " partitions");
    for (const EndedCopy& copy : a.ended.copies()) {
      absl::StrAppend(&text, "; copy of ", copy.partition(), " in view ", copy.view(),
                      copy.fault().empty() ? "" : ": ", copy.fault());
    }
    return text;
  }
  std::string operator()(const action::ReportNothingOfPartition& a) const {
    return absl::StrCat("report nothing of ", KeyText(a.key));
  }
  std::string operator()(const action::ReportNothingOfJob& a) const {
    return absl::StrCat("report nothing of job ", a.job.value);
  }
};

std::string ToString(const Action& action) { return std::visit(Text(), action); }

constexpr uint64_t kJob = 7;

class ShardTest : public testing::Test {
 protected:
  static ShardJob Running(std::vector<uint32_t> partitions, bool described = false) {
    ShardJob job;
    job.mutable_run()->set_job_uid(kJob);
    if (described) job.mutable_job()->mutable_run()->set_job_uid(kJob);
    for (const uint32_t partition : partitions) {
      PartitionOrders& orders = *job.add_partitions();
      orders.set_partition(partition);
      orders.mutable_view()->set_number(1);
    }
    return job;
  }
  static ShardJob InView(uint64_t view, bool backup) {
    ShardJob job = Running({0});
    job.mutable_partitions(0)->mutable_view()->set_number(view);
    job.mutable_partitions(0)->set_backup(backup);
    return job;
  }
  static ShardJob Over() {
    ShardJob job;
    job.mutable_run()->set_job_uid(kJob);
    job.set_over(true);
    job.set_keep_version(4);
    for (const uint32_t partition : {0, 2}) job.add_partitions()->set_partition(partition);
    return job;
  }
  // And this shard is to copy the partition from ps-9.
  static ShardJob OverAndCopies(uint32_t partition, uint64_t view) {
    ShardJob job = Over();
    job.add_partitions()->set_partition(partition);
    EndedCopyOrders& copy = *job.add_copies();
    copy.mutable_view()->set_partition(partition);
    copy.mutable_view()->set_number(view);
    copy.mutable_view()->set_primary_address("ps-9");
    copy.set_version(4);
    for (const uint32_t id : {1, 5}) {
      EndedCopyOrders::Slice& slice = *copy.add_slices();
      slice.set_id(id);
      slice.set_elements(10 * id);
    }
    return job;
  }
  static ShardOrders Of(const ShardJob& job) {
    ShardOrders orders;
    orders.set_generation(1);
    *orders.add_jobs() = job;
    return orders;
  }
  static ShardOrders Dropped() {
    ShardOrders orders;
    orders.add_dropped()->set_job_uid(kJob);
    return orders;
  }
  static PartitionKey Key(uint32_t partition) { return {JobUid(kJob), PartitionId(partition)}; }

  std::vector<std::string> Step(const Event& event) {
    actions_.clear();
    shard_.Step(event, actions_);
    std::vector<std::string> texts;
    for (const Action& action : actions_) {
      if (!std::holds_alternative<action::Learn>(action)) texts.push_back(ToString(action));
    }
    return texts;
  }

  void Host(std::vector<uint32_t> partitions) {
    Step(event::Orders{Of(Running(std::move(partitions), true))});
    Step(event::Planned{{JobUid(kJob), 0}, absl::OkStatus()});
  }

  static event::News News(uint32_t partition, uint64_t instance) {
    event::News news{Key(partition), InstanceId(instance), {}, false};
    news.status.mutable_run()->set_job_uid(kJob);
    news.status.set_partition(partition);
    return news;
  }

  Shard shard_;
  std::vector<Action> actions_;
};

using Texts = std::vector<std::string>;

TEST_F(ShardTest, PlansAJobBeforeItsPartitionsAreCreated) {
  EXPECT_EQ(Step(event::Orders{Of(Running({0, 2}, true))}), (Texts{"hold run 7.0", "plan job 7"}));
  EXPECT_EQ(Step(event::Planned{{JobUid(kJob), 0}, absl::OkStatus()}),
            (Texts{"create job 7 partition 0 as instance 1, view 1",
                   "create job 7 partition 2 as instance 2, view 1"}));
  EXPECT_EQ(Step(event::Orders{Of(Running({0, 2}))}),
            (Texts{"hold run 7.0", "order job 7 partition 0, view 1",
                   "order job 7 partition 2, view 1"}));
}

TEST_F(ShardTest, AJobThatDoesNotFitIsRefusedOnceAndForAll) {
  Step(event::Orders{Of(Running({0, 2}, true))});
  EXPECT_EQ(Step(event::Planned{{JobUid(kJob), 0}, absl::ResourceExhaustedError("too large")}),
            (Texts{"report job 7 partition 0 at once: too large",
                   "report job 7 partition 2 at once: too large"}));
  EXPECT_EQ(Step(event::Orders{Of(Running({0, 2}))}), (Texts{"hold run 7.0"}));
}

TEST_F(ShardTest, ABackupIsOfOneViewUnlessItBecomesThePrimary) {
  Host({});
  EXPECT_EQ(Step(event::Orders{Of(InView(2, /*backup=*/true))}),
            (Texts{"hold run 7.0", "create job 7 partition 0 as instance 1, view 2, learns"}));
  EXPECT_EQ(Step(event::Orders{Of(InView(2, true))}),
            (Texts{"hold run 7.0", "order job 7 partition 0, view 2"}));
  EXPECT_EQ(Step(event::Orders{Of(InView(4, true))}),
            (Texts{"hold run 7.0", "drop job 7 partition 0",
                   "create job 7 partition 0 as instance 2, view 4, learns"}));
  EXPECT_EQ(Step(event::Orders{Of(InView(5, false))}),
            (Texts{"hold run 7.0", "order job 7 partition 0, view 5"}));
  EXPECT_EQ(Step(event::Orders{Of(InView(6, false))}),
            (Texts{"hold run 7.0", "order job 7 partition 0, view 6"}))
      << "a primary keeps its copy";
  EXPECT_EQ(Step(event::Orders{Of(InView(7, true))}),
            (Texts{"hold run 7.0", "drop job 7 partition 0",
                   "create job 7 partition 0 as instance 3, view 7, learns"}))
      << "one that was replaced learns anew";
}

TEST_F(ShardTest, NobodyLeadsALaterViewWithFirstValues) {
  Host({});
  EXPECT_EQ(Step(event::Orders{Of(InView(3, false))}),
            (Texts{"hold run 7.0",
                   "report job 7 partition 0 at once: view 3 has this shard as the primary of "
                   "partition 0, of which it has no copy"}));
}

TEST_F(ShardTest, ARosterWithAReplicaTwiceIsRefused) {
  ShardJob job = Running({0}, true);
  for (const uint32_t worker : {1, 2}) {
    Member& member = *job.mutable_roster()->add_members();
    member.set_replica(5);
    member.set_worker(worker);
  }
  Step(event::Orders{Of(job)});
  EXPECT_EQ(Step(event::Planned{{JobUid(kJob), 0}, absl::OkStatus()}),
            (Texts{"report job 7 partition 0 at once: roster 0 has replica 5 twice: its "
                   "coordinator is damaged"}));
}

TEST_F(ShardTest, APolicyThatIsNotInForceIsRefused) {
  ShardJob job = Running({0}, true);
  job.mutable_policy()->set_number(2);
  Step(event::Orders{Of(job)});
  EXPECT_EQ(Step(event::Planned{{JobUid(kJob), 0}, absl::OkStatus()}),
            (Texts{"report job 7 partition 0 at once: policy 2 is ordered before it is in force: "
                   "the coordinator is of another release"}));
}

TEST_F(ShardTest, APartitionThatIsNotListedIsDropped) {
  Host({0, 2});
  EXPECT_EQ(Step(event::Orders{Of(Running({2}))}),
            (Texts{"hold run 7.0", "order job 7 partition 2, view 1", "drop job 7 partition 0",
                   "report nothing of job 7 partition 0"}));
  EXPECT_EQ(Step(News(2, 2)), (Texts{"report job 7 partition 2"}));
  EXPECT_EQ(Step(News(0, 1)), (Texts{})) << "it is dropped";
}

TEST_F(ShardTest, WhatAnInstanceSaysBehindItsDropIsNotTheNextOnes) {
  Host({0});
  Step(event::Orders{Of(Running({}))});
  EXPECT_EQ(Step(event::Orders{Of(Running({0}))}),
            (Texts{"hold run 7.0", "create job 7 partition 0 as instance 2, view 1"}));
  EXPECT_EQ(Step(News(0, 1)), (Texts{}));
  EXPECT_EQ(Step(News(0, 2)), (Texts{"report job 7 partition 0"}));
}

TEST_F(ShardTest, AJobsEndIsReportedOnceAllItsPartitionsHaveEnded) {
  Host({0, 2});
  EXPECT_EQ(Step(event::Orders{Of(Over())}), (Texts{"hold run 7.0", "forget the plan of job 7",
                                                    "end job 7 partition 0, keep version 4",
                                                    "end job 7 partition 2, keep version 4"}));
  EXPECT_EQ(Step(event::Ended{Key(2), InstanceId(2), 100}), (Texts{}));
  EXPECT_EQ(Step(event::Orders{Of(Over())}), (Texts{"hold run 7.0"})) << "it was ordered twice";
  EXPECT_EQ(
      Step(event::Ended{Key(0), InstanceId(1), 20}),
      (Texts{"shelve job 7", "report the end of job 7: 120 bytes, 2 partitions", "return memory"}));
  EXPECT_EQ(Step(event::Orders{Of(Over())}),
            (Texts{"hold run 7.0", "report the end of job 7: 120 bytes, 2 partitions"}));
  EXPECT_EQ(Step(event::Orders{Of(Running({0, 2}))}), (Texts{"hold run 7.0"})) << "it is over";
  EXPECT_EQ(Step(event::Orders{Dropped()}),
            (Texts{"drop job 7 partition 0", "drop job 7 partition 2", "forget the plan of job 7",
                   "report nothing of job 7", "return memory"}));
}

TEST_F(ShardTest, AJobThatIsDroppedWhileItEndsIsForgotten) {
  Host({0});
  Step(event::Orders{Of(Over())});
  Step(event::Orders{Dropped()});
  EXPECT_EQ(Step(event::Ended{Key(0), InstanceId(1), 100}), (Texts{}));
}

TEST_F(ShardTest, AJobOfWhichNothingIsHereEndsAtOnce) {
  EXPECT_EQ(Step(event::Orders{Of(Over())}),
            (Texts{"hold run 7.0", "forget the plan of job 7", "shelve job 7",
                   "report the end of job 7: 0 bytes, 0 partitions", "return memory"}));
}

TEST_F(ShardTest, ValuesOfAJobThatIsOverAreCopiedOncePerView) {
  EXPECT_EQ(Step(event::Orders{Of(OverAndCopies(3, 2))}),
            (Texts{"hold run 7.0", "forget the plan of job 7", "shelve job 7",
                   "copy job 7 partition 3 as instance 1 from ps-9, view 2, version 4, 2 slices",
                   "report the end of job 7: 0 bytes, 1 partitions", "return memory"}));
  EXPECT_EQ(Step(event::Orders{Of(OverAndCopies(3, 2))}),
            (Texts{"hold run 7.0", "report the end of job 7: 0 bytes, 1 partitions"}))
      << "it is under way";
  const Texts made = {"shelve job 7",
                      "report the end of job 7: 240 bytes, 1 partitions; copy of 3 in view 2"};
  EXPECT_EQ(Step(event::EndedCopied{Key(3), InstanceId(1), 240, ""}), made);
  EXPECT_EQ(Step(event::Orders{Of(OverAndCopies(3, 2))}), (Texts{"hold run 7.0", made[1]}));
  EXPECT_EQ(Step(event::Orders{Of(OverAndCopies(3, 4))}),
            (Texts{"hold run 7.0", "drop job 7 partition 3",
                   "copy job 7 partition 3 as instance 2 from ps-9, view 4, version 4, 2 slices",
                   "report the end of job 7: 0 bytes, 1 partitions"}));
  EXPECT_EQ(Step(event::EndedCopied{Key(3), InstanceId(1), 240, ""}), (Texts{})) << "the earlier";
  EXPECT_EQ(
      Step(event::EndedCopied{Key(3), InstanceId(2), 0, "no memory"}),
      (Texts{"drop job 7 partition 3", "return memory", "shelve job 7",
             "report the end of job 7: 0 bytes, 0 partitions; copy of 3 in view 4: no memory"}));
  EXPECT_EQ(Step(event::Orders{Dropped()}),
            (Texts{"forget the plan of job 7", "report nothing of job 7", "return memory"}));
}

// What it had as a backup may lack the last updates, and whatever it was, it is of an earlier view.
TEST_F(ShardTest, ACopyTakesThePlaceOfWhatHasEndedHere) {
  Host({0, 2});
  Step(event::Orders{Of(Over())});
  EXPECT_EQ(Step(event::Orders{Of(OverAndCopies(2, 3))}), (Texts{"hold run 7.0"})) << "later";
  Step(event::Ended{Key(0), InstanceId(1), 20});
  EXPECT_EQ(Step(event::Ended{Key(2), InstanceId(2), 100}),
            (Texts{"shelve job 7", "drop job 7 partition 2",
                   "copy job 7 partition 2 as instance 3 from ps-9, view 3, version 4, 2 slices",
                   "report the end of job 7: 20 bytes, 2 partitions", "return memory"}));
  EXPECT_EQ(Step(event::EndedCopied{Key(2), InstanceId(3), 100, ""}),
            (Texts{"shelve job 7",
                   "report the end of job 7: 120 bytes, 2 partitions; copy of 2 in view 3"}));
}

TEST_F(ShardTest, WhatAnotherShardHasInsteadIsDroppedAtTheEnd) {
  Host({0, 2});
  ShardJob over = Over();
  over.mutable_partitions()->RemoveLast();
  EXPECT_EQ(Step(event::Orders{Of(over)}),
            (Texts{"hold run 7.0", "drop job 7 partition 2", "return memory",
                   "forget the plan of job 7", "end job 7 partition 0, keep version 4"}));
  EXPECT_EQ(
      Step(event::Ended{Key(0), InstanceId(1), 20}),
      (Texts{"shelve job 7", "report the end of job 7: 20 bytes, 1 partitions", "return memory"}));
}

// As where its primary is gone, or drains no more: nobody counts on it.
TEST_F(ShardTest, ACopyThatIsNoLongerOrderedIsDroppedWhileItIsMadeAndAfterwards) {
  Host({0, 2});
  Step(event::Orders{Of(Over())});
  Step(event::Ended{Key(0), InstanceId(1), 20});
  Step(event::Ended{Key(2), InstanceId(2), 100});
  Step(event::Orders{Of(OverAndCopies(3, 2))});
  const Texts dropped = {"hold run 7.0", "drop job 7 partition 3", "return memory",
                         "report the end of job 7: 120 bytes, 2 partitions"};
  EXPECT_EQ(Step(event::Orders{Of(Over())}), dropped);
  EXPECT_EQ(Step(event::EndedCopied{Key(3), InstanceId(3), 240, ""}), (Texts{})) << "late";
  Step(event::Orders{Of(OverAndCopies(3, 5))});
  Step(event::EndedCopied{Key(3), InstanceId(4), 240, ""});
  EXPECT_EQ(Step(event::Orders{Of(Over())}), dropped);
}

TEST_F(ShardTest, AFewCopiesAreMadeAtATime) {
  ShardJob over = OverAndCopies(10, 2);
  for (uint32_t i = 1; i < kEndedCopiesAtOnce + 2; ++i) {
    *over.add_copies() = over.copies(0);
    over.mutable_copies()->rbegin()->mutable_view()->set_partition(10 + i);
    over.add_partitions()->set_partition(10 + i);
  }
  Step(event::Orders{Of(over)});
  const auto copies = [&] {
    return std::count_if(actions_.begin(), actions_.end(), [](const Action& action) {
      return std::holds_alternative<action::CopyEnded>(action);
    });
  };
  EXPECT_EQ(copies(), kEndedCopiesAtOnce);
  Step(event::EndedCopied{Key(11), InstanceId(2), 240, ""});
  EXPECT_EQ(copies(), 1);
  Step(event::EndedCopied{Key(12), InstanceId(3), 0, "no memory"});
  EXPECT_EQ(copies(), 1);
  Step(event::EndedCopied{Key(13), InstanceId(4), 240, ""});
  EXPECT_EQ(copies(), 0) << "no more are ordered";
}

TEST_F(ShardTest, WhoIsGivenUpKeepsNothing) {
  Host({0});
  EXPECT_EQ(Step(event::GivenUp{}), (Texts{"drop job 7 partition 0", "forget the plan of job 7"}));
  EXPECT_EQ(Step(News(0, 1)), (Texts{}));
  EXPECT_EQ(Step(event::Orders{Of(Running({0}, true))}), (Texts{"hold run 7.0", "plan job 7"}));
}

// ---- Checkpoints ----

class ShardCheckpointTest : public ShardTest {
 protected:
  // Partitions 0 and 2 are led here, 1 is a backup.
  static ShardJob Ordered(uint64_t number) {
    ShardJob job = Running({0, 1, 2});
    job.mutable_partitions(1)->set_backup(true);
    job.mutable_partitions(1)->mutable_view()->set_number(2);
    if (number == 0) return job;
    ShardCheckpoint& checkpoint = *job.mutable_checkpoint();
    checkpoint.set_id(absl::StrCat("c-7-", number));
    checkpoint.set_number(number);
    checkpoint.set_step(100);
    return job;
  }
  void Begin() {
    ShardJob job = Ordered(0);
    job.mutable_job()->mutable_run()->set_job_uid(kJob);
    Step(event::Orders{Of(job)});
    Step(event::Planned{{JobUid(kJob), 0}, absl::OkStatus()});
  }
  static event::Captured Captured(uint32_t partition, uint64_t instance, uint64_t number = 4) {
    return {Key(partition), InstanceId(instance), number, CutState{.step = 100}};
  }
  static event::CheckpointWritten Written(uint64_t number, absl::StatusOr<CheckpointFile> file) {
    return {JobUid(kJob), number, std::move(file)};
  }
  // Whom of the partitions the last orders told of the checkpoint.
  std::vector<uint32_t> Told() const {
    std::vector<uint32_t> told;
    for (const Action& action : actions_) {
      const auto* const order = std::get_if<action::Order>(&action);
      if (order != nullptr && order->orders.checkpoint == CheckpointAt{4, 100})
        told.push_back(order->key.second.value);
    }
    return told;
  }
};

const char kDropped[] = "drop the checkpoint of job 7";

TEST_F(ShardCheckpointTest, IsWrittenOnceAllThatAreLedHereAreCaptured) {
  Begin();
  EXPECT_EQ(Step(event::Orders{Of(Ordered(4))}),
            (Texts{"hold run 7.0", "begin checkpoint c-7-4 of job 7",
                   "report checkpoint {number: 4 state: WAITING step: 100}",
                   "order job 7 partition 0, view 1", "order job 7 partition 1, view 2",
                   "order job 7 partition 2, view 1"}));
  EXPECT_EQ(Told(), (std::vector<uint32_t>{0, 2})) << "a backup has no part";
  Step(event::Orders{Of(Ordered(4))});
  EXPECT_EQ(Told(), (std::vector<uint32_t>{0, 2})) << "orders may be repeated";
  EXPECT_EQ(Step(Captured(0, 1)),
            (Texts{"report checkpoint {number: 4 state: WAITING captured: 1 step: 100}"}));
  event::Captured last = Captured(2, 3);
  last.state.skipped = 5;
  last.state.copy = 0;
  last.state.loss_scale = {9, 77};
  EXPECT_EQ(Step(last),
            (Texts{"write the checkpoint of job 7",
                   "report checkpoint {number: 4 state: WRITING captured: 2 step: 100 skipped: 5 "
                   "loss_scale_log2: 9 loss_scale_clean: 77 copy_epoch: 0}"}));
  EXPECT_EQ(Step(event::CheckpointProgress{JobUid(kJob), 4, 1000}),
            (Texts{"report checkpoint {number: 4 state: WRITING captured: 2 bytes: 1000 step: 100 "
                   "skipped: 5 loss_scale_log2: 9 loss_scale_clean: 77 copy_epoch: 0}"}));
  CheckpointFile file;
  file.set_name("shard");
  EXPECT_EQ(
      Step(Written(4, file)),
      (Texts{kDropped,
             "report checkpoint {number: 4 state: WRITTEN captured: 2 bytes: 1000 file { name: "
             "\"shard\" } step: 100 skipped: 5 loss_scale_log2: 9 loss_scale_clean: 77 copy_epoch: "
             "0}"}));
  // It is sealed.
  EXPECT_EQ(Step(event::Orders{Of(Ordered(0))})[1], "report checkpoint {}");
  EXPECT_EQ(Step(Written(4, file)), Texts());
}

TEST_F(ShardCheckpointTest, OneThatWasMissedOrFailedIsDroppedAndReported) {
  Begin();
  Step(event::Orders{Of(Ordered(4))});
  Step(Captured(0, 1));
  EXPECT_EQ(Step(event::Missed{Key(2), InstanceId(3), 4, "late"}),
            (Texts{kDropped,
                   "report checkpoint {number: 4 state: MISSED captured: 1 error: \"late\" step: "
                   "100}"}));
  EXPECT_EQ(Step(Captured(2, 3)), Texts()) << "it is over";
  Step(event::Orders{Of(Ordered(4))});
  EXPECT_EQ(Told(), std::vector<uint32_t>());

  EXPECT_EQ(Step(event::Orders{Of(Ordered(5))})[1], "report checkpoint {}");
  EXPECT_EQ(Step(event::Missed{Key(2), InstanceId(3), 4, "late"}), Texts()) << "of another one";
  EXPECT_EQ(Step(Captured(0, 1, 4)), Texts());
  EXPECT_EQ(Step(Written(4, absl::AbortedError("dropped"))), Texts());
  EXPECT_EQ(Step(Written(5, absl::ResourceExhaustedError("the disk is full"))),
            (Texts{kDropped,
                   "report checkpoint {number: 5 state: FAILED error: \"the disk is "
                   "full\" step: 100}"}));
}

TEST_F(ShardCheckpointTest, EndsWithItsOrdersAndItsJob) {
  Begin();
  const auto ordered = [&](uint64_t number) { Step(event::Orders{Of(Ordered(number))}); };
  ordered(4);
  EXPECT_EQ(
      Step(event::Orders{Of(Ordered(5))}),
      (Texts{"hold run 7.0", kDropped, "report checkpoint {}", "begin checkpoint c-7-5 of job 7",
             "report checkpoint {number: 5 state: WAITING step: 100}",
             "order job 7 partition 0, view 1", "order job 7 partition 1, view 2",
             "order job 7 partition 2, view 1"}));
  EXPECT_EQ(Step(event::Orders{Of(Over())})[1], kDropped);
  Step(event::Orders{Dropped()});

  Begin();
  ordered(6);
  EXPECT_EQ(Step(event::Orders{Dropped()})[0], kDropped);
  Begin();
  ordered(7);
  EXPECT_EQ(Step(event::GivenUp{})[0], kDropped);
}

TEST_F(ShardCheckpointTest, APartitionThatGoesTakesItAlongAndOneThatComesHasNoPart) {
  Begin();
  Step(event::Orders{Of(Ordered(4))});
  ShardJob promoted = Ordered(4);
  promoted.mutable_partitions(1)->set_backup(false);
  promoted.mutable_partitions(1)->mutable_view()->set_number(3);
  Step(event::Orders{Of(promoted)});
  EXPECT_EQ(Told(), (std::vector<uint32_t>{0, 2}));
  ShardJob fewer = promoted;
  fewer.mutable_partitions()->RemoveLast();
  EXPECT_EQ(Step(event::Orders{Of(fewer)}),
            (Texts{"hold run 7.0", "order job 7 partition 0, view 1",
                   "order job 7 partition 1, view 3", "drop job 7 partition 2", kDropped,
                   "report checkpoint {number: 4 state: FAILED error: \"another shard leads one of "
                   "its partitions now\" step: 100}",
                   "report nothing of job 7 partition 2"}));
}

TEST_F(ShardCheckpointTest, AShardThatLeadsNothingHasNoPart) {
  Begin();
  ShardJob job = Ordered(4);
  for (PartitionOrders& partition : *job.mutable_partitions()) {
    partition.set_backup(true);
    partition.mutable_view()->set_number(9);
  }
  for (const std::string& text : Step(event::Orders{Of(job)}))
    EXPECT_EQ(text.find("checkpoint"), std::string::npos) << text;
}

// ---- Eras ----

TEST_F(ShardTest, ALaterEraBeginsWithNothingOfTheEarlier) {
  Host({0});
  ShardJob next = Running({0}, true);
  next.mutable_run()->set_era(1);
  EXPECT_EQ(Step(event::Orders{Of(next)}),
            (Texts{"drop job 7 partition 0", "forget the plan of job 7", "report nothing of job 7",
                   "return memory", "hold run 7.1", "plan job 7"}));
  EXPECT_EQ(Step(event::Planned{{JobUid(kJob), 0}, absl::OkStatus()}), Texts()) << "late";
  EXPECT_EQ(Step(event::Planned{{JobUid(kJob), 1}, absl::OkStatus()}),
            (Texts{"create job 7 partition 0 as instance 2, view 1"}));
  EXPECT_EQ(std::get<action::Create>(actions_.back()).run, (RunId{JobUid(kJob), 1}));
  EXPECT_EQ(Step(News(0, 1)), Texts()) << "of the earlier era";
  EXPECT_EQ(Step(event::Ended{Key(0), InstanceId(1), 100}), Texts()) << "of the earlier era";
  EXPECT_EQ(Step(event::Orders{Of(Running({0}, true))}), Texts()) << "late";
  EXPECT_EQ(Step(event::Orders{Of(Over())}), Texts()) << "late";
  EXPECT_EQ(Step(event::Orders{Dropped()}), Texts()) << "late";
  ShardOrders dropped = Dropped();
  dropped.mutable_dropped(0)->set_era(1);
  EXPECT_EQ(Step(event::Orders{dropped}),
            (Texts{"drop job 7 partition 0", "forget the plan of job 7.1",
                   "report nothing of job 7", "return memory"}));
}

// Its orders may say at once that one era is dropped and the next begins.
TEST_F(ShardTest, WhatIsDroppedMayComeBackInALaterEra) {
  Host({0});
  ShardOrders both = Dropped();
  ShardJob next = Running({0}, true);
  next.mutable_run()->set_era(1);
  *both.add_jobs() = next;
  EXPECT_EQ(Step(event::Orders{both}),
            (Texts{"drop job 7 partition 0", "forget the plan of job 7", "report nothing of job 7",
                   "return memory", "hold run 7.1", "plan job 7"}));
  Step(event::Planned{{JobUid(kJob), 1}, absl::OkStatus()});
  EXPECT_EQ(Step(event::Orders{both}), (Texts{"hold run 7.1", "order job 7 partition 0, view 1"}))
      << "both are repeated until the coordinator knows that they came";
}

TEST_F(ShardTest, AJobThatIsOverMayComeBackInALaterEra) {
  Host({0});
  Step(event::Orders{Of(Over())});
  ShardJob next = Running({0}, true);
  next.mutable_run()->set_era(1);
  EXPECT_EQ(Step(event::Orders{Of(next)}),
            (Texts{"drop job 7 partition 0", "forget the plan of job 7", "report nothing of job 7",
                   "return memory", "hold run 7.1", "plan job 7"}));
  EXPECT_EQ(Step(event::Ended{Key(0), InstanceId(1), 100}), Texts()) << "of the earlier era";
}

TEST_F(ShardTest, LearnsWhoIsWhoAndWhereIsDecided) {
  ShardJob job = Running({0}, true);
  Member& member = *job.mutable_roster()->add_members();
  member.set_worker(3);
  member.set_name("worker-3");
  job.mutable_decider()->set_primary_address("127.0.0.1:1");
  Step(event::Orders{Of(job)});
  const auto& learn = std::get<action::Learn>(actions_.front());
  EXPECT_EQ(learn.names.at(WorkerId(3)), "worker-3");
  EXPECT_EQ(learn.deciders.at(JobUid(kJob)), "127.0.0.1:1");
}

TEST_F(ShardTest, LearnsWhoLeadsWhatItBacks) {
  ShardJob job = Running({0, 1, 2}, true);
  for (const int partition : {0, 1}) {
    job.mutable_partitions(partition)->mutable_view()->set_number(5);
    job.mutable_partitions(partition)->set_primary_name("ps-3");
  }
  job.mutable_partitions(0)->set_backup(true);
  job.mutable_partitions(2)->set_backup(true);  // of a coordinator that does not say
  Step(event::Orders{Of(job)});
  const auto& learn = std::get<action::Learn>(actions_.front());
  ASSERT_EQ(learn.leaders.size(), 1u);
  EXPECT_EQ(
      learn.leaders.at(Key(0)),
      (action::Learn::Leader{.run = {JobUid(kJob), 0}, .view = ViewNumber(5), .name = "ps-3"}));
}

}  // namespace
}  // namespace starling::shard
