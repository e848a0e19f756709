// stop.wallTime: training ends at one step of the job, the same on all partitions, and what was
// trained is evaluated. The step is decided and reached as that of a change of the policy
// (docs/protocol.md, section 8), to the same policy: all global batches below it are done, and none
// beyond is begun.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/data_plan/job_steps.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

constexpr char kBy[] = "wallTime is over";

}  // namespace

// The job's wallTime is over: it ends as soon as what was begun is done and evaluated.
bool Core::IsStopped(const Job& job) {
  return job.state.stopping() || job.state.policies().rbegin()->record().by() == kBy;
}

void Core::StopTraining(Job& job) {
  Log(job, "wallTime is over: no more training is begun");
  AddPolicy(job, Policy(job.state.policies().rbegin()->record().policy()), kBy, 0);
}

// A policy is in force from `step` on; if it is the one by which the job is stopped, none of its
// steps is done.
void Core::EndTraining(Job& job, uint64_t step) {
  if (!IsStopped(job) || job.next_policy() != nullptr || step >= job.steps()) return;
  job.state.set_stopping(true);
  job.state.set_training_end(step);
  job.last_cut = now_;
  const uint32_t epoch = job.state.epoch();
  if (step > epoch * job.epoch_steps()) {  // a part of it was done
    const EpochResult& result = RecordEpoch(job, epoch, step);
    Log(job, absl::StrFormat("epoch %d ends at step %d: train loss %.4f", epoch + 1, step,
                             result.train_loss()));
  }
  if (const std::optional<uint32_t> last = LastEpochToTest(job)) job.evaluations[*last];
  SaveState(job);
  TouchJob(job);
}

// The epoch whose values are those of a job that was stopped, where they are still to be evaluated.
std::optional<uint32_t> Core::LastEpochToTest(const Job& job) {
  const uint64_t end = job.state.training_end();
  const uint32_t epochs = job.epochs();
  if (end == 0 || !job.evaluates_at(epochs - 1)) return std::nullopt;
  const auto epoch = static_cast<uint32_t>((end - 1) / job.epoch_steps());
  const auto result = job.results.find(epoch);
  if (result != job.results.end() && result->second.evaluated()) return std::nullopt;
  return epoch;
}

}  // namespace starling::coordinator
