#include "tests/sim/world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace starling::sim {

const char* PromiseName(Promise promise) {
  switch (promise) {
    case Promise::kG1: return "G1 exactly once";
    case Promise::kG2: return "G2 bounded staleness";
    case Promise::kG3: return "G3 equal bits";
    case Promise::kG4: return "G4 a shard's crash";
    case Promise::kG5: return "G5 coordinator's crash";
    case Promise::kG6: return "G6 each sample once";
    case Promise::kG7: return "G7 cuts";
    case Promise::kG8: return "G8 progress";
    case Promise::kWhole: return "checkpoints are whole";
    case Promise::kCut: return "a checkpoint's values";
    case Promise::kKept: return "checkpoints are kept";
    case Promise::kGoesOn: return "a job goes on";
    case Promise::kGoesBack: return "a job goes back";
    case Promise::kFinite: return "finite values";
    case Promise::kDecision: return "one decision a step";
    case Promise::kAnswer: return "reads are answered";
    case Promise::kBytes: return "bytes in flight stay";
    case Promise::kMemory: return "memory comes back";
    case Promise::kBuffer: return "the same bytes again";
    case Promise::kStream: return "answers of open streams";
    case Promise::kReads: return "values stay while read";
    case Promise::kOneJob: return "one job in memory";
    case Promise::kRepeat: return "records are repeated";
  }
  return "?";
}

void World::After(absl::Duration delay, Process* process, std::function<void()> run) {
  queue_.push(
      {now_ + delay, ++numbers_, process, process == nullptr ? 0 : process->life, std::move(run)});
}

bool World::RunOne() {
  if (queue_.empty()) return false;
  Entry entry = std::move(const_cast<Entry&>(queue_.top()));
  queue_.pop();
  now_ = entry.at;
  const Process* process = entry.process;
  if (process != nullptr) {
    if (!process->alive || process->life != entry.life) return true;
    if (process->paused_until > now_) {
      std::vector<Entry>& held = held_[process];
      if (held.empty()) WakeAt(process->paused_until, process);
      held.push_back(std::move(entry));
      return true;
    }
  }
  entry.run();
  return true;
}

bool World::Sleep(absl::Duration time, Process* process) {
  constexpr int kSleepersMost = 16;  // on one stack
  if (!may_sleep_ || sleepers_ >= kSleepersMost) return false;
  may_sleep_ = false;
  ++sleepers_;
  ++process->sleeping;
  absl::Time until = now_ + time;
  while (true) {
    while (!queue_.empty() && queue_.top().at <= until) RunOne();
    now_ = std::max(now_, until);
    if (!process->alive || process->paused_until <= now_) break;
    until = process->paused_until;
  }
  --process->sleeping;
  --sleepers_;
  may_sleep_ = true;
  return true;
}

bool World::Happens(const std::string& kind, const std::string& who, uint64_t number) {
  const FaultId id{fault_prefix_ + kind, number};
  if (allowed_ != nullptr && !allowed_->contains(id)) return false;
  Count(absl::StrCat("fault: ", kind).c_str());
  faults_.push_back({id, elapsed(), who});
  return true;
}

bool World::Draw(const char* kind, double p, absl::string_view who) {
  if (p <= 0) return false;
  auto random = fault_random_.find(kind);
  if (random == fault_random_.end()) {
    uint64_t seed = fault_seed_;
    for (const char c : absl::string_view(kind)) seed = Mix(seed, static_cast<uint64_t>(c));
    random = fault_random_.emplace(kind, seed).first;
  }
  return random->second.Chance(p) && Happens(kind, std::string(who));
}

// All events that a paused process missed come at once, in order, when it continues.
void World::WakeAt(absl::Time at, const Process* process) {
  After(at - now_, nullptr, [this, process] {
    if (process->paused_until > now_) return WakeAt(process->paused_until, process);
    std::vector<Entry> held = std::move(held_[process]);
    held_.erase(process);
    for (Entry& entry : held) {
      entry.at = now_;
      entry.number = ++numbers_;
      queue_.push(std::move(entry));
    }
  });
}

void World::Violate(Promise promise, const std::string& what) {
  violated_.insert(promise);
  if (violations_.size() < 10) {
    violations_.push_back({promise, absl::StrCat(absl::FormatDuration(elapsed()), ": ", what)});
  }
}

}  // namespace starling::sim
