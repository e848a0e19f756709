// BSP with backup workers: whose part of a step this worker computes. docs/decisions/0014 says why
// each worker may choose by itself.
#include <algorithm>
#include <numeric>
#include <utility>

#include "common/placement/layout.h"
#include "worker/core/core.h"

namespace starling::session {
namespace {

// Lateness counts half as much after so many steps.
constexpr uint64_t kStepsToHalf = 1024;

}  // namespace

// The index of the member whose part this worker computes: its own, or, as a backup worker, that of
// the member that is its turn among the latest ones. Unset: this worker is no member.
std::optional<size_t> Core::PartOwner() const {
  const JobState& job = *job_;
  const auto& members = job.roster.members;
  const auto self = std::find_if(members.begin(), members.end(), [this](const auto& member) {
    return member.worker == worker_ && member.incarnation == incarnation_;
  });
  if (self == members.end()) return std::nullopt;
  const auto index = static_cast<size_t>(self - members.begin());
  const uint64_t sharing = SharingMembers(members.size(), job.backup);
  if (index < sharing) return index;
  const auto late_us = [&](size_t i) {
    const auto it = job.late_us.find(members[i].worker);
    return it == job.late_us.end() ? uint64_t{0} : it->second;
  };
  absl::InlinedVector<size_t, 16> latest(sharing);
  std::iota(latest.begin(), latest.end(), 0);
  std::sort(latest.begin(), latest.end(), [&](size_t a, size_t b) {
    return std::pair(late_us(b), a) < std::pair(late_us(a), b);
  });
  return latest[(index - sharing) % sharing];
}

bool Core::IsMember(WorkerId worker) const {
  const auto& members = job_->roster.members;
  return std::any_of(members.begin(), members.end(),
                     [&](const auto& member) { return member.worker == worker; });
}

// A value says who was late in the step that made it.
void Core::TakeLate(const FrameHeader& value) {
  if (job_->backup == 0 || !IsMember(value.late)) return;
  job_->late_us[value.late] += value.late_us;
}

// A function of the step, so that all workers that are told the same agree.
void Core::ForgetOldLateness(uint64_t step) {
  if (step % kStepsToHalf != 0) return;
  for (auto& [worker, us] : job_->late_us) us /= 2;
}

// Whose part it is to repeat next.
void Core::AddRepeats(WorkerReport& report) const {
  const JobState& job = *job_;
  if (job.backup == 0 || !job.bsp()) return;
  const std::optional<size_t> owner = PartOwner();
  if (!owner.has_value() || job.roster.members[*owner].worker == worker_) return;
  const WorkerId repeated = job.roster.members[*owner].worker;
  const auto late = job.late_us.find(repeated);
  const auto slices = std::count_if(job.slices.begin(), job.slices.end(),
                                    [](const SliceShape& slice) { return slice.contributes; });
  report.mutable_repeats()->set_worker(repeated.value);
  if (late == job.late_us.end() || slices == 0) return;
  report.mutable_repeats()->set_late_seconds(1e-6 * static_cast<double>(late->second) /
                                             static_cast<double>(slices));
}

}  // namespace starling::session
