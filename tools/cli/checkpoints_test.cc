// `starling checkpoint verify` and `export`, on a folder without a cluster.
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

}  // namespace
}  // namespace starling::cli
