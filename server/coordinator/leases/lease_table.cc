#include "server/coordinator/leases/lease_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/algorithm/container.h"
#include "server/coordinator/leases/lease_id.h"

namespace starling::coordinator {
namespace {

constexpr double kSmoothing = 0.3;    // weight of the newest measurement
constexpr double kSecondsMin = 1e-6;  // per item: keeps shares finite
constexpr size_t kKeptByTheSlow = 2;  // one in progress and one being read
constexpr uint64_t kSlowStart = 2;    // items ahead per finished item until all speeds are known
// A worker gets nothing more while it has reported more than this multiple of items_max as done
// that no shard covers. Far above what is done between two reports of a shard.
constexpr uint64_t kUnconfirmedFactor = 64;

}  // namespace

LeaseTable::LeaseTable(const LeaseTableOptions& options)
    : options_(options), end_(options.items), covered_(options.items) {}

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
  if (it == workers_.end() || it->second.held.size() >= options_.items_max) return;
  if (covered_.Has(item) || reported_.contains(item) || holder_.contains(item)) return;
  while ((next_ = covered_.NextUncovered(next_)) <= item) {
    const uint64_t end = std::min(covered_.NextCovered(next_), item + 1);
    free_[next_] = {end, 1};
    next_ = end;
  }
  EraseFree(item, item + 1);
  it->second.held.push_back({item, LeaseAttempt(lease)});
  holder_[item] = worker;
}

uint64_t LeaseTable::Done(uint32_t worker, absl::Span<const uint64_t> leases, absl::Time now) {
  now_ = now;
  const uint64_t before = done_count();
  uint64_t own = 0;
  if (!workers_.contains(worker)) return 0;
  for (const uint64_t lease : leases) {
    const uint64_t item = LeaseItem(lease);
    if (!LeaseIsOf(lease, options_.purpose, options_.epoch) || item >= options_.items) continue;
    if (MayEnd(worker, lease) && End(worker, item, LeaseAttempt(lease))) ++own;
  }
  Measure(worker, own);
  return done_count() - before;
}

void LeaseTable::Finished(uint32_t worker, uint64_t item, absl::Time now) {
  now_ = now;
  if (item >= options_.items) return;
  const bool own = End(worker, item, 0);
  covered_.Mark(item);
  Measure(worker, own ? 1 : 0);
}

// Ends any worker's hold of the item. Returns whether `worker` held it.
bool LeaseTable::End(uint32_t worker, uint64_t item, uint32_t attempt) {
  bool own = false;
  if (const auto holder = holder_.find(item); holder != holder_.end()) {
    own = holder->second == worker;
    std::vector<Holding>& held = workers_.at(holder->second).held;
    const auto holding = absl::c_find_if(held, [item](const Holding& h) { return h.item == item; });
    attempt = std::max(attempt, holding->attempt);
    held.erase(holding);
    holder_.erase(holder);
    if (covered_.Has(item)) --covered_held_;
  }
  EraseFree(item, item + 1);
  if (options_.purpose == EVALUATE || covered_.Has(item)) return own;
  const auto [report, fresh] = reported_.try_emplace(item, Reported{worker, attempt, now_});
  if (fresh) ++workers_.at(worker).unconfirmed;
  return own;
}

void LeaseTable::Measure(uint32_t worker, uint64_t own_items) {
  const auto it = workers_.find(worker);
  if (own_items == 0 || it == workers_.end()) return;
  Worker& w = it->second;
  const double sample = std::max(
      kSecondsMin, absl::ToDoubleSeconds(now_ - w.busy_since) / static_cast<double>(own_items));
  w.seconds_per_item =
      w.seconds_per_item ? (1 - kSmoothing) * *w.seconds_per_item + kSmoothing * sample : sample;
  w.busy_since = now_;
  w.finished += own_items;
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

uint64_t LeaseTable::IdOf(const Holding& holding) const {
  return MakeLeaseId(options_.purpose, options_.epoch, holding.item, holding.attempt);
}

// Whether the worker holds this lease, or did until another worker took it.
bool LeaseTable::MayEnd(uint32_t id, uint64_t lease) {
  Worker& worker = workers_.at(id);
  const uint64_t item = LeaseItem(lease);
  const auto taken = worker.taken.find(item);
  if (taken != worker.taken.end() && IdOf({item, taken->second}) == lease) {
    worker.taken.erase(taken);
    return true;
  }
  return absl::c_any_of(worker.held, [&](const Holding& held) { return IdOf(held) == lease; });
}

void LeaseTable::Return(uint32_t worker, uint64_t lease) {
  auto it = workers_.find(worker);
  if (it == workers_.end() || !LeaseIsOf(lease, options_.purpose, options_.epoch)) return;
  auto& held = it->second.held;
  auto found = absl::c_find_if(held, [&](const Holding& h) { return IdOf(h) == lease; });
  if (found == held.end()) return;
  const Holding holding = *found;
  held.erase(found);
  GiveBack(holding);
}

void LeaseTable::Covered(uint64_t begin, uint64_t end) {
  begin = std::max(begin, covered_.floor());
  end = std::min(end, options_.items);
  if (covered_.NextUncovered(begin) >= end) return;
  for (auto held = holder_.lower_bound(begin); held != holder_.end() && held->first < end; ++held) {
    if (!covered_.Has(held->first)) ++covered_held_;
  }
  for (auto it = reported_.lower_bound(begin); it != reported_.end() && it->first < end;) {
    Confirm(it++);
  }
  EraseFree(begin, end);
  covered_.MarkRange(begin, end);
}

// Drops a report: it is confirmed or no longer believed.
void LeaseTable::Confirm(std::map<uint64_t, Reported>::iterator report) {
  const auto worker = workers_.find(report->second.worker);
  if (worker != workers_.end() && worker->second.unconfirmed > 0) --worker->second.unconfirmed;
  reported_.erase(report);
}

uint64_t LeaseTable::TakeBack(uint64_t end, absl::Time now) {
  uint64_t count = 0;
  for (auto it = reported_.begin(); it != reported_.end() && it->first < end;) {
    const auto report = it++;
    if (now - report->second.since < options_.cover_wait) continue;
    free_[report->first] = {report->first + 1, report->second.attempt + 1};
    Confirm(report);
    ++count;
  }
  return count;
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
    lease.set_id(IdOf(held));
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

uint64_t LeaseTable::DoneEnd() const {
  const uint64_t reported = reported_.empty() ? 0 : reported_.rbegin()->first + 1;
  return std::max(covered_.End(), reported);
}

std::optional<double> LeaseTable::SecondsPerItem(uint32_t worker) const {
  auto it = workers_.find(worker);
  return it == workers_.end() ? std::nullopt : it->second.seconds_per_item;
}

void LeaseTable::GiveBack(const Holding& held) {
  holder_.erase(held.item);
  if (covered_.Has(held.item)) {
    --covered_held_;
  } else {
    free_[held.item] = {held.item + 1, held.attempt + 1};
  }
}

void LeaseTable::EraseFree(uint64_t begin, uint64_t end) {
  auto it = free_.upper_bound(begin);
  if (it != free_.begin() && std::prev(it)->second.end > begin) --it;
  while (it != free_.end() && it->first < end) {
    const uint64_t first = it->first;
    const Free range = it->second;
    it = free_.erase(it);
    if (first < begin) free_[first] = {begin, range.attempt};
    if (range.end > end) free_[end] = range;
  }
}

std::optional<LeaseTable::Holding> LeaseTable::NextFree() {
  if (!HasFree()) return std::nullopt;
  if (!free_.empty() && free_.begin()->first < end_) {
    const Holding held{free_.begin()->first, free_.begin()->second.attempt};
    EraseFree(held.item, held.item + 1);
    return held;
  }
  return Holding{next_++, 1};
}

bool LeaseTable::HasFree() {
  next_ = covered_.NextUncovered(next_);
  return next_ < end_ || (!free_.empty() && free_.begin()->first < end_);
}

// The speed assumed of an unmeasured worker: the mean of the others.
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

// The worker that would run dry first gets the next item.
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
      const bool doubted = worker.unconfirmed >= kUnconfirmedFactor * options_.items_max;
      if (worker.held.size() >= target || doubted) continue;
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
      double last_ends = after;  // worth it only if the item is done sooner by `dry`
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
      last->taken[taken.item] = taken.attempt;
      if (last->taken.size() > options_.items_max) last->taken.erase(last->taken.begin());
      ++taken.attempt;
      if (dry.held.empty()) dry.busy_since = now_;
      dry.held.push_back(taken);
      holder_[taken.item] = id;
      changed = true;
    }
  }
  return changed;
}

}  // namespace starling::coordinator
