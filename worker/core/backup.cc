// BSP with backup workers: whose part of a step this worker computes. docs/decisions/0014 says why
// each worker may choose by itself.
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
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

// Whose part a backup worker is to repeat; 0: this worker is none.
WorkerId Core::Repeated() const {
  const std::optional<size_t> owner = PartOwner();
  const WorkerId of = owner.has_value() ? job_->roster.members[*owner].worker : worker_;
  return of == worker_ ? WorkerId() : of;
}

// The values of a step say who was late in the one before, when a unit waits for them already. It
// starts over with that one's part, unless some of it was pushed.
void Core::TurnToLatest() {
  JobState& job = *job_;
  if (job.backup == 0 || job.computing.value == 0) return;
  const Unit& unit = job.units.at(job.computing);
  const auto some = [](uint32_t ranges) { return ranges > 0; };
  if (unit.repeats.value == 0 || absl::c_any_of(unit.arrived, some)) return;
  if (unit.repeats == Repeated() || Repeated().value == 0) return;
  const Clock next = std::exchange(job.clock, unit.clock);
  if (WindingDown() || !HasTraining()) {
    job.clock = next;
    return;
  }
  AbandonComputing();  // the same step is the next to be started
}

void Core::AddRepeats(WorkerReport& report) const {
  const JobState& job = *job_;
  const WorkerId repeated = job.bsp() ? Repeated() : WorkerId();
  if (repeated.value == 0) return;
  report.mutable_repeats()->set_worker(repeated.value);
  const auto late = job.late_us.find(repeated);
  const auto slices = absl::c_count_if(job.slices, [](const auto& s) { return s.contributes; });
  if (late == job.late_us.end() || slices == 0) return;
  report.mutable_repeats()->set_late_seconds(1e-6 * static_cast<double>(late->second) /
                                             static_cast<double>(slices));
}

}  // namespace starling::session
