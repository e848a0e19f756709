// What is checked when a job is over: its status, and the values that are read then.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/data_plan/job_steps.h"
#include "tests/sim/checker.h"

namespace starling::sim {
namespace {

// Of which the job has the values of one exact step.
std::set<PartitionId> ExactPartitions(const JobReply& reply) {
  std::set<PartitionId> exact;
  for (const PartitionValues& partition : reply.values()) {
    if (partition.has_version()) exact.insert(PartitionId(partition.partition()));
  }
  return exact;
}

}  // namespace

// Numbers and steps ascend, and policies in force come first. Those by which checkpoints were taken
// are gone.
void JobTruth::CheckPolicies(const JobStatus& status) const {
  uint64_t step = 0;
  int64_t number = -1;
  bool in_force = true;
  for (int i = 0; i < status.policies_size(); ++i) {
    const PolicyRecord& record = status.policies(i);
    const bool fits = static_cast<int64_t>(record.number()) > number &&
                      (!record.has_step() || record.step() >= step) &&
                      record.in_force() <= in_force;
    if (!fits)
      world_->Violate(Promise::kG5,
                      absl::StrCat("policies do not ascend: ", record.ShortDebugString()));
    number = static_cast<int64_t>(record.number());
    if (record.has_step()) step = record.step();
    in_force = record.in_force();
  }
}

void JobTruth::CheckFinite(const std::vector<ValuesPtr>& values) const {
  for (const ValuesPtr& slice : values) {
    if (slice == nullptr) continue;
    for (float v : *slice) {
      if (!std::isfinite(v)) return world_->Violate(Promise::kFinite, "a value is not finite");
    }
  }
}

// stop.wallTime: the job ends at one step on all slices, and its status names that step. False: no
// worker was left, so the job ended as it was.
bool JobTruth::CheckStopped(const JobStatus& status) const {
  const PolicyRecord& last = *status.policies().rbegin();
  const std::string expected = absl::StrCat("stopped by wallTime at step ", status.step(), " of ",
                                            JobSteps(workload_->spec, workload_->train_samples));
  if (workload_->spec.stop().wall_time_seconds() == 0 || last.by() != "wallTime is over" ||
      !absl::StartsWith(status.reason(), expected)) {
    world_->Violate(Promise::kG7, absl::StrCat("it was not ", expected, ": ", status.reason(), "; ",
                                               last.ShortDebugString()));
  }
  if (!last.in_force()) {
    world_->Count("jobs that wallTime ended without a worker");
    if (status.has_sealed_steps() && status.sealed_steps() != status.step()) {
      world_->Violate(Promise::kG7, absl::StrCat(expected, " without a worker, but sealed ",
                                                 status.sealed_steps()));
    }
    for (const SliceTruth& slice : slices_) {
      if (slice.times.size() >= status.step()) continue;
      world_->Violate(Promise::kG7, absl::StrCat(expected, ", but a slice has only ",
                                                 slice.times.size(), " items"));
    }
    return false;
  }
  world_->Count("jobs that wallTime stopped");
  const bool sealed = !status.has_sealed_steps() || status.sealed_steps() == status.step();
  if (last.step() != status.step() || training_end_.value_or(last.step()) != last.step() ||
      !sealed) {
    world_->Violate(Promise::kG7, absl::StrCat(expected, ", but sealed ", status.sealed_steps(),
                                               "; shards heard ", training_end_.value_or(0), "; ",
                                               last.ShortDebugString()));
  }
  return true;
}

void JobTruth::CheckEpochs(const JobStatus& status) const {
  const uint64_t full = StepsInFullEpoch(workload_->spec, workload_->train_samples);
  const uint64_t epochs = (status.step() + full - 1) / full;
  if (static_cast<uint64_t>(status.epochs_done_size()) != epochs) {
    world_->Violate(Promise::kG7, absl::StrCat("results of ", status.epochs_done_size(), " of ",
                                               epochs, " epochs are there"));
  }
  for (const EpochResult& result : status.epochs_done()) {
    const uint64_t end = std::min((result.epoch() + 1) * full, status.step());
    if (result.step() != end) {
      world_->Violate(Promise::kG7, absl::StrCat("epoch ", result.epoch(), " ends at step ",
                                                 result.step(), ", not at ", end));
    }
    const bool expects = status.step() == JobSteps(workload_->spec, workload_->train_samples) &&
                         EvaluatesAt(workload_->spec, workload_->train_samples, result.epoch());
    if (!result.evaluated() && expects) {
      world_->Violate(Promise::kG6, absl::StrCat("epoch ", result.epoch(), " was not evaluated"));
    }
    if (!result.evaluated()) continue;
    world_->Count("epochs evaluated");
    if (end < (result.epoch() + 1) * full) world_->Count("parts of an epoch evaluated");
    const double expected = ExpectedAccuracy(*workload_, result.epoch());
    if (std::abs(result.test_accuracy() - expected) > 1e-12) {
      world_->Violate(Promise::kG6,
                      absl::StrCat("accuracy of epoch ", result.epoch(), " is ",
                                   result.test_accuracy(), ", each sample once gives ", expected));
    }
  }
}

void JobTruth::OnSucceeded(const ReadValues& values, const JobReply& reply) {
  const JobStatus& status = reply.status();
  over_ = succeeded_ = true;
  CheckFinite(values.slices);
  CheckAcked(values, {});
  CheckPolicies(status);
  const uint64_t steps = status.step();
  const bool stopped = steps < JobSteps(workload_->spec, workload_->train_samples);
  if (workload_->poisoned && JobStep(*workload_, workload_->poison) < steps)
    world_->Violate(Promise::kFinite, "a job with a gradient that is not a number succeeded");
  if (stopped && !CheckStopped(status)) return CheckCounted(values, reply);
  for (uint32_t s = 0; s < slices_.size(); ++s) {
    if (slices_[s].times.size() != steps) {
      world_->Violate(Promise::kG6, absl::StrCat("slice ", s, " has ", slices_[s].times.size(),
                                                 " of ", steps, " items"));
    }
    for (float v : *values.slices[s]) {
      uint32_t bits;
      std::memcpy(&bits, &v, sizeof(bits));
      final_hash_ = Mix(final_hash_, bits);
    }
    if (workload_->gradient != GradientKind::kCounting) continue;
    if (*values.slices[s] != ExpectedAtStep(SliceId(s), steps)) {
      world_->Violate(
          Promise::kG1,
          absl::StrCat("slice ", s, " is not the sum of the acknowledged contributions"));
    }
  }
  final_steps_ = steps;
  CheckEpochs(status);
}

void JobTruth::OnFailed(const ReadValues& values, const JobReply& reply) {
  const JobStatus& status = reply.status();
  over_ = true;
  CheckFinite(values.slices);
  CheckAcked(values, ExactPartitions(reply));
  const std::string& why = status.reason();
  if (why.find("not finite") != std::string::npos) {
    world_->Count("jobs stopped by NaN");
    if (why.find("step") == std::string::npos || why.find("worker") == std::string::npos) {
      world_->Violate(Promise::kFinite, absl::StrCat("the reason names no step and worker: ", why));
    }
  }
  if (why.find("fp16") != std::string::npos) {
    world_->Count("jobs stopped by overflows");
    const bool named =
        why.find("step") != std::string::npos && why.find("worker") != std::string::npos;
    if (!named || decisions_.loss_scale_log2() != LossScale::kLeastLog2)
      world_->Violate(Promise::kDecision,
                      absl::StrCat("stopped at 2^", decisions_.loss_scale_log2(), ": ", why));
  }
  CheckCounted(values, reply);
}

// G1: what is read of a job that is over has every acked push. A BSP job that failed has the values
// of the last step that all partitions have, which some were ahead of: not those.
void JobTruth::CheckAcked(const ReadValues& values, const std::set<PartitionId>& but) const {
  for (uint32_t s = 0; s < values.slices.size(); ++s) {
    if (but.contains(layout_.slices[s].partition)) continue;
    if (values.slices[s] == nullptr || slices_[s].acked <= values.positions[s]) continue;
    world_->Violate(Promise::kG1,
                    absl::StrCat("slice ", s, " is read as of position ", values.positions[s].value,
                                 ", and a push was acked that counts at ", slices_[s].acked.value));
  }
}

// The values are the sum of what the records up to their position count. A backup of a failed
// primary may have more.
void JobTruth::CheckCounted(const ReadValues& values, const JobReply& reply) const {
  if (workload_->gradient != GradientKind::kCounting) return;
  const std::set<PartitionId> exact = ExactPartitions(reply);  // were checked when they were sent
  for (uint32_t s = 0; s < slices_.size(); ++s) {
    if (values.slices[s] == nullptr || exact.contains(layout_.slices[s].partition)) continue;
    if (*values.slices[s] == ExpectedAt(SliceId(s), values.positions[s])) continue;
    world_->Violate(
        Promise::kG1,
        absl::StrCat("slice ", s, " of a job that ended early is not the sum of the records up to ",
                     values.positions[s].value));
  }
}

// A slice's values behind the record at `position`.
Values JobTruth::ExpectedAt(SliceId slice, Lsn position) const {
  const SliceTruth& truth = slices_[slice.value];
  const uint32_t micro = workload_->spec.batch().micro_batches();
  std::vector<std::pair<WorkRange, int>> times;
  for (const auto& [key, count] : truth.times) {
    if (truth.position.at(key) > position || decisions_.Skipped(slice, key)) continue;
    times.push_back({{WorkPurpose::kTrain, key.first, key.second, micro}, count});
  }
  return ExpectedWith(*workload_, layout_, slice, times);
}

}  // namespace starling::sim
