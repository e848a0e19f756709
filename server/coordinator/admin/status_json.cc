#include "server/coordinator/admin/status_json.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/message_json.h"
#include "common/version/version.h"

namespace starling::coordinator {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// These of the message's fields, under their own names; null for one that is not set.
Json Picked(const google::protobuf::Message& message, const std::vector<std::string>& fields) {
  const Json all = ToJson(message);
  Json json;
  for (const std::string& field : fields) {
    json[field] = all.value(message.GetDescriptor()->FindFieldByName(field)->json_name(), Json());
  }
  return json;
}

Json EpochJson(const EpochResult& epoch) {
  Json json = Picked(epoch, {"epoch", "train_loss", "seconds", "test_loss", "test_accuracy"});
  if (!epoch.evaluated()) json["test_loss"] = Json();
  return json;
}

Json CheckpointJson(const CheckpointStatus& checkpoint) {
  Json json =
      Picked(checkpoint, {"age_seconds", "overdue_seconds", "failing_seconds", "trouble", "stage"});
  json["last"] = Json();
  if (checkpoint.has_last()) json["last"] = Picked(checkpoint.last(), {"id", "step", "bytes"});
  return json;
}

Json JobJson(const JobStatus& job) {
  Json json =
      Picked(job, {"name", "state", "reason", "policy", "step", "steps", "epoch", "epochs",
                   "train_loss", "samples_per_second", "hidden_share", "staleness", "staleness_max",
                   "staleness_bound", "workers", "parameters", "running_seconds", "submitted"});
  json.update(Picked(job, {"durability", "partitions", "partitions_whole", "unreplicated_seconds",
                           "copies_trouble", "backup_behind", "failovers", "restored_from",
                           "restarts", "last_restart", "late_workers"}));
  json["checkpoint"] = Json();
  if (job.has_checkpoint()) json["checkpoint"] = CheckpointJson(job.checkpoint());
  json["epochs_done"] = Json::array();
  for (const EpochResult& epoch : job.epochs_done())
    json["epochs_done"].push_back(EpochJson(epoch));
  return json;
}

Json WorkerJson(const WorkerStatus& worker) {
  return Picked(worker, {"name", "state", "job", "address", "clock", "version",
                         "seconds_since_report", "repeats", "late_seconds"});
}

Json ShardJson(const ShardStatus& shard) {
  return Picked(shard, {"name", "state", "address", "partitions", "value_bytes", "version",
                        "seconds_since_report", "drain"});
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
  const std::vector<std::string> columns = {
      "step",          "seconds",      "train_loss",   "samples_per_second",
      "staleness_max", "hidden_share", "learning_rate"};
  Json json = {{"job", curves.status().name()}};
  for (const std::string& column : columns) json[column] = Json::array();
  for (const char* column : {"test_step", "test_loss"}) json[column] = Json::array();
  for (const CurvePoint& point : curves.points()) {
    const Json picked = Picked(point, columns);
    for (const auto& [column, value] : picked.items()) {
      json[column].push_back(value);
    }
  }
  for (const EpochResult& epoch : curves.status().epochs_done()) {
    if (!epoch.evaluated()) continue;
    json["test_step"].push_back(epoch.step());
    json["test_loss"].push_back(epoch.test_loss());
  }
  return Dump(json);
}

}  // namespace starling::coordinator
