#include "server/coordinator/leases/lease_table.h"

#include <algorithm>
#include <cmath>

#include "absl/algorithm/container.h"
#include "server/coordinator/leases/lease_id.h"

namespace starling {
namespace {

constexpr double kSmoothing = 0.3;    // weight of the newest measurement
constexpr double kSecondsMin = 1e-6;  // per item: keeps shares finite
constexpr size_t kKeptByTheSlow = 2;  // one in work and one being read
constexpr uint64_t kSlowStart = 2;    // items ahead for each one done, until all speeds are known

}  // namespace

LeaseTable::LeaseTable(const LeaseTableOptions& options) : options_(options), end_(options.items) {}

bool LeaseTable::AddWorker(uint32_t worker, absl::Time now,
                           std::optional<double> seconds_per_item) {
  now_ = now;
  Worker fresh;
  fresh.seconds_per_item = seconds_per_item;
  fresh.busy_since = now;
  return !workers_.try_emplace(worker, fresh).second;
}

uint64_t LeaseTable::RemoveWorker(uint32_t worker) {
  auto it = workers_.find(worker);
  if (it == workers_.end()) return 0;
  const uint64_t count = it->second.held.size();
  for (const Holding& held : it->second.held) GiveBack(held);
  workers_.erase(it);
  return count;
}

void LeaseTable::StopGranting(uint32_t worker) {
  auto it = workers_.find(worker);
  if (it != workers_.end()) it->second.granting = false;
}

void LeaseTable::Adopt(uint32_t worker, uint64_t lease) {
  const uint64_t item = LeaseItem(lease);
  if (!LeaseIsOf(lease, options_.purpose, options_.epoch) || item >= end_) return;
  auto it = workers_.find(worker);
  if (it == workers_.end() || IsDone(item) || holder_.contains(item)) return;
  for (; next_ <= item; ++next_) {
    if (!IsDone(next_)) free_[next_] = 1;
  }
  free_.erase(item);
  it->second.held.push_back({item, LeaseAttempt(lease)});
  holder_[item] = worker;
}

uint64_t LeaseTable::Done(uint32_t worker, absl::Span<const uint64_t> leases, absl::Time now) {
  now_ = now;
  const uint64_t before = done_count();
  uint64_t own = 0;
  auto it = workers_.find(worker);
  for (const uint64_t lease : leases) {
    const uint64_t item = LeaseItem(lease);
    if (!LeaseIsOf(lease, options_.purpose, options_.epoch) || item >= options_.items) continue;
    if (IsDone(item)) continue;
    auto holder = holder_.find(item);
    if (holder != holder_.end()) {
      if (holder->second == worker) ++own;
      Worker& w = workers_.at(holder->second);
      std::erase_if(w.held, [item](const Holding& h) { return h.item == item; });
      holder_.erase(holder);
    }
    MarkDone(item);
  }
  if (own > 0 && it != workers_.end()) {
    Worker& w = it->second;
    const double sample =
        std::max(kSecondsMin, absl::ToDoubleSeconds(now - w.busy_since) / static_cast<double>(own));
    w.seconds_per_item =
        w.seconds_per_item ? (1 - kSmoothing) * *w.seconds_per_item + kSmoothing * sample : sample;
    w.busy_since = now;
    w.finished += own;
  }
  return done_count() - before;
}

void LeaseTable::SetEnd(uint64_t end) {
  end_ = std::min(end, options_.items);
  for (auto& [id, worker] : workers_) {
    const auto beyond = [this](const Holding& held) { return held.item >= end_; };
    for (const Holding& held : worker.held) {
      if (beyond(held)) GiveBack(held);
    }
    std::erase_if(worker.held, beyond);
  }
}

void LeaseTable::Return(uint32_t worker, uint64_t lease) {
  auto it = workers_.find(worker);
  if (it == workers_.end() || !LeaseIsOf(lease, options_.purpose, options_.epoch)) return;
  auto& held = it->second.held;
  auto found = std::find_if(held.begin(), held.end(), [&](const Holding& h) {
    return MakeLeaseId(options_.purpose, options_.epoch, h.item, h.attempt) == lease;
  });
  if (found == held.end()) return;
  const Holding holding = *found;
  held.erase(found);
  GiveBack(holding);
}

void LeaseTable::Covered(uint64_t item) {
  if (item < options_.items && !holder_.contains(item) && !IsDone(item)) MarkDone(item);
}

bool LeaseTable::Grant() {
  const bool granted = GrantFree();
  return TakeFromSlow() || granted;
}

std::vector<Lease> LeaseTable::Held(uint32_t worker) const {
  std::vector<Lease> leases;
  auto it = workers_.find(worker);
  if (it == workers_.end()) return leases;
  leases.reserve(it->second.held.size());
  for (const Holding& held : it->second.held) {
    Lease& lease = leases.emplace_back();
    lease.set_id(MakeLeaseId(options_.purpose, options_.epoch, held.item, held.attempt));
    lease.set_attempt(held.attempt);
    lease.mutable_work()->set_purpose(options_.purpose);
    lease.mutable_work()->set_epoch(options_.epoch);
    lease.mutable_work()->set_first(held.item * options_.micro_batches);
    lease.mutable_work()->set_count(options_.micro_batches);
  }
  return leases;
}

uint64_t LeaseTable::held_count(uint32_t worker) const {
  auto it = workers_.find(worker);
  return it == workers_.end() ? 0 : it->second.held.size();
}

bool LeaseTable::IsDone(uint64_t item) const { return item < done_floor_ || done_.contains(item); }

std::optional<double> LeaseTable::SecondsPerItem(uint32_t worker) const {
  auto it = workers_.find(worker);
  return it == workers_.end() ? std::nullopt : it->second.seconds_per_item;
}

void LeaseTable::MarkDone(uint64_t item) {
  free_.erase(item);
  done_.insert(item);
  while (!done_.empty() && *done_.begin() == done_floor_) {
    done_.erase(done_.begin());
    ++done_floor_;
  }
}

void LeaseTable::GiveBack(const Holding& held) {
  holder_.erase(held.item);
  free_[held.item] = held.attempt + 1;
}

std::optional<LeaseTable::Holding> LeaseTable::NextFree() {
  if (!HasFree()) return std::nullopt;
  if (!free_.empty() && free_.begin()->first < end_) {
    const Holding held{free_.begin()->first, free_.begin()->second};
    free_.erase(free_.begin());
    return held;
  }
  return Holding{next_++, 1};
}

bool LeaseTable::HasFree() {
  while (next_ < options_.items && IsDone(next_)) ++next_;
  return next_ < end_ || (!free_.empty() && free_.begin()->first < end_);
}

// What is assumed of a worker that was not measured yet: the mean of the others.
double LeaseTable::DefaultSeconds() const {
  double sum = 0;
  int count = 0;
  for (const auto& [id, worker] : workers_) {
    if (!worker.seconds_per_item) continue;
    sum += *worker.seconds_per_item;
    ++count;
  }
  return count == 0 ? 1.0 : sum / count;
}

bool LeaseTable::AllMeasured() const {
  return absl::c_all_of(workers_, [](const auto& entry) {
    return entry.second.seconds_per_item.has_value() || !entry.second.granting;
  });
}

uint64_t LeaseTable::Target(const Worker& worker, double default_seconds) const {
  double ahead = options_.items_min;
  if (worker.seconds_per_item) {
    ahead = std::ceil(absl::ToDoubleSeconds(options_.ahead) / *worker.seconds_per_item);
  }
  if (!AllMeasured()) ahead = std::min(ahead, static_cast<double>(kSlowStart * worker.finished));
  ahead = std::clamp<double>(ahead, options_.items_min, options_.items_max);

  double speeds = 0;
  for (const auto& [id, other] : workers_) {
    if (other.granting) speeds += 1 / other.seconds_per_item.value_or(default_seconds);
  }
  const double left = static_cast<double>(end_ - std::min(end_, done_count()));
  const double share = std::ceil(left / worker.seconds_per_item.value_or(default_seconds) / speeds);
  return static_cast<uint64_t>(std::max(1.0, std::min(ahead, share)));
}

// The one that would run dry first gets the next item.
bool LeaseTable::GrantFree() {
  const double default_seconds = DefaultSeconds();
  std::map<uint32_t, uint64_t> targets;
  for (const auto& [id, worker] : workers_) {
    if (worker.granting) targets[id] = Target(worker, default_seconds);
  }
  bool changed = false;
  while (true) {
    Worker* hungry = nullptr;
    uint32_t hungry_id = 0;
    double dry_in = 0;
    for (const auto& [id, target] : targets) {
      Worker& worker = workers_.at(id);
      if (worker.held.size() >= target) continue;
      const double dry = static_cast<double>(worker.held.size()) *
                         worker.seconds_per_item.value_or(default_seconds);
      if (hungry == nullptr || dry < dry_in) {
        hungry = &worker;
        hungry_id = id;
        dry_in = dry;
      }
    }
    if (hungry == nullptr) return changed;
    const std::optional<Holding> item = NextFree();
    if (!item) return changed;
    if (hungry->held.empty()) hungry->busy_since = now_;
    hungry->held.push_back(*item);
    holder_[item->item] = hungry_id;
    changed = true;
  }
}

bool LeaseTable::TakeFromSlow() {
  if (HasFree()) return false;
  const double default_seconds = DefaultSeconds();
  bool changed = false;
  for (auto& [id, dry] : workers_) {
    while (dry.granting && dry.held.size() < kKeptByTheSlow) {
      const double own = dry.seconds_per_item.value_or(default_seconds);
      const double after = static_cast<double>(dry.held.size() + 1) * own;
      Worker* last = nullptr;
      double last_ends = after;  // worth it only if the item is done sooner here
      for (auto& [other_id, other] : workers_) {
        if (other_id == id || other.held.size() <= kKeptByTheSlow) continue;
        const double ends = static_cast<double>(other.held.size()) *
                            other.seconds_per_item.value_or(default_seconds);
        if (ends > last_ends) {
          last = &other;
          last_ends = ends;
        }
      }
      if (last == nullptr) break;
      Holding taken = last->held.back();
      last->held.pop_back();
      ++taken.attempt;
      if (dry.held.empty()) dry.busy_since = now_;
      dry.held.push_back(taken);
      holder_[taken.item] = id;
      changed = true;
    }
  }
  return changed;
}

}  // namespace starling
