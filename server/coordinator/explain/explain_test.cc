#include "server/coordinator/explain/explain.h"

#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "server/coordinator/explain/causes.h"
#include "server/coordinator/explain/testing/healthy_job.h"

namespace starling::explain {
namespace {

// Slows the job down: each worker takes `window_seconds` for its 100 steps.
void Stretch(Evidence& evidence, double window_seconds) {
  for (WorkerEvidence& worker : evidence.workers) worker.window_seconds = window_seconds;
  for (PartitionEvidence& partition : evidence.partitions)
    partition.window_seconds = window_seconds;
}

void AddToAll(Evidence& evidence, const std::string& phase, double seconds_per_step) {
  for (WorkerEvidence& worker : evidence.workers) AddToPhase(worker, phase, seconds_per_step);
  Stretch(evidence, 20 + 100 * seconds_per_step);
}

std::string Causes(const std::vector<Finding>& findings) {
  std::string causes;
  for (const Finding& finding : findings) absl::StrAppend(&causes, finding.cause(), " ");
  return causes;
}

// Returns the first finding, which must be the only one.
Finding Only(const Evidence& evidence, const std::string& cause) {
  const std::vector<Finding> findings = Explain(evidence);
  EXPECT_EQ(Causes(findings), cause + " ");
  if (findings.empty()) return Finding();
  EXPECT_EQ(findings[0].unit(), std::string(CauseOf(cause).unit));
  EXPECT_EQ(findings[0].remedy(), std::string(CauseOf(cause).remedy));
  EXPECT_FALSE(findings[0].subject().empty());
  return findings[0];
}

void ExpectSays(const Finding& finding, const std::string& what) {
  EXPECT_NE(finding.text().find(what), std::string::npos) << finding.text();
}

// ---- Nothing wrong --------------------------------------------------------------------------

TEST(ExplainTest, NothingIsWrongWithAHealthyJob) {
  EXPECT_EQ(Causes(Explain(HealthyJob())), "");
  Evidence bsp = HealthyJob();
  bsp.policy.set_kind(Policy::BSP);
  bsp.micro_batches = 6;
  EXPECT_EQ(Causes(Explain(bsp)), "");
}

TEST(ExplainTest, PhasesSayWhereTheTimeGoes) {
  const std::vector<PhaseShare> phases = Phases(HealthyJob());
  ASSERT_EQ(phases.size(), 6u);
  double sum = 0;
  for (const PhaseShare& phase : phases) sum += phase.share();
  EXPECT_NEAR(sum, 1, 1e-9);
  EXPECT_EQ(phases[1].phase(), "compute");
  EXPECT_NEAR(phases[1].seconds(), 0.17, 1e-9);
  EXPECT_NEAR(phases[1].share(), 0.85, 1e-9);
}

// One of two lanes is idle, so means over lanes are half of the real time.
TEST(ExplainTest, PhasesAreStretchedToTheClockOnTheWall) {
  Evidence evidence = HealthyJob();
  for (WorkerEvidence& worker : evidence.workers) {
    worker.times.set_push(0);
    worker.times.set_total(2 * worker.times.total());
  }
  EXPECT_NEAR(Phases(evidence)[1].seconds(), 0.34, 1e-9);
}

TEST(ExplainTest, TooFewStepsSayNothing) {
  Evidence evidence = HealthyJob();
  AddToPhase(evidence.workers[2], "forward", 1);
  for (WorkerEvidence& worker : evidence.workers) worker.times.set_units(kUnitsMin - 1);
  EXPECT_EQ(Causes(Explain(evidence)), "");
  EXPECT_TRUE(Phases(evidence).empty());
}

TEST(ExplainTest, AJobThatIsOverIsJudgedNoMore) {
  Evidence evidence = HealthyJob();
  AddToAll(evidence, "data", 1);
  for (const JobState over : {SUCCEEDED, CANCELLED}) {
    evidence.state = over;
    EXPECT_EQ(Causes(Explain(evidence)), "");
  }
}

// ---- What stops a job -----------------------------------------------------------------------

TEST(ExplainTest, Failed) {
  Evidence evidence = HealthyJob();
  evidence.state = FAILED;
  evidence.reason = "worker-1: loss is nan in step 3";
  ExpectSays(Only(evidence, "failed"), "loss is nan in step 3");
}

TEST(ExplainTest, Pending) {
  Evidence evidence = HealthyJob();
  evidence.state = PENDING;
  evidence.reason = "waits for 2 more workers (1 idle, workers.min is 3)";
  evidence.pending_seconds = 12;
  const Finding finding = Only(evidence, "pending");
  EXPECT_EQ(finding.figure(), 12);
  ExpectSays(finding, "it waits for 2 more workers");
}

TEST(ExplainTest, Recovering) {
  Evidence evidence = HealthyJob();
  evidence.recovering_seconds = 0.5;
  EXPECT_EQ(Causes(Explain(evidence)), "");
  evidence.recovering_seconds = 4;
  evidence.unheard = {"worker-1 (10.0.2.1:70)"};
  evidence.workers[1].silent_seconds = 4;
  const Finding finding = Only(evidence, "recovering");
  EXPECT_EQ(finding.figure(), 4);
  ExpectSays(finding, "worker-1 (10.0.2.1:70)");
}

TEST(ExplainTest, MissingShard) {
  Evidence evidence = HealthyJob();
  evidence.shards[1].silent_seconds = 3.5;
  const Finding finding = Only(evidence, "missing-shard");
  EXPECT_EQ(finding.subject(), "shard-1");
  EXPECT_EQ(finding.figure(), 3.5);
  ExpectSays(finding, "10.0.1.1:70");
}

TEST(ExplainTest, ABackupThatTakesNothing) {
  Evidence evidence = HealthyJob();
  evidence.copies = {{3, "shard-0", "shard-1", "10.0.1.2:70", 2, 9}};
  EXPECT_EQ(Causes(Explain(evidence)), "") << "it may take a moment";
  evidence.copies[0].silent_seconds = 7;
  const Finding finding = Only(evidence, "slow-backup");
  EXPECT_EQ(finding.subject(), "shard-1");
  EXPECT_EQ(finding.figure(), 7);
  ExpectSays(finding, "partition 3 on shard shard-0 waits for its copy on shard shard-1");
  ExpectSays(finding, "lacks 9 records");
}

TEST(ExplainTest, ADecisionThatDoesNotCome) {
  Evidence evidence = HealthyJob();
  evidence.undecided = {{2, "shard-1", "shard-0", "10.0.1.1:70", 12, "no stream"}};
  const Finding finding = Only(evidence, "undecided");
  EXPECT_EQ(finding.subject(), "shard-1");
  EXPECT_EQ(finding.figure(), 12);
  ExpectSays(finding, "partition 2 on shard shard-1 has not reached shard shard-0 (10.0.1.1:70)");
  ExpectSays(finding, ": no stream");
}

TEST(ExplainTest, PartitionsWithoutABackup) {
  Evidence evidence = HealthyJob();
  evidence.unreplicated_seconds = 50;
  evidence.unreplicated = 2;
  evidence.copies_trouble = "partition 1 on shard-0 has no second copy: no other shard is live";
  EXPECT_EQ(Causes(Explain(evidence)), "") << "copies take time";
  evidence.unreplicated_seconds = 80;
  const Finding finding = Only(evidence, "not-replicated");
  EXPECT_EQ(finding.figure(), 80);
  ExpectSays(finding, "2 have one now: partition 1 on shard-0 has no second copy");
  evidence.unreplicated = 1;
  ExpectSays(Only(evidence, "not-replicated"), ", and 1 has one now: ");
  AddToPhase(evidence.workers[2], "forward", 3);
  EXPECT_EQ(Causes(Explain(evidence)), "slow-worker not-replicated ");
}

TEST(ExplainTest, CheckpointsThatDoNotGetThrough) {
  Evidence evidence = HealthyJob();
  evidence.checkpoint.seconds = 50;
  evidence.checkpoint.waits_for = "the disk makes its folder";
  EXPECT_EQ(Causes(Explain(evidence)), "") << "one takes time";
  evidence.checkpoint.seconds = 80;
  Finding finding = Only(evidence, "checkpoint-failing");
  EXPECT_EQ(finding.figure(), 80);
  ExpectSays(finding, "for 80 s: the disk makes its folder; the job has none");
  evidence.checkpoint.seconds = 2;
  evidence.checkpoint.trouble = "at step 17: shard-1: no space";
  evidence.checkpoint.last = "is of step 12";
  finding = Only(evidence, "checkpoint-failing");
  ExpectSays(finding, "the last attempt failed: at step 17: shard-1: no space; the last one is of");
}

TEST(ExplainTest, AJobThatWentBackSaysWhy) {
  Evidence evidence = HealthyJob();
  evidence.went_back = "2026-01-01T00:00:00Z: shard ps-0 is gone: goes back to step 400";
  ExpectSays(Only(evidence, "went-back"),
             "the job went back: 2026-01-01T00:00:00Z: shard ps-0 is gone: goes "
             "back to step 400");
}

TEST(ExplainTest, ASilentWorkerIsMissing) {
  Evidence evidence = HealthyJob();
  evidence.workers[1].silent_seconds = 3;
  evidence.workers[1].links[0].link.set_last_error("connection reset");
  const Finding finding = Only(evidence, "missing-worker");
  EXPECT_EQ(finding.subject(), "worker-1");
  EXPECT_EQ(finding.figure(), 3);
  ExpectSays(finding, "10.0.2.1:70");
  ExpectSays(finding, "connection reset");
}

TEST(ExplainTest, ALostWorkerIsMissingUntilItOrAnotherOneComes) {
  Evidence evidence = HealthyJob();
  evidence.workers.pop_back();
  evidence.lost.push_back({"worker-2", "10.0.2.2:70", "no report for 5.0 s", 40});
  const Finding finding = Only(evidence, "missing-worker");
  EXPECT_EQ(finding.figure(), 40);
  ExpectSays(finding, "no report for 5.0 s");
  ExpectSays(finding, "10.0.2.2:70");
  ExpectSays(finding, " ago; 2 workers are left (workers.min ");
  evidence.workers_max = 2;
  EXPECT_EQ(Causes(Explain(evidence)), "");
}

TEST(ExplainTest, BrokenLink) {
  Evidence evidence = HealthyJob();
  LinkEvidence& link = evidence.workers[0].links[1];
  link.link.set_connected(false);
  link.link.set_last_error("connection refused");
  link.down_seconds = 7;
  const Finding finding = Only(evidence, "broken-link");
  EXPECT_EQ(finding.subject(), "worker-0 -> shard-1");
  EXPECT_EQ(finding.figure(), 7);
  ExpectSays(finding, "connection refused");
  ExpectSays(finding, "10.0.1.1:70");
}

TEST(ExplainTest, MessagesThatDoNotGetThrough) {
  Evidence evidence = HealthyJob();
  evidence.shards[1].trouble = "orders do not get through: larger than max (68406663 vs. 67108864)";
  const Finding finding = Only(evidence, "undelivered");
  EXPECT_EQ(finding.subject(), "shard-1");
  ExpectSays(finding, "68406663");
  evidence.shards[1].trouble.clear();
  evidence.workers[0].trouble = "its reports do not get through";
  EXPECT_EQ(Only(evidence, "undelivered").subject(), "worker-0");
}

TEST(ExplainTest, AWorkerWithoutMemory) {
  Evidence evidence = HealthyJob();
  evidence.workers.pop_back();
  evidence.set_aside.push_back({"worker-2", "10.0.2.2:70", "the job needs 3 GiB"});
  const Finding finding = Only(evidence, "no-memory");
  EXPECT_EQ(finding.subject(), "worker-2");
  ExpectSays(finding, "goes on without worker-2 (10.0.2.2:70)");
  ExpectSays(finding, "the job needs 3 GiB");
  evidence.stalled_seconds = 300;
  EXPECT_EQ(Causes(Explain(evidence)), "no-progress no-memory ")
      << "that is not what stops the others";
  evidence.stalled_seconds = 0.1;
  evidence.workers_max = 2;
  EXPECT_EQ(Causes(Explain(evidence)), "") << "others do what it would";
  for (WorkerEvidence& worker : evidence.workers) worker.member = false;
  EXPECT_EQ(Causes(Explain(evidence)), "") << "others are about to";
  evidence.workers.pop_back();
  EXPECT_EQ(Causes(Explain(evidence)), "no-memory ");
  ExpectSays(Explain(evidence)[0], "goes on without worker-2");
  evidence.workers.clear();
  EXPECT_EQ(Causes(Explain(evidence)), "no-memory no-workers ");
  ExpectSays(Explain(evidence)[0], "waits for a worker other than worker-2");
  for (const char* name : {"worker-0", "worker-1"}) {
    evidence.set_aside.push_back({name, "10.0.2.2:70", "the job needs 3 GiB"});
  }
  EXPECT_EQ(Causes(Explain(evidence)), "no-memory no-memory no-memory no-workers ")
      << "why there is none comes first, however many they are";
}

TEST(ExplainTest, AQuarantinedWorker) {
  Evidence evidence = HealthyJob();
  evidence.workers.pop_back();
  evidence.set_aside.push_back({"worker-2", "10.0.2.2:70", "worker-2 is quarantined: what it",
                                SetAsideEvidence::Cause::kQuarantined});
  const Finding finding = Only(evidence, "quarantined");
  EXPECT_EQ(finding.subject(), "worker-2");
  ExpectSays(finding, "which it must not use: worker-2 is quarantined");
}

TEST(ExplainTest, AWorkerThatIsOnlySuspectedIsNotToBeRestarted) {
  Evidence evidence = HealthyJob();
  evidence.workers.pop_back();
  evidence.set_aside.push_back({"worker-2", "10.0.2.2:70", "step 7: the loss is not finite",
                                SetAsideEvidence::Cause::kSuspected});
  const Finding finding = Only(evidence, "not-finite");
  ExpectSays(finding, "until another worker has done the same work: step 7");
  EXPECT_EQ(finding.remedy().find("restart"), std::string::npos) << finding.remedy();
}

TEST(ExplainTest, NoWorkers) {
  Evidence evidence = HealthyJob();
  evidence.workers.clear();
  evidence.staffed_seconds = 3;
  const Finding finding = Only(evidence, "no-workers");
  EXPECT_EQ(finding.figure(), 3) << "not since the job began";
  evidence.lost.push_back({"worker-0", "", "it was killed", 9});
  EXPECT_EQ(Causes(Explain(evidence)), "missing-worker no-workers ");
  EXPECT_EQ(Explain(evidence)[1].figure(), 3) << "others may have been there after it";
}

TEST(ExplainTest, Preparing) {
  Evidence evidence = HealthyJob();
  WorkerEvidence& worker = evidence.workers[1];
  worker.member = false;
  worker.preparing_seconds = 5;
  EXPECT_EQ(Causes(Explain(evidence)), "");
  worker.preparing_seconds = 45;
  EXPECT_EQ(Only(evidence, "preparing").figure(), 45);
}

TEST(ExplainTest, PolicyChange) {
  Evidence evidence = HealthyJob();
  evidence.policy_change_seconds = 1;
  EXPECT_EQ(Causes(Explain(evidence)), "");
  evidence.policy_change_seconds = 8;
  evidence.next_policy = "bsp";
  const Finding finding = Only(evidence, "policy-change");
  EXPECT_EQ(finding.figure(), 8);
  ExpectSays(finding, "to bsp");
}

TEST(ExplainTest, NoProgress) {
  Evidence evidence = HealthyJob();
  for (WorkerEvidence& worker : evidence.workers) worker.times.Clear();
  evidence.stalled_seconds = 25;
  EXPECT_EQ(Causes(Explain(evidence)), "");
  evidence.stalled_seconds = 45;
  EXPECT_EQ(Only(evidence, "no-progress").figure(), 45);
  evidence.steps = 2;  // of 7.5 s each
  EXPECT_EQ(Causes(Explain(evidence)), "");
  evidence.steps = 900;
  evidence.evaluating = true;
  evidence.evaluation_stalled_seconds = 110;
  EXPECT_EQ(Causes(Explain(evidence)), "");
}

TEST(ExplainTest, AnEvaluationThatDoesNotEnd) {
  Evidence evidence = HealthyJob();
  for (WorkerEvidence& worker : evidence.workers) worker.times.Clear();
  evidence.evaluating = true;
  evidence.stalled_seconds = 500;
  evidence.evaluation_stalled_seconds = 130;
  const Finding finding = Only(evidence, "no-progress");
  EXPECT_EQ(finding.figure(), 130);
  ExpectSays(finding, "evaluation");
}

// ---- What slows a job -----------------------------------------------------------------------

TEST(ExplainTest, SlowWorker) {
  Evidence evidence = HealthyJob();
  AddToPhase(evidence.workers[2], "forward", 0.175);  // twice as long
  for (int i : {0, 1}) AddToPhase(evidence.workers[i], "wait", 0.175);
  const Finding finding = Only(evidence, "slow-worker");
  EXPECT_EQ(finding.subject(), "worker-2");
  EXPECT_NEAR(finding.figure(), 2, 0.01);
  ExpectSays(finding, "10.0.2.2:70");
  ExpectSays(finding, "computing");
}

// What it costs is another worker, not time.
TEST(ExplainTest, ASlowWorkerWhosePartIsRepeated) {
  Evidence evidence = HealthyJob();
  AddToPhase(evidence.workers[2], "forward", 0.175);
  AddToAll(evidence, "pull", 0.4);
  evidence.workers[2].repeated_by = "worker-1";
  const std::vector<Finding> findings = Explain(evidence);
  EXPECT_EQ(Causes(findings), "pull-bound slow-worker ");
  ExpectSays(findings.back(), "no step waits for it, since worker-1 repeats its part");
}

TEST(ExplainTest, AWorkerThatIsSlowForItsData) {
  Evidence evidence = HealthyJob();
  AddToPhase(evidence.workers[0], "data", 0.35);
  const Finding finding = Only(evidence, "slow-worker");
  EXPECT_NEAR(finding.figure(), 3, 0.01);
  ExpectSays(finding, "waiting for data");
}

// Its steps take longer because they have more samples.
TEST(ExplainTest, AWorkerWithMoreSamplesIsNotSlow) {
  Evidence evidence = HealthyJob();
  StepTimes& times = evidence.workers[2].times;
  times.set_samples(2 * times.samples());
  AddToPhase(evidence.workers[2], "forward", 0.175);
  EXPECT_EQ(Causes(Explain(evidence)), "");
}

TEST(ExplainTest, DataBound) {
  Evidence evidence = HealthyJob();
  AddToAll(evidence, "data", 0.4);
  const Finding finding = Only(evidence, "data-bound");
  EXPECT_NEAR(finding.figure(), 0.405, 1e-6);
}

TEST(ExplainTest, ApplyBound) {
  Evidence evidence = HealthyJob();
  AddToAll(evidence, "wait", 0.4);
  for (PartitionEvidence& partition : evidence.partitions) {
    partition.times.set_applies(100);  // BSP
    partition.times.set_apply(0.4 * 100);
  }
  const Finding finding = Only(evidence, "apply-bound");
  EXPECT_NEAR(finding.figure(), 0.4, 0.01);
}

TEST(ExplainTest, WhatComputingHidesIsNotWrong) {
  Evidence evidence = HealthyJob();
  for (PartitionEvidence& partition : evidence.partitions) {
    partition.times.set_apply(0.7 * 20);
    partition.times.set_queue(0.5 * 300);
  }
  for (WorkerEvidence& worker : evidence.workers) {
    for (LinkEvidence& link : worker.links) {
      link.link.set_sending_seconds(19);
      link.link.set_round_trip_seconds(0.1);
    }
  }
  EXPECT_EQ(Causes(Explain(evidence)), "");
}

TEST(ExplainTest, SlowShard) {
  Evidence evidence = HealthyJob();
  AddToAll(evidence, "wait", 0.4);
  for (int partition : {2, 3}) {
    evidence.partitions[partition].times.set_applies(100);
    evidence.partitions[partition].times.set_apply(0.4 * 100);
  }
  const Finding finding = Only(evidence, "slow-shard");
  EXPECT_EQ(finding.subject(), "shard-1");
  EXPECT_NEAR(finding.figure(), 0.4, 0.01);
}

TEST(ExplainTest, HotPartition) {
  Evidence evidence = HealthyJob();
  AddToAll(evidence, "wait", 0.4);
  evidence.partitions[3].times.set_applies(100);
  evidence.partitions[3].times.set_apply(0.4 * 100);
  const Finding finding = Only(evidence, "hot-partition");
  EXPECT_EQ(finding.subject(), "partition 3");
  EXPECT_NEAR(finding.figure(), 0.4, 0.01);
  ExpectSays(finding, "shard-1 (10.0.1.1:70)");
}

TEST(ExplainTest, ShardQueue) {
  Evidence evidence = HealthyJob();
  AddToAll(evidence, "wait", 0.4);
  for (int partition : {0, 1}) evidence.partitions[partition].times.set_queue(0.4 * 300);
  // What queues there is answered late, and so its credit comes back late.
  for (WorkerEvidence& worker : evidence.workers) {
    worker.links[0].link.set_round_trip_seconds(0.4);
    worker.links[0].link.set_sending_seconds(0.5 * worker.window_seconds);
  }
  const Finding finding = Only(evidence, "shard-queue");
  EXPECT_EQ(finding.subject(), "shard-0");
  EXPECT_NEAR(finding.figure(), 0.4, 1e-6);
}

TEST(ExplainTest, SaturatedLink) {
  Evidence evidence = HealthyJob();
  AddToAll(evidence, "pull", 0.4);
  LinkStatus& link = evidence.workers[1].links[0].link;
  link.set_sending_seconds(0.4 * 100);
  link.set_round_trip_seconds(0.2);
  const Finding finding = Only(evidence, "saturated-link");
  EXPECT_EQ(finding.subject(), "worker-1 -> shard-0");
  EXPECT_NEAR(finding.figure(), 2e8 / 40, 1);
  ExpectSays(finding, "to the shard it carries 5 MB/s, ");
  link.set_shared_bytes(link.sent_bytes() + link.received_bytes());
  ExpectSays(Only(evidence, "saturated-link"), "it carries 5 MB/s through shared memory, ");
}

TEST(ExplainTest, SaturatedLinkToTheWorker) {
  Evidence evidence = HealthyJob();
  AddToAll(evidence, "pull", 0.4);
  LinkStatus& link = evidence.workers[1].links[0].link;
  link.set_receiving_seconds(0.4 * 100);
  link.set_round_trip_seconds(0.1);
  const Finding finding = Only(evidence, "saturated-link");
  EXPECT_NEAR(finding.figure(), 2e8 / 40, 1);
  ExpectSays(finding, "to the worker it carries 5 MB/s");
  link.set_round_trip_seconds(0.4);  // one long round trip
  EXPECT_EQ(Only(evidence, "far-link").subject(), "worker-1 -> shard-0");
}

TEST(ExplainTest, FarLink) {
  Evidence evidence = HealthyJob();
  AddToAll(evidence, "pull", 0.4);
  evidence.workers[1].links[1].link.set_round_trip_seconds(0.2);
  const Finding finding = Only(evidence, "far-link");
  EXPECT_EQ(finding.subject(), "worker-1 -> shard-1");
  EXPECT_NEAR(finding.figure(), 0.2, 1e-9);
}

TEST(ExplainTest, PushBound) {
  Evidence evidence = HealthyJob();
  AddToAll(evidence, "push", 0.4);
  for (WorkerEvidence& worker : evidence.workers) {
    for (LinkEvidence& link : worker.links) {
      link.link.set_push_seconds(0.8 * static_cast<double>(link.link.pushes()));
    }
  }
  const std::vector<Finding> findings = Explain(evidence);
  EXPECT_EQ(Causes(findings), "push-bound push-bound push-bound ");
  EXPECT_NEAR(findings[0].figure(), 0.8, 1e-6);
}

TEST(ExplainTest, PullBound) {
  Evidence evidence = HealthyJob();
  AddToAll(evidence, "pull", 0.4);
  EXPECT_NEAR(Only(evidence, "pull-bound").figure(), 0.41, 1e-6);
}

TEST(ExplainTest, UnevenShares) {
  Evidence evidence = HealthyJob();
  evidence.policy.set_kind(Policy::BSP);  // 4 micro-batches, 3 workers
  AddToAll(evidence, "wait", 0.1);
  EXPECT_NEAR(Only(evidence, "uneven-shares").figure(), 100.0 / 3, 1e-6);
  evidence.backup_workers = 1;  // two share 4
  Only(evidence, "staleness-wait");
}

TEST(ExplainTest, StalenessWaitNamesWhoIsBehind) {
  Evidence evidence = HealthyJob();
  AddToPhase(evidence.workers[0], "wait", 0.4);
  AddToPhase(evidence.workers[1], "wait", 0.4);
  Stretch(evidence, 60);
  const Finding finding = Only(evidence, "staleness-wait");
  EXPECT_EQ(finding.subject(), "worker-2");
  EXPECT_NEAR(finding.figure(), 0.41, 1e-6);
  ExpectSays(finding, "waits for worker worker-2, which is behind");
}

TEST(ExplainTest, StalenessWaitOfAll) {
  Evidence evidence = HealthyJob();
  AddToAll(evidence, "wait", 0.4);
  const Finding finding = Only(evidence, "staleness-wait");
  EXPECT_NEAR(finding.figure(), 0.41, 1e-6);
  ExpectSays(finding, "waits for updates that come late");
}

TEST(ExplainTest, Idle) {
  Evidence evidence = HealthyJob();
  AddToAll(evidence, "idle", 0.4);
  evidence.evaluating = true;
  const Finding finding = Only(evidence, "idle");
  EXPECT_NEAR(finding.figure(), 0.402, 1e-6);
  ExpectSays(finding, "being evaluated");
}

// ---- Order and count ------------------------------------------------------------------------

TEST(ExplainTest, WhatStopsComesBeforeWhatSlows) {
  Evidence evidence = HealthyJob();
  AddToPhase(evidence.workers[2], "forward", 3);
  evidence.shards[0].silent_seconds = 4;
  const std::vector<Finding> findings = Explain(evidence);
  EXPECT_EQ(Causes(findings), "missing-shard slow-worker ");
  EXPECT_EQ(findings[1].subject(), "worker-2");
}

TEST(ExplainTest, OfOneCauseNoMoreThanThreeAreTold) {
  Evidence evidence = HealthyJob();
  for (WorkerEvidence& worker : evidence.workers) {
    for (LinkEvidence& link : worker.links) link.down_seconds = 3;
  }
  EXPECT_EQ(Explain(evidence).size(), 3u);
}

// ---- The table ------------------------------------------------------------------------------

TEST(CausesTest, TheTableInTheDocumentIsThisOne) {
  std::ifstream file("docs/diagnosis.md");
  std::stringstream text;
  text << file.rdbuf();
  std::string rows;
  bool in_table = false;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text.str(), '\n'))) {
    in_table = line.rfind("| cause |", 0) == 0 || (in_table && !line.empty());
    if (in_table && line.rfind("| `", 0) == 0) absl::StrAppend(&rows, line, "\n");
  }
  std::string expected;
  for (const Cause& cause : explain::Causes()) {
    absl::StrAppend(&expected, "| `", cause.word, "` | ", cause.meaning, " | ",
                    cause.unit.empty() ? "-" : cause.unit, " | ", cause.remedy, " |\n");
  }
  EXPECT_EQ(rows, expected);
}

TEST(CausesTest, EachWordIsThereOnce) {
  std::set<absl::string_view> words;
  for (const Cause& cause : explain::Causes()) {
    EXPECT_TRUE(words.insert(cause.word).second) << cause.word;
    EXPECT_EQ(&CauseOf(cause.word), &cause);
  }
}

}  // namespace
}  // namespace starling::explain
