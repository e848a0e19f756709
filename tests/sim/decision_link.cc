// What shards tell each other where a job clips its whole gradient.
#include "server/shard/apply/measure.h"
#include "tests/sim/cluster.h"
#include "tests/sim/shard_node.h"

namespace starling::sim {
namespace {

// Streams have lower ids.
constexpr uint64_t kReporterIds = uint64_t{1} << 40;

}  // namespace

void ShardNode::Do(Hosted& hosted, const Measure& a) {
  const Values& sum = *hosted.buffers.at(a.payload);
  const PayloadPiece piece(reinterpret_cast<const uint8_t*>(sum.data()),
                           sum.size() * sizeof(float));
  const PayloadMeasure measure = MeasurePayload({&piece, 1}, InstructionSet::kPortable);
  hosted.truth->OnSum(a.slice, hosted.pushes.at(a.payload).key.work, sum);
  Random& random = world_->random();
  Later(hosted, random.Between(absl::Microseconds(5), absl::Microseconds(200)),
        Measured{a.payload, measure.norm2, measure.first_non_finite});
}

void ShardNode::Do(Hosted& hosted, const ReportNorm& a) {
  ShardNode* const to = cluster_->ShardAt(hosted.decider);
  if (to == nullptr) return world_->Count("reports that know no decider");
  cluster_->network().SendDecision(to,
                                   [this, to, report = a.header] { to->OnReport(this, report); });
}

void ShardNode::OnReport(ShardNode* from, const FrameHeader& report) {
  const auto it = std::find_if(hosted_.begin(), hosted_.end(), [&](const auto& entry) {
    return entry.first.first.job == report.key.run.job && entry.first.second == report.partition;
  });
  if (it == hosted_.end()) return world_->Count("frames for partitions that are not hosted");
  const ConnectionId connection(kReporterIds | from->id_);
  reporters_[connection] = from;
  Step(it->second, FrameReceived{connection, report, BufferId()});
}

void ShardNode::OnDecision(const FrameHeader& answer, const std::string& text) {
  const auto it = hosted_.find({answer.key.run, answer.reporter});
  if (it != hosted_.end()) Step(it->second, DecisionReceived{answer, text});
}

}  // namespace starling::sim
