// Submission, watching and waiting, driven through the command line.
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "tools/cli/exit_code.h"
#include "tools/cli/testing/cli_fixture.h"

namespace starling::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(CliTest, SubmitSendsTheFileWithOverrides) {
  EXPECT_EQ(
      Run({"submit", "-f", GoodJobFile(), "--set", "batch.global=32", "--set", "stop.epochs=3"}),
      0);
  ASSERT_EQ(cluster_.submitted.size(), 1u);
  const SubmitRequest& request = cluster_.submitted[0];
  EXPECT_EQ(request.spec().batch().global(), 32u);
  EXPECT_EQ(request.spec().stop().epochs(), 3u);
  EXPECT_EQ(request.spec().train().csv().path(),
            absl::StrCat(std::getenv("TEST_TMPDIR"), "/digits.csv"));
  EXPECT_EQ(request.nonce(), 42u);
  EXPECT_FALSE(request.dry_run());
  EXPECT_EQ(out_.str(), "");
}

TEST_F(CliTest, AJobFileMayComeFromStandardInput) {
  std::ifstream file(GoodJobFile());
  std::streambuf* const before = std::cin.rdbuf(file.rdbuf());
  EXPECT_EQ(Run({"submit", "-f", "-"}), 0) << err_.str();
  std::cin.rdbuf(before);
  ASSERT_EQ(cluster_.submitted.size(), 1u);
  EXPECT_EQ(cluster_.submitted[0].spec().train().csv().path(),
            (std::filesystem::current_path() / "digits.csv").string());
}

TEST_F(CliTest, PatternsStandForTheFilesThatThereAre) {
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/shards");
  std::filesystem::create_directories(folder);
  for (const char* name : {"b-2.bin", "b-1.bin", "c.bin", "[d].bin"})
    std::ofstream(absl::StrCat(folder, "/", name)) << "x";
  EXPECT_EQ(Run({"submit", "-f", GoodJobFile(), "--set",
                 "data.train.cifar.files=[\"shards/b-*.bin\", \"shards/[d].bin\"]"}),
            0)
      << err_.str();
  ASSERT_EQ(cluster_.submitted.size(), 1u);
  EXPECT_THAT(
      cluster_.submitted[0].spec().train().cifar().files(),
      ::testing::ElementsAre(folder + "/b-1.bin", folder + "/b-2.bin", folder + "/[d].bin"));
  EXPECT_EQ(Run({"submit", "-f", GoodJobFile(), "--set", "data.train.cifar.files=[\"shards/e*\"]"}),
            2);
  EXPECT_THAT(err_.str(),
              HasSubstr(absl::StrCat("no file matches ", folder, "/e* on this machine")));
}

TEST_F(CliTest, SubmitSaysWhatMayNotBeMeant) {
  cluster_.submit_reply->mutable_status()->add_warnings("data.test is not used");
  cluster_.submit_reply->mutable_status()->add_warnings(
      "data.train: corrupt image, not used: a.tar: b.jpg");
  for (const char* flag : {"--dry-run", "--set=seed=1"}) {
    EXPECT_EQ(Run({"submit", "-f", GoodJobFile(), flag}), 0);
    EXPECT_THAT(err_.str(),
                HasSubstr("warning: data.test is not used\n"
                          "warning: data.train: corrupt image, not used: a.tar: b.jpg\n"));
  }
}

TEST_F(CliTest, AnInvalidJobFileIsTwoAndNeverSent) {
  EXPECT_EQ(Run({"submit", "-f", GoodJobFile(), "--set", "bach.global=32"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("did you mean \"batch\""));
  EXPECT_EQ(Run({"submit", "-f", JobFile("kind: [")}), 2);
  EXPECT_EQ(Run({"submit", "-f", "/nowhere/job.yaml"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("/nowhere/job.yaml"));
  EXPECT_TRUE(cluster_.submitted.empty());
  EXPECT_EQ(cluster_.address, "");
}

TEST_F(CliTest, TheCoordinatorsRefusalHasItsExitCode) {
  const std::map<int, absl::Status> refusals = {
      {1, absl::AlreadyExistsError("a job of that name")},
      {2, absl::InvalidArgumentError("labels out of range")},
      {6, absl::UnavailableError("not reached")}};
  for (const auto& [code, status] : refusals) {
    cluster_.submit_reply = status;
    EXPECT_EQ(Run({"submit", "-f", GoodJobFile()}), code);
    EXPECT_THAT(err_.str(), HasSubstr(std::string(status.message())));
  }
}

TEST_F(CliTest, ADryRunSaysThatTheJobIsValid) {
  cluster_.submit_reply->mutable_status()->set_parameters(1199882);
  EXPECT_EQ(Run({"submit", "-f", GoodJobFile(), "--dry-run", "--watch"}), 0);
  EXPECT_TRUE(cluster_.submitted.at(0).dry_run());
  EXPECT_THAT(out_.str(), HasSubstr("1,199,882 parameters"));
}

TEST_F(CliTest, WatchEndsWithTheAccuracyOnStandardOutput) {
  JobStatus end = Running();
  AddEpoch(&end, 0.95);
  cluster_.jobs = {Reply(Running()), Reply(end)};
  AddEpoch(&end, 0.97119);
  end.set_state(SUCCEEDED);
  cluster_.jobs.push_back(Reply(end));
  EXPECT_EQ(Run({"submit", "-f", GoodJobFile(), "--watch"}), 0);
  EXPECT_EQ(out_.str(), "test_accuracy=0.9712\n");
  EXPECT_THAT(
      err_.str(),
      HasSubstr(
          "digits  epoch 1/5: train loss 0.5000, test loss 0.2500, test accuracy 0.9500, 9.1s\n"));
  EXPECT_THAT(err_.str(), HasSubstr("digits  SUCCEEDED"));
}

TEST_F(CliTest, AnEvaluatingJobsEpochsAreShownOnceTheyAreEvaluated) {
  JobStatus status = Running();
  AddEpoch(&status, 0.9);
  AddEpoch(&status, 0.9);
  status.mutable_epochs_done(0)->set_evaluated(false);  // and never will be
  status.mutable_epochs_done(1)->set_evaluated(false);  // not yet
  JobReply reply = Reply(status);
  reply.mutable_spec()->mutable_evaluate()->set_every_epochs(2);
  cluster_.jobs = {reply};
  reply.mutable_status()->mutable_epochs_done(1)->set_evaluated(true);
  cluster_.jobs.push_back(reply);
  reply.mutable_status()->set_state(SUCCEEDED);
  cluster_.jobs.push_back(reply);
  EXPECT_EQ(Run({"wait", "digits"}), 0);
  EXPECT_THAT(err_.str(), Not(HasSubstr("epoch 1/5: ")));
  const std::string line =
      "digits  epoch 2/5: train loss 0.5000, test loss 0.2500, test accuracy 0.9000, 9.1s\n";
  ASSERT_THAT(err_.str(), HasSubstr(line));
  EXPECT_EQ(err_.str().find(line), err_.str().rfind(line));
}

TEST_F(CliTest, TheEndsStateIsTheExitCode) {
  const std::map<int, JobState> ends = {{0, SUCCEEDED}, {3, FAILED}, {4, CANCELLED}};
  for (const auto& [code, state] : ends) {
    JobStatus status = Running();
    status.set_state(state);
    status.set_reason("the reason");
    cluster_.jobs = {Reply(status)};
    EXPECT_EQ(Run({"wait", "digits"}), code);
    EXPECT_EQ(out_.str(), "");  // it never evaluated
    EXPECT_THAT(err_.str(), HasSubstr("the reason"));
  }
}

// A script that waits for the job uses its file next.
TEST_F(CliTest, WaitIsAlsoForTheFileOfItsValues) {
  JobStatus status = Running();
  status.set_state(SUCCEEDED);
  OutputStatus& output = *status.mutable_output();
  output.set_path("/outputs/a.safetensors");
  for (const auto state : {OutputStatus::WAITING, OutputStatus::WRITING, OutputStatus::WRITTEN}) {
    output.set_state(state);
    cluster_.jobs.push_back(Reply(status));
  }
  EXPECT_EQ(Run({"wait", "digits"}), 0);
  EXPECT_GT(now_, absl::UnixEpoch());
  EXPECT_THAT(err_.str(), HasSubstr("writes its values to /outputs/a.safetensors"));

  output.set_state(OutputStatus::FAILED);
  output.set_error("No space left on device");
  cluster_.jobs = {Reply(status)};
  EXPECT_EQ(Run({"wait", "digits"}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("not written to /outputs/a.safetensors: No space left"));
  // Of a job that failed no file is expected.
  output.set_error("the job is FAILED");
  status.set_state(FAILED);
  cluster_.jobs = {Reply(status)};
  EXPECT_EQ(Run({"wait", "digits"}), 3);
}

TEST_F(CliTest, AFailedJobHasNoAccuracy) {
  JobStatus status = Running();
  AddEpoch(&status, 0.9);
  status.set_state(FAILED);
  cluster_.jobs = {Reply(status)};
  EXPECT_EQ(Run({"wait", "digits"}), 3);
  EXPECT_EQ(out_.str(), "");
}

TEST_F(CliTest, WaitIsBounded) {
  cluster_.jobs = {Reply(Running())};
  EXPECT_EQ(Run({"wait", "digits", "--timeout", "10s"}), 7);
  EXPECT_EQ(now_, absl::UnixEpoch() + absl::Seconds(10));
  EXPECT_THAT(err_.str(), HasSubstr("starling wait digits"));
}

TEST_F(CliTest, SubmitsUnderAnotherName) {
  EXPECT_EQ(Run({"submit", "-f", GoodJobFile(), "--name", "second"}), 0) << err_.str();
  EXPECT_EQ(cluster_.submitted.back().spec().name(), "second");
  EXPECT_THAT(err_.str(), HasSubstr("submitted second"));
}

// No job is deleted for a submission that would be refused, nor is a live job.
TEST_F(CliTest, ReplacesAJobThatHasEnded) {
  const std::vector<std::string> replace = {"submit", "-f", GoodJobFile(), "--replace"};
  EXPECT_EQ(Run(replace), 0) << "there is none: " << err_.str();
  EXPECT_EQ(cluster_.submitted.size(), 1u);
  cluster_.jobs = {Reply(Running())};
  EXPECT_EQ(Run(replace), 1);
  EXPECT_THAT(err_.str(), HasSubstr("starling cancel digits"));
  JobStatus ended = Running();
  ended.set_state(FAILED);
  cluster_.jobs = {Reply(ended)};
  cluster_.submit_reply = absl::InvalidArgumentError("data: no such file");
  EXPECT_NE(Run(replace), 0);
  EXPECT_TRUE(cluster_.removed.empty());
  cluster_.submit_reply = SubmitReply();
  cluster_.submitted.clear();
  EXPECT_EQ(Run(replace), 0);
  EXPECT_THAT(cluster_.removed, ElementsAre("digits"));
  ASSERT_EQ(cluster_.submitted.size(), 2u);
  EXPECT_TRUE(cluster_.submitted[0].dry_run());
  EXPECT_EQ(cluster_.submitted[0].spec().name(), "digits");
  EXPECT_FALSE(cluster_.submitted[1].dry_run());
  EXPECT_EQ(cluster_.submitted[1].spec().name(), "digits");
  EXPECT_THAT(err_.str(), HasSubstr("deleted digits (FAILED)\nsubmitted digits\n"));
}

TEST_F(CliTest, WaitForNobodyIsFive) { EXPECT_EQ(Run({"wait", "nobody"}), 5); }

TEST_F(CliTest, InterruptingAWatchDetachesAndSaysHowToComeBack) {
  cluster_.jobs = {Reply(Running())};
  interrupt_at_ = now_ + absl::Seconds(3);
  EXPECT_EQ(Run({"submit", "-f", GoodJobFile(), "--watch"}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("detached: digits goes on"));
  EXPECT_THAT(err_.str(), HasSubstr("starling wait digits"));
  EXPECT_TRUE(cluster_.cancelled.empty());
}

TEST_F(CliTest, AWatchOutlivesAShortAbsenceOfTheCoordinatorAndNotALongOne) {
  JobStatus end = Running();
  end.set_state(SUCCEEDED);
  cluster_.jobs = {Reply(Running()), absl::UnavailableError("gone"), absl::UnavailableError("gone"),
                   Reply(end)};
  EXPECT_EQ(Run({"wait", "digits"}), 0);
  cluster_.jobs = {Reply(Running()), absl::UnavailableError("gone")};
  EXPECT_EQ(Run({"wait", "digits"}), 6);
  EXPECT_THAT(err_.str(), HasSubstr("starling: gone"));
}

// Epochs behind the checkpoint are done, and told, again.
TEST_F(CliTest, AWatchOutlivesAReturnToACheckpointAndSaysSo) {
  JobStatus status = Running();
  status.set_epoch(2);
  AddEpoch(&status, 0.5);
  AddEpoch(&status, 0.6);
  cluster_.jobs = {Reply(status)};
  JobStatus back = Running();
  back.set_state(PENDING);
  back.set_epoch(1);
  AddEpoch(&back, 0.5);
  back.set_restarts(1);
  back.set_last_restart("2026-01-01T00:00:00Z: shard ps-0 is gone: goes back to step 400");
  cluster_.jobs.push_back(Reply(back));
  JobStatus end = back;
  end.set_state(SUCCEEDED);
  end.set_epoch(2);
  AddEpoch(&end, 0.7);
  cluster_.jobs.push_back(Reply(end));
  EXPECT_EQ(Run({"wait", "digits"}), 0);
  const std::string text = err_.str();
  EXPECT_THAT(text, HasSubstr("digits  went back: 2026-01-01T00:00:00Z: shard ps-0 is gone: goes "
                              "back to step 400\n"));
  const auto count = [&](const std::string& what) {
    size_t n = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("went back"), 1u) << text;
  EXPECT_EQ(count("epoch 1/5: train"), 1u) << text;
  EXPECT_EQ(count("epoch 2/5: train"), 2u) << text;
  EXPECT_EQ(out_.str(), "test_accuracy=0.7000\n");
}

TEST_F(CliTest, OffATerminalProgressIsALineEveryTwoSeconds) {
  JobStatus status = Running();
  for (int i = 0; i < 21; ++i) {  // a new step every 250 ms for 5 s
    status.set_step(100 + i);
    cluster_.jobs.push_back(Reply(status));
  }
  EXPECT_EQ(Run({"wait", "digits", "--timeout", "5s"}), 7);
  std::vector<std::string> steps;
  std::istringstream lines(err_.str());
  for (std::string line; std::getline(lines, line);) {
    if (line.find("  step ") != std::string::npos)
      steps.push_back(line.substr(line.find("  step "), 10));
  }
  EXPECT_THAT(steps, ElementsAre("  step 100", "  step 108", "  step 116"));
  EXPECT_THAT(err_.str(), Not(HasSubstr("\x1b")));
}

TEST_F(CliTest, OnATerminalOneLineChangesInPlaceAndFits) {
  context_.terminal = true;
  context_.columns = 30;
  JobStatus end = Running();
  AddEpoch(&end, 0.95);
  end.set_state(SUCCEEDED);
  cluster_.jobs = {Reply(Running()), Reply(end)};
  EXPECT_EQ(Run({"wait", "digits"}), 0);
  EXPECT_THAT(
      err_.str(),
      StartsWith("\r\x1b[Kepoch 2/5 step 812/2,345 1,53\r\x1b[Kdigits  epoch 1/5: train loss"));
}

}  // namespace
}  // namespace starling::cli
