// `starling checkpoint`: verbs that ask the coordinator, and those that read a folder.
#include <filesystem>

#include "common/checkpoint/store.h"
#include "common/checkpoint/testing/tiny_checkpoint.h"
#include "common/safetensors/safetensors.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/testing/cli_fixture.h"

namespace starling::cli {
namespace {

using ::testing::HasSubstr;

class CheckpointsTest : public CliTest {
 protected:
  CheckpointsTest() {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    const absl::Status written =
        WriteTinyCheckpoint(**OpenCheckpointDisk(root_), {0xc0ffee, JobUid(12), 3}, 27, 2);
    EXPECT_TRUE(written.ok()) << written;
  }
  int Checkpoint(std::vector<std::string> args) {
    args.insert(args.begin(), "checkpoint");
    args.insert(args.end(), {"--checkpoint-root", root_});
    return Run(args);
  }

  const std::string home_ = absl::StrCat(std::getenv("TEST_TMPDIR"), "/checkpoints_test");
  const std::string root_ = home_ + "/starling/local/checkpoints";
  const std::string id_ = "0000000000c0ffee-12-3";
};

TEST_F(CheckpointsTest, AWholeOneIsVerified) {
  EXPECT_EQ(Checkpoint({"verify", id_}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("0000000000c0ffee-12-3 (digits, step 27): whole, "));
  EXPECT_THAT(out_.str(), HasSubstr(" in 2 files\n"));
}

TEST_F(CheckpointsTest, TheLocalClustersFolderIsTheDefault) {
  environment_["XDG_STATE_HOME"] = home_;
  EXPECT_EQ(Run({"checkpoint", "verify", id_}), kExitOk) << err_.str();
  environment_["XDG_STATE_HOME"] = home_ + "/nowhere";
  EXPECT_EQ(Run({"checkpoint", "verify", id_}), kExitError);
  EXPECT_THAT(err_.str(), HasSubstr("--checkpoint-root DIR"));
  EXPECT_THAT(err_.str(), HasSubstr("nowhere/starling/local/checkpoints: No such file"));
}

TEST_F(CheckpointsTest, DamageAndWhatIsNotThereAreNamed) {
  EXPECT_EQ(Checkpoint({"verify", "0000000000c0ffee-12-4"}), kExitNotFound);
  EXPECT_THAT(err_.str(), HasSubstr("checkpoint 0000000000c0ffee-12-4: "));
  EXPECT_EQ(Checkpoint({"verify", "digits"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("got \"digits\""));
  const std::string file = absl::StrCat(root_, "/", id_, "/shard-0000000002.safetensors");
  const auto size = std::filesystem::file_size(file);
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(size) - 1);
  stream.put('\x7f');
  stream.close();
  EXPECT_EQ(Checkpoint({"verify", id_}), kExitError);
  EXPECT_THAT(err_.str(), HasSubstr("shard-0000000002.safetensors: entry "));
  std::filesystem::resize_file(file, size - 1);
  EXPECT_EQ(Checkpoint({"verify", id_}), kExitError);
  EXPECT_THAT(err_.str(), HasSubstr("shard-0000000002.safetensors: expected "));
}

TEST_F(CheckpointsTest, IsExportedAsAModelsFile) {
  const std::string path = home_ + "/out.safetensors";
  EXPECT_EQ(Checkpoint({"export", id_, "-o", path}), kExitOk) << err_.str();
  EXPECT_EQ(err_.str(), absl::StrCat("wrote 26 parameters of checkpoint 0000000000c0ffee-12-3 "
                                     "(digits, step 27) to ",
                                     path, "\n"));
  const auto file = safetensors::Reader::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header().metadata.at("job"), "digits");
  EXPECT_EQ(file->header().metadata.at("step"), "27");
  const Graph model = TinyJob().spec().model();
  ASSERT_EQ(file->header().tensors.size(), static_cast<size_t>(model.parameters_size()));
  for (const Parameter& parameter : model.parameters()) {
    const auto* const tensor = file->Find(parameter.name());
    ASSERT_NE(tensor, nullptr) << parameter.name();
    EXPECT_EQ(tensor->shape,
              std::vector<uint64_t>(parameter.shape().begin(), parameter.shape().end()));
    const auto values = file->ReadFloats(parameter.name());
    for (size_t i = 0; i < values->size(); ++i)
      EXPECT_EQ(values->at(i), TinyValue(27, parameter.name(), BlockPart::kValue, i));
  }
  EXPECT_EQ(Checkpoint({"export", id_, "-o", home_}), kExitUsage);
}

// ---- Through the coordinator ----

CheckpointInfo Made(const std::string& id, bool asked_for) {
  CheckpointInfo info;
  info.set_id(id);
  info.set_job("digits");
  info.set_step(1234);
  info.set_epoch(2);
  info.set_bytes(5 << 20);
  info.set_created("2026-01-02T03:04:05Z");
  info.set_asked_for(asked_for);
  return info;
}

TEST_F(CliTest, ACheckpointThatWasCreatedIsNamedOnStandardOutput) {
  *cluster_.checkpoint->mutable_checkpoint() = Made("c-1-1", true);
  EXPECT_EQ(Run({"checkpoint", "create", "digits"}), kExitOk) << err_.str();
  EXPECT_EQ(out_.str(), "c-1-1\n");
  EXPECT_THAT(err_.str(), HasSubstr("digits: step 1,234, 5.0 MiB; it stays until: starling "
                                    "checkpoint delete c-1-1\n"));
  ASSERT_EQ(cluster_.checkpoints_asked.size(), 1u);
  EXPECT_EQ(cluster_.checkpoints_asked[0].name(), "digits");
  EXPECT_EQ(cluster_.checkpoints_asked[0].nonce(), 42u);
  cluster_.checkpoint = absl::AbortedError("no checkpoint of job digits: no space");
  EXPECT_EQ(Run({"checkpoint", "create", "digits"}), kExitError);
  EXPECT_THAT(err_.str(), HasSubstr("no space"));
}

TEST_F(CliTest, CheckpointsAreListed) {
  *cluster_.checkpoint_list.add_checkpoints() = Made("c-1-2", false);
  *cluster_.checkpoint_list.add_checkpoints() = Made("c-1-1", true);
  EXPECT_EQ(Run({"checkpoint", "list"}), kExitOk) << err_.str();
  EXPECT_EQ(out_.str(),
            "ID     JOB     STEP   EPOCHS  SIZE     CREATED               KEPT\n"
            "c-1-2  digits  1,234  2       5.0 MiB  2026-01-02T03:04:05Z  by its job's rule\n"
            "c-1-1  digits  1,234  2       5.0 MiB  2026-01-02T03:04:05Z  until deleted\n");
  EXPECT_EQ(Run({"checkpoint", "list", "digits", "-o", "json"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("\"id\": \"c-1-1\""));
  EXPECT_THAT(cluster_.checkpoints_of, ::testing::ElementsAre("", "digits"));
}

TEST_F(CliTest, CheckpointsAreDeletedById) {
  EXPECT_EQ(Run({"checkpoint", "delete", "c-1-1", "c-1-2"}), kExitOk) << err_.str();
  EXPECT_THAT(cluster_.checkpoints_removed, ::testing::ElementsAre("c-1-1", "c-1-2"));
  cluster_.remove_checkpoint = absl::NotFoundError("there is no checkpoint c-1-3");
  EXPECT_EQ(Run({"checkpoint", "delete", "c-1-3", "c-1-4"}), kExitNotFound);
  EXPECT_EQ(cluster_.checkpoints_removed.size(), 4u);
  EXPECT_EQ(Run({"checkpoint", "delete"}), kExitUsage);
}

TEST_F(CliTest, AJobGoesOnFromACheckpoint) {
  JobStatus status = Running();
  status.set_restored_from("c-1-1");
  *cluster_.submit_reply->mutable_status() = status;
  const std::vector<std::vector<std::string>> same = {
      {"submit", "--from", "c-1-1", "--name", "second"},
      {"checkpoint", "restore", "c-1-1", "--name", "second", "--workers-min", "1"}};
  for (const auto& args : same) {
    EXPECT_EQ(Run(args), kExitOk) << err_.str();
    const SubmitRequest& request = cluster_.submitted.back();
    EXPECT_FALSE(request.has_spec());
    EXPECT_EQ(request.from(), "c-1-1");
    EXPECT_EQ(request.name(), "second");
    EXPECT_EQ(request.nonce(), 42u);
    EXPECT_EQ(request.workers_min(), args[0] == "submit" ? 0u : 1u);
    EXPECT_THAT(err_.str(),
                HasSubstr("submitted digits, which goes on from checkpoint c-1-1, step 812\n"));
  }
}

TEST_F(CliTest, AnotherJobBeginsWithTheValuesOfACheckpoint) {
  cluster_.submit_reply->mutable_status()->set_restored_from("c-1-1");
  EXPECT_EQ(Run({"submit", "-f", GoodJobFile(), "--from", "old", "--optimizer-state"}), kExitOk)
      << err_.str();
  const SubmitRequest& request = cluster_.submitted.back();
  EXPECT_EQ(request.spec().name(), "digits");
  EXPECT_EQ(request.from(), "old");
  EXPECT_TRUE(request.optimizer_state());
  EXPECT_THAT(err_.str(), HasSubstr("submitted digits, with the values of checkpoint c-1-1\n"));
}

TEST_F(CliTest, WhatNeedsAJobFileSaysSo) {
  EXPECT_EQ(Run({"submit"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("--file or --from"));
  EXPECT_EQ(Run({"submit", "--from", "a", "--set", "seed=1"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("--set: expected a job file"));
  EXPECT_EQ(Run({"submit", "--from", "a", "--optimizer-state"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("--optimizer-state: expected a job file"));
  EXPECT_EQ(Run({"submit", "-f", GoodJobFile(), "--workers-min", "1"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("expected no job file: it has workers.min"));
  EXPECT_TRUE(cluster_.submitted.empty());
}

// Its name is the checkpoint's, which the coordinator knows.
TEST_F(CliTest, TheJobThatGoesOnReplacesTheOneThatEnded) {
  *cluster_.submit_reply->mutable_status() = Running();
  JobStatus ended = Running();
  ended.set_state(CANCELLED);
  cluster_.jobs = {Reply(ended)};
  EXPECT_EQ(Run({"submit", "--from", "c-1-1", "--replace"}), kExitOk) << err_.str();
  EXPECT_THAT(cluster_.removed, ::testing::ElementsAre("digits"));
  ASSERT_EQ(cluster_.submitted.size(), 2u);
  EXPECT_TRUE(cluster_.submitted[0].dry_run());
  EXPECT_FALSE(cluster_.submitted[1].dry_run());
}

TEST_F(CliTest, ADeletedJobsCheckpointsStay) {
  EXPECT_EQ(Run({"delete", "digits"}), kExitOk);
  EXPECT_EQ(err_.str(), "deleted digits\n");
  *cluster_.checkpoint_list.add_checkpoints() = Made("c-1-1", true);
  EXPECT_EQ(Run({"delete", "digits"}), kExitOk);
  EXPECT_EQ(err_.str(), "deleted digits\nits checkpoints stay: starling checkpoint list digits\n");
}

}  // namespace
}  // namespace starling::cli
