// starling doctor: a healthy cluster, and each problem that it can have.
#include "nlohmann/json.hpp"
#include "tools/cli/doctor_checks.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/testing/cli_fixture.h"

namespace starling::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

NodeReply FitNode(const std::string& host, const std::string& address) {
  NodeReply node;
  node.set_host(host);
  node.set_bound_address(address);
  node.set_advertised_address(address);
  node.set_cpu("A Processor");
  node.set_memory_bytes(uint64_t{8} << 30);
  node.set_available_bytes(uint64_t{4} << 30);
  node.set_open_files(40);
  node.set_open_files_max(4096);
  node.set_congestion_control("cubic");
  return node;
}

MeasureReply FitPath(double delay = 0.0002, double rate = 1e9) {
  MeasureReply reply;
  reply.set_delay_seconds(delay);
  reply.set_to_bytes_per_second(rate);
  reply.set_from_bytes_per_second(rate);
  return reply;
}

// A coordinator, a shard and two workers on separate machines.
Survey FitSurvey() {
  Survey survey;
  const auto add = [&](const std::string& name, Role role, const std::string& address) {
    SurveyedDaemon daemon{name, role, address};
    daemon.info.mutable_version()->set_version("0.1.0");
    if (role == WORKER) daemon.info.set_instruction_set("avx2");
    daemon.node = FitNode("host-of-" + name, address);
    daemon.back.set_delay_seconds(0.0002);
    survey.daemons.push_back(daemon);
  };
  add("coordinator", COORDINATOR, "10.0.0.1:7070");
  add("shard-0", SHARD, "10.0.0.2:7071");
  add("worker-0", WORKER, "10.0.0.3:7071");
  add("worker-1", WORKER, "10.0.0.4:7071");
  survey.paths = {{"worker-0", "shard-0", {}, FitPath()}, {"worker-1", "shard-0", {}, FitPath()}};
  return survey;
}

// The failed checks, as "check, subject".
std::vector<std::string> Failed(const Survey& survey) {
  std::vector<std::string> failed;
  bool passed = false;
  for (const Check& check : CheckSurvey(survey)) {
    EXPECT_EQ(check.ok, check.remedy.empty()) << check.check;
    EXPECT_FALSE(check.text.empty()) << check.check;
    passed = passed || check.ok;
    if (check.ok) continue;
    EXPECT_FALSE(passed) << check.check;
    failed.push_back(absl::StrCat(check.check, ", ", check.subject));
  }
  return failed;
}

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DoctorChecks, AFitClusterPassesAll) {
  EXPECT_THAT(Failed(FitSurvey()), IsEmpty());
  EXPECT_GE(CheckSurvey(FitSurvey()).size(), 20u);
}

TEST(DoctorChecks, WhoIsNotReached) {
  Survey survey = FitSurvey();
  survey.daemons[2].reached = absl::UnavailableError("10.0.0.3:7071: connection refused");
  EXPECT_THAT(Failed(survey), ElementsAre("reach, worker-0"));
  survey = FitSurvey();
  survey.daemons[2].back.set_error("no route to host");
  EXPECT_THAT(Failed(survey), ElementsAre("reach-back, worker-0"));
  survey = FitSurvey();
  survey.paths[1].measured.set_error("timed out");
  EXPECT_THAT(Failed(survey), ElementsAre("path, worker-1 -> shard-0"));
}

TEST(DoctorChecks, Addresses) {
  Survey survey = FitSurvey();
  survey.daemons[1].node.set_advertised_address("10.9.9.9:1");  // others are told another
  EXPECT_THAT(Failed(survey), ElementsAre("address, shard-0"));
  survey = FitSurvey();
  survey.daemons[1].address = "127.0.0.1:7071";  // and other machines take part
  survey.daemons[1].node = FitNode("other", "127.0.0.1:7071");
  EXPECT_THAT(Failed(survey), ElementsAre("address, shard-0"));
  survey = FitSurvey();
  survey.daemons[1].node.set_bound_address("127.0.0.1:7071");
  EXPECT_THAT(Failed(survey), ElementsAre("address, shard-0"));
  survey = FitSurvey();
  for (SurveyedDaemon& daemon : survey.daemons) {  // all on one machine
    daemon.address = "127.0.0.1:7071";
    daemon.node = FitNode("one", daemon.address);
  }
  EXPECT_THAT(Failed(survey), IsEmpty());
}

TEST(DoctorChecks, Clocks) {
  Survey survey = FitSurvey();
  survey.daemons[3].back.set_clock_ahead_seconds(-0.4);
  EXPECT_THAT(Failed(survey), ElementsAre("clock, worker-1"));
  EXPECT_THAT(CheckSurvey(survey)[0].text, HasSubstr("0.400 s behind the coordinator's"));
  survey.daemons[3].back.set_delay_seconds(0.5);  // may equally be due to a long path
  EXPECT_THAT(Failed(survey), IsEmpty());
}

TEST(DoctorChecks, VersionsAndProcessors) {
  Survey survey = FitSurvey();
  survey.daemons[1].info.mutable_version()->set_version("0.0.9");
  EXPECT_THAT(Failed(survey), ElementsAre("version, cluster"));
  survey = FitSurvey();
  survey.daemons[3].info.set_instruction_set("avx512");
  EXPECT_THAT(Failed(survey), ElementsAre("cpu-class, cluster"));
}

TEST(DoctorChecks, Machines) {
  Survey survey = FitSurvey();
  survey.daemons[1].node.set_available_bytes(100 << 20);
  survey.daemons[2].node.set_open_files_max(256);
  survey.daemons[3].node.set_open_files(4000);
  EXPECT_THAT(Failed(survey),
              ElementsAre("memory, shard-0", "open-files, worker-0", "open-files, worker-1"));
}

TEST(DoctorChecks, AGpuNeedsItsLibraries) {
  Survey survey = FitSurvey();
  NodeReply& node = survey.daemons[2].node;
  node.add_gpus("A GPU");
  node.set_driver("570.86");
  node.set_cuda("12.8");
  EXPECT_THAT(Failed(survey), ElementsAre("gpu, worker-0"));
  EXPECT_THAT(CheckSurvey(survey)[0].remedy, HasSubstr("cuDNN"));
  node.set_cudnn("9.1.0");
  EXPECT_THAT(Failed(survey), IsEmpty());
}

TEST(DoctorChecks, Paths) {
  Survey survey = FitSurvey();
  survey.paths[0].measured = FitPath(0.0002, 1e6);
  survey.paths[1].measured = FitPath(0.08);
  EXPECT_THAT(Failed(survey),
              ElementsAre("bandwidth, worker-0 -> shard-0", "delay, worker-1 -> shard-0",
                          "congestion-control, worker-1 -> shard-0"));
  survey = FitSurvey();
  survey.paths[1].measured = FitPath(0.01);
  EXPECT_THAT(Failed(survey), ElementsAre("congestion-control, worker-1 -> shard-0"));
  EXPECT_THAT(CheckSurvey(survey)[0].text, HasSubstr("worker-1 uses cubic, shard-0 uses cubic"));
  for (const int one_end : {1, 3}) {
    Survey half = survey;
    half.daemons[one_end].node.set_congestion_control("bbr");
    EXPECT_THAT(Failed(half), ElementsAre("congestion-control, worker-1 -> shard-0"));
  }
  for (const int end : {1, 3}) survey.daemons[end].node.set_congestion_control("bbr");
  EXPECT_THAT(Failed(survey), IsEmpty());
}

// ---- The verb -------------------------------------------------------------------------------

class DoctorTest : public CliTest {
 protected:
  void SetUp() override {
    ShardStatus* shard = cluster_.shards.add_shards();
    shard->set_name("shard-0");
    shard->set_address("127.0.0.1:2");
    shard->set_state("ready");
    for (const auto& [name, address, state] : std::vector<std::array<const char*, 3>>{
             {"worker-0", "127.0.0.1:3", "idle"}, {"worker-1", "127.0.0.1:4", "left"}}) {
      WorkerStatus* worker = cluster_.workers.add_workers();
      worker->set_name(name);
      worker->set_address(address);
      worker->set_state(state);
    }
    for (const std::string address : {"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}) {
      cluster_.infos[address].mutable_version()->set_version("0.1.0");
      cluster_.nodes[address] = FitNode("one", address);
      cluster_.measured[{"127.0.0.1:1", address}] = FitPath();
    }
    cluster_.measured[{"127.0.0.1:3", "127.0.0.1:2"}] = FitPath();
  }
};

TEST_F(DoctorTest, NothingIsWrong) {
  EXPECT_EQ(Run({"doctor"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("ok    bandwidth, worker-0 -> shard-0: "));
  EXPECT_THAT(out_.str(), HasSubstr("\nnothing wrong: "));
  EXPECT_THAT(out_.str(), Not(HasSubstr("worker-1")));  // it left in good order
}

TEST_F(DoctorTest, WhatIsLostIsWrong) {
  cluster_.workers.mutable_workers(1)->set_state("lost");
  cluster_.workers.mutable_workers(1)->set_seconds_since_report(10.2);
  EXPECT_EQ(Run({"doctor"}), kExitError);
  EXPECT_THAT(
      out_.str(),
      HasSubstr(
          "FAIL  lost, worker-1: the worker at 127.0.0.1:4 is lost: it last reported 10s ago\n"
          "  try: see its log, and start it again under the name worker-1\n"));
  cluster_.shards.mutable_shards(0)->set_state("lost");
  EXPECT_EQ(Run({"doctor"}), kExitError);
  EXPECT_THAT(out_.str(), HasSubstr("FAIL  lost, shard-0: the shard at 127.0.0.1:2 is lost"));
  EXPECT_THAT(out_.str(), HasSubstr(" ago; no job lacks values because of it\n"));
  cluster_.shards.mutable_shards(0)->set_partitions(3);  // that it alone had
  EXPECT_EQ(Run({"doctor"}), kExitError);
  EXPECT_THAT(out_.str(), HasSubstr("the values of 3 partitions that had no other copy are gone"));
}

TEST_F(DoctorTest, WhatTheCoordinatorKnowsOfThoseThatLiveIsTold) {
  ShardStatus* shard = cluster_.shards.mutable_shards(0);
  shard->set_partitions(3);
  shard->set_state("silent");
  shard->set_seconds_since_report(1.5);
  shard->set_trouble("shard shard-0 does not see the folder");
  WorkerStatus* worker = cluster_.workers.mutable_workers(0);
  worker->set_state("quarantined");
  worker->set_trouble("worker-0 is quarantined: three times");
  EXPECT_EQ(Run({"doctor"}), kExitError);
  EXPECT_THAT(out_.str(),
              HasSubstr("FAIL  silent, shard-0: the coordinator has not heard of it for 1.5s"));
  EXPECT_THAT(out_.str(), HasSubstr("FAIL  trouble, shard-0: shard shard-0 does not see"));
  EXPECT_THAT(out_.str(),
              HasSubstr("FAIL  quarantined, worker-0: worker-0 is quarantined: three times\n"));
  EXPECT_THAT(out_.str(), HasSubstr("\n3 of "));
  EXPECT_THAT(out_.str(), HasSubstr("ok    reach, shard-0: "));  // it is asked all the same
  worker->set_state("idle");
  worker->set_trouble("its report is too large");
  EXPECT_EQ(Run({"doctor"}), kExitError);
  EXPECT_THAT(out_.str(), HasSubstr("FAIL  trouble, worker-0: its report is too large\n"));
}

TEST_F(DoctorTest, WhatWasNotMeasuredIsNotCalledFit) {
  for (int i = 0; i < 300; ++i) {
    ShardStatus* shard = cluster_.shards.add_shards();
    const std::string address = absl::StrCat("127.0.0.2:", i + 1);
    shard->set_name(absl::StrCat("more-", i));
    shard->set_address(address);
    shard->set_state("ready");
    cluster_.infos[address].mutable_version()->set_version("0.1.0");
    cluster_.nodes[address] = FitNode("one", address);
    cluster_.measured[{"127.0.0.1:1", address}] = FitPath();
    cluster_.measured[{"127.0.0.1:3", address}] = FitPath();
  }
  EXPECT_EQ(Run({"doctor"}), kExitOk) << out_.str();
  EXPECT_THAT(out_.str(), HasSubstr("45 more paths from workers to shards were not measured\n"
                                    "nothing wrong in what was measured: "));
}

TEST_F(DoctorTest, WhatFailedComesFirstAndSaysWhatToTry) {
  cluster_.nodes.erase("127.0.0.1:3");
  EXPECT_EQ(Run({"doctor"}), kExitError);
  EXPECT_THAT(out_.str(), ::testing::StartsWith(
                              "FAIL  reach, worker-0: 127.0.0.1:3: connection refused\n  try: "));
  EXPECT_THAT(out_.str(), HasSubstr("1 of "));
  EXPECT_EQ(Run({"doctor", "-o", "json"}), kExitError);
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["checks"][0]["check"], "reach");
  EXPECT_EQ(json["checks"][0]["ok"], false);
  EXPECT_EQ(json["pathsLeftOut"], 0);
}

TEST_F(DoctorTest, OneMachineNeedsNoCluster) {
  environment_.clear();
  node_ = FitNode("here", "");
  node_.set_cores(12);
  node_.set_kernel("6.1.0");
  EXPECT_EQ(Run({"doctor", "--node"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("ok    cpu, here: A Processor, 12 cores, instruction set "));
  EXPECT_THAT(out_.str(),
              HasSubstr("ok    system, here: kernel 6.1.0, congestion control cubic\n"));
  EXPECT_THAT(out_.str(), HasSubstr("ok    memory, here: 4.0 GiB of 8.0 GiB are available"));
  node_.set_available_bytes(1 << 20);
  EXPECT_EQ(Run({"doctor", "--node"}), kExitError);
}

}  // namespace
}  // namespace starling::cli
