// BSP with backup workers: who repeats whose part, as they report it (docs/decisions/0014).
#include <algorithm>

#include "absl/strings/str_format.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {

// The member whose part this worker repeats; nullptr: it repeats none.
const Worker* Core::RepeatedBy(const Worker& worker) const {
  if (!worker.report.has_repeats() || worker.member_of == 0) return nullptr;
  const auto it = workers_.find(worker.report.repeats().worker());
  return it == workers_.end() || it->second.member_of != worker.member_of ? nullptr : &it->second;
}

// What is computed twice counts once: of two workers with the same part, the faster one.
double Core::NewSamplesPerSecond(const Worker& worker) const {
  const double own = worker.report.samples_per_second();
  const Worker* const repeated = RepeatedBy(worker);
  if (repeated == nullptr) return own;
  return std::max(0.0, own - repeated->report.samples_per_second());
}

void Core::AddLateWorkers(const Job& job, JobStatus& status) const {
  for (const Member& member : job.state.roster().members()) {
    const Worker& worker = workers_.at(member.worker());
    const Worker* const late = RepeatedBy(worker);
    const double seconds = worker.report.repeats().late_seconds();
    if (late == nullptr || seconds <= 0) continue;
    status.add_late_workers(absl::StrFormat("%s, late by %.3g s in all: %s repeats its part",
                                            late->name(), seconds, worker.name()));
  }
}

}  // namespace starling::coordinator
