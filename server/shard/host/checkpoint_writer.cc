#include "server/shard/host/checkpoint_writer.h"

#include <utility>

#include "common/checkpoint/shard_file.h"
#include "common/checkpoint/store.h"

namespace starling {

void CheckpointWriter::Write(const CheckpointId& id, uint64_t nonce, uint64_t step, ShardId shard,
                             std::shared_ptr<CheckpointCapture> capture,
                             std::function<void(absl::StatusOr<CheckpointFile>)> done,
                             std::function<void(uint64_t bytes)> progress) {
  loop_->Post([this, id, nonce, step, shard, capture = std::move(capture), done = std::move(done),
               progress = std::move(progress)] {
    done(WriteShardFile(*disk_, id, nonce, step, shard, *capture, progress));
  });
}

void CheckpointWriter::ReadRoot(uint64_t cluster,
                                std::function<void(absl::StatusOr<uint64_t>)> done) {
  loop_->Post([this, cluster, done = std::move(done)] { done(ReadRootNonce(*disk_, cluster)); });
}

}  // namespace starling
