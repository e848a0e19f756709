// The length of a job and of each of its epochs, and where it evaluates (docs/protocol.md, sections
// 1 and 4). Pure. Coordinator, shard and worker must agree on it, so all of them use these
// functions.
//
// `samples` is the number of training samples (JobDescription.train_samples). All functions require
// samples >= 1 and a spec that the coordinator has accepted (batch.global >= 1, stop.epochs or
// stop.steps set).
#ifndef STARLING_COMMON_DATA_PLAN_JOB_STEPS_H_
#define STARLING_COMMON_DATA_PLAN_JOB_STEPS_H_

#include <cstdint>

#include "proto/job.pb.h"

namespace starling {

// ceil(samples / batch.global): the steps of an epoch that is not cut short.
uint64_t StepsInFullEpoch(const JobSpec& spec, uint64_t samples);

// The job's total steps: the lesser of what stop.epochs and stop.steps allow.
uint64_t JobSteps(const JobSpec& spec, uint64_t samples);

// The job's epochs, of which the last may be cut short. At least 1.
uint32_t JobEpochs(const JobSpec& spec, uint64_t samples);

// S of this epoch; 0 for epochs beyond the job's end. Step s of epoch e has the job-wide number e *
// StepsInFullEpoch + s.
uint64_t StepsInEpoch(const JobSpec& spec, uint64_t samples, uint32_t epoch);

// Whether the values at the cut of `epoch` are copied and evaluated.
bool EvaluatesAt(const JobSpec& spec, uint64_t samples, uint32_t epoch);

// Items of an epoch that may be open at one time: after an uncovered one, or covered on some slices
// only. Leases allow no more, so shards and the coordinator plan for this many, whatever the length
// of the epoch.
uint64_t OpenItemsMax(const JobSpec& spec, uint64_t samples);

}  // namespace starling

#endif  // STARLING_COMMON_DATA_PLAN_JOB_STEPS_H_
