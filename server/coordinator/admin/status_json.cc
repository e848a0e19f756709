#include "server/coordinator/admin/status_json.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "common/version/version.h"

namespace starling::coordinator {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json EpochJson(const EpochResult& epoch) {
  Json json = {
      {"epoch", epoch.epoch()}, {"train_loss", epoch.train_loss()}, {"seconds", epoch.seconds()}};
  json["test_loss"] = epoch.evaluated() ? Json(epoch.test_loss()) : Json();
  json["test_accuracy"] = epoch.has_test_accuracy() ? Json(epoch.test_accuracy()) : Json();
  return json;
}

Json JobJson(const JobStatus& job) {
  const bool bounded = job.staleness_bound() != std::numeric_limits<uint64_t>::max();
  Json json = {
      {"name", job.name()},
      {"state", JobState_Name(job.state())},
      {"reason", job.reason()},
      {"policy", job.policy()},
      {"step", job.step()},
      {"steps", job.steps()},
      {"epoch", job.epoch()},
      {"epochs", job.epochs()},
      {"train_loss", job.train_loss()},
      {"samples_per_second", job.samples_per_second()},
      {"hidden_share", job.hidden_share()},
      {"staleness", job.staleness()},
      {"staleness_max", job.staleness_max()},
      {"staleness_bound", bounded ? Json(job.staleness_bound()) : Json()},
      {"workers", job.workers()},
      {"parameters", job.parameters()},
      {"running_seconds", job.running_seconds()},
      {"submitted", job.submitted()},
      {"epochs_done", Json::array()},
  };
  for (const EpochResult& epoch : job.epochs_done())
    json["epochs_done"].push_back(EpochJson(epoch));
  return json;
}

Json WorkerJson(const WorkerStatus& worker) {
  return {{"name", worker.name()},
          {"state", worker.state()},
          {"job", worker.job()},
          {"address", worker.address()},
          {"clock", worker.clock()},
          {"version", worker.version()},
          {"seconds_since_report", worker.seconds_since_report()}};
}

Json ShardJson(const ShardStatus& shard) {
  return {{"name", shard.name()},
          {"state", shard.state()},
          {"address", shard.address()},
          {"partitions", shard.partitions()},
          {"value_bytes", shard.value_bytes()},
          {"version", shard.version()},
          {"seconds_since_report", shard.seconds_since_report()}};
}

// Counts everything, including what is not listed.
Json CountsJson(const ClusterView& view) {
  Json jobs = Json::object();
  for (const auto& [state, count] : view.job_counts) jobs[JobState_Name(state)] = count;
  return {
      {"jobs", jobs}, {"workers", Json(view.worker_counts)}, {"shards", Json(view.shard_counts)}};
}

}  // namespace

std::string StatusJson(const ClusterView& view) {
  Json json = {{"version", std::string(ReleaseVersion())},
               {"generation", view.generation},
               {"unix_seconds", absl::ToDoubleSeconds(view.time - absl::UnixEpoch())},
               {"warnings", Json::array()},
               {"counts", CountsJson(view)},
               {"jobs", Json::array()},
               {"workers", Json::array()},
               {"shards", Json::array()}};
  for (const std::string& warning : view.jobs.warnings()) json["warnings"].push_back(warning);
  for (const JobStatus& job : view.jobs.jobs()) json["jobs"].push_back(JobJson(job));
  for (const WorkerStatus& worker : view.workers.workers())
    json["workers"].push_back(WorkerJson(worker));
  for (const ShardStatus& shard : view.shards.shards()) json["shards"].push_back(ShardJson(shard));
  return Dump(json);
}

std::string CurvesJson(const CurvesReply& curves) {
  Json json = {{"job", curves.status().name()}};
  for (const char* column : {"step", "seconds", "train_loss", "samples_per_second", "staleness_max",
                             "hidden_share", "learning_rate", "test_step", "test_loss"}) {
    json[column] = Json::array();
  }
  for (const CurvePoint& point : curves.points()) {
    json["step"].push_back(point.step());
    json["seconds"].push_back(point.seconds());
    json["train_loss"].push_back(point.has_train_loss() ? Json(point.train_loss()) : Json());
    json["samples_per_second"].push_back(point.samples_per_second());
    json["staleness_max"].push_back(point.staleness_max());
    json["hidden_share"].push_back(point.hidden_share());
    json["learning_rate"].push_back(point.learning_rate());
  }
  for (const EpochResult& epoch : curves.status().epochs_done()) {
    if (!epoch.evaluated()) continue;
    json["test_step"].push_back(epoch.step());
    json["test_loss"].push_back(epoch.test_loss());
  }
  return Dump(json);
}

}  // namespace starling::coordinator
