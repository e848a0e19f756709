// A shard that is asked to stop: its primaries move to the other whole copies at once, what has no
// other copy gets one, and it may leave when nothing counts on it (docs/protocol.md, section 12).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kDrainPeriod = absl::Milliseconds(250);

// "3 partitions, as of job a, have"
std::string PartitionsHave(size_t count, const std::string& job) {
  return count == 1 ? absl::StrCat("1 partition of job ", job, " has")
                    : absl::StrCat(count, " partitions, as of job ", job, ", have");
}

// "values of 3 jobs that ended, as of job a (12.0 MiB), have"
std::string EndedHave(const Shard::EndedCount& ended) {
  return absl::StrFormat("values of %s (%.1f MiB), have",
                         ended.here == 1
                             ? absl::StrCat("job ", ended.job, ", which ended")
                             : absl::StrCat(ended.here, " jobs that ended, as of job ", ended.job),
                         static_cast<double>(ended.bytes) / (1 << 20));
}

// The job was laid out by another release, or the shard is of one that copies no such values.
std::string FixedText(uint64_t count) {
  return absl::StrCat(
      "values of ", count, count == 1 ? " job" : " jobs",
      " that ended cannot be copied between these releases, have no other copy, and "
      "are lost with this shard");
}

}  // namespace

bool Core::Drains(uint32_t id) const {
  const auto shard = shards_.find(id);
  return shard != shards_.end() && shard->second.live() && shard->second.draining;
}

// Whether new partitions may be placed there, and copies there may become primaries by choice.
bool Core::TakesCopies(const Shard& shard) const { return IsPresent(shard) && !shard.draining; }

void Core::TakeDraining(Shard& shard, bool draining) {
  if (shard.draining == draining) return;
  shard.draining = draining;
  shard.drain.Clear();
  shard.drain.set_text("the coordinator has only just heard of it");
  shard.drain_at = absl::InfinitePast();
  shard.drain_pass = {};
  shard.ended = shard.ended_next = {};
  shard.ended_counted = false;
  shard.handed_over.clear();
  schedule_ = true;
  if (draining) sentences_.push_back(absl::StrCat(shard.name(), " was asked to stop: it drains"));
}

void Core::NoteHandedOver(const Job& job, const View& view, uint32_t from) {
  shards_.at(from).handed_over.emplace(job.uid(), view.partition());
}

// For a job that runs.
void Core::HandOver(Job& job) {
  for (auto& [id, shard] : shards_) {
    if (shard.live() && shard.draining) HandOver(job, shard);
  }
}

// Whole copies lead from now on: all that was acknowledged is there, and the primary that still
// lives acknowledges no more without them. A learner on this shard would soon be lost.
void Core::HandOver(Job& job, Shard& shard) {
  std::vector<uint32_t> moved, dropped;
  for (const View& view : job.state.views()) {
    if (shard.backs(view) && view.learning()) dropped.push_back(view.partition());
    if (!shard.leads(view) || !IsWhole(view) || !BackupLives(view)) continue;
    const Shard& other = shards_.at(view.backup());
    if (TakesCopies(other) && IsSteady(other)) moved.push_back(view.partition());
  }
  if (moved.empty() && dropped.empty()) return;
  ChangeViews(job, [&] {
    for (const uint32_t partition : moved) {
      View& view = *job.state.mutable_views(static_cast<int>(partition));
      if (ValuesSettled(job)) {
        SwapCopies(view);  // its copy stays as long as the shard does
        continue;
      }
      LoseShard(shard.at(), /*backup_lives=*/true, view);
      NoteHandedOver(job, view, shard.id());
    }
    for (const uint32_t partition : dropped) {
      View& view = *job.state.mutable_views(static_cast<int>(partition));
      DropBackup(view);
      NoteHandedOver(job, view, shard.id());
    }
    job.state.set_failovers(job.state.failovers() + moved.size());
  });
  if (moved.empty()) return;
  Log(job, absl::StrCat("shard ", shard.name(), " was asked to stop: the other copy leads now of ",
                        PartitionsText(moved)));
}

// Whether there is a shard, or is room on one, for one more copy.
bool Core::MayGetCopy(const Job& job, const View& view, const std::vector<ShardLoad>& loads) const {
  const uint64_t bytes = CopyBytes(job, view.partition());
  return std::any_of(loads.begin(), loads.end(), [&](const ShardLoad& load) {
    return load.id.value != view.primary() && load.room_bytes >= bytes;
  });
}

// What still counts on the shard.
Core::DrainCount Core::CountOn(Shard& shard) {
  DrainCount count;
  const std::vector<ShardLoad> loads = LiveShards(/*alone=*/false);
  count.elsewhere = std::any_of(shards_.begin(), shards_.end(), [&](const auto& entry) {
    const Shard& other = entry.second;
    return &other != &shard && !other.draining && !other.left();
  });
  const auto gets_copy = [&](const Job& job, const View& view) {
    const bool comes = view.learning() && !Drains(view.backup());
    const bool may = !comes && MayGetCopy(job, view, loads);
    if (may) count.wanted_bytes += CopyBytes(job, view.partition());
    return comes || may;
  };
  const auto look_at = [&](const Job& job, const View& view) {
    ++(gets_copy(job, view) ? count.copying : count.alone);
    if (count.here == 0) count.job = job.name();
  };
  for (const Job* job : JobsIn(RUNNING)) {
    for (const View& view : job->state.views()) {
      if (shard.leads(view)) {
        gets_copy(*job, view);
        ++count.here;
        count.job = job->name();
        count.why = CopyTrouble(*job, view);
      } else if (shard.backs(view)) {
        look_at(*job, view);
      }
    }
  }
  for (const auto& [uid, job] : jobs_) {
    if (!AwaitsOutput(job)) continue;
    for (const View& view : job.state.views()) {
      if (!shard.leads(view)) continue;
      ++count.here;
      count.job = job.name();
      count.why = absl::StrCat(job.state.output().path(), " is not written yet");
    }
  }
  std::erase_if(shard.handed_over, [&](const auto& handed) {
    const Job* job = FindRunning(handed.first);
    if (job == nullptr || job->spec().durability() == DURABILITY_NONE) return true;
    const View& view = job->state.views(static_cast<int>(handed.second));
    if (shard.hosts(view)) return true;  // counted above
    if (IsWhole(view) && !Drains(view.backup())) return true;
    if (!Drains(view.primary())) look_at(*job, view);
    return false;
  });
  return count;
}

DrainOrders Core::DrainOf(const DrainCount& count, const Shard& shard) const {
  const Shard::EndedCount& ended = shard.ended;
  const bool counted = shard.ended_counted && shard.ended_seen == ended_changes_;
  DrainOrders orders;
  std::vector<std::string> parts;
  if (!count.elsewhere) {
    orders.set_may_leave(counted);
    parts.emplace_back("each other shard has left or drains, too, or there is none");
    if (count.here > 0)
      parts.push_back(absl::StrCat(PartitionsHave(count.here, count.job), " nowhere else to go"));
    if (count.alone > 0)
      parts.push_back(absl::StrCat(PartitionsHave(count.alone, count.job),
                                   " no other copy on a shard that stays"));
    if (ended.here > 0)
      parts.push_back(
          absl::StrCat(EndedHave(ended), " no other copy, and are lost with this shard"));
    if (ended.fixed > 0) parts.push_back(FixedText(ended.fixed));
    orders.set_loses(counted && (count.here > 0 || count.alone > 0 || ended.results));
    orders.set_text(absl::StrJoin(parts, "; "));
    return orders;
  }
  const bool runs = count.here > 0 || count.copying > 0;
  if (count.here > 0) {
    parts.push_back(absl::StrCat(PartitionsHave(count.here, count.job),
                                 " no whole copy elsewhere yet",
                                 count.why.empty() ? "" : absl::StrCat(" (", count.why, ")")));
  } else if (count.copying > 0) {
    parts.push_back(
        absl::StrCat(PartitionsHave(count.copying, count.job), " no second copy elsewhere yet"));
  }
  if (ended.here > 0) {
    parts.push_back(absl::StrCat(EndedHave(ended), " no whole copy elsewhere yet",
                                 ended.why.empty() ? "" : absl::StrCat(" (", ended.why, ")")));
  } else if (!counted) {
    parts.emplace_back("jobs that ended are looked at");
  } else if (!runs) {
    orders.set_may_leave(true);
    orders.set_loses(ended.results);
    parts.push_back(ended.fixed > 0 ? FixedText(ended.fixed) : "nothing counts on this shard");
    if (count.alone > 0)
      parts.push_back(absl::StrCat(PartitionsHave(count.alone, count.job),
                                   " one copy elsewhere, as no shard has room for another"));
  }
  orders.set_text(absl::StrJoin(parts, "; "));
  return orders;
}

void Core::StepDrain(Shard& shard) {
  if (!Drains(shard.id()) || now_ < shard.drain_at) return;
  shard.drain_at = now_ + kDrainPeriod;
  const DrainCount count = CountOn(shard);
  HandOverEnded(shard, count.wanted_bytes);
  DrainOrders orders = DrainOf(count, shard);
  if (orders.SerializeAsString() == shard.drain.SerializeAsString()) return;
  shard.drain = std::move(orders);
  if (shard.drain.may_leave())
    sentences_.push_back(absl::StrCat(shard.name(), " may leave: ", shard.drain.text()));
  if (shard.parked) AnswerHeld(shard);
}

// It leaves, whatever still counts on it.
void Core::TakeLeave(Shard& shard, CallId call) {
  Reply(call, NewAnswer<ShardOrders>());
  shard.stored.set_left(true);
  Lose(shard, "it was asked to stop, and has left");
  ResolveRegistration(shard);
}

}  // namespace starling::coordinator
