// Learning rates as functions of the job's step number: proto/job.proto, Schedule.
#ifndef STARLING_COMMON_SCHEDULE_LEARNING_RATE_H_
#define STARLING_COMMON_SCHEDULE_LEARNING_RATE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace starling {

// Immutable; thread-safe. Computed in double precision, rounded to float once.
class LearningRate {
 public:
  // `total_steps` is the whole job's (JobSteps, common/data_plan/job_steps.h): cosine ends there.
  // kInvalidArgument names the field: a rate that is negative or not finite, every_steps below 1, a
  // negative warmup_steps, no kind.
  static absl::StatusOr<LearningRate> Make(const Schedule& schedule, uint64_t total_steps);

  // The rate of job step `step` >= 0.
  float At(int64_t step) const;

 private:
  LearningRate(const Schedule& schedule, uint64_t total_steps)
      : schedule_(schedule), total_steps_(total_steps) {}

  double BeforeWarmup(int64_t step) const;

  Schedule schedule_;
  uint64_t total_steps_;
};

}  // namespace starling

#endif  // STARLING_COMMON_SCHEDULE_LEARNING_RATE_H_
