// Writes a shard's files of checkpoints, one after another, on a thread that may block on the disk
// without bound: a disk that hangs delays no partition and no report.
#ifndef STARLING_SERVER_SHARD_HOST_CHECKPOINT_WRITER_H_
#define STARLING_SERVER_SHARD_HOST_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/checkpoint/capture.h"
#include "common/checkpoint/disk.h"
#include "common/checkpoint/names.h"
#include "common/event_loop/event_loop.h"
#include "common/protocol/ids.h"
#include "proto/coordinator.pb.h"

namespace starling {

// Thread-safe. Answers are given on the writer's loop; none once it has stopped.
class CheckpointWriter {
 public:
  CheckpointWriter(std::unique_ptr<EventLoop> loop, std::shared_ptr<CheckpointDisk> disk)
      : loop_(std::move(loop)), disk_(std::move(disk)) {}

  // Answers with the file, once it is durable and was read back (WriteShardFile); kAborted: the
  // capture was given up, which ends the writing at the next block. `progress`: bytes so far.
  void Write(const CheckpointId& id, uint64_t nonce, uint64_t step, ShardId shard,
             std::shared_ptr<CheckpointCapture> capture,
             std::function<void(absl::StatusOr<CheckpointFile>)> done,
             std::function<void(uint64_t bytes)> progress);

  // Answers with what the coordinator of this cluster has written to the root (ReadRootNonce).
  void ReadRoot(uint64_t cluster, std::function<void(absl::StatusOr<uint64_t>)> done);

  // Ends the thread. Files whose captures were given up before are not written any more. Blocks
  // while the disk does. Idempotent.
  void Stop() { loop_->Stop(); }

 private:
  const std::unique_ptr<EventLoop> loop_;
  const std::shared_ptr<CheckpointDisk> disk_;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_CHECKPOINT_WRITER_H_
