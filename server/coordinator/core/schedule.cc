// Which workers serve which job: first come, first served (issue: jobs queue; a job starts at
// workers.min, grows to workers.max from idle workers, and gives back what it has beyond its min).
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/placement/layout.h"
#include "server/coordinator/core/core.h"

namespace starling {
namespace {

std::string Count(uint64_t count, const std::string& noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace

bool Coordinator::Core::MayServe(const Worker& worker, const Job& job) {
  const bool device = job.spec().device() != DEVICE_GPU || worker.stored.registration().gpu();
  return device && !IsSetAside(worker, job);
}

void Coordinator::Core::Schedule() {
  // Running jobs that lost workers come before those that have not begun.
  bool idle_are_spoken_for = false;
  for (Job* const running : JobsIn(RUNNING)) {
    Job& job = *running;
    const uint64_t uid = job.uid();
    if (job.state.stopping()) continue;
    const uint32_t has = static_cast<uint32_t>(Serving(uid).size());
    if (has >= job.spec().workers_min()) continue;
    if (Assign(job, job.spec().workers_min() - has)) continue;
    AskForWorkers(job, job.spec().workers_min() - static_cast<uint32_t>(Serving(uid).size()));
    // Who was set aside for it is of no use to it, and may be to others.
    if (SetAsideFor(job).empty()) idle_are_spoken_for = true;
  }
  for (Job* const pending : JobsIn(PENDING)) {
    Job& job = *pending;
    std::string reason;
    const bool shards = std::any_of(shards_.begin(), shards_.end(),
                                    [](const auto& entry) { return entry.second.live(); });
    uint32_t idle = 0;
    for (const auto& [id, worker] : workers_)
      idle += worker.idle() && MayServe(worker, job);
    if (idle_are_spoken_for) {
      reason = "waits for the jobs before it";
    } else if (!shards) {
      reason =
          absl::StrCat("needs at least one shard: start one with `", options_.shard_command, "`");
    } else if (idle < job.spec().workers_min()) {
      const uint32_t missing = job.spec().workers_min() - idle;
      AskForWorkers(job, missing);
      reason = WaitsFor(job, missing, idle);
    }
    if (reason.empty()) {
      StartJob(job);
      continue;
    }
    idle_are_spoken_for = true;
    if (job.state.reason() == reason) continue;
    job.state.set_reason(reason);
    SaveState(job);
    Log(job, reason);
  }
  if (idle_are_spoken_for) return;
  for (Job* const job : JobsIn(RUNNING)) {
    if (!job->state.stopping()) Assign(*job, Room(*job));
  }
}

uint32_t Coordinator::Core::MostWorkers(const Job& job) {
  const uint32_t most = job.spec().workers_max();
  return job.bsp() ? std::min(most, job.spec().batch().micro_batches()) : most;
}

// How many workers more the job can use.
uint32_t Coordinator::Core::Room(const Job& job) {
  const uint32_t most = MostWorkers(job);
  const auto has = static_cast<uint32_t>(Serving(job.uid()).size());
  return has < most ? most - has : 0;
}

// False when there were fewer idle workers than `count`.
bool Coordinator::Core::Assign(Job& job, uint32_t count) {
  for (auto& [id, worker] : workers_) {
    if (count == 0) break;
    if (!worker.idle() || !MayServe(worker, job)) continue;
    Order(worker, job.uid());
    --count;
  }
  return count == 0;
}

void Coordinator::Core::StartJob(Job& job) {
  std::vector<ShardId> live;
  for (const auto& [id, shard] : shards_) {
    if (shard.live()) live.push_back(ShardId(id));
  }
  const absl::StatusOr<Layout> layout = MakeLayout(job.spec());
  if (!layout.ok()) return End(job, FAILED, std::string(layout.status().message()));
  const std::vector<ShardId> places = AssignPartitions(*layout, live);
  for (const View& view : job.state.views()) CountView(job, view, -1);
  job.state.clear_views();
  for (size_t i = 0; i < places.size(); ++i) {
    const Shard& shard = shards_.at(places[i].value);
    View* view = job.state.add_views();
    view->set_partition(static_cast<uint32_t>(i));
    view->set_number(1);
    view->set_primary(shard.id());
    view->set_primary_address(shard.stored.registration().address());
    view->set_primary_incarnation(shard.stored.incarnation());
    CountView(job, *view, 1);
  }
  SetState(job, RUNNING);
  job.state.clear_reason();
  job.state.mutable_roster()->set_number(1);
  job.state.set_started_us(absl::ToUnixMicros(wall_));
  job.running_since = now_;
  SaveState(job);
  Log(job, absl::StrCat("starts on ", Count(live.size(), "shard"), " with ",
                        Count(job.spec().workers_min(), "worker")));
  Assign(job, job.spec().workers_min());
  TouchJob(job);
  advance_.insert(job.uid());
}

// From the youngest jobs first, who came last to them first.
void Coordinator::Core::AskForWorkers(const Job& waiting, uint32_t count) {
  for (const auto& [id, worker] : workers_) {  // those that are on their way already
    const bool coming = worker.live() && worker.job == 0 && !worker.idle() &&
                        !worker.report.draining() && MayServe(worker, waiting);
    if (coming && count > 0) --count;
  }
  const std::vector<Job*> running = JobsIn(RUNNING);
  for (auto it = running.rbegin(); it != running.rend() && count > 0; ++it) {
    Job& job = **it;
    std::vector<Worker*> serving = Serving(job.uid());
    std::sort(serving.begin(), serving.end(),
              [](const Worker* a, const Worker* b) { return a->ordered_at > b->ordered_at; });
    size_t left = serving.size();
    for (Worker* worker : serving) {
      if (count == 0 || left <= job.spec().workers_min()) break;
      if (!MayServe(*worker, waiting)) continue;
      Order(*worker, 0);
      Log(job, absl::StrCat("gives ", worker->name(), " to job ", waiting.name()));
      --left;
      --count;
    }
  }
}

std::string Coordinator::Core::WaitsFor(const Job& job, uint32_t missing, uint32_t idle) const {
  const std::string workers =
      absl::StrCat(Count(missing, "more worker"),
                   job.spec().device() == DEVICE_GPU ? " with a GPU" : "", " (", idle,
                   " idle, workers.min is ", job.spec().workers_min(), ")");
  const auto running = by_state_.find(RUNNING);
  if (running != by_state_.end() && !running->second.empty()) {
    const Job& other = jobs_.at(*running->second.begin());
    return absl::StrCat("waits for job ", other.name(), " to finish or for ", workers);
  }
  return absl::StrCat("waits for ", workers, ": start one with `", options_.worker_command, "`");
}

}  // namespace starling
