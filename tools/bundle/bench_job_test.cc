#include "tools/bundle/bench_job.h"

#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "common/config/job_file.h"
#include "common/graph/graph.h"
#include "gtest/gtest.h"
#include "server/coordinator/core/resolve_model.h"
#include "tools/bench/compute_nets.h"
#include "worker/data/data_set.h"

namespace starling {
namespace {

// The job as the client, a worker and the coordinator read it.
JobSpec Resolved(const BenchJob& job) {
  std::ostringstream text;
  text << std::ifstream(job.file).rdbuf();
  config::JobFileOptions options;
  options.directory = ".";
  absl::StatusOr<JobSpec> spec = config::ParseJobFile(text.str(), options);
  EXPECT_TRUE(spec.ok()) << spec.status();
  if (!spec.ok()) return {};
  const Inspection inspection = InspectData(*spec);
  EXPECT_EQ(inspection.error(), "");
  EXPECT_GE(inspection.train_samples(), static_cast<uint64_t>(job.batch));
  const absl::Status status = coordinator::ResolveModel(inspection, *spec);
  EXPECT_TRUE(status.ok()) << status;
  return *std::move(spec);
}

TEST(BenchJobTest, IsTheNetOfTheTable) {
  // Images have one channel here, so two thirds of ResNet-50's first convolution are missing.
  const std::map<std::string, int64_t> missing = {
      {"lenet", 0}, {"resnet50", 2 * 64 * 7 * 7}, {"gpt2", 0}};
  for (const auto& [name, parameters] : missing) {
    SCOPED_TRACE(name);
    const absl::StatusOr<BenchJob> job = WriteBenchJob(name, ::testing::TempDir());
    ASSERT_TRUE(job.ok()) << job.status();
    const JobSpec spec = Resolved(*job);
    const ComputeNet net = MakeComputeNet(name).value();
    const auto trainable = [](const Graph& graph) {
      const ResolvedGraph resolved = Validate(graph).value();
      int64_t elements = 0;
      for (const ResolvedParameter& parameter : resolved.parameters) {
        if (parameter.kind == TRAINABLE) elements += parameter.elements;
      }
      return elements;
    };
    EXPECT_EQ(trainable(spec.model()), trainable(net.spec.model()) - parameters);
    EXPECT_EQ(spec.batch().global(), net.spec.batch().global());
    EXPECT_EQ(job->batch, static_cast<int64_t>(spec.batch().global()));
    EXPECT_EQ(spec.batch().micro_batches(), 1u);
    EXPECT_EQ(spec.precision(), PRECISION_BF16);
    EXPECT_EQ(spec.optimizer().kind_case(), net.spec.optimizer().kind_case());
  }
}

TEST(BenchJobTest, RefusesAnotherNet) {
  EXPECT_EQ(WriteBenchJob("vgg", ::testing::TempDir()).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace starling
