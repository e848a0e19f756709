// Which values of a job are readable, and at which version: docs/protocol.md, section 3.
//
// This depends on the policy in force at the partition. A partition in BSP reports how many steps
// it has sealed. BSP slices are at most one step apart and each keeps its last two versions, so
// every slice has the version of the least sealed one. A partition in SSP or async has only its
// newest values.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

// Whether the partition's values are final: its shard knows that the job has no members, or the
// partition has stopped. A pending step may still be applied, which keeps the previous version.
bool IsFinal(const PartitionStatus& status, const Roster& last) {
  return status.roster() >= last.number() || !status.fault().empty();
}

}  // namespace

bool Core::ValuesSettled(const Job& job) {
  return job.over() && job.state.values_size() == job.state.views_size();
}

bool Core::HasLostValues(const StoredJobState& state) {
  return std::any_of(state.values().begin(), state.values().end(),
                     [](const PartitionValues& values) { return !values.gone().empty(); });
}

// Its values are what it was run for, and are in no file that the coordinator wrote.
bool Core::IsResult(const StoredJobState& state) {
  return state.state() == SUCCEEDED && state.output().state() != OutputStatus::WRITTEN;
}

std::vector<PartitionValues> Core::ValuesOf(const Job& job) const {
  std::vector<PartitionValues> values(static_cast<size_t>(job.state.views_size()));
  std::vector<const PartitionStatus*> statuses(values.size());  // where no values are stored
  for (const PartitionValues& stored : job.state.values()) values.at(stored.partition()) = stored;
  if (ValuesSettled(job)) return values;
  std::optional<uint64_t> sealed;
  for (uint32_t partition = 0; partition < values.size(); ++partition) {
    PartitionValues& value = values[partition];
    value.set_partition(partition);
    const auto& status = job.partitions[partition];
    if (!value.gone().empty()) continue;
    if (!status || (job.over() && !IsFinal(*status, job.state.roster()))) {
      value.set_unknown(true);
    } else if (status->value_bytes() == 0 && !status->fault().empty()) {
      const Shard& shard = shards_.at(job.state.views(static_cast<int>(partition)).primary());
      value.set_gone(absl::StrCat("shard ", shard.name(), " never had them: ", status->fault()));
    } else {
      statuses[partition] = &*status;
      if (status->has_sealed_steps()) {
        sealed = std::min(sealed.value_or(status->sealed_steps()), status->sealed_steps());
      }
    }
  }
  for (uint32_t partition = 0; partition < values.size(); ++partition) {
    const PartitionStatus* status = statuses[partition];
    if (status != nullptr && status->has_sealed_steps()) values[partition].set_version(*sealed);
  }
  return values;
}

std::optional<uint64_t> Core::SealedSteps(const Job& job) const {
  std::optional<uint64_t> sealed;
  for (const PartitionValues& values : ValuesOf(job)) {
    if (values.unknown()) return std::nullopt;
    if (values.has_version()) sealed = values.version();
  }
  return sealed;
}

// Takes effect once, when every shard has sent its last report about the job or is lost.
void Core::SettleValues(Job& job) {
  if (!job.over() || job.state.views().empty() || job.state.has_figures()) return;
  std::vector<PartitionValues> values = ValuesOf(job);
  if (std::any_of(values.begin(), values.end(), [](const auto& v) { return v.unknown(); })) return;
  const uint64_t steps = StepsDone(job);
  job.state.mutable_values()->Assign(values.begin(), values.end());
  AddReported(job, *job.state.mutable_figures());
  // The shards may have applied more than they had reported when the job was cancelled or failed.
  job.state.set_steps_done(steps);
  job.partitions = {};  // shards free everything but the values and report nothing more about it
  ++ended_changes_;
  DropLearnersOfEnded(job);
  BeginOutput(job);
  SaveState(job);
  TouchJob(job);
}

void Core::LoseValues(Job& job, const Shard& shard, const std::vector<uint32_t>& partitions,
                      const std::string& why) {
  const std::string gone =
      absl::StrCat("lost with shard ", shard.name(), " at ", shard.stored.registration().address(),
                   " (", why, ") at ", TimeText(wall()));
  std::map<uint32_t, PartitionValues> values;
  for (PartitionValues& value : *job.state.mutable_values()) {
    values[value.partition()] = std::move(value);
  }
  for (const uint32_t partition : partitions) {
    values[partition].Clear();
    values[partition].set_partition(partition);
    values[partition].set_gone(gone);
  }
  job.state.clear_values();
  for (auto& [partition, value] : values) *job.state.add_values() = std::move(value);
  SaveState(job);
  SettleValues(job);
}

}  // namespace starling::coordinator
