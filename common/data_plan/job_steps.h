// How long a job and each of its epochs are, and where it evaluates: docs/protocol.md, sections 1
// and
// 4. Pure; coordinator, shard and worker must agree on it, so nobody computes it in another way.
//
// `samples` is the number of training samples (JobDescription.train_samples). All functions ask for
// a spec that the coordinator has accepted (batch.global >= 1, stop.epochs or stop.steps set) and
// samples >= 1.
#ifndef STARLING_COMMON_DATA_PLAN_JOB_STEPS_H_
#define STARLING_COMMON_DATA_PLAN_JOB_STEPS_H_

#include <cstdint>

#include "proto/job.pb.h"

namespace starling {

// ceil(samples / batch.global): the steps of an epoch that is not cut short.
uint64_t StepsInFullEpoch(const JobSpec& spec, uint64_t samples);

// The whole job's steps: the least of what stop.epochs and stop.steps allow.
uint64_t JobSteps(const JobSpec& spec, uint64_t samples);

// Epochs that the job has, the last one perhaps cut short. At least 1.
uint32_t JobEpochs(const JobSpec& spec, uint64_t samples);

// S of this epoch; 0 for epochs that the job does not have. Step s of epoch e has the job-wide
// number e * StepsInFullEpoch + s.
uint64_t StepsInEpoch(const JobSpec& spec, uint64_t samples, uint32_t epoch);

// Whether the values at the cut of `epoch` are copied and evaluated.
bool EvaluatesAt(const JobSpec& spec, uint64_t samples, uint32_t epoch);

// Items of an epoch that may be open at a time: behind one that is not covered, or covered on some
// slices alone. Leases allow no more, so shards and the coordinator plan for this many, whatever
// the length of the epoch.
uint64_t OpenItemsMax(const JobSpec& spec, uint64_t samples);

}  // namespace starling

#endif  // STARLING_COMMON_DATA_PLAN_JOB_STEPS_H_
