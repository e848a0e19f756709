// A shard's file of a checkpoint: safetensors, whose entries are blocks (names.h).
//
// `__metadata__`: format "pt"; starling "checkpoint/1"; id; step; digests: XXH3-64 of each entry,
// in the order of the offsets, 16 hex digits each. Any reader of safetensors reads the values; the
// digests make each block's bytes checkable by themselves.
#ifndef STARLING_COMMON_CHECKPOINT_SHARD_FILE_H_
#define STARLING_COMMON_CHECKPOINT_SHARD_FILE_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/capture.h"
#include "common/checkpoint/disk.h"
#include "common/checkpoint/names.h"
#include "common/protocol/ids.h"
#include "proto/coordinator.pb.h"

namespace starling {

// Writes what was captured, releases each block once it is written, and returns when the file is
// durable and was read back. Blocks as the disk does; the caller's thread does all of it.
// `progress`: bytes written, and then read back, so far; called on this thread, after each block.
// After an error the file is removed, if it can be:
// kAborted: the capture was given up; kFailedPrecondition: the checkpoint's folder is not there, or
// its nonce is another one, so this disk is not the coordinator's, or the attempt is over; or the
// shard's file is there already, and stays;
// kInvalidArgument: a value is not finite; kDataLoss: what was read back differs; or the disk's
// error.
absl::StatusOr<CheckpointFile> WriteShardFile(CheckpointDisk& disk, const CheckpointId& id,
                                              uint64_t nonce, uint64_t step, ShardId shard,
                                              CheckpointCapture& capture,
                                              absl::FunctionRef<void(uint64_t)> progress);

// An entry of a shard's file.
struct StoredBlock {
  BlockName name;
  uint64_t elements = 0;  // at most limits::kSliceElementsMax
  uint64_t offset = 0;    // in the file
  uint64_t digest = 0;    // XXH3-64 of its bytes
};

// Reads the header, not the data. In the order of the offsets, from the header's end to the file's
// without gaps. kDataLoss: it is no such file, or one of another checkpoint; says why, without the
// file's name.
absl::StatusOr<std::vector<StoredBlock>> ReadShardFileHeader(const CheckpointDisk::Readable& file,
                                                             const CheckpointId& id, uint64_t step);

// Reads every byte. `blocks`: its header's. `progress`: bytes read so far; called after each block.
// kDataLoss: size, digest or that of a block differ; says what was expected, and what came.
// kCancelled: `progress` returned false.
absl::Status VerifyShardFile(const CheckpointDisk::Readable& file,
                             const std::vector<StoredBlock>& blocks, const CheckpointFile& expected,
                             absl::FunctionRef<bool(uint64_t)> progress);

// `bytes`: all of the block. kDataLoss as above.
absl::Status CheckBlock(const StoredBlock& block, absl::Span<const uint8_t> bytes);

}  // namespace starling

#endif  // STARLING_COMMON_CHECKPOINT_SHARD_FILE_H_
