// The policy guard of a job (server/coordinator/guard): what it observes and what it changes.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

// Windows between two saves of the trend, whose level follows a rise over 64 windows.
constexpr uint64_t kWindowsKept = 16;

}  // namespace

// Null: the job has no guard. The trend survives a restart.
PolicyGuard* Core::GuardOf(Job& job) {
  const Policy& policy = job.spec().policy();
  if (!policy.has_guard()) return nullptr;
  if (!job.guard.has_value()) {
    const LossTrend trend{job.state.guard().first_loss(), job.state.guard().loss_level()};
    job.guard.emplace(policy.guard(), job.spec().batch().global(), trend);
    job.guarded_policy = PolicyText(job.policy().policy());
  }
  return &*job.guard;
}

void Core::WatchLag(Job& job) {
  PolicyGuard* guard = GuardOf(job);
  if (guard == nullptr) return;
  const auto lag = [policy = job.policy().number()](const PartitionStatus& status) {
    return status.policy() == policy ? status.recent_lag() : 0;
  };
  guard->ObserveLag(job.partitions.Max(uint64_t{0}, lag));
}

void Core::AdvanceGuard(Job& job) {
  PolicyGuard* guard = GuardOf(job);
  if (guard == nullptr) return;
  const bool fresh = job.state.guard().first_loss() == 0 && guard->trend().first != 0;
  if ((fresh || guard->windows() >= job.windows_kept + kWindowsKept) && KeepTrend(job))
    SaveState(job);
  if (job.next_policy() != nullptr || IsStopped(job)) return;
  // One that a checkpoint asked for is no change.
  if (std::string policy = PolicyText(job.policy().policy()); policy != job.guarded_policy) {
    job.guarded_policy = std::move(policy);
    guard->PolicyChanged();
  }
  const auto tightening = guard->Judge(job.policy().policy());
  if (!tightening.has_value()) return;
  if (const absl::Status status = CheckPolicyChange(job, tightening->policy); !status.ok()) {
    Log(job, absl::StrCat("guard: ", tightening->reason,
                          ", but the policy stays: ", std::string(status.message())));
    guard->PolicyChanged();  // logs this again after a whole window at the earliest
    return;
  }
  KeepTrend(job);
  AddPolicy(job, tightening->policy, absl::StrCat("guard: ", tightening->reason), 0);
}

// Copies the trend to the job's state, which the caller saves. False: there is no trend yet.
bool Core::KeepTrend(Job& job) {
  if (!job.guard.has_value() || job.guard->trend().first == 0) return false;
  job.windows_kept = job.guard->windows();
  job.state.mutable_guard()->set_first_loss(job.guard->trend().first);
  job.state.mutable_guard()->set_loss_level(job.guard->trend().level);
  return true;
}

}  // namespace starling::coordinator
