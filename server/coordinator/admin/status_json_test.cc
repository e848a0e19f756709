#include "server/coordinator/admin/status_json.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace starling::coordinator {
namespace {

using Json = nlohmann::json;

TEST(StatusJson, SaysWhatThereIs) {
  ClusterView view;
  view.time = absl::FromUnixSeconds(1000);
  view.generation = 4;
  view.jobs.add_warnings("ps-0 started with --insecure");
  JobStatus& job = *view.jobs.add_jobs();
  job.set_name("mnist");
  job.set_state(RUNNING);
  job.set_step(7);
  job.set_staleness_bound(2);
  EpochResult& epoch = *job.add_epochs_done();
  epoch.set_train_loss(0.5);
  epoch.set_evaluated(true);
  epoch.set_test_loss(0.25);
  WorkerStatus& worker = *view.workers.add_workers();
  worker.set_name("worker-0");
  worker.set_job("mnist");
  worker.set_clock(9);
  ShardStatus& shard = *view.shards.add_shards();
  shard.set_name("ps-0");
  shard.set_value_bytes(4096);
  view.job_counts = {{RUNNING, 1}, {SUCCEEDED, 7}};
  view.worker_counts = {{"lost", 2}};
  const Json json = Json::parse(StatusJson(view));
  EXPECT_EQ(json["unix_seconds"], 1000.0);
  EXPECT_EQ(json["generation"], 4);
  EXPECT_EQ(json["warnings"], Json::array({"ps-0 started with --insecure"}));
  EXPECT_EQ(json["jobs"][0]["name"], "mnist");
  EXPECT_EQ(json["jobs"][0]["state"], "RUNNING");
  EXPECT_EQ(json["jobs"][0]["step"], 7);
  EXPECT_EQ(json["jobs"][0]["staleness_bound"], 2);
  EXPECT_EQ(json["jobs"][0]["epochs_done"][0]["test_loss"], 0.25);
  EXPECT_TRUE(json["jobs"][0]["epochs_done"][0]["test_accuracy"].is_null());
  EXPECT_EQ(json["workers"][0]["clock"], 9);
  EXPECT_EQ(json["counts"]["jobs"]["SUCCEEDED"], 7);
  EXPECT_EQ(json["counts"]["workers"]["lost"], 2);
  EXPECT_EQ(json["shards"][0]["value_bytes"], 4096);
}

TEST(StatusJson, SaysHowOldTheLastCheckpointIs) {
  ClusterView view;
  view.jobs.add_jobs();
  JobStatus& none = *view.jobs.add_jobs();
  none.mutable_checkpoint()->set_trouble("no space");
  JobStatus& some = *view.jobs.add_jobs();
  some.mutable_checkpoint()->mutable_last()->set_step(17);
  some.mutable_checkpoint()->set_age_seconds(3.5);
  some.set_restored_from("c-1-1");
  const Json json = Json::parse(StatusJson(view));
  EXPECT_TRUE(json["jobs"][0]["checkpoint"].is_null());
  EXPECT_TRUE(json["jobs"][1]["checkpoint"]["last"].is_null());
  EXPECT_EQ(json["jobs"][1]["checkpoint"]["trouble"], "no space");
  EXPECT_EQ(json["jobs"][2]["checkpoint"]["last"]["step"], 17);
  EXPECT_EQ(json["jobs"][2]["checkpoint"]["age_seconds"], 3.5);
  EXPECT_EQ(json["jobs"][2]["restored_from"], "c-1-1");
}

TEST(StatusJson, SaysWhatAJobWentThrough) {
  ClusterView view;
  view.jobs.add_jobs();
  JobStatus& job = *view.jobs.add_jobs();
  job.set_backup_behind(12);
  job.set_failovers(3);
  job.set_restarts(2);
  job.set_last_restart("goes back to step 40");
  job.add_late_workers("worker-1, late by 0.2s");
  const Json json = Json::parse(StatusJson(view))["jobs"];
  EXPECT_EQ(json[0]["late_workers"], Json::array());  // the page reads its length
  EXPECT_EQ(json[0]["restarts"], 0);
  EXPECT_EQ(json[1]["backup_behind"], 12);
  EXPECT_EQ(json[1]["failovers"], 3);
  EXPECT_EQ(json[1]["restarts"], 2);
  EXPECT_EQ(json[1]["last_restart"], "goes back to step 40");
  EXPECT_EQ(json[1]["late_workers"], Json::array({"worker-1, late by 0.2s"}));
}

TEST(StatusJson, SaysForHowLongCopiesAndCheckpointsLack) {
  ClusterView view;
  JobStatus& job = *view.jobs.add_jobs();
  job.set_unreplicated_seconds(42);
  job.set_copies_trouble("no other shard is live");
  job.mutable_checkpoint()->set_overdue_seconds(72);
  job.mutable_checkpoint()->set_failing_seconds(65);
  const Json json = Json::parse(StatusJson(view))["jobs"][0];
  EXPECT_EQ(json["unreplicated_seconds"], 42.0);
  EXPECT_EQ(json["copies_trouble"], "no other shard is live");
  EXPECT_EQ(json["checkpoint"]["overdue_seconds"], 72.0);
  EXPECT_EQ(json["checkpoint"]["failing_seconds"], 65.0);
}

TEST(StatusJson, NamesSurviveWhateverTheyAre) {
  ClusterView view;
  view.jobs.add_jobs()->set_name("</script><img src=x onerror=alert(1)>\"\\\n");
  view.jobs.add_jobs()->set_name("\xFF\xFE");
  const Json json = Json::parse(StatusJson(view));
  EXPECT_EQ(json["jobs"][0]["name"], "</script><img src=x onerror=alert(1)>\"\\\n");
  EXPECT_EQ(json["jobs"][1]["name"], "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(StatusJson, NoBoundIsNullAndNotANumberIsNull) {
  ClusterView view;
  JobStatus& job = *view.jobs.add_jobs();
  job.set_staleness_bound(std::numeric_limits<uint64_t>::max());
  job.set_train_loss(std::numeric_limits<double>::quiet_NaN());
  const Json json = Json::parse(StatusJson(view));
  EXPECT_TRUE(json["jobs"][0]["staleness_bound"].is_null());
  EXPECT_TRUE(json["jobs"][0]["train_loss"].is_null());
}

TEST(CurvesJson, ComeAsColumns) {
  CurvesReply curves;
  curves.mutable_status()->set_name("j");
  CurvePoint& first = *curves.add_points();
  first.set_step(5);
  first.set_train_loss(2);
  curves.add_points()->set_step(9);
  curves.mutable_status()->add_epochs_done()->set_step(5);  // not evaluated
  EpochResult& tested = *curves.mutable_status()->add_epochs_done();
  tested.set_step(9);
  tested.set_evaluated(true);
  tested.set_test_loss(0.25);
  const Json json = Json::parse(CurvesJson(curves));
  EXPECT_EQ(json["job"], "j");
  EXPECT_EQ(json["step"], Json::array({5, 9}));
  EXPECT_EQ(json["train_loss"][0], 2.0);
  EXPECT_TRUE(json["train_loss"][1].is_null());
  EXPECT_EQ(json["samples_per_second"].size(), 2u);
  EXPECT_EQ(json["test_step"], Json::array({9}));
  EXPECT_EQ(json["test_loss"], Json::array({0.25}));
}

}  // namespace
}  // namespace starling::coordinator
