// Which blocks of a segment are free: what its two ends know, without its memory
// (docs/decisions/0015-shared-memory.md). The transport and the simulator use them.
#ifndef STARLING_COMMON_TRANSPORT_SEGMENT_BLOCKS_H_
#define STARLING_COMMON_TRANSPORT_SEGMENT_BLOCKS_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/protocol/frame.h"
#include "common/protocol/limits.h"

namespace starling {

// Whether the receiver copies such a payload out before it looks at it.
inline bool MayShare(const FrameHeader& header) {
  return (header.type == FrameType::kPush || header.type == FrameType::kValue) &&
         header.kind == PayloadKind::kDense && header.codec == Codec::kFp32;
}

// At the end that writes. Thread-compatible.
class FreeBlocks {
 public:
  // The lowest consecutive blocks that hold `bytes`, 1 to kSegmentBytes; 0: there are none.
  uint64_t Take(size_t bytes) {
    const int count = BlocksOf(bytes);
    uint64_t begins = free_;  // of runs of i + 1 blocks
    for (int i = 1; i < count; ++i) begins &= begins >> 1;
    if (begins == 0) return 0;
    const uint64_t run = ~uint64_t{0} >> (static_cast<int>(limits::kSegmentBlocks) - count);
    const uint64_t blocks = run << std::countr_zero(begins);
    free_ &= ~blocks;
    return blocks;
  }

  // The peer gives them back, or for the first time. False: some are free, and nothing changes.
  bool Add(uint64_t blocks) {
    if ((free_ & blocks) != 0) return false;
    free_ |= blocks;
    return true;
  }

 private:
  uint64_t free_ = 0;
};

// At the end that reads. At first all blocks are to be given. Thread-compatible.
class HeldBlocks {
 public:
  // A frame names them. False: the peer has not been given some of them, and nothing changes.
  bool Use(uint64_t blocks) {
    if (((in_use_ | returnable_) & blocks) != 0) return false;
    in_use_ |= blocks;
    return true;
  }
  // The frame is handled.
  void Release(uint64_t blocks) {
    in_use_ &= ~blocks;
    returnable_ |= blocks;
  }
  // Those that the peer is given with the next credit.
  uint64_t Give() { return std::exchange(returnable_, 0); }

 private:
  uint64_t in_use_ = 0;
  uint64_t returnable_ = ~uint64_t{0};
};

}  // namespace starling

#endif  // STARLING_COMMON_TRANSPORT_SEGMENT_BLOCKS_H_
