// Indexes of jobs. With them, events and ticks visit only live jobs, never all kept jobs.
#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "server/coordinator/core/core.h"
#include "server/coordinator/core/records.h"

namespace starling::coordinator {

// Adds a new or stored job, whose name and state are set, to the indexes.
void Core::Enlist(const Job& job) {
  by_name_[job.name()] = job.uid();
  if (ClaimsOutput(job)) by_output_[job.spec().output()] = job.name();
  by_state_[job.state.state()].insert(job.uid());
  if (job.over()) ended_.emplace(job.state.ended_number(), job.uid());
  for (const View& view : job.state.views()) CountView(job, view, 1);
}

void Core::SetState(Job& job, JobState state) {
  by_state_[job.state.state()].erase(job.uid());
  by_state_[state].insert(job.uid());
  job.state.set_state(state);
  if (job.over()) {
    job.state.set_ended_number(ended_.empty() ? 1 : ended_.rbegin()->first + 1);
    ended_.emplace(job.state.ended_number(), job.uid());
    unpacked_.insert(job.uid());
    // The oldest of the newest jobs drops out of that group.
    const auto newest = static_cast<ptrdiff_t>(options_.overview_ended);
    if (std::ssize(ended_) > newest) unpacked_.insert(std::prev(ended_.end(), newest + 1)->second);
  }
  if (state == FAILED) ++jobs_failed_;
}

// Deletes all its records and answers the calls that follow its log.
void Core::Forget(Job& job) {
  const uint64_t uid = job.uid();
  for (const auto& [epoch, result] : job.results) Delete(records::JobResult(uid, epoch));
  DeleteCurve(job);
  for (const std::string& key : {records::JobState(uid), records::Job(uid)}) Delete(key);
  for (PendingLogs& logs : logs_) {
    if (logs.uid == uid) Reply(logs.call, NoSuchJob(job.name()));
  }
  std::erase_if(logs_, [uid](const PendingLogs& logs) { return logs.uid == uid; });
  for (const View& view : job.state.views()) CountView(job, view, -1);
  std::set<uint32_t> shards;
  for (const View& view : job.state.views()) shards.insert({view.primary(), view.backup()});
  if (ClaimsOutput(job)) by_output_.erase(job.spec().output());
  by_name_.erase(job.name());
  by_state_[job.state.state()].erase(uid);
  ended_.erase({job.state.ended_number(), uid});
  jobs_.erase(uid);
  for (const uint32_t id : shards) {
    const auto shard = shards_.find(id);
    if (shard == shards_.end()) continue;
    NoteDropped(shard->second, uid);
    touched_shards_.insert(id);
  }
}

Job* Core::FindJob(const std::string& name) {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : FindJob(it->second);
}

Job* Core::FindRunning(uint64_t uid) {
  auto it = jobs_.find(uid);
  return it != jobs_.end() && it->second.running() ? &it->second : nullptr;
}

const std::set<uint64_t>& Core::UidsIn(JobState state) const {
  static const std::set<uint64_t> none;
  const auto uids = by_state_.find(state);
  return uids == by_state_.end() ? none : uids->second;
}

std::vector<Job*> Core::JobsIn(JobState state) {
  std::vector<Job*> jobs;
  for (const uint64_t uid : UidsIn(state)) jobs.push_back(&jobs_.at(uid));
  return jobs;
}

// The newest job older than `uid` in one of the states; 0: none.
uint64_t Core::OlderThan(uint64_t uid, const std::vector<JobState>& states) const {
  uint64_t newest = 0;
  for (const JobState state : states) {
    const std::set<uint64_t>& uids = UidsIn(state);
    const auto it = uids.lower_bound(uid);
    if (it != uids.begin()) newest = std::max(newest, *std::prev(it));
  }
  return newest;
}

// Updates the shard's totals: `sign` 1 adds the view, -1 removes it.
void Core::CountView(const Job& job, const View& view, int sign) {
  for (const Archived::Partition& on : OnShards(job, view)) CountView(job.uid(), on, sign);
}

void Core::CountView(uint64_t uid, const Archived::Partition& on, int sign) {
  const auto it = shards_.find(on.shard);
  if (it == shards_.end()) return;
  Shard& shard = it->second;
  shard.named_by += static_cast<uint64_t>(sign);
  if (on.incarnation != shard.stored.incarnation()) return;
  if (!on.backup) shard.partitions += static_cast<uint64_t>(sign);
  shard.elements += static_cast<uint64_t>(sign) * on.elements;
  // If the shard has reported that the job has ended there, only values are left.
  const auto held = shard.held.find(uid);
  const bool over = held != shard.held.end() && held->second.over();
  shard.planned_bytes +=
      static_cast<uint64_t>(sign) * (over ? on.elements * sizeof(float) : on.bytes);
}

}  // namespace starling::coordinator
