// The faults of a seed, and their times.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"

namespace starling::sim {
namespace {

template <typename T>
const T& Pick(Random& random, const std::vector<T>& from) {
  return from[random.Below(from.size())];
}

bool SameBytes(const std::vector<ValuesPtr>& a, const std::vector<ValuesPtr>& b) {
  return !a.empty() &&
         std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const ValuesPtr& x, const ValuesPtr& y) {
                      return x != nullptr && y != nullptr && x->size() == y->size() &&
                             std::memcmp(x->data(), y->data(), x->size() * sizeof(x->front())) == 0;
                    });
}

}  // namespace

void Cluster::PlanFaults() {
  Random& random = world_.random();
  NetworkFaults& faults = network_.faults();
  faults.cut = Pick(random, std::vector<double>{0, 0.0005, 0.002, 0.01});
  faults.corrupt = Pick(random, std::vector<double>{0, 0, 0.005});
  faults.forge = Pick(random, std::vector<double>{0, 0.01, 0.04});
  faults.call_lost = Pick(random, std::vector<double>{0, 0.01, 0.05});
  faults.reply_lost = Pick(random, std::vector<double>{0, 0.01, 0.05});
  faults.duplicate = Pick(random, std::vector<double>{0, 0.02, 0.1});
  faults.slow = Pick(random, std::vector<double>{0, 0.002, 0.02});
  faults.decision_lost = Pick(random, std::vector<double>{0, 0.01, 0.05});
  faults.slow_most =
      Pick(random, std::vector<absl::Duration>{absl::Milliseconds(20), absl::Milliseconds(150)});
  fault_interval_ =
      Pick(random, std::vector<absl::Duration>{absl::Milliseconds(40), absl::Milliseconds(150),
                                               absl::Milliseconds(600)});
  may_crash_shard_ = random.Chance(0.3);
  may_exhaust_shard_ = random.Chance(0.1);
  heal_at_ = world_.now() + random.Between(absl::Seconds(2), absl::Seconds(8));
  PlanLinkFaults();
  losses_until_ = heal_at_;
  PlanLosses();
  Random cut_off(Mix(seed_, 991));
  if (may_crash_shard_ && cut_off.Chance(0.4)) {
    // So that the job still trains when the coordinator gives the shard up.
    for (const auto& worker : workers_) worker->set_micro_batch_time(absl::Milliseconds(20));
    world_.After(cut_off.Between(absl::Milliseconds(200), absl::Seconds(1)), nullptr,
                 [this, cut_off] { CutOffShard(cut_off); });
  }
  NextFault(0);
  world_.After(heal_at_ - world_.now(), nullptr, [this] { Heal(); });
}

// Some workers, or all, cannot open some jobs. Draws from its own random numbers.
void Cluster::PlanOpenFaults(size_t i) {
  Random random(Mix(seed_, 970 + i));
  if (!random.Chance(0.08)) return;
  const double share = random.Chance(0.3) ? 1 : 0.4;
  const auto message = [](const char* what) { return absl::StrCat(kWorkerFault, ": ", what); };
  const std::vector<WorkerFault> faults = {
      {absl::DataLossError(message("/simulated/train ends within a record"))},
      {absl::FailedPreconditionError(message("its build lays the job out differently"))},
      {absl::InternalError(message("its model cannot be built"))},
  };
  for (const auto& worker : workers_) {
    if (!random.Chance(share)) continue;
    const WorkerFault& fault = Pick(random, faults);
    if (world_.Happens("job that cannot be opened", worker->name))
      jobs_[i].open_faults[worker->name] = fault;
  }
}

// In some seeds two shards do not reach each other for long, or all are far apart, or a worker does
// not reach a shard, and the coordinator hears them all. Draws from its own random numbers.
void Cluster::PlanLinkFaults() {
  Random random(Mix(seed_, 990));
  if (random.Chance(0.04)) {
    if (!world_.Happens("slow links between shards", "all shards")) return;
    network_.faults().shards_apart =
        random.Between(absl::Milliseconds(300), absl::Milliseconds(1000));
    heal_at_ = world_.now() + random.Between(absl::Seconds(8), absl::Seconds(16));
  } else if (random.Chance(0.06)) {
    const uint64_t first = random.Below(shards_.size());
    const uint64_t other = (first + 1 + random.Below(shards_.size() - 1)) % shards_.size();
    const absl::Duration after = random.Between(absl::Milliseconds(200), absl::Seconds(2));
    const absl::Time until =
        world_.now() + after + random.Between(absl::Seconds(5), absl::Seconds(30));
    heal_at_ = std::max(heal_at_, until);
    world_.After(after, nullptr, [this, first, other, until] {
      const std::string both = absl::StrCat(shards_[first]->name, ", ", shards_[other]->name);
      if (!world_.Happens("cut link between shards", both)) return;
      network_.CutBetween(shards_[first].get(), shards_[other].get(), until);
    });
  } else if (random.Chance(0.08)) {
    WorkerNode* const worker = Pick(random, workers_).get();
    ShardProcess* const shard = Pick(random, shards_).get();
    const absl::Duration after = random.Between(absl::Milliseconds(200), absl::Seconds(2));
    const absl::Time until =
        world_.now() + after + random.Between(absl::Seconds(5), absl::Seconds(30));
    heal_at_ = std::max(heal_at_, until);
    world_.After(after, nullptr, [this, worker, shard, until] {
      const std::string both = absl::StrCat(worker->name, ", ", shard->name);
      if (!world_.Happens("cut link between a worker and a shard", both)) return;
      network_.CutBetween(worker, shard, until);
    });
  }
}

// In some seeds with checkpoints, both copies of a partition die, and sometimes again and again.
// Draws from its own random numbers.
void Cluster::PlanLosses() {
  if (!loses_copies_) return;
  Random random(Mix(seed_, 992));
  // While other faults happen, few jobs get as far as a checkpoint.
  losses_until_ = heal_at_ + absl::Seconds(6);
  for (const auto& worker : workers_) worker->set_micro_batch_time(absl::Milliseconds(20));
  const bool early = random.Chance(0.25);
  world_.After(random.Between(absl::Milliseconds(300), absl::Seconds(2)), nullptr,
               [this, early] { LoseBothCopies(0, early); });
}

// While a job trains, and unless it is early, once it has a checkpoint. Sometimes all shards are
// asked to stop instead, so that the last ones leave with the only copies, which does not count.
// Shards are started again a while later. Each loss draws from its own random numbers, and all at
// once, so that others stay as they are if it is left out.
void Cluster::LoseBothCopies(uint64_t number, bool early) {
  if (world_.now() >= losses_until_) return;
  const auto again_after = [&](absl::Duration time, uint64_t next) {
    world_.After(time, nullptr, [this, next, early] { LoseBothCopies(next, early); });
  };
  Random random(Mix(seed_, 60000 + number));
  struct Times {
    absl::Duration dies, back;  // each counted from the one before
  };
  std::array<Times, 2> times;  // of both shards
  for (Times& of_shard : times) {
    of_shard.dies = random.Between(absl::ZeroDuration(), absl::Milliseconds(30));
    of_shard.back = random.Between(absl::Milliseconds(5), absl::Seconds(3));
  }
  const bool stops_all = random.Chance(0.2);
  const bool last = random.Chance(0.4);
  const absl::Duration pause = random.Between(absl::Milliseconds(300), absl::Seconds(3));
  std::vector<absl::Span<const View>> able;  // of jobs
  for (const ClientJob& job : jobs_) {
    const absl::Span<const View> views = coordinator_.StoredViews(job.uid);
    if (job.uid != 0 && !job.over && !views.empty() && job.served() &&
        (early || checkpoints_.NewestReadable(JobUid(job.uid)).has_value()))
      able.push_back(views);
  }
  if (able.empty()) return again_after(absl::Milliseconds(20), number);
  if (stops_all && LivingShards().size() == shards_.size()) {
    if (world_.Happens("SIGTERM of all shards", "all shards", number)) {
      shard_crashed_ = shard_lost_ = true;
      for (const auto& shard : shards_)
        world_.After(absl::ZeroDuration(), shard.get(), [shard = shard.get()] { shard->Drain(); });
    }
    if (!last) again_after(pause, number + 1);
    return;
  }
  const absl::Span<const View> views = Pick(random, able);
  const View& view = views[random.Below(views.size())];
  std::vector<ShardProcess*> both;
  for (const auto& shard : shards_) {
    const auto registered = registered_.find(shard.get());
    if (!shard->alive || registered == registered_.end()) continue;
    const uint64_t incarnation = registered->second.second;
    if (registered->second.first == shard->life &&
        (incarnation == view.primary_incarnation() || incarnation == view.backup_incarnation()))
      both.push_back(shard.get());
  }
  if (both.empty()) return again_after(absl::Milliseconds(20), number);
  if (world_.Happens("crash of both copies", both.front()->name, number)) {
    shard_crashed_ = shard_lost_ = true;
    for (size_t i = 0; i < both.size(); ++i) {
      ShardProcess* const shard = both[i];
      world_.After(times.at(i).dies, shard, [this, shard, back = times.at(i).back] {
        shard->Crash();
        world_.After(back, nullptr, [shard] {
          if (!shard->alive) shard->Start();
        });
      });
    }
  }
  if (!last) again_after(pause, number + 1);
}

// In some seeds a few units fail, on any worker. Draws from its own random numbers.
void Cluster::PlanUnitFaults() {
  Random random(Mix(seed_, 980));
  if (!random.Chance(0.12)) return;
  const auto message = [](const char* what) { return absl::StrCat(kWorkerFault, ": ", what); };
  const std::vector<WorkerFault> faults = {
      {absl::DataLossError(message("/simulated/train can no longer be read"))},
      {absl::InternalError(message("its kernel fails"))},
      {absl::InternalError(message("its device is lost")), /*device_lost=*/true},
  };
  for (int64_t left = random.Between(1, 3); left > 0; --left) {
    WorkerNode* const worker = Pick(random, workers_).get();
    const WorkerFault& fault = Pick(random, faults);
    world_.After(random.Between(absl::Milliseconds(200), absl::Seconds(3)), nullptr,
                 [this, worker, fault] {
                   if (world_.Happens("unit that fails", worker->name)) worker->FailUnit(fault);
                 });
  }
}

// Each draws from its own random numbers, so that others stay as they are if it is left out.
void Cluster::NextFault(uint64_t number) {
  Random own(Mix(seed_, 20000 + number));
  const absl::Duration after = own.Between(absl::ZeroDuration(), 2 * fault_interval_);
  world_.After(after, nullptr, [this, number, random = own]() mutable {
    if (world_.now() >= heal_at_) return;
    struct Row {
      int weight;
      void (Cluster::*happen)(Random& random);
    };
    static constexpr Row kRows[] = {
        {21, &Cluster::CutWorker},   {2, &Cluster::HangWorker},        {25, &Cluster::Pause},
        {20, &Cluster::CrashWorker}, {15, &Cluster::CrashCoordinator}, {8, &Cluster::DrainWorker},
        {4, &Cluster::CrashShard},   {3, &Cluster::ExhaustShard},      {1, &Cluster::StepWall},
        {1, &Cluster::DrainShard}};
    planned_ = number;
    uint64_t at = random.Below(100);
    for (const Row& row : kRows) {
      if (at < static_cast<uint64_t>(row.weight)) {
        (this->*row.happen)(random);
        break;
      }
      at -= row.weight;
    }
    NextFault(number + 1);
  });
}

// False: the planned fault is left out.
bool Cluster::Due(const char* kind, const Process& who) {
  return world_.Happens(kind, who.name, planned_);
}

// No new faults from here on. Processes that are down or paused come back as planned.
void Cluster::Heal() {
  network_.faults() = NetworkFaults();
  disk_.faults() = DiskFaults();
  disk_.KillAt(-1, false);
}

void Cluster::CutWorker(Random& random) {
  WorkerNode* const worker = Pick(random, workers_).get();
  if (Due("worker cut off from all shards", *worker)) worker->CutStreams();
}

void Cluster::CrashWorker(Random& random) {
  WorkerNode* worker = Pick(random, workers_).get();
  if (!worker->alive || !Due("worker crash", *worker)) return;
  worker->Crash();
  Revive(worker, random.Between(absl::Milliseconds(5), absl::Milliseconds(2500)));
}

// The worker still reports. A supervisor restarts it a while later.
void Cluster::HangWorker(Random& random) {
  WorkerNode* worker = Pick(random, workers_).get();
  if (!worker->alive || !Due("worker hangs", *worker)) return;
  worker->Hang();
  const absl::Duration after = random.Between(absl::Seconds(1), absl::Seconds(5));
  world_.After(after, worker, [this, worker] {
    worker->Crash();
    Revive(worker, absl::Milliseconds(100));
  });
}

void Cluster::Revive(WorkerNode* worker, absl::Duration after) {
  world_.After(after, nullptr, [worker] {
    if (!worker->alive) worker->Start();
  });
}

// SIGTERM.
void Cluster::DrainWorker(Random& random) {
  WorkerNode* worker = Pick(random, workers_).get();
  if (!worker->alive || !Due("SIGTERM", *worker)) return;
  world_.After(absl::ZeroDuration(), worker, [worker] { worker->Drain(); });
}

// SIGTERM, while all shards live: a second one that dies may have been handed the only copy. It
// leaves when nothing counts on it, so no job may end by that, nor lose its values after its end,
// whatever copies there are when it begins.
void Cluster::DrainShard(Random& random) {
  if (!may_crash_shard_ || LivingShards().size() < shards_.size()) return;
  ShardProcess* const shard = Pick(random, shards_).get();
  if (!Due("SIGTERM of a shard", *shard)) return;
  shard_crashed_ = true;
  world_.After(absl::ZeroDuration(), shard, [shard] { shard->Drain(); });
}

void Cluster::OnShardLeaves(const ShardProcess& shard, const std::string& text) {
  const auto registered = registered_.find(&shard);
  if (registered == registered_.end() || registered->second.first != shard.life) return;
  const bool alone = std::none_of(shards_.begin(), shards_.end(), [&](const auto& other) {
    return other.get() != &shard && !other->draining();
  });
  const auto only = coordinator_.OnlyOn(registered->second.second);
  const bool told = !absl::StrContains(text, "has not answered");
  // Without a coordinator nobody has said that there is nowhere to go.
  if ((only.running > 0 || only.over > 0) && !(told && alone)) {
    world_.Violate(Promise::kG4,
                   absl::StrCat(shard.name, " may leave (", text, "), though ", only.running,
                                " partitions of jobs that run, and ", only.over,
                                " of others, have no whole copy elsewhere"));
  }
  if (!told) world_.Count("shards that left without a coordinator");
  if (only.running > 0 || only.over > 0) shard_lost_ = true;
}

// When all jobs are over and faults have healed: each shard in turn is asked to stop, and started
// again. What could be read at a job's end can be read afterwards, with the same bytes.
void Cluster::RollShards(size_t next) {
  const auto wait = [this, next] {
    world_.After(kPollPeriod, nullptr, [this, next] { RollShards(next); });
  };
  if (LivingShards().size() < shards_.size()) return wait();  // the one before, too
  if (next == 0) lost_before_rolling_ = shard_lost_;
  if (next == shards_.size()) {
    world_.Count("rounds in which each shard was asked to stop");
    for (size_t i = 0; i < jobs_.size(); ++i) ReadAgain(i);
    return;
  }
  shard_crashed_ = true;  // what names it cannot be read there any more
  shards_[next]->Drain();
  Random random(Mix(seed_, 960 + next));  // of its own
  if (random.Chance(0.3) &&
      world_.Happens("coordinator crash while a shard drains", coordinator_.name)) {
    world_.After(random.Between(absl::ZeroDuration(), absl::Milliseconds(800)), nullptr,
                 [this, random]() mutable {
                   if (!coordinator_.alive) return;
                   coordinator_.Crash();
                   StartCoordinatorAgain(random);
                 });
  }
  world_.After(kPollPeriod, nullptr, [this, next] { RollShards(next + 1); });
}

void Cluster::ReadAgain(size_t i) {
  const ClientJob& job = jobs_[i];
  const JobTruth* const truth = TruthOf({JobUid(job.uid), job.end.status().era()});
  if (job.deleted || job.values_lost || truth == nullptr || job.end.views().empty())
    return ReadAllAgain(i);
  Call<JobReply>(
      &client_, 0,
      [request = job.workload.spec.name()](coordinator::CallId call) {
        JobRequest named;
        named.set_name(request);
        return coordinator::event::GetJob{call, named};
      },
      [this, i, truth](std::optional<JobReply> reply) {
        const auto again = [this, i] {
          world_.After(kPollPeriod, &client_, [this, i] { ReadAgain(i); });
        };
        if (!reply.has_value()) return again();
        const std::string& name = reply->status().name();
        const absl::StatusOr<ReadPoint> point = ValuesAtTheEnd(*reply);
        if (absl::IsUnavailable(point.status())) return again();
        // They may have been lost after the job's end, by an earlier fault.
        if (!point.ok() && lost_before_rolling_) return ReadAllAgain(i);
        if (!point.ok()) {
          world_.Violate(Promise::kG4,
                         absl::StrCat("after each shard was asked to stop, values of ", name,
                                      " are gone: ", std::string(point.status().message())));
          return ReadAllAgain(i);
        }
        reader_->Read(*reply, truth->layout(), *point,
                      [this, i, name, again](const absl::StatusOr<ReadValues>& values) {
                        if (!values.ok()) return again();
                        if (!SameBytes(jobs_[i].values.slices, values->slices)) {
                          world_.Violate(Promise::kG4,
                                         absl::StrCat("after each shard was asked to stop, values "
                                                      "of ",
                                                      name, " are other ones"));
                        }
                        world_.Count("ended jobs read after each shard was asked to stop");
                        ReadAllAgain(i);
                      });
      });
}

void Cluster::ReadAllAgain(size_t i) {
  jobs_[i].read_again = true;
  const bool all =
      std::all_of(jobs_.begin(), jobs_.end(), [](const ClientJob& job) { return job.read_again; });
  if (all) ListJobs();
}

// One that answers is never replaced, unless it drains, or found no memory.
void Cluster::OnShardReplaced(uint64_t incarnation, absl::Duration unheard) {
  world_.Count("partitions whose backups took over");
  if (unheard == absl::InfiniteDuration())
    world_.Count("take-overs from a shard not heard since a start");
  if (unheard >= coordinator::CoordinatorOptions().answer_wait || shard_exhausted_) return;
  for (const auto& shard : shards_) {
    const auto registered = registered_.find(shard.get());
    if (registered == registered_.end() || !shard->alive || shard->draining()) continue;
    if (registered->second != std::pair(shard->life, incarnation)) continue;
    world_.Violate(Promise::kG4,
                   absl::StrCat(shard->name, " was replaced ", absl::FormatDuration(unheard),
                                " after its heartbeat had come"));
  }
}

void Cluster::CrashCoordinator(Random& random) {
  if (!coordinator_.alive || !Due("coordinator crash", coordinator_)) return;
  if (random.Chance(0.3) && Due("coordinator that outlives its crash", coordinator_))
    coordinator_.LeaveZombie();
  if (random.Chance(0.1)) {
    coordinator_.FailStore();
    world_.After(absl::Milliseconds(100), nullptr, [this] { coordinator_.Crash(); });
  } else if (random.Chance(0.5)) {
    coordinator_.CrashAfterActions(static_cast<int>(random.Below(6)));
    world_.After(absl::Milliseconds(100), nullptr, [this] { coordinator_.Crash(); });
  } else {
    coordinator_.Crash();
  }
  StartCoordinatorAgain(random);
  if (random.Chance(0.3)) CrashShard(random);  // it was on the same machine
}

void Cluster::StartCoordinatorAgain(Random& random) {
  world_.After(
      absl::Milliseconds(101) + random.Between(absl::Milliseconds(1), absl::Milliseconds(500)),
      nullptr, [this] {
        if (coordinator_.alive) return;
        coordinator_.Start();
        world_.Count("coordinator restarts");
      });
}

// Where every partition has two copies, no job may end by it. Where not, which happens once in a
// while, jobs that have the only copy there go back or begin again, or end and say why.
void Cluster::CrashShard(Random& random) {
  ShardProcess* shard = Pick(random, shards_).get();
  if (!may_crash_shard_ || !shard->alive) return;
  const bool survived = AllWhole();
  if (!survived && (shard_lost_ || !random.Chance(0.1))) return;
  if (!Due("shard crash", *shard)) return;
  shard_crashed_ = true;
  shard_lost_ = shard_lost_ || !survived;
  if (!survived) world_.Count("fault: crash of a shard with the only copy");
  shard->Crash();
  world_.After(random.Between(absl::Milliseconds(5), absl::Seconds(4)), nullptr,
               [shard] { shard->Start(); });
}

// For a moment, or for longer than the shard waits for readers to free memory. A job whose
// allocation fails in that time ends; others continue.
void Cluster::ExhaustShard(Random& random) {
  if (!may_exhaust_shard_) return;
  ShardProcess* const shard = Pick(random, shards_).get();
  if (!Due("shard without memory", *shard)) return;
  shard_exhausted_ = true;
  static_assert(kNoMemoryMost > ShardMemory::kClosedAfter);
  shard->no_memory_until =
      world_.now() + (random.Chance(0.3)
                          ? kNoMemoryMost
                          : random.Between(absl::Milliseconds(5), absl::Milliseconds(500)));
}

// The coordinator does not hear a shard that goes on, and makes other copies primaries. What the
// shard sends to them arrives afterwards. Once, while a job trains and all that the shard has is
// elsewhere, too.
void Cluster::CutOffShard(Random random) {
  const bool trains = std::any_of(jobs_.begin(), jobs_.end(),
                                  [](const ClientJob& job) { return job.served() && !job.over; });
  if (world_.now() >= heal_at_) return;
  if (!trains || !AllWhole()) {
    return world_.After(absl::Milliseconds(20), nullptr, [this, random] { CutOffShard(random); });
  }
  ShardProcess* const shard = Pick(random, shards_).get();
  if (!world_.Happens("shard that is replaced while it goes on", shard->name)) return;
  shard_crashed_ = true;
  shard->unheard_until = shard->deaf_until =
      world_.now() + random.Between(absl::Milliseconds(2500), absl::Seconds(4));
}

// The coordinator's wall clock is set.
void Cluster::StepWall(Random& random) {
  if (!Due("step of the wall clock", coordinator_)) return;
  world_.StepWall(random.Chance(0.5) ? absl::Hours(1) : -absl::Hours(1));
}

// As SIGSTOP and SIGCONT do. Shards pause too briefly to be declared lost, but where all they have
// is elsewhere, too: then one may come back that was replaced.
void Cluster::Pause(Random& random) {
  const uint64_t drawn = random.Below(10);
  Process* process = nullptr;
  absl::Duration time = random.Between(absl::Milliseconds(5), absl::Milliseconds(300));
  if (drawn < 6) {
    process = Pick(random, workers_).get();
    if (random.Chance(0.3)) time = random.Between(absl::Seconds(1), absl::Seconds(4));
    if (!Due("paused worker", *process)) return;
  } else if (drawn < 8) {
    process = Pick(random, shards_).get();
    if (!Due("paused shard", *process)) return;
    if (may_crash_shard_ && AllWhole()) {
      shard_crashed_ = true;
      time = random.Between(absl::Seconds(2), absl::Seconds(4));
      world_.Count("fault: shard that comes back replaced");
    }
  } else {
    if (random.Chance(0.3)) time = random.Between(absl::Seconds(1), absl::Seconds(3));
    if (!Due("paused coordinator", coordinator_)) return;
    return coordinator_.PauseUntil(world_.now() + time);
  }
  process->paused_until = std::max(process->paused_until, world_.now() + time);
}

}  // namespace starling::sim
