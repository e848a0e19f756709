// The tensors of a job's slices as a checkpoint has them, whatever shards and slices it was written
// with (docs/decisions/0013-checkpoints.md, part 4).
#ifndef STARLING_SERVER_SHARD_HOST_CHECKPOINT_VALUES_H_
#define STARLING_SERVER_SHARD_HOST_CHECKPOINT_VALUES_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/reader.h"
#include "common/placement/layout.h"
#include "common/sync/mutex.h"
#include "proto/model.pb.h"

namespace starling {

// Thread-safe. All of a job's partitions share one.
class CheckpointValues {
 public:
  // `manifest_digest`: of the checkpoint that the job was accepted with. `model` outlives this.
  CheckpointValues(std::shared_ptr<CheckpointDisk> disk, const CheckpointId& id,
                   uint64_t manifest_digest, const Graph& model)
      : disk_(std::move(disk)), id_(id), manifest_digest_(manifest_digest), model_(model) {}
  CheckpointValues(const CheckpointValues&) = delete;
  CheckpointValues& operator=(const CheckpointValues&) = delete;

  // `out` has slice.elements elements. Blocks as the disk does; the first call opens the
  // checkpoint, and calls meanwhile wait for it. kFailedPrecondition: it is another one. Otherwise
  // CheckpointReader's errors, which name what is missing or damaged.
  absl::Status Read(const Slice& slice, BlockPart part, float* out);

 private:
  absl::StatusOr<const CheckpointReader*> Open();

  const std::shared_ptr<CheckpointDisk> disk_;
  const CheckpointId id_;
  const uint64_t manifest_digest_;
  const Graph& model_;
  Mutex mutex_;  // held while the checkpoint is opened
  std::unique_ptr<CheckpointReader> reader_ ABSL_GUARDED_BY(mutex_);  // constant once it is there
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_CHECKPOINT_VALUES_H_
