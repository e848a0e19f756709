// The fixture of the core's tests: a MiniCluster and common questions.
#ifndef STARLING_SERVER_COORDINATOR_CORE_TESTING_COORDINATOR_FIXTURE_H_
#define STARLING_SERVER_COORDINATOR_CORE_TESTING_COORDINATOR_FIXTURE_H_

#include <string>

#include "gtest/gtest.h"
#include "server/coordinator/core/testing/mini_cluster.h"

namespace starling::coordinator {

class CoordinatorTest : public ::testing::Test {
 protected:
  explicit CoordinatorTest(const CoordinatorOptions& options = {}) : cluster(options) {}
  void Workers(int count) {
    for (int i = 0; i < count; ++i) cluster.AddWorker("worker-" + std::to_string(i));
  }
  void Submit(const JobSpec& spec) {
    const CallReply reply = cluster.Submit(spec);
    ASSERT_TRUE(std::holds_alternative<SubmitReply>(reply)) << std::get<absl::Status>(reply);
  }
  absl::Status SubmitError(const JobSpec& spec) {
    const CallReply reply = cluster.Submit(spec);
    const auto* status = std::get_if<absl::Status>(&reply);
    return status == nullptr ? absl::OkStatus() : *status;
  }
  bool Ends(const std::string& job, JobState state) {
    return cluster.RunUntil([&] { return cluster.IsIn(job, state); });
  }
  template <typename Event>
  absl::Status AskJob(const std::string& name) {
    JobRequest request;
    request.set_name(name);
    const CallReply reply = cluster.Ask<Event>(request);
    const auto* status = std::get_if<absl::Status>(&reply);
    return status == nullptr ? absl::OkStatus() : *status;
  }
  // The worker, which serves job "a", reports that the item of its open epoch is not finite.
  void Finds(const std::string& name, uint64_t item) {
    MiniCluster::MiniWorker& worker = cluster.workers[name];
    const JobReply job = cluster.Get("a");
    worker.fault.set_kind(Fault::NON_FINITE);
    *worker.fault.mutable_run() = worker.run;
    worker.fault.set_message("step " + std::to_string(item) + ", " + name + ": not finite");
    Work& work = *worker.fault.mutable_work();
    work.set_purpose(TRAIN);
    work.set_epoch(job.status().epoch());
    work.set_first(item * job.spec().batch().micro_batches());
    cluster.Round();
  }
  void EachItemOnce(uint64_t uid, uint32_t epochs, uint64_t items) {
    ASSERT_EQ(cluster.covered[uid].size(), epochs);
    for (const auto& [epoch, counts] : cluster.covered[uid]) {
      EXPECT_EQ(counts.size(), items) << "epoch " << epoch;
      for (const auto& [item, count] : counts) EXPECT_EQ(count, 1) << "item " << item;
    }
  }
  static JobSpec Ssp(const std::string& name, uint32_t min, uint32_t max) {
    return MiniCluster::Spec(name, Policy::SSP, min, max);
  }
  // It neither goes back nor begins again.
  static JobSpec Once(JobSpec spec) {
    spec.set_restarts_max(0);
    return spec;
  }

  MiniCluster cluster;
};

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_TESTING_COORDINATOR_FIXTURE_H_
