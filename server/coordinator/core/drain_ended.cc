// A shard that is asked to stop, and values of jobs that are over. Where a whole copy is elsewhere,
// that one is read from then on. Else another shard reads them from the primary, as a learner, and
// becomes the primary when it has them (docs/protocol.md, section 12).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kPassPeriod = absl::Seconds(1);  // between passes that find nothing new
// Being copied, in the whole cluster. One partition is, however large.
constexpr size_t kCopiedJobsMost = 32;
constexpr uint64_t kCopiedBytesMost = 256 << 20;

bool IsAt(const Archived::Partition& copy, const Shard& shard) {
  return copy.shard == shard.id() && copy.incarnation == shard.stored.incarnation();
}

// Calls visit(partition, primary, backup) for what the shard leads; `backup` is null where there is
// none.
template <typename Visit>
void ForEachLed(absl::Span<const Archived::Partition> on, const Shard& shard, const Visit& visit) {
  uint32_t partition = 0;
  for (size_t i = 0; i < on.size(); ++partition) {
    const Archived::Partition& primary = on[i++];
    const Archived::Partition* const backup = i < on.size() && on[i].backup ? &on[i++] : nullptr;
    if (IsAt(primary, shard)) visit(partition, primary, backup);
  }
}

}  // namespace

// ---- What is to be copied, and where ----

// Partitions that the shard leads, and of which no copy is on a shard that stays, nor comes there.
std::vector<WantsBackup> Core::WantEndedCopies(const EndedJob& job, const Shard& shard) const {
  std::vector<WantsBackup> wanting;
  ForEachLed(job.on, shard,
             [&](uint32_t partition, const Archived::Partition& primary,
                 const Archived::Partition* backup) {
               if (backup != nullptr && !Drains(backup->shard)) return;
               WantsBackup& wants = wanting.emplace_back();
               wants.partition = partition;
               wants.primary = ShardId(primary.shard);
               wants.elements = primary.elements;
               wants.bytes = primary.elements * sizeof(float);
             });
  return wanting;
}

// `wanted_bytes`: that jobs that run are to get, wherever it is.
Core::EndedRoom Core::FindEndedRoom(uint64_t wanted_bytes) {
  EndedRoom room{.loads = LiveShards(/*alone=*/false), .bytes = kCopiedBytesMost};
  std::erase_if(room.loads, [&](ShardLoad& load) {
    load.room_bytes -= std::min(load.room_bytes, wanted_bytes);
    const Shard& shard = shards_.at(load.id.value);
    return !shard.whole || !shard.copies_ended;
  });
  std::erase_if(ended_copied_, [&](uint64_t uid) {
    const auto job = jobs_.find(uid);
    if (job == jobs_.end()) return true;
    bool any = false;
    for (const View& view : job->second.state.views()) {
      if (!LearnsEnded(job->second, view)) continue;
      any = true;
      room.bytes -= std::min(room.bytes, CopyBytes(job->second, view.partition()));
    }
    return !any;
  });
  room.jobs = kCopiedJobsMost - std::min(kCopiedJobsMost, ended_copied_.size());
  return room;
}

// None before the shard has said that the job is over there: then it can be read.
std::vector<BackupPlace> Core::FindEndedPlaces(const EndedJob& job, const Shard& shard,
                                               const EndedRoom& room) const {
  const auto held = shard.held.find(job.uid);
  const bool ended = held != shard.held.end() && held->second.over();
  if (job.fixed || !ended || room.jobs == 0) return {};
  std::vector<WantsBackup> wanting = WantEndedCopies(job, shard);
  size_t count = 0;
  for (uint64_t bytes = 0; count < wanting.size() && bytes < room.bytes; ++count)
    bytes += wanting[count].bytes;
  wanting.resize(count);
  const auto unpacked = jobs_.find(job.uid);
  for (WantsBackup& wants : wanting) {
    if (unpacked == jobs_.end()) break;  // it was packed since no shard is unfit
    const View& view = unpacked->second.state.views(static_cast<int>(wants.partition));
    for (const auto& [id, other] : shards_) {
      if (FindUnfit(unpacked->second, view, other) != nullptr) wants.not_on.insert(ShardId(id));
    }
  }
  return PlaceBackups(wanting, room.loads, {}, UINT32_MAX);
}

// ---- Passes over the jobs ----

// Whether a partition that the shard leads has a whole copy where it may go on.
bool Core::MayHandOver(const EndedJob& job, const Shard& shard) const {
  bool may = false;
  ForEachLed(job.on, shard,
             [&](uint32_t, const Archived::Partition&, const Archived::Partition* backup) {
               if (backup == nullptr || backup->learning) return;
               const Shard& other = shards_.at(backup->shard);
               may |= IsAt(*backup, other) && TakesCopies(other) && IsSteady(other);
             });
  return may;
}

void Core::HandOverEnded(Shard& shard, uint64_t wanted_bytes) {
  if (!IsPresent(shard)) return;
  if (now_ < shard.drain_pass.at && shard.ended_seen == ended_changes_) return;
  if (shard.drain_pass.from == 0) {
    shard.ended_seen = ended_changes_;
    shard.ended_next = {};
    shard.ended_counted = false;
  }
  EndedRoom room = FindEndedRoom(wanted_bytes);
  const auto may_change = [&](uint64_t uid, const Archived& packed) {
    if (packed.gone) return false;
    const EndedJob job{uid, packed.fixed || !shard.copies_ended, packed.result, packed.on};
    if (MayHandOver(job, shard) || !FindEndedPlaces(job, shard, room).empty()) return true;
    CountEnded(job, shard);
    return false;
  };
  const bool done = PassOverJobs(shard, shard.drain_pass, may_change, [&](Job& job) {
    const uint64_t before = ended_changes_;
    if (job.over()) HandOverEnded(job, shard, room);
    shard.ended_seen += ended_changes_ - before;
  });
  if (!done) return;
  shard.drain_pass.at = now_ + kPassPeriod;
  shard.ended = std::exchange(shard.ended_next, {});
  shard.ended_counted = true;
}

void Core::HandOverEnded(Job& job, Shard& shard, EndedRoom& room) {
  HandOver(job, shard);
  if (HasLostValues(job.state)) return;
  const bool fixed = !job.unreadable.empty() || !shard.copies_ended;
  if (!fixed && ValuesSettled(job)) CopyEnded(job, shard, room);
  const std::vector<Archived::Partition> on = OnShards(job);
  CountEnded({job.uid(), fixed, IsResult(job.state), on}, shard);
}

void Core::CopyEnded(Job& job, Shard& shard, EndedRoom& room) {
  const std::vector<Archived::Partition> on = OnShards(job);
  const std::vector<BackupPlace> places =
      FindEndedPlaces({.uid = job.uid(), .on = on}, shard, room);
  if (places.empty()) return;
  std::vector<uint32_t> copied;
  ChangeViews(job, [&] {
    for (const BackupPlace& place : places) {
      AddLearner(shards_.at(place.shard.value).at(),
                 *job.state.mutable_views(static_cast<int>(place.partition)));
      copied.push_back(place.partition);
      const uint64_t bytes = CopyBytes(job, place.partition);
      room.bytes -= std::min(room.bytes, bytes);
      for (ShardLoad& load : room.loads) {
        if (load.id == place.shard) load.room_bytes -= std::min(load.room_bytes, bytes);
      }
    }
  });
  --room.jobs;
  ended_copied_.insert(job.uid());
  Log(job, absl::StrCat("shard ", shard.name(), " was asked to stop: others get the values of ",
                        PartitionsText(copied)));
}

// A job of which all that the shard has is elsewhere, too, does not count.
void Core::CountEnded(const EndedJob& job, Shard& shard) {
  uint64_t elements = 0;
  bool here = false;
  ForEachLed(job.on, shard,
             [&](uint32_t, const Archived::Partition& primary, const Archived::Partition*) {
               here = true;
               elements += primary.elements;
             });
  if (!here) return;
  Shard::EndedCount& count = shard.ended_next;
  count.results |= job.result;
  if (job.fixed) {
    ++count.fixed;
    return;
  }
  count.bytes += elements * sizeof(float);
  if (++count.here > 1) return;
  const std::vector<WantsBackup> wanting = WantEndedCopies(job, shard);
  const Job& unpacked = *FindJob(job.uid);  // what was packed is gone
  count.job = unpacked.name();
  count.why.clear();
  if (!ValuesSettled(unpacked)) {
    count.why = "its last values are not settled yet";
  } else if (!wanting.empty()) {
    count.why = WhyNoBackup(unpacked, unpacked.state.views(static_cast<int>(wanting[0].partition)));
  }
}

// ---- A copy that is made ----

// Whether the backup of a job that is over reads its values from the primary.
bool Core::LearnsEnded(const Job& job, const View& view) {
  return view.learning() && ValuesSettled(job) && job.unreadable.empty() &&
         job.state.values(static_cast<int>(view.partition())).gone().empty();
}

bool Core::LearnsEnded(const Job& job, const Shard& shard) {
  const auto& views = job.state.views();
  return std::any_of(views.begin(), views.end(),
                     [&](const View& view) { return shard.backs(view) && LearnsEnded(job, view); });
}

// They had not all that was applied before the end. Values get new copies when a shard drains.
void Core::DropLearnersOfEnded(Job& job) {
  const auto& views = job.state.views();
  if (std::none_of(views.begin(), views.end(), [](const View& view) { return view.learning(); }))
    return;
  ChangeViews(job, [&] {
    for (View& view : *job.state.mutable_views()) {
      if (view.learning()) DropBackup(view);
    }
  });
}

void Core::AddEndedCopies(const Job& job, const Shard& shard, ShardJob& orders) {
  if (!LearnsEnded(job, shard)) return;
  const absl::StatusOr<Layout> layout = MakeLayout(job.spec());
  if (!layout.ok()) return;
  for (const View& view : job.state.views()) {
    if (!shard.backs(view) || !LearnsEnded(job, view)) continue;
    EndedCopyOrders& copy = *orders.add_copies();
    *copy.mutable_view() = view;
    const PartitionValues& values = job.state.values(static_cast<int>(view.partition()));
    if (values.has_version()) copy.set_version(values.version());
    for (const SliceId id : layout->partitions[view.partition()]) {
      EndedCopyOrders::Slice& slice = *copy.add_slices();
      slice.set_id(id.value);
      slice.set_elements(layout->slices[id.value].elements);
    }
  }
}

void Core::TakeEndedCopies(Shard& shard, const HeldJob& held) {
  Job* const job = FindJob(held.run().job_uid());
  if (job == nullptr || !SameRun(job->run(), held.run()) || !ValuesSettled(*job)) return;
  std::vector<View*> whole, failed;
  std::vector<uint32_t> without;
  std::string why;
  std::set<uint32_t> leaders;
  for (const EndedCopy& copy : held.copies()) {
    if (copy.partition() >= static_cast<uint32_t>(job->state.views_size())) continue;
    View& view = *job->state.mutable_views(static_cast<int>(copy.partition()));
    if (!shard.backs(view) || !view.learning() || view.number() != copy.view()) continue;
    (copy.fault().empty() ? whole : failed).push_back(&view);
    leaders.insert(view.primary());
    if (copy.fault().empty()) continue;
    without.push_back(copy.partition());
    why = std::string(CutUtf8(copy.fault(), limits::kFaultBytesMax));
    SetUnfit(*job, copy.no_memory() ? 0 : view.primary_incarnation(), view.backup_incarnation(),
             why);
  }
  if (whole.empty() && failed.empty()) return;
  if (!failed.empty())
    Log(*job, absl::StrCat("there is no copy on ", shard.name(), " of ", PartitionsText(without),
                           ": ", why));
  ChangeViews(*job, [&] {
    for (View* const view : whole) view->clear_learning();
    for (View* const view : failed) DropBackup(*view);
  });
  for (const uint32_t id : leaders) {
    if (Drains(id)) HandOver(*job, shards_.at(id));
  }
}

}  // namespace starling::coordinator
