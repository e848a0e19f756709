// Membership in the partitions' minimum: enter, skip, park (docs/protocol.md, section 3).
#include <algorithm>
#include <optional>

#include "worker/core/core.h"

namespace starling::session {

bool Core::WindingDown() const { return draining_ || job_->phase != JobPhase::kServing; }

bool Core::WantsToEnter() const {
  if (WindingDown() || !job_->member) return false;
  if (job_->policy_number != job_->ordered_policy_number) return false;
  return job_->bsp() ? job_->training_open : !job_->training.empty();
}

bool Core::WantsToLeave() const {
  if (TrainingUnits() > 0) return false;
  return WindingDown() || (!job_->bsp() && job_->training.empty());
}

void Core::StepPresence() {
  struct Row {
    Presence from;
    bool (Core::*when)() const;
    void (Core::*act)();  // nullptr: nothing
    Presence to;
  };
  static constexpr Row kRows[] = {
      {Presence::kParked, &Core::WantsToEnter, &Core::SendEnters, Presence::kEntering},
      {Presence::kEntering, &Core::AllAnswered, &Core::BecomeActive, Presence::kActive},
      {Presence::kActive, &Core::WantsToLeave, &Core::SendParks, Presence::kParking},
      {Presence::kParking, &Core::AllAnswered, nullptr, Presence::kParked},
  };
  if (!job_.has_value()) return;
  if (job_->phase != JobPhase::kServing && job_->phase != JobPhase::kLeaving) return;
  for (bool moved = true; moved;) {
    moved = false;
    for (const Row& row : kRows) {
      if (row.from != job_->presence || !(this->*row.when)()) continue;
      job_->presence = row.to;
      if (row.act != nullptr) (this->*row.act)();
      moved = true;
      break;
    }
  }
}

void Core::SendEnters() {
  job_->entered_at.clear();
  SendToAll(RequestKind::kEnter, frame_flags::kEnter);
}

// Drops open pulls, too: a parked replica waits for nothing.
void Core::SendParks() {
  for (const Held& held : job_->live) {
    if (held.request != 0) Drop(held.request);
  }
  SendToAll(RequestKind::kPark, frame_flags::kPark);
}

void Core::SendToAll(RequestKind kind, uint16_t flags) {
  job_->answers_left = job_->description.partitions();
  for (uint32_t p = 0; p < job_->description.partitions(); ++p) {
    Request& request = NewRequest(kind, FrameType::kClose, PartitionId(p));
    request.header.flags = flags;
    request.header.clock = job_->clock;
    Transmit(request);
  }
}

// All partitions have reported this replica's clock. It starts at the highest one and skips to it
// on the others (BSP: at the first step that is not sealed everywhere).
void Core::BecomeActive() {
  JobState& job = *job_;
  std::optional<Clock> found;
  for (const auto& [partition, clock] : job.entered_at) {
    // A partition with only frozen slices seals no steps.
    if (job.bsp() && job.contributing[partition.value] == 0) continue;
    const Clock so_far = found.value_or(clock);
    found = job.bsp() ? std::min(so_far, clock) : std::max(so_far, clock);
  }
  const Clock start = job.clock = found.value_or(job.clock);
  for (const auto& [partition, clock] : job.entered_at) {
    if (clock >= start) continue;
    Request& request = NewRequest(RequestKind::kSkip, FrameType::kClose, partition);
    request.header.flags = frame_flags::kSkip;
    request.header.clock = start;
    Transmit(request);
  }
  if (job.bsp() && static_cast<uint64_t>(start) >= job.steps_in_job) return;
  for (uint32_t s = 0; s < job.slices.size(); ++s) Want(SliceId(s), Params::kLive, start);
}

}  // namespace starling::session
