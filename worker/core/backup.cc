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

// Lateness counts half as much after so many steps, so that who is late now comes before who was.
constexpr Clock kStepsToHalf = 16;
// A step is overdue when it takes so many times as long as the median of the last ones, and at
// least a few ticks.
constexpr int kOverdue = 2;
constexpr absl::Duration kOverdueLeast = absl::Milliseconds(100);

}  // namespace

std::optional<size_t> Core::OwnIndex() const {
  const auto& members = job_->roster.members;
  const auto self = absl::c_find_if(members, [this](const auto& member) {
    return member.worker == worker_ && member.incarnation == incarnation_;
  });
  if (self == members.end()) return std::nullopt;
  return static_cast<size_t>(self - members.begin());
}

uint64_t Core::Sharing() const { return SharingMembers(job_->roster.members.size(), job_->backup); }

// The part of the step that the member with this index has.
WorkRanges Core::PartOf(size_t member, Clock step) const {
  const JobState& job = *job_;
  const uint64_t first = step % job.steps * job.micro_batches;
  WorkRanges ranges;
  for (const Subtree& tree : AssignSubtrees(step, member, Sharing(), job.micro_batches)) {
    ranges.push_back({WorkPurpose::kTrain, static_cast<uint32_t>(step / job.steps),
                      first + tree.first, tree.count});
  }
  return ranges;
}

// The members that share steps, by index: the latest first.
Core::MemberIndices Core::Latest() const {
  const JobState& job = *job_;
  const auto late_us = [&](size_t i) {
    const auto it = job.late_us.find(job.roster.members[i].worker);
    return it == job.late_us.end() ? uint64_t{0} : it->second.lately;
  };
  MemberIndices latest(Sharing());
  std::iota(latest.begin(), latest.end(), 0);
  absl::c_sort(latest, [&](size_t a, size_t b) {
    return std::pair(late_us(b), a) < std::pair(late_us(a), b);
  });
  return latest;
}

// The index of the member whose part this worker computes: its own, or, as a backup worker, that of
// the member that is its turn among the latest ones. Unset: this worker is no member.
std::optional<size_t> Core::PartOwner() const {
  const std::optional<size_t> self = OwnIndex();
  const uint64_t sharing = Sharing();
  if (!self.has_value() || *self < sharing) return self;
  return Latest()[(*self - sharing) % sharing];
}

// Whose part a backup worker is to repeat; 0: this worker is none.
WorkerId Core::Repeated() const {
  const std::optional<size_t> owner = job_->backup > 0 ? PartOwner() : std::nullopt;
  if (!owner.has_value()) return WorkerId();
  const WorkerId of = job_->roster.members[*owner].worker;
  return of == worker_ ? WorkerId() : of;
}

// A value says which part of the step that made it came late. Parts are those of the roster of now:
// of a step before it, it is not known whose part it was.
void Core::TakeLate(Clock version, const FrameHeader& value) {
  JobState& job = *job_;
  if (job.backup == 0 || value.late_us == 0 || version <= job.late_from) return;
  const Clock step = version - 1;
  Clock& counted = job.late_counted[value.key.slice];  // it may be pulled more than once
  if (version <= counted) return;
  counted = version;
  uint32_t smallest = job.micro_batches;
  uint32_t has = 0;
  std::optional<uint64_t> late;
  for (uint64_t member = 0; member < Sharing(); ++member) {
    uint32_t count = 0;
    for (const Subtree& tree : AssignSubtrees(step, member, Sharing(), job.micro_batches)) {
      count += tree.count;
      if (tree.first <= value.late_part && value.late_part < tree.first + tree.count) late = member;
    }
    smallest = std::min(smallest, count);
    if (late == member) has = count;
  }
  if (!late.has_value() || value.late_us <= MicrosOfMore(has, smallest)) return;
  ForgetOldLateness(step);
  JobState::LateSums& sums = job.late_us[job.roster.members[*late].worker];
  sums.lately += value.late_us;
  sums.in_all += value.late_us;
}

// By how much longer the larger part of a step takes: shares are not even where the number of
// members is no power of two.
uint64_t Core::MicrosOfMore(uint32_t larger, uint32_t smaller) const {
  const JobState& job = *job_;
  if (larger <= smaller) return 0;
  if (job.steps_timed < job.step_times.size()) return UINT64_MAX;
  const absl::Duration shortest = *absl::c_min_element(job.step_times);
  return static_cast<uint64_t>(absl::ToInt64Microseconds(shortest) * (larger - smaller) / larger);
}

// By the steps of what is added, so that all workers that are told the same agree. What is left of
// a sum keeps a member that is hidden before those who were never late.
void Core::ForgetOldLateness(Clock step) {
  JobState& job = *job_;
  const Clock age = step / kStepsToHalf;
  if (age <= job.late_age) return;
  const Clock halvings = std::min<Clock>(age - job.late_age, 63);
  for (auto& [worker, sums] : job.late_us)
    if (sums.lately > 0) sums.lately = ((sums.lately - 1) >> halvings) + 1;
  job.late_age = age;
}

void Core::ForgetLatenessOfStrangers() {
  const auto& members = job_->roster.members;
  absl::erase_if(job_->late_us, [&](const auto& late) {
    return absl::c_none_of(members, [&](const auto& m) { return m.worker == late.first; });
  });
}

// The values of a step say what was late in the one before, when a unit waits for them already. It
// starts over with the part of the member that is the latest by now, unless some of it was pushed.
void Core::TurnToLatest() {
  JobState& job = *job_;
  if (job.backup == 0 || job.computing.value == 0) return;
  const Unit& unit = job.units.at(job.computing);
  if (!unit.closes || unit.repeats.value == 0 || unit.pushed_any()) return;
  if (unit.repeats == Repeated() || Repeated().value == 0) return;
  const Clock next = std::exchange(job.clock, unit.clock);
  if (WindingDown() || !HasTraining()) {
    job.clock = next;
    return;
  }
  AbandonComputing();  // the same step is the next to be started
}

// A step is over: all that this worker sent of it is acked.
void Core::NoteStep() {
  JobState& job = *job_;
  if (job.backup == 0) return;
  if (job.stepped_at != absl::InfinitePast())
    job.step_times[job.steps_timed++ % job.step_times.size()] = now_ - job.stepped_at;
  job.stepped_at = now_;
}

// When the step that this unit closes is overdue: never, before enough steps were timed.
absl::Time Core::OverdueAt(const Unit& unit) const {
  const JobState& job = *job_;
  if (job.steps_timed < job.step_times.size()) return absl::InfiniteFuture();
  auto times = job.step_times;
  const auto median = times.begin() + times.size() / 2;
  absl::c_nth_element(times, median);
  return std::max(job.stepped_at, unit.began) + std::max(kOverdue * *median, kOverdueLeast);
}

// While a step is overdue, a backup worker that has computed what it repeats goes on with the parts
// of the others, the latest first, beginning with its own: others begin with theirs. What others
// deliver meanwhile counts as ever.
void Core::HelpOverdueStep() {
  JobState& job = *job_;
  if (job.backup == 0 || WindingDown() || !job.member || job.presence != Presence::kActive) return;
  const auto waits = absl::c_find_if(job.units, [](const auto& entry) {
    const Unit& unit = entry.second;
    return unit.purpose == WorkPurpose::kTrain && unit.closes && unit.computed;
  });
  if (waits == job.units.end() || now_ < OverdueAt(waits->second)) return;
  if (Repeated().value == 0) return;
  const Clock step = waits->second.clock;
  const auto work = job.step_work.find(step);
  if (work == job.step_work.end() || Sealed(step) || !MayPutOff(step)) return;
  MemberIndices latest = Latest();
  const uint64_t turn = (*OwnIndex() - Sharing()) % Sharing();
  std::rotate(latest.begin(), latest.begin() + static_cast<std::ptrdiff_t>(turn), latest.end());
  for (const size_t member : latest) {
    WorkRanges missing = Missing(PartOf(member, step), work->second.ranges);
    if (missing.empty()) continue;
    return BeginMore(step, std::move(missing), job.roster.members[member].worker);
  }
}

void Core::AddRepeats(WorkerReport& report) const {
  const JobState& job = *job_;
  const WorkerId repeated = job.bsp() ? Repeated() : WorkerId();
  if (repeated.value == 0) return;
  report.mutable_repeats()->set_worker(repeated.value);
  const auto late = job.late_us.find(repeated);
  const auto slices = absl::c_count_if(job.slices, [](const auto& s) { return s.contributes; });
  if (late == job.late_us.end() || slices == 0) return;
  report.mutable_repeats()->set_late_seconds(1e-6 * static_cast<double>(late->second.in_all) /
                                             static_cast<double>(slices));
}

}  // namespace starling::session
