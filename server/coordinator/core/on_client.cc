// Users' calls: questions about jobs and daemons, cancelling and deleting jobs.
#include <algorithm>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

constexpr double kLogsWaitSecondsMax = 60;

// The work to make a page is limited, too: an archived byte counts as a quarter of a reply byte.
// Small jobs reach the limit on entries first.
constexpr size_t kUnpackedBytesPerByte = 4;

// Prefixes of a page's `after`, followed by the uid of the last listed job.
constexpr char kLiveToken[] = "live-";
constexpr char kEndedToken[] = "ended-";

// Limits of the overview.
constexpr int kOverviewLive = 200;         // jobs
constexpr size_t kOverviewDaemons = 1000;  // of each kind
constexpr size_t kOverviewGone = 16;       // of each kind

absl::Status BadPage(const std::string& after) {
  return absl::InvalidArgumentError(absl::StrCat(
      "page.after: expected the `next` of the previous page, got \"", after.substr(0, 100), "\""));
}

// The room that is left on a page.
class PageRoom {
 public:
  explicit PageRoom(const Page& page)
      : entries_(page.size() == 0 ? limits::kListEntriesMax
                                  : std::min<size_t>(page.size(), limits::kListEntriesMax)) {}
  bool full() const { return entries_ == 0 || bytes_ >= limits::kListBytesMax; }
  void Take(const google::protobuf::Message& entry) {
    --entries_;
    bytes_ += entry.ByteSizeLong();
  }
  // Counts the work to unpack an archived entry.
  void Unpack(size_t bytes) { bytes_ += bytes / kUnpackedBytesPerByte; }

 private:
  size_t entries_;
  size_t bytes_ = 0;
};

}  // namespace

void Core::On(const event::GetJob& event) {
  const Job* job = FindJob(event.request.name());
  if (job == nullptr) return Reply(event.call, NoSuchJob(event.request.name()));
  JobReply reply = DescribeJob(*job);
  AddWarnings(reply);
  Reply(event.call, std::move(reply));
}

// Lists live jobs, then ended ones, each newest first. A job that ends between two pages may be on
// both.
void Core::On(const event::ListJobs& event) {
  const std::string& after = event.request.page().after();
  const bool ended_only = absl::StartsWith(after, kEndedToken);
  uint64_t last = std::numeric_limits<uint64_t>::max();
  if (!after.empty() &&
      !absl::SimpleAtoi(absl::StripPrefix(absl::StripPrefix(after, kEndedToken), kLiveToken),
                        &last))
    return Reply(event.call, BadPage(after));
  std::vector<JobState> live, ended;
  ListJobsReply reply;
  for (const JobState state : {PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED}) {
    const auto& wanted = event.request.states();
    if (!wanted.empty() && std::count(wanted.begin(), wanted.end(), state) == 0) continue;
    (state == PENDING || state == RUNNING ? live : ended).push_back(state);
    if (by_state_.contains(state)) reply.set_total(reply.total() + by_state_.at(state).size());
  }
  PageRoom room(event.request.page());
  const auto add = [&](const std::vector<JobState>& states, const char* token) {
    for (uint64_t uid = OlderThan(last, states); uid != 0; uid = OlderThan(uid, states)) {
      if (room.full()) return reply.set_next(absl::StrCat(token, last));
      if (const auto archived = archive_.find(uid); archived != archive_.end())
        room.Unpack(archived->second.bytes.size());
      *reply.add_jobs() = ListedStatusOf(*FindJob(uid));
      room.Take(*reply.jobs().rbegin());
      last = uid;
    }
    last = std::numeric_limits<uint64_t>::max();
  };
  if (!ended_only) add(live, kLiveToken);
  if (reply.next().empty()) add(ended, kEndedToken);
  AddWarnings(reply);
  Reply(event.call, std::move(reply));
}

// Entries after `page.after`, in the order of their ids.
template <typename List, typename Event, typename Daemons, typename Add>
void Core::ReplyWithPage(const Event& event, const Daemons& daemons, const Add& add) {
  const std::string& after = event.request.page().after();
  uint32_t last = 0;
  if (!after.empty() && !absl::SimpleAtoi(after, &last)) return Reply(event.call, BadPage(after));
  List reply;
  PageRoom room(event.request.page());
  for (auto it = daemons.upper_bound(last); it != daemons.end(); ++it) {
    if (room.full()) {
      reply.set_next(absl::StrCat(last));
      break;
    }
    auto* entry = std::invoke(add, reply);
    *entry = StatusOf(it->second);
    room.Take(*entry);
    last = it->first;
  }
  AddWarnings(reply);
  Reply(event.call, std::move(reply));
}

void Core::On(const event::ListWorkers& event) {
  ReplyWithPage<ListWorkersReply>(event, workers_, &ListWorkersReply::add_workers);
}

void Core::On(const event::ListShards& event) {
  ReplyWithPage<ListShardsReply>(event, shards_, &ListShardsReply::add_shards);
}

void Core::On(const event::Overview& event) {
  ClusterView view;
  view.time = now_;
  view.generation = generation();
  for (const auto& [state, uids] : by_state_) view.job_counts[state] = uids.size();
  // Live daemons, then some that are gone.
  const auto add = [&](const auto& daemons, auto& counts, auto& list, const auto& add_status) {
    size_t live = 0, gone = 0;
    for (const auto& [id, daemon] : daemons) {
      ++counts[StateOf(daemon)];
      if (daemon.fenced() || live++ >= kOverviewDaemons) continue;
      *std::invoke(add_status, list) = StatusOf(daemon);
    }
    for (auto it = daemons.rbegin(); it != daemons.rend() && gone < kOverviewGone; ++it) {
      if (!it->second.fenced()) continue;
      *std::invoke(add_status, list) = StatusOf(it->second);
      ++gone;
    }
  };
  add(workers_, view.worker_counts, view.workers, &ListWorkersReply::add_workers);
  add(shards_, view.shard_counts, view.shards, &ListShardsReply::add_shards);
  uint64_t uid = std::numeric_limits<uint64_t>::max();
  while ((uid = OlderThan(uid, {PENDING, RUNNING})) != 0 && view.jobs.jobs_size() < kOverviewLive)
    *view.jobs.add_jobs() = ListedStatusOf(jobs_.at(uid));
  size_t ended = options_.overview_ended;
  for (auto it = ended_.rbegin(); it != ended_.rend() && ended > 0; ++it, --ended)
    *view.jobs.add_jobs() = ListedStatusOf(*FindJob(it->second));
  view.workers_lost = workers_lost_;
  view.shards_lost = shards_lost_;
  view.jobs_failed = jobs_failed_;
  AddWarnings(view.jobs);
  Reply(event.call, std::move(view));
}

void Core::On(const event::CancelJob& event) {
  Job* job = FindJob(event.request.name());
  if (job == nullptr) return Reply(event.call, NoSuchJob(event.request.name()));
  if (job->over() && job->state.state() != CANCELLED) {
    return Reply(event.call, absl::FailedPreconditionError(absl::StrCat(
                                 "job ", job->name(), " is over (",
                                 JobState_Name(job->state.state()), "): nothing to cancel")));
  }
  const bool waited = job->state.state() == PENDING;
  if (!job->over())
    End(*job, CANCELLED, absl::StrCat("cancelled", waited ? HowToContinue(*job) : ""));
  Reply(event.call, Empty());
}

void Core::On(const event::DeleteJob& event) {
  Job* job = FindJob(event.request.name());
  if (job == nullptr) return Reply(event.call, NoSuchJob(event.request.name()));
  if (!job->over()) {
    return Reply(event.call, absl::FailedPreconditionError(absl::StrCat(
                                 "job ", job->name(), " is ", JobState_Name(job->state.state()),
                                 ": cancel first (starling cancel ", job->name(), ")")));
  }
  if (AwaitsOutput(*job)) {
    return Reply(
        event.call,
        absl::FailedPreconditionError(absl::StrCat(
            "the values of job ", job->name(), " are being written to ", job->state.output().path(),
            ": delete the job when that is done (starling describe job ", job->name(), ")")));
  }
  Forget(*job);
  Reply(event.call, Empty());
}

void Core::On(const event::Logs& event) {
  const Job* job = FindJob(event.request.name());
  if (job == nullptr) return Reply(event.call, NoSuchJob(event.request.name()));
  const double asked = event.request.wait_seconds();
  const double wait = asked > 0 ? std::min(asked, kLogsWaitSecondsMax) : 0;  // NaN: 0
  logs_.push_back({event.call, event.request, job->uid(), now_ + absl::Seconds(wait)});
}

// A call is held until there is a new entry, the job ends, or the wait is over.
void Core::AnswerLogs() {
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

}  // namespace starling::coordinator
