// stop.wallTime: training ends at one step of the job, the same on all partitions, and the result
// is evaluated. The step is decided and reached like a change of policy to the same policy
// (docs/protocol.md, section 8): all global batches below it are done, and none from it on is
// started.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/loss_text.h"
#include "common/data_plan/job_steps.h"
#include "server/coordinator/core/core.h"

namespace starling::coordinator {
namespace {

constexpr char kBy[] = "wallTime is over";

}  // namespace

bool Core::IsOfWallTime(const PolicyRecord& record) { return record.by() == kBy; }

// Whether the job's wallTime is over. The job ends as soon as started work is done and evaluated.
bool Core::IsStopped(const Job& job) {
  return job.state.stopping() || IsOfWallTime(job.state.policies().rbegin()->record());
}

void Core::StopTraining(Job& job) {
  Log(job, "wallTime is over: no more training is started");
  AddPolicy(job, Policy(job.state.policies().rbegin()->record().policy()), kBy, 0);
}

// A policy is in force from `step` on. If it is the one that stops the job, none of its steps is
// done.
void Core::EndTraining(Job& job, uint64_t step) {
  if (!IsStopped(job) || job.next_policy() != nullptr || step >= job.steps()) return;
  job.state.set_stopping(true);
  job.state.set_training_end(step);
  job.last_cut = now_;
  const uint32_t epoch = job.state.epoch();
  if (step > epoch * job.epoch_steps()) {  // the epoch was started
    const EpochResult& result = RecordEpoch(job, epoch, step);
    Log(job, absl::StrFormat("epoch %d ends at step %d: train loss %s", epoch + 1, step,
                             TrainLossText(result)));
  }
  if (const std::optional<uint32_t> last = LastEpochToTest(job)) job.evaluations[*last];
  SaveState(job);
  TouchJob(job);
}

// The epoch in which a stopped job ended, if its values are still to be evaluated.
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
