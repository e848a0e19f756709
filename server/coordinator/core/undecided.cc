// Partitions that do not reach the one that decides about their step, as where the link between
// two shards is cut: nothing of the job goes on meanwhile (docs/protocol.md, section 9). After a
// while, if both shards are heard, another copy leads, on a shard that may reach the other: of the
// partitions that wait, or, where those on several shards wait, of the deciding one.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/utf8.h"
#include "common/placement/layout.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kUndecidedWait = absl::Seconds(30);

}  // namespace

void Core::NoteUndecided(Job& job, const PartitionStatus& status) const {
  if (status.undecided().empty()) {
    job.undecided.erase(status.partition());
  } else {
    job.undecided.emplace(status.partition(), now_);
  }
}

// While the deciding shard does not answer, it is its silence that counts (silence.cc).
void Core::MoveUndecided(Job& job) {
  if (job.undecided.empty()) return;
  const View& decides = job.state.views(kDecidingPartition.value);
  const auto decider = shards_.find(decides.primary());
  if (decider == shards_.end() || !decider->second.leads(decides) || !IsPresent(decider->second))
    return job.undecided.clear();
  std::vector<uint32_t> waiting;
  std::set<std::string> shards;
  for (const auto& [partition, since] : job.undecided) {
    const View& view = job.state.views(static_cast<int>(partition));
    const absl::Time enough = since + kUndecidedWait;
    if (now_ < enough || !PrimaryHasReported(view, enough)) continue;
    waiting.push_back(partition);
    shards.insert(shards_.at(view.primary()).name());
  }
  if (waiting.empty()) return;
  const std::string why =
      absl::StrCat(absl::StrJoin(shards, ", "), shards.size() == 1 ? " has" : " have",
                   " not reached ", decider->second.name(), ", which decides about each step, for ",
                   absl::FormatDuration(kUndecidedWait));
  const std::vector<uint32_t> deciding = {kDecidingPartition.value};
  const bool several = shards.size() > 1;
  if (MoveLeads(job, several ? deciding : waiting, why) ||
      MoveLeads(job, several ? waiting : deciding, why)) {
    job.undecided.clear();
  }
}

// Whether there was such a copy of one of them.
bool Core::MoveLeads(Job& job, const std::vector<uint32_t>& partitions, const std::string& why) {
  std::vector<uint32_t> moved;
  for (const uint32_t partition : partitions) {
    const View& view = job.state.views(static_cast<int>(partition));
    if (!IsWhole(view) || !BackupLives(view)) continue;
    const Shard& other = shards_.at(view.backup());
    if (TakesCopies(other) && IsSteady(other)) moved.push_back(partition);
  }
  if (moved.empty()) return false;
  ChangeViews(job, [&] {
    for (const uint32_t partition : moved) {
      View& view = *job.state.mutable_views(static_cast<int>(partition));
      LoseShard(shards_.at(view.primary()).at(), /*backup_lives=*/true, view);
    }
    job.state.set_failovers(job.state.failovers() + moved.size());
  });
  Log(job, absl::StrCat(why, ": the other copy leads now of ", PartitionsText(moved)));
  return true;
}

void Core::AddUndecided(const Job& job, explain::Evidence& evidence) const {
  for (const auto& [partition, since] : job.undecided) {
    const Shard& shard = shards_.at(job.state.views(static_cast<int>(partition)).primary());
    const Shard& decider = shards_.at(job.state.views(kDecidingPartition.value).primary());
    const std::optional<PartitionStatus>& status = job.partitions[partition];
    evidence.undecided.push_back(
        {partition, shard.name(), decider.name(), decider.stored.registration().address(),
         SecondsSince(since),
         std::string(CutUtf8(status ? status->undecided() : "", limits::kFaultBytesMax))});
  }
}

}  // namespace starling::coordinator
