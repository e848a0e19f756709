// The verbs that show and change existing jobs: get, describe, logs, set, cancel, delete.
#include <limits>

#include "nlohmann/json.hpp"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/testing/cli_fixture.h"

namespace starling::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Output, NumbersForPeople) {
  EXPECT_EQ(CountText(7), "7");
  EXPECT_EQ(CountText(999), "999");
  EXPECT_EQ(CountText(1000), "1,000");
  EXPECT_EQ(CountText(1234567), "1,234,567");
  EXPECT_EQ(DurationText(-1), "0s");
  EXPECT_EQ(DurationText(0.42), "0.4s");
  EXPECT_EQ(DurationText(59.4), "59s");
  EXPECT_EQ(DurationText(59.6), "1m00s");
  EXPECT_EQ(DurationText(11100), "3h05m");
  EXPECT_EQ(BytesText(512), "512 B");
  EXPECT_EQ(BytesText(4799528), "4.6 MiB");
}

// ---- Get, describe, logs --------------------------------------------------------------------

// What somebody wrote into a job file cannot move the cursor, nor forge a line.
TEST(Output, ControlCharactersDoNotReachATerminal) {
  EXPECT_EQ(PrintableText("r\x1b[31med\nState: FAILED\t\x7f"),
            "r\\x1b[31med\\nState: FAILED\\t\\x7f");
  EXPECT_EQ(PrintableText("a\nb\r", /*lines=*/true), "a\nb\\r");
  EXPECT_EQ(PrintableText("gr\xc3\xbc\xc3\x9f \xc2\x9b"), "gr\xc3\xbc\xc3\x9f \\xc2\\x9b");
  EXPECT_EQ(TableText({{"Labels:", "a=\x1b"}}), "Labels:  a=\\x1b\n");
}

TEST_F(CliTest, GetPrintsTablesAndTheSameAsJsonAndYaml) {
  *cluster_.job_list.add_jobs() = Running();
  AddEpoch(cluster_.job_list.mutable_jobs(0), 0.95);
  cluster_.job_list.mutable_jobs(0)->set_staleness_bound(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(Run({"get", "jobs"}), 0);
  EXPECT_EQ(out_.str(),
            "NAME    STATE    POLICY  EPOCH  STEP  LOSS    ACCURACY  SAMPLES/S  WORKERS  REASON\n"
            "digits  RUNNING  ssp(2)  2/5    812   0.1312  0.9500    1,533      0\n");
  EXPECT_EQ(Run({"get", "jobs", "-o", "json"}), 0);
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json[0]["name"], "digits");
  EXPECT_EQ(json[0]["state"], "RUNNING");
  EXPECT_EQ(json[0]["step"], 812);
  EXPECT_TRUE(json[0]["stalenessBound"].is_null());
  EXPECT_EQ(json[0]["epochsDone"][0]["testAccuracy"], 0.95);
  EXPECT_EQ(Run({"get", "jobs", "-o", "yaml"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("  name: \"digits\"\n  state: \"RUNNING\"\n"));
}

TEST_F(CliTest, GetListsTheFirstPageAndSaysHowToSeeTheRest) {
  for (int i = 0; i < 120; ++i) {
    JobStatus& job = *cluster_.job_list.add_jobs();
    job = Running();
    job.set_uid(1000 - i);
    job.set_name(absl::StrCat("job-", i));
    job.set_state(i < 2 ? RUNNING : i % 2 == 0 ? SUCCEEDED : FAILED);
  }
  cluster_.page_max = 40;
  const auto lines = [&] {
    const std::string text = out_.str();
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(Run({"get", "jobs"}), 0);
  EXPECT_EQ(lines(), 51);
  EXPECT_THAT(out_.str(), HasSubstr("\njob-49 "));
  EXPECT_EQ(err_.str(),
            "and 70 more jobs: all with --all, others with --limit N or --state STATE\n");
  EXPECT_EQ(Run({"get", "jobs", "--all"}), 0);
  EXPECT_EQ(lines(), 121);
  EXPECT_EQ(err_.str(), "");
  EXPECT_EQ(Run({"get", "jobs", "--limit", "7"}), 0);
  EXPECT_EQ(lines(), 8);
  EXPECT_EQ(Run({"get", "jobs", "--state", "running"}), 0);
  EXPECT_EQ(lines(), 3);
  EXPECT_EQ(Run({"get", "jobs", "--state", "Failed", "--state", "running", "--all"}), 0);
  EXPECT_EQ(lines(), 1 + 2 + 59);
  EXPECT_EQ(Run({"get", "jobs", "--all", "-o", "json"}), 0);
  const auto json = nlohmann::json::parse(out_.str());
  ASSERT_EQ(json.size(), 120u);
  EXPECT_EQ(json[119]["name"], "job-119");
  EXPECT_EQ(Run({"get", "jobs", "--state", "failed", "-o", "yaml"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("\n- uid: 995\n  name: \"job-5\"\n"));
  cluster_.job_list.clear_jobs();
  EXPECT_EQ(Run({"get", "jobs", "-o", "json"}), 0);
  EXPECT_EQ(out_.str(), "[]\n");
}

TEST_F(CliTest, DeletesManyAndSaysWhich) {
  EXPECT_EQ(Run({"delete"}), 2);
  EXPECT_EQ(Run({"delete", "a", "--ended"}), 2);
  EXPECT_EQ(Run({"delete", "a", "b"}), 0);
  EXPECT_EQ(err_.str(), "deleted a\ndeleted b\n");
  cluster_.removed.clear();
  for (const auto& [name, state] : {std::pair("x", SUCCEEDED), {"y", RUNNING}, {"z", FAILED}}) {
    JobStatus& job = *cluster_.job_list.add_jobs();
    job.set_name(name);
    job.set_state(state);
  }
  cluster_.page_max = 1;
  EXPECT_EQ(Run({"delete", "--ended"}), 0);
  EXPECT_THAT(cluster_.removed, ElementsAre("x", "z"));
  EXPECT_EQ(err_.str(),
            "deleted x (SUCCEEDED)\ndeleted z (FAILED)\n2 jobs deleted, with their parameters\n");
  cluster_.remove = absl::NotFoundError("there is no job named a");
  EXPECT_EQ(Run({"delete", "a", "b"}), 5) << "goes on, and says so";
  EXPECT_THAT(cluster_.removed, ElementsAre("x", "z", "a", "b"));
}

TEST_F(CliTest, GetWorkersAndShards) {
  WorkerStatus* worker = cluster_.workers.add_workers();
  worker->set_name("worker-0");
  worker->set_state("idle");
  ShardStatus* shard = cluster_.shards.add_shards();
  shard->set_name("shard-0");
  shard->set_state("ready");
  shard->set_value_bytes(4799528);
  EXPECT_EQ(Run({"get", "workers"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("\nworker-0  idle   -    0"));
  EXPECT_EQ(Run({"get", "shards"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("\nshard-0  ready  0           4.6 MiB"));
  EXPECT_EQ(Run({"describe", "shard", "shard-0", "-o", "json"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["valueBytes"], 4799528);
  EXPECT_EQ(Run({"describe", "worker", "worker-9"}), 5);
  EXPECT_THAT(err_.str(), HasSubstr("there is worker-0"));
}

TEST_F(CliTest, WhatIsWrongWithTheClusterIsSaidWithEveryStatus) {
  *cluster_.job_list.add_jobs() = Running();
  JobReply reply = Reply(Running());
  reply.add_warnings("the links are open");
  cluster_.jobs = {reply};
  cluster_.workers.add_workers()->set_name("worker-0");
  cluster_.shards.add_shards()->set_name("shard-0");
  cluster_.job_list.add_warnings("the links are open");
  cluster_.workers.add_warnings("the links are open");
  cluster_.shards.add_warnings("the links are open");
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"get", "jobs"},
                                             {"get", "workers", "-o", "json"},
                                             {"get", "shards", "-o", "yaml"},
                                             {"describe", "job", "digits"},
                                             {"describe", "worker", "worker-0"},
                                             {"describe", "shard", "shard-0"}}) {
    EXPECT_EQ(Run(command), 0) << err_.str();
    EXPECT_EQ(err_.str(), "warning: the links are open\n") << command[1];
    EXPECT_THAT(out_.str(), Not(HasSubstr("warning:")));
  }
}

TEST_F(CliTest, DescribeSaysWhatIsPromisedAndWhatIsMeasured) {
  JobStatus status = Running();
  AddEpoch(&status, 0.95);
  status.set_staleness_max(2);
  status.set_coverage_min(469);
  status.set_coverage_max(469);
  status.set_coverage_expected(469);
  status.set_not_reproducible_because("ssp(2) lets workers overtake each other");
  for (uint64_t count : {1203, 0, 10}) status.add_lag_histogram(count);
  JobReply reply = Reply(status);
  reply.mutable_status()->add_warnings("data.test is not used");
  (*reply.mutable_spec()->mutable_labels())["team"] = "vision";
  (*reply.mutable_spec()->mutable_labels())["cost"] = "42";
  reply.mutable_spec()->mutable_recompute()->set_every_blocks(2);
  reply.mutable_spec()->set_precision(PRECISION_FP16);
  reply.mutable_status()->set_loss_scale(32768);
  reply.mutable_status()->set_skipped_steps(1);
  for (uint32_t partition = 0; partition < 5; ++partition) {
    View* view = reply.add_views();
    view->set_partition(partition);
    view->set_primary(partition == 3 ? 2 : 1);
    view->set_primary_address(partition == 3 ? "127.0.0.1:12" : "127.0.0.1:11");
    if (partition != 0) continue;
    view->set_backup(2);
    view->set_backup_address("127.0.0.1:12");
  }
  reply.mutable_status()->set_durability("replicated");
  reply.mutable_status()->set_partitions(5);
  reply.mutable_status()->set_partitions_whole(1);
  reply.mutable_status()->set_unreplicated_seconds(42);
  reply.mutable_status()->set_backup_behind(3);
  reply.mutable_status()->set_failovers(2);
  reply.mutable_status()->set_copies_trouble("partition 1 on shard-0 has no second copy: why");
  cluster_.jobs = {reply};
  ShardStatus* shard = cluster_.shards.add_shards();
  shard->set_id(1);
  shard->set_name("shard-0");
  WorkerStatus* worker = cluster_.workers.add_workers();
  worker->set_name("worker-7");
  worker->set_job("digits");
  worker->set_clock(812);
  worker->mutable_memory()->set_planned_bytes(3 << 20);
  worker->mutable_memory()->set_activation_bytes(1 << 20);
  worker->mutable_memory()->set_peak_bytes(4799528);
  EXPECT_EQ(Run({"describe", "job", "digits"}), 0);
  for (const char* line :
       {"State:         RUNNING\n", "Warning:       data.test is not used\n",
        "Labels:        cost=42, team=vision\n", "Parameters:    1,199,882\n",
        "Progress:      epoch 2/5, step 812/2,345\n",
        "Speed:         1,533 samples/s, 83% of communication hidden\n",
        "Staleness:     now 1, max 2, bound 2\n", "Lag of pulls:  0: 1,203, 2+: 10\n",
        "Coverage:      min 469, max 469 of 469 updates per slice in the last complete epoch\n",
        "Reproducible:  no: ssp(2) lets workers overtake each other\n",
        "  1      0.5000      0.2500     0.9500         9.1s\n", "Recompute:     everyBlocks: 2\n",
        "Precision:     fp16, loss scale 32,768, 1 step skipped\n",
        "  812    3.0 MiB  1.0 MiB      4.6 MiB  ", "  shard-0  127.0.0.1:11  4 (0-2,4)   -\n",
        "  shard 2  127.0.0.1:12  1 (3)       1 (0)\n",
        "Copies:        two of 1 of 5 partitions, one of the others, for 42s; a second copy lacks "
        "at "
        "most 3 records; 2 taken over by another shard\n"
        "               partition 1 on shard-0 has no second copy: why\n"}) {
    EXPECT_THAT(out_.str(), HasSubstr(line));
  }
  EXPECT_EQ(Run({"describe", "job", "digits", "-o", "json"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_.str())["status"]["coverageMax"], 469);
  reply.mutable_spec()->set_precision(PRECISION_FP32);
  reply.mutable_spec()->set_tf32(true);
  cluster_.jobs = {reply};
  worker->mutable_memory()->set_device_peak_bytes(5 << 20);
  EXPECT_EQ(Run({"describe", "job", "digits"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("Precision:     fp32, products in tf32 on GPUs\n"));
  EXPECT_THAT(out_.str(), HasSubstr("  812    3.0 MiB  1.0 MiB      5.0 MiB  "));
}

TEST_F(CliTest, DescribeSaysWhoRepeatsWhosePart) {
  JobStatus status = Running();
  status.add_late_workers("worker-1, late by 3.2 s in all: worker-3 repeats its part");
  cluster_.jobs = {Reply(status)};
  for (const char* name : {"worker-1", "worker-3"}) {
    WorkerStatus* worker = cluster_.workers.add_workers();
    worker->set_name(name);
    worker->set_job("digits");
  }
  EXPECT_EQ(Run({"describe", "job", "digits"}), 0);
  EXPECT_THAT(out_.str(), Not(HasSubstr("REPEATS")));
  cluster_.workers.mutable_workers(1)->set_repeats("worker-1");
  EXPECT_EQ(Run({"describe", "job", "digits"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("Late:          worker-1, late by 3.2 s in all: worker-3 "
                                    "repeats its part\n"));
  EXPECT_THAT(out_.str(), testing::ContainsRegex("INCARNATION  REPEATS\n  worker-1 .* -\n"
                                                 "  worker-3 .* worker-1\n"));
}

TEST_F(CliTest, DescribeSaysHowManyCopiesThereAre) {
  JobStatus status = Running();
  status.set_partitions(5);
  const auto copies = [&] {
    cluster_.jobs = {Reply(status)};
    EXPECT_EQ(Run({"describe", "job", "digits"}), 0);
    const std::string text = out_.str();
    const size_t begin = text.find("Copies:");
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  status.set_durability("none");
  EXPECT_EQ(copies(), "Copies:        one of each partition: a shard's death ends the job");
  status.set_durability("replicated");
  status.set_partitions_whole(5);
  EXPECT_EQ(copies(), "Copies:        two of each partition");
  status.set_state(SUCCEEDED);
  status.set_durability("none");
  EXPECT_EQ(copies(),
            "Copies:        one of each partition: a shard's death takes the values with it");
  status.set_state(RUNNING);
  status.set_restarts_left(1);
  EXPECT_EQ(
      copies(),
      "Copies:        one of each partition: a shard's death takes the job back to its start");
  status.set_restored_from("c-1-1");
  EXPECT_EQ(copies(),
            "Copies:        one of each partition: a shard's death takes the job back to the "
            "checkpoint that it began with");
  status.mutable_checkpoint()->mutable_last()->set_id("c-1-2");
  EXPECT_EQ(copies(),
            "Copies:        one of each partition: a shard's death takes the job back to its last "
            "checkpoint");
}

TEST_F(CliTest, DescribeSaysHowOftenAJobWentBack) {
  JobStatus status = Running();
  const auto describe = [&] {
    cluster_.jobs = {Reply(status)};
    EXPECT_EQ(Run({"describe", "job", "digits"}), 0);
    return out_.str();
  };
  EXPECT_THAT(describe(), Not(HasSubstr("Went back:")));
  status.set_restarts(1);
  status.set_last_restart("2026-01-01T00:00:00Z: shard ps-0 is gone");
  EXPECT_THAT(describe(), HasSubstr("Went back:     1 time; the last one: "
                                    "2026-01-01T00:00:00Z: shard ps-0 is gone\n"));
}

TEST_F(CliTest, DescribeSaysWhatCheckpointsThereAre) {
  JobStatus status = Running();
  JobReply reply;
  const auto describe = [&] {
    *reply.mutable_status() = status;
    cluster_.jobs = {reply};
    EXPECT_EQ(Run({"describe", "job", "digits"}), 0);
    return out_.str();
  };
  EXPECT_THAT(describe(), Not(HasSubstr("Checkpoints:")));
  CheckpointStatus& checkpoint = *status.mutable_checkpoint();
  EXPECT_THAT(describe(), HasSubstr("Checkpoints:   on request; there is none yet\n"));
  reply.mutable_spec()->mutable_checkpoint()->set_every_steps(500);
  checkpoint.mutable_last()->set_id("c-1-2");
  checkpoint.mutable_last()->set_step(812);
  checkpoint.mutable_last()->set_bytes(3 << 20);
  checkpoint.set_age_seconds(42);
  EXPECT_THAT(describe(), HasSubstr("Checkpoints:   every 500 steps; the last one, c-1-2, is of "
                                    "step 812, 42s old, 3.0 MiB\n"));
  reply.mutable_spec()->mutable_checkpoint()->set_every_steps(0);
  reply.mutable_spec()->mutable_checkpoint()->set_every_seconds(600);
  checkpoint.set_overdue_seconds(72);
  checkpoint.set_stage("writing");
  checkpoint.set_failures(3);
  checkpoint.set_trouble("shard-1: no space");
  status.set_restored_from("c-1-1");
  const std::string text = describe();
  EXPECT_THAT(text, HasSubstr("Checkpoints:   every 10m00s; the last one"));
  EXPECT_THAT(text, HasSubstr("; one has been due for 1m12s; one is being taken (writing)\n"
                              "               the last attempt failed (3 in all): shard-1: no "
                              "space\n"
                              "Started from:  checkpoint c-1-1\n"));
  checkpoint.set_failing_seconds(65);
  EXPECT_THAT(describe(), HasSubstr("the last attempt failed (3 in all, and none got through for "
                                    "1m05s): shard-1: no space\n"));
}

TEST_F(CliTest, APolicyThatOnlyGaveACheckpointItsStepIsNoChange) {
  JobStatus status = Running();
  for (int i = 0; i < 2; ++i) {
    PolicyRecord& record = *status.add_policies();
    record.set_number(i);
    record.mutable_policy()->set_kind(Policy::BSP);
    record.set_in_force(true);
    record.set_checkpoint(i == 1);
  }
  cluster_.jobs = {Reply(status)};
  EXPECT_EQ(Run({"describe", "job", "digits"}), 0);
  EXPECT_THAT(out_.str(), Not(HasSubstr("Policies:")));
}

LogsReply Logged(std::vector<std::pair<uint64_t, std::string>> entries, JobState state) {
  LogsReply reply;
  reply.set_state(state);
  for (const auto& [number, text] : entries) {
    LogEntry* entry = reply.add_entries();
    entry->set_number(number);
    entry->set_time("T");
    entry->set_text(text);
  }
  return reply;
}

TEST_F(CliTest, LogsPrintsWhatIsThere) {
  cluster_.logs = {Logged({{1, "submitted"}, {2, "started"}}, RUNNING), Logged({}, RUNNING)};
  EXPECT_EQ(Run({"logs", "digits"}), 0);
  EXPECT_EQ(out_.str(), "T  submitted\nT  started\n");
  EXPECT_EQ(cluster_.logs_asked.at(1).after(), 2u);
  EXPECT_EQ(cluster_.logs_asked.at(1).wait_seconds(), 0);
}

TEST_F(CliTest, LogsFollowsToTheEnd) {
  cluster_.logs = {Logged({{1, "a"}}, RUNNING), Logged({}, RUNNING), Logged({{2, "b"}}, SUCCEEDED),
                   Logged({}, SUCCEEDED)};
  EXPECT_EQ(Run({"logs", "digits", "-f"}), 0);
  EXPECT_EQ(out_.str(), "T  a\nT  b\n");
  EXPECT_GT(cluster_.logs_asked.at(2).wait_seconds(), 0);
}

ExplainReply Explained() {
  ExplainReply reply;
  *reply.mutable_status() = Running();
  for (const auto& [phase, seconds] :
       std::vector<std::pair<const char*, double>>{{"data", 0.01}, {"compute", 0.29}}) {
    PhaseShare* share = reply.add_phases();
    share->set_phase(phase);
    share->set_seconds(seconds);
    share->set_share(seconds / 0.3);
  }
  return reply;
}

TEST_F(CliTest, ExplainSaysThatNothingIsWrong) {
  cluster_.explained = Explained();
  EXPECT_EQ(Run({"explain", "digits"}), kExitOk);
  EXPECT_EQ(out_.str(),
            "nothing wrong: digits is RUNNING\n"
            "where the time goes: data 3 %, compute 97 % of each step's 0.3 s\n");
  cluster_.explained->clear_phases();
  EXPECT_EQ(Run({"explain", "digits"}), kExitOk);
  EXPECT_EQ(out_.str(),
            "nothing wrong: digits is RUNNING; it is too early to say where its time goes\n");
}

TEST_F(CliTest, ExplainNamesTheCauseFirstAndSaysWhatToTry) {
  cluster_.explained = Explained();
  Finding* finding = cluster_.explained->add_findings();
  finding->set_cause("slow-worker");
  finding->set_text("worker w takes 2.5 times as long");
  finding->set_remedy("replace it");
  finding->set_figure(2.5);
  EXPECT_EQ(Run({"explain", "digits"}), kExitError);
  EXPECT_THAT(out_.str(),
              StartsWith("slow-worker: worker w takes 2.5 times as long.\n  try: replace it\n"));
  EXPECT_EQ(Run({"explain", "digits", "-o", "json"}), kExitError);
  EXPECT_THAT(out_.str(), HasSubstr("\"figure\": 2.5"));
  cluster_.explained = absl::NotFoundError("no such job");
  EXPECT_EQ(Run({"explain", "digits"}), kExitNotFound);
}

TEST_F(CliTest, SetSendsThePolicyAndSaysItsNumber) {
  cluster_.set_reply->set_number(1);
  PolicyRecord* record = cluster_.set_reply->mutable_status()->add_policies();
  record->set_number(1);
  record->mutable_policy()->set_kind(Policy::SSP);
  record->mutable_policy()->set_staleness(3);
  EXPECT_EQ(Run({"set", "digits", "consistency=ssp:3"}), kExitOk);
  EXPECT_THAT(err_.str(), HasSubstr("digits: policy 1, ssp(3), takes effect"));
  ASSERT_EQ(cluster_.set.size(), 1u);
  EXPECT_EQ(cluster_.set[0].name(), "digits");
  EXPECT_EQ(cluster_.set[0].policy().kind(), Policy::SSP);
  EXPECT_EQ(cluster_.set[0].policy().staleness(), 3u);
  EXPECT_NE(cluster_.set[0].nonce(), 0u);
  EXPECT_EQ(Run({"set", "digits", "consistency=bsp"}), kExitOk);
  EXPECT_EQ(cluster_.set[1].policy().kind(), Policy::BSP);
  EXPECT_EQ(Run({"set", "digits", "consistency=async"}), kExitOk);
  EXPECT_EQ(cluster_.set[2].policy().kind(), Policy::ASYNC);
}

TEST_F(CliTest, SetRefusesWhatItDoesNotKnow) {
  for (const char* wrong :
       {"consistency=ssp", "consistency=ssp:", "consistency=ssp:-1", "consistency=sp:3",
        "consistency", "batch=3", "consistency=ssp:99999999"}) {
    EXPECT_EQ(Run({"set", "digits", wrong}), kExitUsage) << wrong;
    EXPECT_THAT(err_.str(), HasSubstr("expected")) << wrong;
  }
  EXPECT_TRUE(cluster_.set.empty());
}

TEST_F(CliTest, DescribeTellsThePolicysHistory) {
  JobStatus status = Running();
  for (const auto kind : {Policy::BSP, Policy::ASYNC, Policy::BSP}) {
    PolicyRecord* record = status.add_policies();
    record->set_number(status.policies_size() - 1);
    record->mutable_policy()->set_kind(kind);
    record->set_in_force(status.policies_size() < 3);
    if (record->in_force()) record->set_step(100 * record->number());
    record->set_by(record->number() == 0 ? "job file" : "set");
  }
  cluster_.jobs = {Reply(status)};
  EXPECT_EQ(Run({"describe", "job", "digits"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("Policies:\n"));
  EXPECT_THAT(out_.str(), ::testing::ContainsRegex("0 +bsp +0 +was +job file"));
  EXPECT_THAT(out_.str(), ::testing::ContainsRegex("1 +async +100 +in force +set"));
  EXPECT_THAT(out_.str(), ::testing::ContainsRegex("2 +bsp +- +waits +set"));
}

TEST_F(CliTest, ALossThatKnowsNoRightOrWrongHasNoAccuracy) {
  JobStatus status = Running();
  AddEpoch(&status, 0);
  status.mutable_epochs_done(0)->clear_test_accuracy();
  status.set_state(SUCCEEDED);
  cluster_.jobs = {Reply(status)};
  EXPECT_EQ(Run({"wait", "digits"}), kExitOk);
  EXPECT_EQ(out_.str(), "test_loss=0.2500\n");
  EXPECT_THAT(err_.str(), Not(HasSubstr("accuracy")));
  EXPECT_EQ(Run({"describe", "job", "digits"}), kExitOk);
  EXPECT_THAT(out_.str(), ::testing::ContainsRegex("0\\.2500 +- "));
}

TEST_F(CliTest, CancelSaysWhereTheParametersAre) {
  JobReply reply = Reply(Running());
  JobStatus& status = *reply.mutable_status();
  status.set_state(CANCELLED);
  reply.add_views();
  cluster_.jobs = {reply};
  EXPECT_EQ(Run({"cancel", "digits"}), 0);
  EXPECT_EQ(err_.str(),
            "cancelled digits; its last parameters stay until: starling delete digits\n");
  // It waited, after it went back or for its start.
  reply.clear_views();
  status.set_restored_from("c-1-1");
  cluster_.jobs = {reply};
  EXPECT_EQ(Run({"cancel", "digits"}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("those of checkpoint c-1-1 stay; go on from there with: "
                                    "starling submit --from c-1-1\n"));
  status.mutable_checkpoint()->mutable_last()->set_id("c-1-2");
  cluster_.jobs = {reply};
  EXPECT_EQ(Run({"cancel", "digits"}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("those of checkpoint c-1-2 stay"));
  status.clear_checkpoint();
  status.clear_restored_from();
  cluster_.jobs = {reply};
  EXPECT_EQ(Run({"cancel", "digits"}), 0);
  EXPECT_EQ(err_.str(), "cancelled digits; it had not begun\n");
  status.set_running_seconds(2);
  cluster_.jobs = {reply};
  EXPECT_EQ(Run({"cancel", "digits"}), 0);
  EXPECT_EQ(err_.str(), "cancelled digits; its parameters are gone\n");
}

TEST_F(CliTest, CancelAndDelete) {
  EXPECT_EQ(Run({"cancel", "digits"}), 0);
  EXPECT_EQ(err_.str(), "cancelled digits\n");
  EXPECT_THAT(cluster_.cancelled, ElementsAre("digits"));
  EXPECT_EQ(Run({"delete", "digits"}), 0);
  EXPECT_THAT(cluster_.removed, ElementsAre("digits"));
  cluster_.remove = absl::NotFoundError("no job is called digits");
  EXPECT_EQ(Run({"delete", "digits"}), 5);
  cluster_.cancel = absl::FailedPreconditionError("it has ended");
  EXPECT_EQ(Run({"cancel", "digits"}), 1);
}

// ---- Export ---------------------------------------------------------------------------------

}  // namespace
}  // namespace starling::cli
