// An ended job is kept serialized and unpacked on access until the end of the step. Packed, it
// takes 2 KB plus its curve, epochs and log.
#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

// Larger jobs are not packed: unpacking takes time, and a step blocks all callers.
constexpr size_t kArchivedBytesMax = 256 << 10;

}  // namespace

// Null: no such job. The pointer is valid until the end of the step, or until the job is forgotten.
Job* Core::FindJob(uint64_t uid) {
  if (auto archived = archive_.extract(uid)) Unpack(archived.mapped(), jobs_[uid]);
  const auto it = jobs_.find(uid);
  if (it == jobs_.end()) return nullptr;
  if (it->second.over()) unpacked_.insert(uid);
  return &it->second;
}

// Whether the job can no longer change by itself and no shard waits for orders about it. The newest
// jobs are in every overview, so they stay unpacked.
bool Core::MayArchive(const Job& job) const {
  const bool settled = job.state.has_figures() || job.state.views().empty();
  const bool unfit = std::any_of(job.unfit.begin(), job.unfit.end(), [&](const auto& entry) {
    return now_ < entry.second.until;  // which is not packed
  });
  if (!job.over() || !settled || unfit || job.state.output().state() == OutputStatus::WRITING ||
      job.checkpoint.attempt) {
    return false;
  }
  const auto newest = static_cast<ptrdiff_t>(std::min(options_.overview_ended, ended_.size()));
  if (newest > 0 &&
      std::pair(job.state.ended_number(), job.uid()) >= *std::prev(ended_.end(), newest))
    return false;
  const auto shard_is_told = [&](uint32_t id) {
    const auto shard = shards_.find(id);
    if (shard == shards_.end() || shard->second.fenced()) return false;
    const auto told = shard->second.told.find(job.uid());
    return told != shard->second.told.end() && SameRun(told->second.run(), job.run());
  };
  const auto is_told = [&](const View& view) {
    return shard_is_told(view.primary()) || shard_is_told(view.backup());
  };
  if (std::any_of(job.state.views().begin(), job.state.views().end(), is_told)) return false;
  size_t bytes = job.stored.ByteSizeLong() + job.state.ByteSizeLong();
  for (const auto& [epoch, result] : job.results) bytes += result.ByteSizeLong();
  for (const CurvePoint& point : job.curve.points()) bytes += point.ByteSizeLong();
  for (const LogEntry& entry : job.log) bytes += entry.ByteSizeLong();
  return bytes <= kArchivedBytesMax;
}

std::vector<Archived::Partition> Core::OnShards(const Job& job, const View& view) {
  Archived::Partition on{.shard = view.primary(), .incarnation = view.primary_incarnation()};
  if (view.partition() < job.partition_elements.size()) {
    on.elements = job.partition_elements[view.partition()];
    on.bytes = job.partition_bytes[view.partition()];
  }
  std::vector<Archived::Partition> copies = {on};
  if (view.backup() == 0) return copies;
  on.shard = view.backup();
  on.incarnation = view.backup_incarnation();
  on.backup = true;
  on.learning = view.learning();
  copies.push_back(on);
  return copies;
}

std::vector<Archived::Partition> Core::OnShards(const Job& job) {
  std::vector<Archived::Partition> all;
  for (const View& view : job.state.views()) {
    for (const Archived::Partition& on : OnShards(job, view)) all.push_back(on);
  }
  return all;
}

Archived Core::Pack(Job& job) {
  ArchivedJob packed;
  *packed.mutable_stored() = std::move(job.stored);
  *packed.mutable_state() = std::move(job.state);
  for (auto& [epoch, result] : job.results) *packed.add_results() = std::move(result);
  const std::vector<CurvePoint>& points = job.curve.points();
  packed.mutable_curve()->mutable_points()->Assign(points.begin(), points.end());
  packed.mutable_curve()->set_merges(job.curve.merges());
  packed.set_curve_chunks(job.curve_chunks);
  for (LogEntry& entry : job.log) *packed.add_log() = std::move(entry);
  packed.set_last_log(job.last_log);
  packed.mutable_partition_elements()->Assign(job.partition_elements.begin(),
                                              job.partition_elements.end());
  packed.mutable_partition_bytes()->Assign(job.partition_bytes.begin(), job.partition_bytes.end());
  packed.set_unreadable(std::move(job.unreadable));
  Archived archived{.ended_at = job.ended_at,
                    .gone = HasLostValues(packed.state()),
                    .fixed = !packed.unreadable().empty(),
                    .result = IsResult(packed.state()),
                    .bytes = packed.SerializeAsString()};
  for (const View& view : packed.state().views()) {
    for (const Archived::Partition& on : OnShards(job, view)) archived.on.push_back(on);
  }
  return archived;
}

void Core::Unpack(const Archived& archived, Job& job) {
  ArchivedJob packed;
  STARLING_CHECK(packed.ParseFromString(archived.bytes), "what was packed can be unpacked");
  job.stored = std::move(*packed.mutable_stored());
  job.state = std::move(*packed.mutable_state());
  for (EpochResult& result : *packed.mutable_results()) {
    if (result.evaluated()) NoteTested(job, result.epoch());
    const uint32_t epoch = result.epoch();
    job.results[epoch] = std::move(result);
  }
  RestoreCurve(job, {{0, std::move(*packed.mutable_curve())}});
  job.curve_chunks = packed.curve_chunks();
  for (LogEntry& entry : *packed.mutable_log()) job.log.push_back(std::move(entry));
  job.last_log = packed.last_log();
  job.partition_elements.assign(packed.partition_elements().begin(),
                                packed.partition_elements().end());
  job.partition_bytes.assign(packed.partition_bytes().begin(), packed.partition_bytes().end());
  job.unreadable = packed.unreadable();
  job.ended_at = archived.ended_at;
  RestoreJob(job);
}

// Packs the jobs that this step unpacked or ended.
void Core::Archive() {
  for (const uint64_t uid : std::exchange(unpacked_, {})) {
    const auto it = jobs_.find(uid);
    if (it == jobs_.end() || !MayArchive(it->second)) continue;
    archive_.emplace(uid, Pack(it->second));
    jobs_.erase(it);
  }
}

}  // namespace starling::coordinator
