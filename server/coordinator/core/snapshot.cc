// Restores the core's state from the store.
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/data_plan/job_steps.h"
#include "common/placement/layout.h"
#include "common/placement/shard_memory_plan.h"
#include "server/coordinator/core/core.h"
#include "server/coordinator/core/records.h"

namespace starling::coordinator {
namespace {

absl::Status Unreadable(const std::string& key) {
  return absl::DataLossError(
      absl::StrCat("the coordinator's state has a record \"", key,
                   "\" that cannot be read: it was damaged, or written by another program; start "
                   "on a backup of the "
                   "state, or on an empty one (running jobs are lost then)"));
}

}  // namespace

absl::Status Core::Load(const StoreSnapshot& snapshot) {
  auto cluster = snapshot.find(records::Cluster());
  if (cluster == snapshot.end()) {
    if (snapshot.empty()) return absl::OkStatus();
    return Unreadable(records::Cluster());
  }
  if (!cluster_.ParseFromString(cluster->second)) return Unreadable(cluster->first);
  if (cluster_.schema() < records::kSchemaOldest || cluster_.schema() > records::kSchema) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the coordinator's state has schema ", cluster_.schema(), ", this program reads schemas ",
        records::kSchemaOldest, " to ", records::kSchema, ": start the version that wrote it"));
  }
  StoredCurves curves;
  for (const auto& [key, value] : snapshot)
    STARLING_RETURN_IF_ERROR(LoadRecord(key, value, curves));
  for (auto& [uid, job] : jobs_) {
    RestoreCurve(job, std::move(curves[uid]));
    // Written by a version that did not store running time.
    if (job.over() && job.state.started_us() != 0 && !job.state.has_running_us())
      job.state.set_running_us(job.state.ended_us() - job.state.started_us());
    // Written by a version without changes of policy.
    if (job.state.policies().empty()) StartPolicies(job);
    const bool policies =
        !job.state.policies().empty() && job.state.policies(0).record().in_force();
    if (job.uid() != uid || job.state.state() == JOB_STATE_UNSPECIFIED || !policies) {
      return Unreadable(records::Job(uid));
    }
    STARLING_RETURN_IF_ERROR(CheckReferences(job));
    if (const absl::Status planned = PlanPartitions(job); absl::IsDataLoss(planned)) {
      return planned;
    } else if (!planned.ok()) {  // after an upgrade: the job is over, or ends at the start
      job.unreadable = std::string(planned.message());
      job.partitions = PartitionReports(static_cast<size_t>(job.state.views_size()));
      job.partition_elements.assign(job.partitions.size(), 0);
      job.partition_bytes.assign(job.partitions.size(), 0);
    }
    // Written by a version that did not store figures.
    if (ValuesSettled(job) && !job.state.views().empty()) job.state.mutable_figures();
    if (job.state.has_figures()) job.partitions = {};
    RestoreJob(job);
    Enlist(job);
  }
  schedule_ = true;
  return absl::OkStatus();
}

absl::Status Core::LoadRecord(const std::string& key, const std::string& value,
                              StoredCurves& curves) {
  if (key == records::Cluster()) return absl::OkStatus();
  if (absl::StartsWith(key, "job/")) return LoadJobRecord(key, value, curves);
  bool parsed = false;
  if (absl::StartsWith(key, "worker/")) {
    Worker worker;
    parsed = worker.stored.ParseFromString(value);
    workers_[worker.id()] = std::move(worker);
  } else if (absl::StartsWith(key, "shard/")) {
    Shard shard;
    parsed = shard.stored.ParseFromString(value);
    shards_[shard.id()] = std::move(shard);
  }
  return parsed ? absl::OkStatus() : Unreadable(key);
}

// job/UID, job/UID/state, job/UID/result/EPOCH, job/UID/curve/CHUNK
absl::Status Core::LoadJobRecord(const std::string& key, const std::string& value,
                                 StoredCurves& curves) {
  const std::vector<absl::string_view> parts = absl::StrSplit(key, '/');
  uint64_t uid = 0;
  uint32_t number = 0;
  if (parts.size() > 4 || !absl::SimpleAtoi(parts[1], &uid) ||
      (parts.size() == 4 && !absl::SimpleAtoi(parts[3], &number))) {
    return Unreadable(key);
  }
  Job& job = jobs_[uid];
  bool parsed = false;
  if (parts.size() == 2) {
    parsed = job.stored.ParseFromString(value);
  } else if (parts.size() == 3 && parts[2] == "state") {
    parsed = job.state.ParseFromString(value);
  } else if (parts.size() == 4 && parts[2] == "result") {
    EpochResult result;
    parsed = result.ParseFromString(value) && result.epoch() == number;
    if (result.evaluated()) NoteTested(job, number);
    job.results[number] = std::move(result);
  } else if (parts.size() == 4 && parts[2] == "curve") {
    parsed = curves[uid][number].ParseFromString(value);
  }
  return parsed ? absl::OkStatus() : Unreadable(key);
}

// All daemons that a job names must exist.
absl::Status Core::CheckReferences(const Job& job) const {
  for (const Member& member : job.state.roster().members()) {
    if (!workers_.contains(member.worker())) return Unreadable(records::Worker(member.worker()));
  }
  for (const View& view : job.state.views()) {
    for (const uint32_t shard : {view.primary(), view.backup()}) {
      if (shard != 0 && !shards_.contains(shard)) return Unreadable(records::Shard(shard));
    }
  }
  return absl::OkStatus();
}

absl::Status Core::PlanPartitions(Job& job) {
  STARLING_ASSIGN_OR_RETURN(const Layout layout, MakeLayout(job.spec()));
  JobDescription& description = *job.stored.mutable_description();
  if (description.partitions() != 0 && description.layout_digest() != layout.digest &&
      job.state.state() != PENDING) {  // a PENDING job is not laid out on shards yet
    return absl::FailedPreconditionError(
        "it was laid out by another version of this program, and this one cannot read its "
        "parameters: "
        "export them with that version, or delete the job");
  }
  description.set_partitions(static_cast<uint32_t>(layout.partitions.size()));
  description.set_layout_digest(layout.digest);
  if (job.state.views_size() != 0 &&
      static_cast<size_t>(job.state.views_size()) != layout.partitions.size()) {
    return Unreadable(records::JobState(job.uid()));
  }
  for (const PartitionValues& values : job.state.values()) {
    if (values.partition() >= static_cast<uint32_t>(job.state.views_size())) {
      return Unreadable(records::JobState(job.uid()));
    }
  }
  job.stored.set_parameters(layout.elements);
  job.partitions = PartitionReports(layout.partitions.size());
  job.partition_elements.clear();
  job.partition_bytes.clear();
  for (uint32_t p = 0; p < layout.partitions.size(); ++p) {
    job.partition_bytes.push_back(
        PlannedPartitionBytes(job.spec(), job.samples(), layout, PartitionId(p)));
  }
  for (const auto& slices : layout.partitions) {
    uint64_t elements = 0;
    for (const SliceId slice : slices) elements += layout.slices[slice.value].elements;
    job.partition_elements.push_back(elements);
  }
  return absl::OkStatus();
}

void Core::RestoreJob(Job& job) {
  if (job.state.has_train_loss()) job.loss = job.state.train_loss();
  job.losses_from = job.first_step();
  if (!job.running()) return;
  DropUndecidedCheckpointPolicies(job);  // their attempts are over
  for (const Member& member : job.state.roster().members()) {
    Worker& worker = workers_[member.worker()];
    worker.member_of = worker.job = job.uid();
    worker.ordered_at = ++last_order_;
  }
  OpenEvaluations(job);
  if (const std::optional<uint32_t> last = LastEpochToTest(job)) job.evaluations[*last];
  job.losses_from.reset();
  job.recovering = !job.bsp() || !job.evaluations.empty();  // BSP trains without leases
}

}  // namespace starling::coordinator
