#include "server/coordinator/admin/cluster_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace starling::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const ClusterView& view) {
  admin::MetricsText metrics;
  AddClusterMetrics(view, metrics);
  return metrics.Text();
}

TEST(ClusterMetrics, AnEmptyClusterHasItsStates) {
  const std::string text = Text({.generation = 3});
  EXPECT_THAT(text, HasSubstr("starling_coordinator_generation 3\n"));
  EXPECT_THAT(text, HasSubstr("starling_coordinator_jobs{state=\"RUNNING\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("starling_coordinator_workers{state=\"lost\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("starling_coordinator_shards{state=\"ready\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("job_name=")));
}

TEST(ClusterMetrics, CountsByState) {
  ClusterView view;
  view.worker_counts = {{"training", 2}, {"lost", 1}};
  view.shard_counts = {{"ready", 1}};
  view.job_counts = {{FAILED, 1}, {SUCCEEDED, 5000}};
  view.workers_lost = 3;
  const std::string text = Text(view);
  EXPECT_THAT(text, HasSubstr("starling_coordinator_workers{state=\"training\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("starling_coordinator_workers{state=\"lost\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("starling_coordinator_workers{state=\"idle\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("starling_coordinator_workers{state=\"quarantined\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("starling_coordinator_shards{state=\"ready\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("starling_coordinator_jobs{state=\"FAILED\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("starling_coordinator_jobs{state=\"SUCCEEDED\"} 5000\n"));
  EXPECT_THAT(text, HasSubstr("starling_coordinator_workers_lost_total 3\n"));
}

TEST(ClusterMetrics, AJobsFigures) {
  ClusterView view;
  JobStatus& job = *view.jobs.add_jobs();
  job.set_name("a \"b\"");
  job.set_state(RUNNING);
  job.set_step(17);
  job.set_staleness(2);
  job.set_staleness_bound(3);
  job.set_loss_scale(32768);
  job.set_skipped_steps(5);
  job.set_train_loss(0.5);
  job.set_partitions(5);
  job.set_partitions_whole(4);
  job.set_unreplicated_seconds(42);
  job.set_backup_behind(3);
  job.set_backup_silent_seconds(12);
  job.set_failovers(2);
  EpochResult& first = *job.add_epochs_done();
  first.set_evaluated(true);
  first.set_test_accuracy(0.75);
  job.add_epochs_done()->set_epoch(1);  // not evaluated
  JobStatus& async = *view.jobs.add_jobs();
  async.set_name("async");
  async.set_state(SUCCEEDED);
  async.set_staleness_bound(std::numeric_limits<uint64_t>::max());
  const std::string text = Text(view);
  EXPECT_THAT(text, HasSubstr("starling_job_running{job_name=\"a \\\"b\\\"\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("starling_job_running{job_name=\"async\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("starling_job_step{job_name=\"a \\\"b\\\"\"} 17\n"));
  EXPECT_THAT(text, HasSubstr("starling_staleness_steps{job_name=\"a \\\"b\\\"\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("starling_staleness_bound_steps{job_name=\"a \\\"b\\\"\"} 3\n"));
  EXPECT_THAT(text, Not(HasSubstr("starling_staleness_bound_steps{job_name=\"async\"}")));
  EXPECT_THAT(text, HasSubstr("starling_job_loss_scale{job_name=\"a \\\"b\\\"\"} 32768\n"));
  EXPECT_THAT(text, HasSubstr("starling_job_skipped_steps_total{job_name=\"a \\\"b\\\"\"} 5\n"));
  EXPECT_THAT(text, Not(HasSubstr("starling_job_loss_scale{job_name=\"async\"}")));
  const std::string of = "{job_name=\"a \\\"b\\\"\"} ";
  for (const std::string& line :
       {"partitions" + of + "5\n", "partitions_replicated" + of + "4\n",
        "not_replicated_seconds" + of + "42\n", "backup_behind_records" + of + "3\n",
        "backup_silent_seconds" + of + "12\n", "failovers_total" + of + "2\n"}) {
    EXPECT_THAT(text, HasSubstr("\nstarling_job_" + line));
  }
  EXPECT_THAT(text, Not(HasSubstr("starling_job_partitions{job_name=\"async\"}")));
  EXPECT_THAT(text, Not(HasSubstr("starling_checkpoint_")));
  EXPECT_THAT(text, HasSubstr("starling_job_test_accuracy{job_name=\"a \\\"b\\\"\"} 0.75\n"));
  EXPECT_THAT(text, Not(HasSubstr("starling_job_test_accuracy{job_name=\"async\"}")));
}

TEST(ClusterMetrics, AJobsCheckpoints) {
  ClusterView view;
  JobStatus& job = *view.jobs.add_jobs();
  job.set_name("a");
  CheckpointStatus& checkpoint = *job.mutable_checkpoint();
  job.set_restarts(2);
  checkpoint.set_failures(3);
  checkpoint.set_overdue_seconds(42);
  std::string text = Text(view);
  EXPECT_THAT(text, HasSubstr("starling_checkpoint_failures_total{job_name=\"a\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("starling_checkpoint_overdue_seconds{job_name=\"a\"} 42\n"));
  EXPECT_THAT(text, HasSubstr("starling_checkpoint_failing_seconds{job_name=\"a\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("starling_job_restarts_total{job_name=\"a\"} 2\n"));
  EXPECT_THAT(text, Not(HasSubstr("timestamp"))) << "there is none";
  checkpoint.mutable_last()->set_created("1970-01-02T00:00:00Z");
  checkpoint.mutable_last()->set_bytes(4096);
  checkpoint.set_last_seconds(1.5);
  checkpoint.set_failing_seconds(65);
  text = Text(view);
  EXPECT_THAT(text, HasSubstr("starling_checkpoint_last_success_timestamp_seconds{job_name=\"a\"} "
                              "86400\n"));
  EXPECT_THAT(text, HasSubstr("starling_checkpoint_bytes{job_name=\"a\"} 4096\n"));
  EXPECT_THAT(text, HasSubstr("starling_checkpoint_seconds{job_name=\"a\"} 1.5\n"));
  EXPECT_THAT(text, HasSubstr("starling_checkpoint_failing_seconds{job_name=\"a\"} 65\n"));
}

}  // namespace
}  // namespace starling::coordinator
