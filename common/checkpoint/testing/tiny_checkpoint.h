// A job of 26 values and its checkpoints, for tests of what reads and writes them.
#ifndef STARLING_COMMON_CHECKPOINT_TESTING_TINY_CHECKPOINT_H_
#define STARLING_COMMON_CHECKPOINT_TESTING_TINY_CHECKPOINT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/capture.h"
#include "common/checkpoint/disk.h"
#include "common/checkpoint/names.h"
#include "common/protocol/ids.h"
#include "proto/checkpoint.pb.h"

namespace starling {

inline constexpr uint64_t kTinyNonce = 0xfeed;

// Two trained parameters, with one slot each, a statistic and a frozen one.
JobDescription TinyJob(JobUid uid = JobUid(12));

// Element `index` of `part` at `step`, below 400; no two are equal.
float TinyValue(uint64_t step, absl::string_view parameter, BlockPart part, uint64_t index);

// All blocks of the job, of at most `elements_max` elements: every `shards`-th from `shard` on.
std::vector<CapturedBlock> TinyBlocks(uint64_t step, uint32_t shard, uint32_t shards,
                                      uint64_t elements_max = 7);

// Without files.
CheckpointManifest TinyManifest(const CheckpointId& id, uint64_t step);

// The whole way, by shards 1 to `shards`.
absl::Status WriteTinyCheckpoint(CheckpointDisk& disk, const CheckpointId& id, uint64_t step,
                                 uint32_t shards);

// Opens the checkpoint, verifies all of it and compares all values. Ok, or what is wrong.
absl::Status CheckTinyCheckpoint(std::shared_ptr<CheckpointDisk> disk, const CheckpointId& id,
                                 uint64_t step);

}  // namespace starling

#endif  // STARLING_COMMON_CHECKPOINT_TESTING_TINY_CHECKPOINT_H_
