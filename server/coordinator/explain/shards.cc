#include "server/coordinator/explain/shards.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/coordinator/explain/explain.h"
#include "server/coordinator/explain/steps.h"

namespace starling::explain {
namespace {

constexpr uint32_t kOwnerThreadsMax = 8;  // of a shard: at most one per core

double WorkOf(const PartitionTimes& times) { return times.verify() + times.apply(); }

}  // namespace

ShardLoads::ShardLoads(const Evidence& evidence, double step_seconds)
    : step_seconds_(step_seconds) {
  for (const PartitionEvidence& partition : evidence.partitions) {
    const PartitionTimes& times = partition.times;
    if (partition.window_seconds <= 0 || times.pushes() < kUnitsMin) continue;
    Shard& shard = shards_[partition.shard];
    const double busy = WorkOf(times) / partition.window_seconds;
    shard.partitions.push_back({&partition, busy});
    shard.seconds += WorkOf(times);
    shard.updates += static_cast<double>(times.applies());
    shard.bytes += static_cast<double>(times.received_bytes());
    shard.queued += times.queue();
    shard.pushes += static_cast<double>(times.pushes());
  }
  for (const ShardEvidence& known : evidence.shards) {
    const auto it = shards_.find(known.name);
    if (it == shards_.end()) continue;
    Shard& shard = it->second;
    shard.address = known.address;
    const auto threads = static_cast<double>(std::clamp<size_t>(
        std::min<size_t>(std::max(1u, known.cores), shard.partitions.size()), 1, kOwnerThreadsMax));
    double sum = 0, most = 0;
    for (const Partition& partition : shard.partitions) {
      sum += partition.busy;
      most = std::max(most, partition.busy);
    }
    shard.load = std::min(1.0, std::max(most, sum / threads));
  }
}

bool ShardLoads::Queues(const Shard& shard) const {
  return shard.per_push() >= kPhaseShareMin * step_seconds_;
}

bool ShardLoads::KeepsUp(const std::string& shard) const {
  const auto it = shards_.find(shard);
  return it == shards_.end() || (it->second.load < kPhaseShareMin && !Queues(it->second));
}

void ShardLoads::Find(Findings& findings) {
  std::vector<const Named*> busiest_first;
  for (const Named& shard : shards_) busiest_first.push_back(&shard);
  std::stable_sort(busiest_first.begin(), busiest_first.end(),
                   [](const Named* a, const Named* b) { return a->second.load > b->second.load; });
  for (const Named* shard : busiest_first) {
    if (shard->second.load >= kPhaseShareMin) {
      FindBusy(*shard, findings);
    } else if (Queues(shard->second)) {
      FindQueue(*shard, findings);
    }
  }
}

void ShardLoads::FindBusy(const Named& shard, Findings& findings) {
  found_ = true;
  if (FindHotPartition(shard, findings)) return;
  const double seconds = shard.second.per_update();
  double others = 0;
  if (IsSlow(shard, &others)) {
    findings.Add(
        "slow-shard", shard.first, seconds,
        absl::StrFormat("shard %s is slow: it takes %s for an update, the other shards %s, "
                        "and is busy %s of the time",
                        At(shard.first, shard.second.address), TimeText(seconds), TimeText(others),
                        ShareText(shard.second.load)),
        Weight::kSlows, shard.second.load);
    return;
  }
  if (std::exchange(apply_bound_, true)) return;  // the busiest shard stands for all
  findings.Add(
      "apply-bound", shard.first, seconds,
      absl::StrFormat("applying updates holds up the steps: shard %s takes %s for an update "
                      "and is busy %s of the time",
                      At(shard.first, shard.second.address), TimeText(seconds),
                      ShareText(shard.second.load)),
      Weight::kSlows, shard.second.load);
}

bool ShardLoads::FindHotPartition(const Named& shard, Findings& findings) const {
  const std::vector<Partition>& partitions = shard.second.partitions;
  if (partitions.size() < 2) return false;
  const Partition& hot =
      *std::max_element(partitions.begin(), partitions.end(),
                        [](const Partition& a, const Partition& b) { return a.busy < b.busy; });
  std::vector<double> others;
  for (const Partition& partition : partitions) {
    if (&partition != &hot) others.push_back(partition.busy);
  }
  const double median = Median(others);
  const PartitionTimes& times = hot.evidence->times;
  if (hot.busy < kOutlierRatioMin * median || hot.busy < shard.second.load / 2 ||
      times.applies() == 0) {
    return false;
  }
  const double seconds = WorkOf(times) / static_cast<double>(times.applies());
  findings.Add(
      "hot-partition", absl::StrCat("partition ", hot.evidence->partition), seconds,
      absl::StrFormat("partition %d on shard %s is hot: an update takes %s, it is busy %s of "
                      "the time, the shard's other partitions %s",
                      hot.evidence->partition, At(shard.first, shard.second.address),
                      TimeText(seconds), ShareText(hot.busy), ShareText(median)),
      Weight::kSlows, std::min(1.0, hot.busy));
  return true;
}

// Judged both per update and per byte: neither a few large updates nor many small ones make a shard
// slow.
bool ShardLoads::IsSlow(const Named& shard, double* others) const {
  std::vector<double> updates, bytes;
  for (const Named& other : shards_) {
    if (&other == &shard) continue;
    updates.push_back(other.second.per_update());
    bytes.push_back(other.second.per_byte());
  }
  *others = Median(updates);
  return !updates.empty() && shard.second.per_update() >= kOutlierRatioMin * *others &&
         shard.second.per_byte() >= kOutlierRatioMin * Median(bytes);
}

void ShardLoads::FindQueue(const Named& shard, Findings& findings) {
  found_ = true;
  const double seconds = shard.second.per_push();
  findings.Add(
      "shard-queue", shard.first, seconds,
      absl::StrCat("pushes queue on shard ", At(shard.first, shard.second.address), ": each waits ",
                   TimeText(seconds), " for its turn, ", ShareText(seconds / step_seconds_),
                   " of a step's ", TimeText(step_seconds_)),
      Weight::kSlows, std::min(1.0, seconds / step_seconds_));
}

}  // namespace starling::explain
