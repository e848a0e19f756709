// starling advise batch, on a real device and a small job.
#include <fstream>

#include "tools/cli/exit_code.h"
#include "tools/cli/testing/cli_fixture.h"

namespace starling::cli {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class AdviseTest : public CliTest {
 protected:
  std::string SmallJob(const std::string& recompute) {
    std::ofstream rows(absl::StrCat(std::getenv("TEST_TMPDIR"), "/advise.csv"));
    for (int i = 0; i < 64; ++i) rows << i % 5 << "," << i % 7 << "," << i % 3 << "\n";
    return JobFile(absl::StrCat(R"(apiVersion: starling/v1
kind: TrainingJob
metadata: {name: small}
spec:
  model: {builtin: mlp, hidden: [32, 32, 32]}
  data: {train: {csv: {path: advise.csv}}}
  batch: {global: 8, microBatches: 2}
  optimizer: {sgd: {learningRate: 0.1}}
)",
                                recompute));
  }
};

TEST_F(AdviseTest, PlansAndMeasures) {
  const std::string file = SmallJob("");
  EXPECT_EQ(Run({"advise", "batch", "-f", file, "--seconds", "0", "--lanes", "2"}), kExitOk)
      << err_.str();
  EXPECT_THAT(out_.str(),
              AllOf(ContainsRegex("none \\(the job's\\) +64 = 2 x 32 "),  // all of the data
                    ContainsRegex("everyBlocks: 1 +64 = 2 x 32 "),
                    ContainsRegex("\n8 = 2 x 4 \\(the job's\\) +[0-9.]+\n"),
                    HasSubstr("\nLargest batch that fits: 64 = 2 x 32 (planned)\n"),
                    ContainsRegex("\nFastest batch: [0-9]+ = 2 x [0-9]+ at [0-9.]+ samples/s "
                                  "\\(measured\\)\n")));
}

// The fake device has its own memory and lanes.
TEST_F(AdviseTest, OnAGpuItIsTheGpusMemoryAndLanes) {
  constexpr const char* kStandIn = "kernels/cuda/testing/libcpu_as_gpu.so";
  constexpr int64_t kBytes = 1 << 20;
  ASSERT_EQ(setenv("CPU_AS_GPU_BYTES", absl::StrCat(kBytes).c_str(), 1), 0);
  const std::string file = SmallJob("");
  EXPECT_EQ(Run({"advise", "batch", "-f", file, "--seconds", "0", "--lanes", "4", "--set",
                 "batch.microBatches=4", "--cuda-library", kStandIn}),
            kExitOk)
      << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("Planned for a worker with 921.6 KiB and 2 lanes on far cpu"));
  EXPECT_THAT(out_.str(), ContainsRegex("Fastest batch: [0-9]+ = 4 x [0-9]+ at "));
  EXPECT_EQ(Run({"advise", "batch", "-f", file, "--seconds", "0", "--device", "cpu",
                 "--cuda-library", kStandIn}),
            kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr(" on cpu ("));
}

TEST_F(AdviseTest, WithoutTheGpuThatIsWantedNothingIsAdvised) {
  const std::string file = SmallJob("");
  EXPECT_NE(Run({"advise", "batch", "-f", file, "--device", "gpu", "--cuda-library", "/none.so"}),
            kExitOk);
  EXPECT_THAT(err_.str(), HasSubstr("/none.so"));
  EXPECT_NE(Run({"advise", "batch", "-f", file, "--cuda-library", "/none.so", "--set",
                 "workers.device=gpu"}),
            kExitOk);
  EXPECT_THAT(err_.str(), HasSubstr("the job wants a GPU"));
  EXPECT_EQ(Run({"advise", "batch", "-f", file, "--seconds", "0", "--cuda-library", "/none.so"}),
            kExitOk);
  EXPECT_THAT(err_.str(), AllOf(HasSubstr("No GPU here: "), HasSubstr("/none.so")));
}

TEST_F(AdviseTest, TheJobsOwnPolicyComesFirst) {
  const std::string file = SmallJob("  recompute: {everyBlocks: 2}\n");
  EXPECT_EQ(Run({"advise", "batch", "-f", file, "--seconds", "0", "--lanes", "1"}), kExitOk)
      << err_.str();
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("everyBlocks: 2 (the job's)"), HasSubstr("\nnone "),
                                HasSubstr("with recompute everyBlocks: 2: real steps")));
}

TEST_F(AdviseTest, WhatFitsNowhereIsSaid) {
  const std::string file = SmallJob("");
  EXPECT_EQ(Run({"advise", "batch", "-f", file, "--memory-bytes", "1kB"}), kExitError);
  EXPECT_THAT(err_.str(), HasSubstr("no batch fits with recompute none"));
  EXPECT_THAT(out_.str(), Not(HasSubstr("Fastest")));
  EXPECT_EQ(Run({"advise", "batch", "-f", file, "--set", "recompute.everyBlocks=9"}), kExitUsage)
      << err_.str();
  EXPECT_THAT(err_.str(), HasSubstr("recompute.everyBlocks: this model has 4 blocks"));
}

}  // namespace
}  // namespace starling::cli
