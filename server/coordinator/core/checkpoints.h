// When a job's checkpoints are due, where they are cut, what belongs to them and which are deleted
// (docs/decisions/0013-checkpoints.md, part 3). Pure functions. Internal to this folder.
#ifndef STARLING_SERVER_COORDINATOR_CORE_CHECKPOINTS_H_
#define STARLING_SERVER_COORDINATOR_CORE_CHECKPOINTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/checkpoint/names.h"
#include "proto/checkpoint.pb.h"
#include "proto/coordinator.pb.h"

namespace starling::coordinator {

// Whole checkpoints on disk, of any cluster.
using KnownCheckpoints = std::map<CheckpointId, CheckpointInfo>;

// Whether the next one is due, by `rule`: so many steps and so much time after the last one was
// cut, or after the job began. Without a new step none is. The rule's seconds are those that may be
// lost, so the next one begins early enough to be whole by then: `takes` is what the last one took;
// at most half of the time goes for that.
bool IsCheckpointDue(const Checkpoint& rule, uint64_t steps, absl::Duration time,
                     absl::Duration takes);

// How long to wait after the given number of failures in a row, at least 1.
absl::Duration CheckpointRetryWait(const Checkpoint& rule, int failures);

// In BSP: a step that no worker has begun, far enough ahead for the order to arrive before it.
struct BoundaryEvidence {
  uint64_t begun = 0;   // steps that have begun, by all that workers and shards report
  uint64_t recent = 0;  // steps of the last half second
  int misses = 0;       // in a row: each doubles the distance
  uint64_t end = 0;     // the job's steps
};
// Unset: the job ends first.
std::optional<uint64_t> BoundaryStep(const BoundaryEvidence& evidence);

// ---- A shard's part ----

// Whether the shard's partitions, so many, all keep their values as of the cut.
bool HasCaptured(const CheckpointPart& part, uint32_t partitions);

// What is wrong with a part that is WRITTEN. `copy_epoch`: the epoch of whose cut it must have the
// copy; unset: none.
absl::Status CheckWrittenPart(const CheckpointPart& part, ShardId shard, uint64_t step,
                              std::optional<uint32_t> copy_epoch);

// The files and the numbers of all parts, which are WRITTEN, into the manifest. kInternal: parts
// disagree about the job's numbers.
absl::Status JoinParts(const std::vector<const CheckpointPart*>& parts,
                       CheckpointManifest& manifest);

// ---- Which ones ----

// Of one job, those that were taken by `rule` and are older than the `keep` newest of these;
// without `sources`, from which other jobs start.
std::vector<CheckpointId> SurplusCheckpoints(const KnownCheckpoints& known, uint64_t cluster,
                                             JobUid job, uint32_t keep,
                                             const std::set<CheckpointId>& sources);

// The newest one of the job, of those whose number is less than `below`; null: none.
const CheckpointInfo* LastCheckpoint(const KnownCheckpoints& known, uint64_t cluster, JobUid job,
                                     uint64_t below = UINT64_MAX);

// The newest one of a job of that name: of this cluster if it has any, else of another one.
std::optional<CheckpointId> NewestNamed(const KnownCheckpoints& known, uint64_t cluster,
                                        absl::string_view name);

// Those of jobs of that name (empty: of any), newest first; of this cluster, then of others.
std::vector<CheckpointId> NewestFirst(const KnownCheckpoints& known, uint64_t cluster,
                                      absl::string_view name);

std::string SizeText(uint64_t bytes);  // "81.2 MiB"

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_CORE_CHECKPOINTS_H_
