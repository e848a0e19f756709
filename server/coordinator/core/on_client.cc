// What people ask about jobs and daemons, and the end of jobs that they want.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/coordinator/core/core.h"
#include "server/coordinator/core/records.h"

namespace starling {
namespace {

constexpr double kLogsWaitSecondsMax = 60;

}  // namespace

absl::Status Coordinator::Core::NoSuchJob(const std::string& name) {
  return absl::NotFoundError(absl::StrCat("there is no job named ", name.substr(0, 200),
                                          ": `starling get jobs` lists them"));
}

void Coordinator::Core::On(const GetJobEvent& event) {
  const Job* job = FindJob(event.request.name());
  if (job == nullptr) return Reply(event.call, NoSuchJob(event.request.name()));
  JobReply reply;
  *reply.mutable_status() = StatusOf(*job);
  *reply.mutable_spec() = job->spec();
  *reply.mutable_views() = job->state.views();
  AddWarnings(reply);
  Reply(event.call, std::move(reply));
}

void Coordinator::Core::On(const ListJobsEvent& event) {
  ListJobsReply reply;
  const Epochs epochs = event.brief ? Epochs::kNewest : Epochs::kAll;
  for (const auto& [uid, job] : jobs_) *reply.add_jobs() = StatusOf(job, epochs);
  AddWarnings(reply);
  Reply(event.call, std::move(reply));
}

void Coordinator::Core::On(const ListWorkersEvent& event) {
  ListWorkersReply reply;
  for (const auto& [id, worker] : workers_) *reply.add_workers() = StatusOf(worker);
  AddWarnings(reply);
  Reply(event.call, std::move(reply));
}

void Coordinator::Core::On(const ListShardsEvent& event) {
  ListShardsReply reply;
  for (const auto& [id, shard] : shards_) *reply.add_shards() = StatusOf(shard);
  AddWarnings(reply);
  Reply(event.call, std::move(reply));
}

void Coordinator::Core::On(const CancelJobEvent& event) {
  Job* job = FindJob(event.request.name());
  if (job == nullptr) return Reply(event.call, NoSuchJob(event.request.name()));
  if (job->over() && job->state.state() != CANCELLED) {
    return Reply(event.call, absl::FailedPreconditionError(absl::StrCat(
                                 "job ", job->name(), " is over (",
                                 JobState_Name(job->state.state()), "): nothing to cancel")));
  }
  if (!job->over()) End(*job, CANCELLED, "cancelled");
  Reply(event.call, Empty());
}

void Coordinator::Core::On(const DeleteJobEvent& event) {
  Job* job = FindJob(event.request.name());
  if (job == nullptr) return Reply(event.call, NoSuchJob(event.request.name()));
  if (!job->over()) {
    return Reply(event.call, absl::FailedPreconditionError(absl::StrCat(
                                 "job ", job->name(), " is ", JobState_Name(job->state.state()),
                                 ": cancel first (starling cancel ", job->name(), ")")));
  }
  const uint64_t uid = job->uid();
  for (const auto& [epoch, result] : job->results) Delete(records::JobResult(uid, epoch));
  DeleteCurve(*job);
  for (const std::string& key : {records::JobState(uid), records::Job(uid)}) Delete(key);
  TouchJob(*job);
  for (PendingLogs& logs : logs_) {
    if (logs.uid == uid) Reply(logs.call, NoSuchJob(event.request.name()));
  }
  std::erase_if(logs_, [uid](const PendingLogs& logs) { return logs.uid == uid; });
  jobs_.erase(uid);
  Reply(event.call, Empty());
}

void Coordinator::Core::On(const LogsEvent& event) {
  const Job* job = FindJob(event.request.name());
  if (job == nullptr) return Reply(event.call, NoSuchJob(event.request.name()));
  const double asked = event.request.wait_seconds();
  const double wait = asked > 0 ? std::min(asked, kLogsWaitSecondsMax) : 0;  // NaN: 0
  logs_.push_back({event.call, event.request, job->uid(), now_ + absl::Seconds(wait)});
}

// Held until there is an entry that the caller has not seen, the job is over, or the wait is.
void Coordinator::Core::AnswerLogs() {
  std::erase_if(logs_, [this](const PendingLogs& logs) {
    const Job& job = jobs_.at(logs.uid);
    const bool news = !job.log.empty() && job.log.back().number() > logs.request.after();
    if (!news && !job.over() && now_ < logs.until) return false;
    LogsReply reply;
    for (const LogEntry& entry : job.log) {
      if (entry.number() > logs.request.after()) *reply.add_entries() = entry;
    }
    reply.set_state(job.state.state());
    Reply(logs.call, std::move(reply));
    return true;
  });
}

}  // namespace starling
