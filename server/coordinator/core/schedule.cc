// Which workers serve which job (docs/operations.md, "Which job gets workers"). A job starts with
// workers.min workers, grows up to workers.max with free ones, and gives workers beyond its min to
// other jobs. Jobs that can start do so in order of submission, those that go back to a checkpoint
// first and with any number of workers. A job that cannot start takes and keeps no workers.
#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/placement/layout.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

constexpr size_t kHoldersShown = 4;
// For so long the workers of a job that goes back to a checkpoint are kept while that is read.
constexpr absl::Duration kKeepWorkers = absl::Seconds(30);

std::string Count(uint64_t count, const std::string& noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace

bool Core::HasDevice(const Worker& worker, const Job& job) {
  return job.spec().device() != DEVICE_GPU || worker.stored.registration().gpu();
}

bool Core::MayServe(const Worker& worker, const Job& job) {
  return HasDevice(worker, job) && !worker.quarantined() && !IsSetAside(worker, job);
}

// A worker that is still releasing the run is not ordered to it again before it has. One that has
// an earlier era drops that first.
bool Core::MayTake(const Worker& worker, const Job& job) {
  return MayServe(worker, job) && worker.member_of != job.uid() &&
         !SameRun(worker.report.run(), job.run());
}

// Idle, or about to be. Such a worker may be ordered to a job and serves it once it has released
// the last one.
bool Core::IsFree(const Worker& worker) const {
  return worker.live() && worker.job == 0 && !worker.report.draining() && !worker.quarantined() &&
         !Hangs(worker);
}

uint32_t Core::Supply::all() const {
  uint32_t sum = free;
  for (const auto& [uid, holder] : holders) sum += holder.usable;
  return sum;
}

uint32_t Core::Supply::available() const {
  uint32_t sum = free;
  for (const auto& [uid, holder] : holders) sum += holder.spare;
  return sum;
}

// `job` null: workers for any job. Leaves out workers that `kept_for` (may be null) could use.
Core::Supply Core::SupplyFor(const Job* job, const Job* kept_for) const {
  Supply supply;
  for (const auto& [id, worker] : workers_) {
    if (worker.fenced() || (worker.job == 0 && !IsFree(worker))) continue;
    const bool usable = worker.live() && !worker.report.draining() &&
                        (job == nullptr || MayTake(worker, *job)) &&
                        (kept_for == nullptr || !MayServe(worker, *kept_for));
    if (worker.job == 0) {
      supply.free += usable;
      continue;
    }
    Supply::Holder& holder = supply.holders[worker.job];
    ++holder.has;
    holder.usable += usable;
  }
  for (auto& [uid, holder] : supply.holders) {
    const uint32_t least = jobs_.at(uid).spec().workers_min();
    holder.spare = std::min(holder.usable, holder.has - std::min(holder.has, least));
  }
  return supply;
}

void Core::Schedule() {
  // Running jobs that lost workers come before jobs that have not started.
  for (Job* const running : JobsIn(RUNNING)) {
    Job& job = *running;
    if (IsStopped(job)) continue;
    const uint64_t uid = job.uid();
    const auto has = static_cast<uint32_t>(Serving(uid).size());
    const uint32_t least = std::min(job.spec().workers_min(), MostWorkers(job));
    if (has < least) Give(job, WorkersFor(job, least - has, nullptr));
  }
  const bool shards = std::any_of(shards_.begin(), shards_.end(),
                                  [this](const auto& entry) { return TakesCopies(entry.second); });
  memory_awaited_ = false;
  const Job* turn = JobWithTurn();
  const Job* back = JobThatComesBack();
  uint32_t available = SupplyFor(nullptr, nullptr).available();
  std::vector<Job*> waiting = JobsIn(PENDING);
  std::stable_partition(waiting.begin(), waiting.end(), [](const Job* job) { return Ran(*job); });
  for (Job* const pending : waiting) {
    Job& job = *pending;
    if (RollsBack(job)) continue;
    const bool enough = shards && LeastToStart(job) <= available;
    if (enough && StartIfPossible(job, KeptFor(job, back, turn))) {
      if (turn == &job) turn = nullptr;
      if (back == &job) back = JobThatComesBack();
      available = SupplyFor(nullptr, nullptr).available();
    } else if (!std::exchange(job.told_waiting, true)) {
      Log(job, WaitsFor(job));
    }
  }
  for (Job* const running : JobsIn(RUNNING)) {
    Job& job = *running;
    if (IsStopped(job)) continue;
    for (auto& [id, worker] : workers_) {
      if (!IsFree(worker) || !MayTake(worker, job)) continue;
      if (Room(job) == 0) break;
      Order(worker, job.uid());
    }
  }
}

uint32_t Core::MostWorkers(const Job& job) {
  const uint32_t most = job.spec().workers_max();
  const uint32_t useful = job.spec().batch().micro_batches() + job.spec().workers_backup();
  return job.bsp() ? std::min(most, useful) : most;
}

// A job that loses workers goes on with those that are left, and so does one that goes back to a
// checkpoint. One that begins again with its first values starts as a new one does.
uint32_t Core::LeastToStart(const Job& job) {
  const bool goes_on = Ran(job) && job.stored.description().has_restore();
  return goes_on ? 1 : job.spec().workers_min();
}

// How many more workers the job can use.
uint32_t Core::Room(const Job& job) {
  const uint32_t most = MostWorkers(job);
  const auto has = static_cast<uint32_t>(Serving(job.uid()).size());
  return has < most ? most - has : 0;
}

// Workers that `job` can have at once, at most `count`: idle ones, those about to be idle, then
// workers that other jobs have beyond their min. The youngest job gives first, and of its workers
// the one that joined last.
std::vector<Worker*> Core::WorkersFor(const Job& job, uint32_t count, const Job* kept_for) {
  std::vector<Worker*> workers;
  const auto take = [&](Worker& worker) {
    if (workers.size() >= count || !MayTake(worker, job)) return false;
    if (kept_for != nullptr && MayServe(worker, *kept_for)) return false;
    workers.push_back(&worker);
    return true;
  };
  for (const bool idle : {true, false}) {
    for (auto& [id, worker] : workers_) {
      if (IsFree(worker) && worker.idle() == idle) take(worker);
    }
  }
  const std::vector<Job*> running = JobsIn(RUNNING);
  for (auto it = running.rbegin(); it != running.rend() && workers.size() < count; ++it) {
    const Job& other = **it;
    if (&other == &job) continue;
    std::vector<Worker*> serving = Serving(other.uid());
    std::sort(serving.begin(), serving.end(),
              [](const Worker* a, const Worker* b) { return a->ordered_at > b->ordered_at; });
    size_t left = serving.size();
    for (Worker* worker : serving) {
      if (left <= other.spec().workers_min()) break;
      if (worker->live() && !worker->report.draining() && take(*worker)) --left;
    }
  }
  return workers;
}

void Core::Give(Job& job, const std::vector<Worker*>& workers) {
  for (Worker* worker : workers) {
    if (Job* other = FindRunning(worker->job); other != nullptr) {
      Log(*other, absl::StrCat("gives ", worker->name(), " to job ", job.name()));
    }
    Order(*worker, job.uid());
  }
}

// Jobs that need few workers pass a job that needs many. After it has waited 10, 20, 40 minutes and
// so on, such a job has its turn for a quarter of that time: jobs that were submitted later do not
// start with workers that it can use. It has a turn only if nothing but later jobs stands in its
// way. With an earlier job in the way, or too few workers, it would keep workers idle for nothing.
bool Core::MayHaveTurn(const Job& job) const {
  if (RollsBack(job)) return false;
  const absl::Duration waited = now_ - job.pending_since;
  absl::Duration begin = options_.patience;
  if (waited < begin) return false;
  while (waited >= 2 * begin) begin *= 2;
  if (waited >= begin + begin / 4) return false;
  const Supply supply = SupplyFor(&job, nullptr);
  uint32_t kept = 0;  // by earlier jobs
  for (const auto& [uid, holder] : supply.holders) {
    if (uid < job.uid()) kept += holder.usable - holder.spare;
  }
  return supply.all() - kept >= LeastToStart(job) && !Place(job, ShardsFor(job)).empty();
}

void Core::NoteTurn(Job& job) {
  const bool has = MayHaveTurn(job);
  if (has == job.has_turn) return;
  job.has_turn = has;
  schedule_ = true;
  if (!has) return;
  Log(job, "later jobs have passed it for a long time: free workers are kept for it for a while");
}

// Checks what changes without an event: waiting times, and the shards' memory.
void Core::LookAtPending() {
  pending_seen_ = now_;
  for (Job* const pending : JobsIn(PENDING)) {
    AdvanceRollback(*pending);
    schedule_ |= RollsBack(*pending) || Ran(*pending);  // its workers are kept for a while
    if (pending->state.state() == PENDING) NoteTurn(*pending);
  }
  schedule_ |= memory_awaited_;
}

const Job* Core::JobWithTurn() const {
  for (const uint64_t uid : UidsIn(PENDING)) {
    if (const Job& job = jobs_.at(uid); job.has_turn) return &job;
  }
  return nullptr;
}

// Whether it has run before, and goes on from a checkpoint.
bool Core::Ran(const Job& job) { return job.state.restarts_total() > 0; }

// Its workers are kept while its checkpoint is read, and until new shards have found that.
const Job* Core::JobThatComesBack() const {
  const bool look = std::any_of(shards_.begin(), shards_.end(), [this](const auto& entry) {
    return TakesCopies(entry.second) && StillLooks(entry.second);
  });
  for (const uint64_t uid : UidsIn(PENDING)) {
    const Job& job = jobs_.at(uid);
    const bool soon = now_ < job.pending_since + kKeepWorkers;
    if (RollsBack(job) ? soon : Ran(job) && (soon || look)) return &job;
  }
  return nullptr;
}

// The job for which this one leaves workers alone; null: none. `back`: that which comes back;
// `turn`: that which has its turn.
const Job* Core::KeptFor(const Job& job, const Job* back, const Job* turn) {
  if (Ran(job)) return nullptr;
  if (back != nullptr) return back;
  return turn != nullptr && turn->uid() < job.uid() ? turn : nullptr;
}

bool Core::StartIfPossible(Job& job, const Job* turn) {
  const std::vector<Worker*> workers = WorkersFor(job, job.spec().workers_min(), turn);
  if (workers.size() < LeastToStart(job)) return false;
  const std::vector<ShardId> places = Place(job, ShardsFor(job));
  if (places.empty()) {
    memory_awaited_ = true;
    return false;
  }
  StartJob(job, workers, places);
  return true;
}

void Core::StartJob(Job& job, const std::vector<Worker*>& workers,
                    const std::vector<ShardId>& places) {
  for (const View& view : job.state.views()) CountView(job, view, -1);
  job.state.clear_views();
  for (size_t i = 0; i < places.size(); ++i) {
    const Shard& shard = shards_.at(places[i].value);
    *job.state.add_views() = FirstView(static_cast<uint32_t>(i), shard.at());
    CountView(job, *job.state.views().rbegin(), 1);
  }
  ++job.views_number;
  SetState(job, RUNNING);
  job.state.clear_reason();
  job.state.mutable_roster()->set_number(1);
  job.state.set_started_us(absl::ToUnixMicros(wall()));
  job.running_since = job.checkpoint.last_cut = now_;
  OpenEvaluations(job);
  SaveState(job);
  Log(job, absl::StrCat("starts on ",
                        Count(std::set<ShardId>(places.begin(), places.end()).size(), "shard"),
                        " with ", Count(workers.size(), "worker")));
  Give(job, workers);
  TouchJob(job);
  advance_.insert(job.uid());
}

// The live shards that do not drain, with the load of all jobs, including ended ones. `alone`: all
// shards that are not lost, with the room that there would be without any job.
std::vector<ShardLoad> Core::LiveShards(bool alone) const {
  // Planned memory that the reported room does not reflect yet.
  std::map<uint32_t, uint64_t> coming;
  for (const uint64_t uid : UidsIn(RUNNING)) {
    const Job& job = jobs_.at(uid);
    for (const View& view : job.state.views()) {
      const uint64_t bytes = CopyBytes(job, view.partition());
      if (view.learning()) coming[view.backup()] += bytes;
      if (!job.partitions[view.partition()]) coming[view.primary()] += bytes;
    }
  }
  for (const uint64_t uid : ended_copied_) {
    const auto job = jobs_.find(uid);
    if (job == jobs_.end()) continue;
    for (const View& view : job->second.state.views()) {
      if (LearnsEnded(job->second, view))
        coming[view.backup()] += CopyBytes(job->second, view.partition());
    }
  }
  std::vector<ShardLoad> shards;
  for (const auto& [id, shard] : shards_) {
    if (alone ? shard.fenced() : !TakesCopies(shard)) continue;
    ShardLoad& load = shards.emplace_back(ShardLoad{ShardId(id), shard.elements});
    if (!shard.memory_room) continue;  // it has not reported its memory
    const uint64_t room = *shard.memory_room;
    const auto it = coming.find(id);
    const uint64_t more = it == coming.end() ? 0 : std::min(it->second, shard.planned_bytes);
    load.room_bytes = alone ? room + shard.planned_bytes - more : room - std::min(room, more);
  }
  return shards;
}

// Those that can hold the job: its first values may come from a checkpoint, which they must see.
// None before the folder has its nonce, by which they find it, and while one still looks for that:
// else all would lie on those that were there before. Where it is never written, all of them.
std::vector<ShardLoad> Core::ShardsFor(const Job& job) const {
  std::vector<ShardLoad> loads = LiveShards(/*alone=*/false);
  if (!job.stored.description().has_restore()) return loads;
  std::erase_if(loads, [&](const ShardLoad& load) {
    return !WhyUnread(job, shards_.at(load.id.value)).empty();
  });
  if (options_.checkpoint_root.empty() || !checkpoints_marked_.ok()) return loads;
  if (!checkpoints_listed_) return {};
  const auto looks = [this](const ShardLoad& load) {
    return StillLooks(shards_.at(load.id.value));
  };
  if (std::any_of(loads.begin(), loads.end(), looks)) return {};
  std::erase_if(loads, [this](const ShardLoad& load) {
    return !WhyBlind(shards_.at(load.id.value)).empty();
  });
  return loads;
}

// Places the primaries. Empty: there is no room for every copy.
std::vector<ShardId> Core::Place(const Job& job, const std::vector<ShardLoad>& shards) const {
  if (shards.empty()) return {};
  std::vector<ShardId> primaries =
      AssignPartitions(job.partition_elements, job.partition_bytes, shards);
  if (primaries.empty() || !Replicates(job, shards.size())) return primaries;
  std::vector<ShardLoad> left = shards;
  std::vector<WantsBackup> wanting;
  for (uint32_t p = 0; p < primaries.size(); ++p) {
    const uint64_t elements = job.partition_elements[p], bytes = job.partition_bytes[p];
    const auto shard = std::find_if(left.begin(), left.end(),
                                    [&](const ShardLoad& load) { return load.id == primaries[p]; });
    shard->elements += elements;
    shard->room_bytes -= bytes;
    wanting.push_back({p, primaries[p], elements, bytes});
  }
  const size_t placed = PlaceBackups(wanting, std::move(left), {}, UINT32_MAX).size();
  if (placed < wanting.size()) primaries.clear();
  return primaries;
}

// "needs 12 MiB of the shards' memory, and they have 4 MiB (ps-0), 2 MiB (ps-1)"
std::string Core::MemoryText(const Job& job, const std::vector<ShardLoad>& shards) const {
  const auto text = [](uint64_t bytes) { return absl::StrFormat("%.1f MiB", bytes / 1048576.0); };
  std::vector<std::string> rooms;
  for (const ShardLoad& shard : shards) {
    if (rooms.size() == kHoldersShown) break;
    rooms.push_back(
        absl::StrCat(text(shard.room_bytes), " (", shards_.at(shard.id.value).name(), ")"));
  }
  if (shards.size() > rooms.size()) {
    rooms.push_back(absl::StrCat("and so on in ", shards.size() - rooms.size(), " more"));
  }
  const uint64_t bytes =
      std::accumulate(job.partition_bytes.begin(), job.partition_bytes.end(), uint64_t{0});
  const bool twice = Replicates(job, shards.size());
  return absl::StrCat(
      "needs ", text(twice ? 2 * bytes : bytes), " of the shards' memory, in ",
      job.partition_bytes.size(),
      twice ? " partitions with two copies each on different shards" : " partitions",
      ", but there is room for ", absl::StrJoin(rooms, ", "));
}

// Whether the shards could hold the job if there were no other jobs. One that drains is replaced,
// and one that is silent may be heard again.
absl::Status Core::CheckShardMemory(const Job& job) const {
  const std::vector<ShardLoad> shards = LiveShards(/*alone=*/true);
  const bool waits = shards.size() < 2 && job.spec().durability() == DURABILITY_REPLICATED;
  if (shards.empty() || waits || !Place(job, shards).empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "job ", job.name(), " ", MemoryText(job, shards),
      " even without other jobs: start more shards, or shards with more memory, or train "
      "a smaller model",
      Replicates(job, shards.size())
          ? ", or keep one copy (durability: none), which is lost with its shard"
          : ""));
}

// What a PENDING job lacks at this moment, and which jobs hold it.
std::string Core::WaitsFor(const Job& job) const {
  const bool shards = std::any_of(shards_.begin(), shards_.end(),
                                  [this](const auto& entry) { return TakesCopies(entry.second); });
  if (!shards) {
    return absl::StrCat("needs at least one shard: start one with `", options_.shard_command, "`");
  }
  const std::vector<ShardLoad> loads = ShardsFor(job);
  const std::vector<ShardLoad> live = LiveShards(/*alone=*/false);
  const bool placed = !Place(job, loads).empty();
  if (loads.size() < live.size() && !placed) {
    if (!checkpoints_listed_)
      return absl::StrCat("begins with a checkpoint, and ", NotListedText());
    std::vector<const Shard*> live_shards;
    std::vector<std::string> whys;
    for (const ShardLoad& load : live) {
      const Shard& shard = shards_.at(load.id.value);
      live_shards.push_back(&shard);
      std::string why = WhyUnread(job, shard);
      if (!why.empty() && whys.size() < kHoldersShown) whys.push_back(std::move(why));
    }
    std::string blind = checkpoints_marked_.ok() ? BlindText(live_shards) : "";
    if (!blind.empty()) whys.push_back(std::move(blind));
    return absl::StrCat("begins with a checkpoint, which too few shards can read: ",
                        absl::StrJoin(whys, "; "));
  }
  if (loads.size() < 2 && job.spec().durability() == DURABILITY_REPLICATED) {
    return absl::StrCat("needs two shards (durability: replicated): start another one with `",
                        options_.shard_command, "`");
  }
  if (!placed) {
    return absl::StrCat(MemoryText(job, loads),
                        " now: waits for jobs to end, or for ended jobs to be deleted");
  }
  const Supply supply = SupplyFor(&job, nullptr);
  const uint32_t least = LeastToStart(job);
  const char* const why = Ran(job) ? " to go on" : " (workers.min)";
  const std::string device = job.spec().device() == DEVICE_GPU ? " with a GPU" : "";
  std::vector<std::string> keep;
  for (const auto& [uid, holder] : supply.holders) {
    if (holder.usable == holder.spare) continue;
    keep.push_back(
        absl::StrCat("job ", jobs_.at(uid).name(), " keeps ", holder.usable - holder.spare));
  }
  const size_t more = keep.size() > kHoldersShown ? keep.size() - kHoldersShown : 0;
  keep.resize(keep.size() - more);
  if (more > 0) keep.push_back(absl::StrCat(Count(more, "other job"), " the rest"));
  const std::string held =
      keep.empty() ? "" : absl::StrCat(", of which ", absl::StrJoin(keep, ", "));
  if (supply.all() < least) {
    const auto quarantined =
        std::count_if(workers_.begin(), workers_.end(), [&](const auto& entry) {
          return entry.second.live() && entry.second.quarantined() && HasDevice(entry.second, job);
        });
    const std::string unused =
        quarantined == 0
            ? ""
            : absl::StrCat(", and ", quarantined,
                           " that no job uses (quarantined: see starling get workers)");
    return absl::StrCat("needs ", Count(least, "worker"), device, why, "; the cluster has ",
                        supply.all(), held, unused, ": start ", least - supply.all(),
                        " more with `", options_.worker_command, "`",
                        least > 1 ? ", or submit it with a lower workers.min" : "");
  }
  const Job* const back = JobThatComesBack();
  const Job* const first = KeptFor(job, back, JobWithTurn());
  if (supply.available() >= least && first != nullptr) {
    return first == back ? absl::StrCat("lets job ", first->name(),
                                        " go on first, which goes back to an earlier step")
                         : absl::StrCat("lets job ", first->name(), " start first, which needs ",
                                        Count(LeastToStart(*first), "worker"),
                                        " and was passed by later jobs for a long time");
  }
  return absl::StrCat("needs ", Count(least, "worker"), device, why, " and can have ",
                      std::min(supply.available(), least), " of the cluster's ", supply.all(), held,
                      ": waits for ",
                      Count(least - std::min(supply.available(), least), "more worker"));
}

}  // namespace starling::coordinator
