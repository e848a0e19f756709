// A worker that does not reach a shard which others of its job reach, as behind a firewall: without
// its part, BSP and SSP would stand still (docs/failure_model.md).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

// Two reports that are further apart say nothing of the time between them.
constexpr absl::Duration kReportsApart = absl::Seconds(1);

// All its links are up, and one of them leads to the same place.
bool Reaches(const Worker& worker, const LinkStatus& place) {
  const auto& links = worker.report.links();
  const auto is_up = [](const LinkStatus& link) { return link.connected(); };
  const auto is_it = [&](const LinkStatus& link) {
    return link.shard() == place.shard() && link.address() == place.address();
  };
  return std::all_of(links.begin(), links.end(), is_up) &&
         std::any_of(links.begin(), links.end(), is_it);
}

}  // namespace

// Whether another member, which could go on without this one, reaches the shard.
bool Core::OthersReach(const Job& job, const Worker& but, const LinkStatus& link) const {
  return std::any_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    const Worker& worker = entry.second;
    return &worker != &but && worker.live() && worker.member_of == job.uid() &&
           worker.job == job.uid() && !worker.report.draining() &&
           SameRun(worker.report.run(), job.run()) &&
           now_ - worker.last_heard <= options_.shard_liveness && Reaches(worker, link);
  });
}

// Called with each report. The time is that which reports cover.
void Core::SetAsideWhoIsCutOff(Worker& worker) {
  const absl::Duration passed = std::min(now_ - worker.cut_off_at, kReportsApart);
  worker.cut_off_at = now_;
  const auto before = std::exchange(worker.cut_off, {});
  Job* const job = FindRunning(worker.member_of);
  if (job == nullptr || worker.job != job->uid() || !SameRun(worker.report.run(), job->run()))
    return;
  const absl::Duration most =
      std::max(options_.hang_least,
               absl::Seconds(options_.hang_units * worker.report.activity().unit_seconds()));
  for (const LinkStatus& link : worker.report.links()) {
    const auto it = link.connected() ? shards_.end() : shards_.find(link.shard());
    if (it == shards_.end()) continue;
    const Shard& shard = it->second;
    // The worker may not have heard of the shard's present incarnation.
    const bool is_there = shard.live() && shard.absent.empty() &&
                          shard.stored.registration().address() == link.address();
    if (!is_there) continue;
    const auto known = before.find(shard.id());
    absl::Duration& cut_off = worker.cut_off[shard.id()];
    if (known == before.end()) continue;
    // While nobody else reaches it, the time stands still.
    cut_off = known->second;
    if (!OthersReach(*job, worker, link)) continue;
    cut_off += passed;
    if (cut_off >= most) {
      const std::string error =
          link.last_error().empty()
              ? ""
              : absl::StrCat(
                    " (its last error: ", CutUtf8(link.last_error(), limits::kFaultBytesMax), ")");
      const double seconds = absl::ToDoubleSeconds(cut_off);
      worker.cut_off.clear();
      return SetAside(worker, *job, Fault::KIND_UNSPECIFIED,
                      absl::StrFormat("%s has had no stream to shard %s at %s for %.0f s, though "
                                      "other workers have%s: see the network between them",
                                      worker.name(), shard.name(), link.address(), seconds, error));
    }
  }
}

}  // namespace starling::coordinator
