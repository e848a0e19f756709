// Usage, help, examples and addresses, driven through the command line.
#include <string>
#include <utility>
#include <vector>

#include "common/config/schema.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/testing/cli_fixture.h"

namespace starling::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(CliTest, WrongUsageIsTwoAndSaysWhat) {
  const std::vector<std::vector<std::string>> wrong = {{},
                                                       {"fly"},
                                                       {"submit"},
                                                       {"get"},
                                                       {"get", "cats"},
                                                       {"get", "jobs", "-o", "xml"},
                                                       {"wait"},
                                                       {"wait", "digits", "--timeout", "soon"},
                                                       {"local"},
                                                       {"local", "up", "--shards", "0"},
                                                       {"local", "down", "--state", ""},
                                                       {"schema", "--loud"}};
  for (const auto& args : wrong) {
    EXPECT_EQ(Run(args), 2) << (args.empty() ? "" : args.back());
    EXPECT_FALSE(err_.str().empty());
    EXPECT_EQ(out_.str(), "");
  }
}

TEST_F(CliTest, WrongUsageIsSaidInWords) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"get", "spiral"},
       "starling: KIND: expected one of jobs, workers, shards, job, worker, shard, got \"spiral\"\n"
       "see: starling get --help\n"},
      {{"get", "jobs", "-o", "jsn"},
       "--output: expected one of table, json, yaml, got \"jsn\"; did you mean \"json\"?"},
      {{"get", "jobs", "--state", "runing"},
       "--state: expected one of pending, running, succeeded, failed, cancelled, got \"runing\"; "
       "did you mean \"running\"?"},
      {{"gett"}, "starling: unknown verb \"gett\"; did you mean \"get\"?\nsee: starling --help\n"},
      {{"get", "jobs", "--coordinater", "a"},
       "starling: unknown flag --coordinater; did you mean \"--coordinator\"?"},
      {{"get", "jobs", "more"}, "starling: unexpected argument \"more\""},
      {{"local", "uo"}, "unknown verb \"uo\"; did you mean \"up\"?\nsee: starling local --help\n"},
      {{"local"}, "starling: expected a verb: up, down\n"},
      {{"submit", "-f"}, "starling: --file: expected a value, got none"},
      {{"submit", "-f", "/tmp"},
       "starling: /tmp: expected a job file, got a folder: name a file in"},
      {{"export", "a", "--format", "zip", "-o", "x"},
       "--format: expected safetensors, got \"zip\""},
      {{"advise", "batch", "-f", "x", "--memory-bytes", "1XB"},
       "--memory-bytes: expected a number of bytes of at least 1, like"},
      {{"describe", "job", "\xff"}, "NAME: expected UTF-8"}};
  for (const auto& [args, text] : wrong) {
    EXPECT_EQ(Run(args), 2) << text;
    EXPECT_THAT(err_.str(), HasSubstr(text));
  }
}

TEST_F(CliTest, HelpVersionAndSchemaNeedNoCoordinator) {
  context_.connect = nullptr;
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("submit"));
  EXPECT_EQ(Run({"version"}), 0);
  EXPECT_THAT(out_.str(), StartsWith("starling "));
  EXPECT_EQ(Run({"--version"}), 0);
  EXPECT_THAT(out_.str(), StartsWith("starling "));
  EXPECT_THAT(out_.str(), HasSubstr(" (protocol "));
  EXPECT_EQ(Run({"schema"}), 0);
  EXPECT_EQ(out_.str(), config::SchemaText(config::JobFileSchema()));
}

std::string Contents(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

TEST_F(CliTest, TheManualHasTheSchemaAsItIs) {
  // If this fails, copy the output of `starling schema` into the page.
  EXPECT_THAT(Contents("docs/job_file.md"),
              HasSubstr("```yaml\n" + config::SchemaText(config::JobFileSchema()) + "```"));
}

// Local only: nothing listens at the coordinator's address.
TEST_F(CliTest, DataInspectShowsWhatAJobWouldTrainOn) {
  const std::string folder = ::testing::TempDir();
  std::ofstream(folder + "/rows.csv") << "0,16,4,8,1\n1,2,3,4,0\n16,0,0,16,1\n";
  const std::string file = folder + "/inspect.yaml";
  std::ofstream(file) << R"(apiVersion: starling/v1
kind: TrainingJob
metadata: {name: a}
spec:
  model: {builtin: mlp}
  batch: {global: 4}
  optimizer: {sgd: {learningRate: 1}}
  data: {train: {csv: {path: rows.csv}}, normalize: {mean: [8], std: [8]}, shape: [1, 2, 2]}
)";
  const std::string sheet = folder + "/sheet.png";
  EXPECT_EQ(Run({"data", "inspect", "-f", file, "--rows", "1", "--samples", "2", "--sheet", sheet}),
            0)
      << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("data.train\nsamples    3\nsample     float32 [1, 2, 2]\n"));
  EXPECT_THAT(out_.str(), HasSubstr("looked at  the first 2\nvalues     -1 to 1, "));
  EXPECT_THAT(out_.str(),
              HasSubstr("classes    2 of 2 occur: 0: 1, 1: 1\nrow 0      [-1, 1, -0.5, 0] -> 1\n"));
  EXPECT_THAT(out_.str(), Not(HasSubstr("row 1")));
  EXPECT_EQ(Contents(sheet).substr(1, 3), "PNG");
  EXPECT_NE(Run({"data", "inspect", "-f", file, "--sheet", folder + "/sheet.gif"}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("ends in .png or .ppm"));
  EXPECT_NE(Run({"data", "inspect", "-f", file, "--set", "data.train.csv.path=none.csv"}), 0);
  EXPECT_THAT(err_.str(), HasSubstr("data.train: cannot open"));
}

TEST_F(CliTest, TheExamplesAreValid) {
  environment_["STARLING_DATA"] = "/data";
  environment_["STARLING_DIGITS"] = "/digits.csv.gz";
  for (const char* file : {"examples/mnist_cnn.yaml", "examples/digits_mlp.yaml"}) {
    EXPECT_EQ(Run({"submit", "-f", file}), 0) << file << ": " << err_.str();
  }
  EXPECT_EQ(cluster_.submitted.at(0).spec().train().idx().images(),
            "/data/mnist/train-images-idx3-ubyte.gz");
}

TEST_F(CliTest, TheFlagsAddressWinsThenTheVariableThenTheLocalCluster) {
  EXPECT_EQ(Run({"get", "jobs", "--coordinator", "127.0.0.1:2"}), 0);
  EXPECT_EQ(cluster_.address, "127.0.0.1:2");
  EXPECT_EQ(Run({"get", "jobs"}), 0);
  EXPECT_EQ(cluster_.address, "127.0.0.1:1");
  environment_.erase("STARLING_COORDINATOR");
  const std::string state = absl::StrCat(std::getenv("TEST_TMPDIR"), "/state");
  environment_["XDG_STATE_HOME"] = state;
  EXPECT_EQ(Run({"get", "jobs"}), 6);
  EXPECT_THAT(err_.str(), HasSubstr(state));
  EXPECT_THAT(err_.str(), HasSubstr("starling local up"));
  ASSERT_EQ(std::system(absl::StrCat("mkdir -p ", state, "/starling/local && echo 127.0.0.1:3 >",
                                     state, "/starling/local/address")
                            .c_str()),
            0);
  EXPECT_EQ(Run({"get", "jobs"}), 0);
  EXPECT_EQ(cluster_.address, "127.0.0.1:3");
}

}  // namespace
}  // namespace starling::cli
