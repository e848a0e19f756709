// A shard says how its partitions stand.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling {

void Coordinator::Core::On(const ShardReportEvent& event) {
  const ShardReport& report = event.report;
  if (RefuseOtherCluster(event.call, report.cluster())) return;
  if (RefuseStaleCoordinator(event.call, report.generation())) return;
  auto it = shards_.find(report.shard());
  if (it == shards_.end() || it->second.fenced() ||
      it->second.stored.incarnation() != report.incarnation()) {
    return TellToRejoin(event.call, SHARD);
  }
  Shard& shard = it->second;
  if (RefuseImpostor(event.call, shard, event.caller)) return;
  if (!shard.heard) schedule_ = true;
  shard.heard = true;
  shard.last_heard = now_;
  if (report.sequence() > shard.sequence) {
    shard.sequence = report.sequence();
    if (memory_awaited_ && report.memory_room() > shard.memory_room.value_or(0)) schedule_ = true;
    shard.memory_room = report.memory_room();
    for (const PartitionStatus& status : report.partitions()) TakePartition(shard, status);
  }
  Park(shard, event.call, report.orders_seen(), SHARD);
  ResolveRegistration(shard);
}

void Coordinator::Core::TakePartition(Shard& shard, const PartitionStatus& status) {
  auto it = jobs_.find(status.run().job_uid());
  if (it == jobs_.end()) return;
  Job& job = it->second;
  const uint32_t partition = status.partition();
  if (status.run().era() != job.stored.description().run().era()) return;
  if (partition >= job.partitions.size() ||
      partition >= static_cast<uint32_t>(job.state.views_size())) {
    return;
  }
  const View& view = job.state.views(static_cast<int>(partition));
  if (view.primary() != shard.id() || view.primary_incarnation() != shard.stored.incarnation())
    return;
  std::optional<PartitionStatus>& known = job.partitions[partition];
  shard.value_bytes += status.value_bytes() - (known ? known->value_bytes() : 0);
  known = status;
  if (job.running()) NoteCounters(job, partition);
  std::string& fault = *job.partitions[partition]->mutable_fault();
  fault.resize(CutUtf8(fault, limits::kFaultBytesMax).size());
  if (job.over()) SettleValues(job);
  if (!job.running()) return;
  if (!status.fault().empty()) {
    return End(job, FAILED,
               absl::StrCat("partition ", partition, " on ", shard.name(), ": ", fault));
  }
  WatchLag(job);
  advance_.insert(job.uid());
}

}  // namespace starling
