#include "tests/sim/control_truth.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace starling::sim {

void ControlTruth::OnStarted(Generation generation) {
  if (generation <= last_) {
    world_->Violate(Promise::kG5,
                    absl::StrCat("generation ", generation.value, " after ", last_.value));
  }
  last_ = std::max(last_, generation);
}

void ControlTruth::OnRegistered(uint64_t nonce, uint32_t id, Incarnation incarnation) {
  const auto [it, fresh] = incarnations_.try_emplace(incarnation, nonce);
  if (it->second == nonce) return;
  world_->Violate(Promise::kG5,
                  absl::StrCat("incarnation ", incarnation.value, " was given twice, now to ", id));
}

void ControlTruth::OnSubmitted(uint64_t uid, const std::string& name) {
  const auto [it, fresh] = submitted_.try_emplace(uid, name);
  if (it->second != name)
    world_->Violate(Promise::kG5, absl::StrCat("uid ", uid, " was given twice"));
}

void ControlTruth::OnDeleted(uint64_t uid) { submitted_.erase(uid); }

void ControlTruth::OnListed(const std::vector<std::pair<uint64_t, std::string>>& jobs,
                            Generation generation) {
  for (const auto& [uid, name] : submitted_) {
    if (std::find(jobs.begin(), jobs.end(), std::make_pair(uid, name)) != jobs.end()) continue;
    world_->Violate(Promise::kG5,
                    absl::StrCat("job ", name, " (", uid, ") was accepted, and generation ",
                                 generation.value, " does not know it"));
  }
}

}  // namespace starling::sim
