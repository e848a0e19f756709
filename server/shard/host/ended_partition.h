// What remains of a partition after its job: its readable values.
#ifndef STARLING_SERVER_SHARD_HOST_ENDED_PARTITION_H_
#define STARLING_SERVER_SHARD_HOST_ENDED_PARTITION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "common/protocol/frame.h"
#include "common/transport/transport.h"
#include "server/shard/host/shard_connection.h"
#include "server/shard/host/shard_memory.h"

namespace starling {

// Used on the owner's thread only.
class EndedPartition {
 public:
  struct Slice {
    std::shared_ptr<float> data;  // never written again
    uint32_t elements = 0;
    uint64_t digest = 0;  // of the bytes; 0: not known yet
  };
  struct Position {
    RunId run;
    PartitionId partition;
    ViewNumber view;
    RosterNumber roster;
    Lsn lsn;
    std::optional<uint64_t> version;  // BSP: the version of these values
  };

  EndedPartition(const Position& position, std::map<SliceId, Slice> slices,
                 std::shared_ptr<ShardMemory> memory);
  ~EndedPartition();

  EndedPartition(const EndedPartition&) = delete;
  EndedPartition& operator=(const EndedPartition&) = delete;

  // Answers readers' pulls at once and refuses all other frames.
  void OnFrame(ShardConnection& connection, const FrameHeader& header);

  uint64_t value_bytes() const { return value_bytes_; }

 private:
  const Position position_;
  const std::shared_ptr<ShardMemory> memory_;
  std::map<SliceId, Slice> slices_;
  uint64_t value_bytes_ = 0;
};

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_HOST_ENDED_PARTITION_H_
