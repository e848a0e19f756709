// Forgets the names of lost daemons after a while, and deletes ended jobs by retention.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/limits.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

constexpr absl::Duration kForgetPeriod = absl::Seconds(1);
constexpr size_t kForgottenAtOnce = 100;  // jobs, and daemons of each kind: keeps a step short
constexpr size_t kDeletedRemembered = 1000;

}  // namespace

// ---- Daemons ----

bool Core::MayForget(const Worker& worker) const {
  return worker.fenced() && worker.job == 0 && worker.member_of == 0 &&
         !registrations_.contains({WORKER, worker.name()});
}

// The views of kept jobs name the shard with which their values were lost.
bool Core::MayForget(const Shard& shard) const {
  return shard.fenced() && shard.named_by == 0 && !registrations_.contains({SHARD, shard.name()});
}

template <typename Daemons>
void Core::ForgetSome(Daemons& daemons, size_t at_most, bool at_once) {
  for (auto it = daemons.begin(); it != daemons.end() && at_most > 0;) {
    const auto& daemon = it->second;
    const absl::Duration keep = daemon.left() ? options_.forget_left : options_.forget_lost;
    if (!MayForget(daemon) || (!at_once && now_ - daemon.last_heard < keep)) {
      ++it;
      continue;
    }
    sentences_.push_back(absl::StrCat(
        daemon.name(), " is forgotten: it ", daemon.left() ? "left " : "was lost ",
        absl::FormatDuration(absl::Floor(now_ - daemon.last_heard, absl::Seconds(1))), " ago"));
    ForgetRecord(daemon);
    it = daemons.erase(it);
    --at_most;
  }
}

void Core::ForgetDaemons() {
  if (now_ < forgets_at_) return;
  forgets_at_ = now_ + kForgetPeriod;
  ForgetSome(workers_, kForgottenAtOnce, false);
  ForgetSome(shards_, kForgottenAtOnce, false);
}

// If all names are taken, forgets a lost daemon early.
void Core::MakePlaceForName(Role role) {
  if (role == WORKER && workers_.size() >= limits::kDaemonsMax) ForgetSome(workers_, 1, true);
  if (role == SHARD && shards_.size() >= limits::kDaemonsMax) ForgetSome(shards_, 1, true);
}

// ---- Jobs ----

std::string Core::KeptUntil(const Job& job) const {
  if (!job.over() || options_.keep_ended_for == absl::InfiniteDuration()) return "";
  return TimeText(absl::FromUnixMicros(job.state.ended_us()) + options_.keep_ended_for);
}

// A warning before retention first deletes a job; empty: none.
std::string Core::RetentionText() const {
  const size_t keep = options_.keep_ended_jobs;
  if (keep == std::numeric_limits<size_t>::max() || retention_acted_ ||
      ended_.size() < keep - keep / 10)
    return "";
  return absl::StrCat(
      ended_.size(), " jobs have ended, and the coordinator keeps ", keep,
      " (--keep-ended-jobs): beyond that, the oldest one is deleted with its parameters whenever a "
      "job ends; export what you need");
}

void Core::ForgetJobs() {
  size_t too_many = ended_.size() - std::min(ended_.size(), options_.keep_ended_jobs);
  size_t count = 0;
  for (auto next = ended_.begin(); next != ended_.end() && count < kForgottenAtOnce;) {
    const uint64_t uid = (next++)->second;
    const auto archived = archive_.find(uid);
    const absl::Time ended_at =
        archived != archive_.end() ? archived->second.ended_at : jobs_.at(uid).ended_at;
    std::string rule;
    if (too_many > 0) {
      --too_many;
      rule = absl::StrCat("--keep-ended-jobs ", options_.keep_ended_jobs);
    } else if (now_ - ended_at > options_.keep_ended_for) {
      rule = absl::StrCat("--keep-ended-for ", absl::FormatDuration(options_.keep_ended_for));
    } else {
      return;
    }
    Job& job = *FindJob(uid);
    if (AwaitsOutput(job)) continue;
    ++count;
    retention_acted_ = true;
    const std::string ended = TimeText(absl::FromUnixMicros(job.state.ended_us()));
    sentences_.push_back(absl::StrCat("retention (", rule, "): deleted job ", job.name(),
                                      ", which was ", JobState_Name(job.state.state()), " since ",
                                      ended));
    deleted_lately_.emplace_back(job.name(),
                                 absl::StrCat("it ended at ", ended, ", and the coordinator's ",
                                              "retention deleted it (", rule, ")"));
    if (deleted_lately_.size() > kDeletedRemembered) deleted_lately_.pop_front();
    Forget(job);
  }
}

absl::Status Core::NoSuchJob(const std::string& name) const {
  const auto deleted = std::find_if(deleted_lately_.rbegin(), deleted_lately_.rend(),
                                    [&](const auto& entry) { return entry.first == name; });
  return absl::NotFoundError(absl::StrCat(
      "there is no job named ", name.substr(0, 200), ": ",
      deleted != deleted_lately_.rend() ? deleted->second : "`starling get jobs` lists them"));
}

}  // namespace starling::coordinator
