// The coordinator's side of a checkpoint root. Each call blocks as the disk does, and returns when
// all that it did is durable. Calls for different checkpoints may run at the same time.
#ifndef STARLING_COMMON_CHECKPOINT_STORE_H_
#define STARLING_COMMON_CHECKPOINT_STORE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/disk.h"
#include "common/checkpoint/names.h"
#include "proto/checkpoint.pb.h"

namespace starling {

// Makes ID.partial with its nonce, for shards to write to. kAlreadyExists: the id was used before:
// what is there belongs to somebody else.
absl::Status BeginCheckpoint(CheckpointDisk& disk, const CheckpointId& id, uint64_t nonce);

// Removes the nonce, writes the manifest, checks all that CheckpointReader::Open checks, and
// renames the folder: the checkpoint is there. Returns its bytes in all. kDataLoss: a file is
// missing, is not the one that the manifest says, or the files together are not the model's
// values. After an error the caller drops the checkpoint.
absl::StatusOr<uint64_t> SealCheckpoint(CheckpointDisk& disk, const CheckpointId& id,
                                        const CheckpointManifest& manifest);

// Renames a checkpoint, whole or partial, to ID.deleted: no reader finds it, nor half of it. Ok if
// nothing is there. RemoveDropped then frees its room, which takes as long as its files are large.
absl::Status DropCheckpoint(CheckpointDisk& disk, const CheckpointId& id);
absl::Status RemoveDropped(CheckpointDisk& disk, const CheckpointId& id);

// What has a checkpoint's name, of any cluster.
struct FoundCheckpoints {
  std::vector<CheckpointInfo> whole;  // whose manifest can be read and parses; ascending by id
  std::map<CheckpointId, std::string> unreadable;  // and why: damaged, or of a later version
  // Whether the folder has its coordinator's nonce, and whether that was written just now: set by
  // whoever writes it.
  absl::Status marked;
  bool marked_now = false;
};
// A damaged one does not hide the others. kUnavailable: the disk fails, perhaps for now.
absl::StatusOr<FoundCheckpoints> ListCheckpoints(CheckpointDisk& disk);

// Removes what attempts and deletions of this cluster left half done. Tries all, and returns the
// first error.
absl::Status RemoveLeftovers(CheckpointDisk& disk, uint64_t cluster);

// The number by which shards find that their root is the coordinator's. Read: kNotFound: no
// coordinator of this cluster has written here; kDataLoss.
absl::Status WriteRootNonce(CheckpointDisk& disk, uint64_t cluster, uint64_t nonce);
absl::StatusOr<uint64_t> ReadRootNonce(CheckpointDisk& disk, uint64_t cluster);

// 16 hex digits in a file. kNotFound; kDataLoss: something else is in it.
absl::StatusOr<uint64_t> ReadNonce(CheckpointDisk& disk, const std::string& folder,
                                   const std::string& name);

}  // namespace starling

#endif  // STARLING_COMMON_CHECKPOINT_STORE_H_
