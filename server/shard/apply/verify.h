// Digest and finite check of a payload in one pass over memory.
#ifndef STARLING_SERVER_SHARD_APPLY_VERIFY_H_
#define STARLING_SERVER_SHARD_APPLY_VERIFY_H_

#include <cstdint>

#include "common/base/xxh3.h"
#include "server/shard/apply/instruction_set.h"
#include "server/shard/apply/payload.h"

namespace starling {

struct PayloadVerdict {
  uint64_t digest = 0;            // XXH3-64 of the bytes
  int64_t first_non_finite = -1;  // first element that is NaN or infinite; -1: none
};

// Of a payload that comes piece by piece. Works block by block, so that the second read of each
// byte hits the cache. Not thread-safe.
class PayloadCheck {
 public:
  explicit PayloadCheck(InstructionSet set = BestInstructionSet());
  void Add(PayloadPiece piece);
  PayloadVerdict verdict() const;

 private:
  void Scan(const uint8_t* bytes, size_t size);
  void Look(const uint8_t* bytes, size_t count);

  const InstructionSet set_;
  XXH3_state_t digest_;
  // An element may span two pieces.
  uint8_t carry_[sizeof(float)];
  size_t carried_ = 0;
  uint64_t element_ = 0;
  int64_t first_non_finite_ = -1;
};

// Thread-safe.
PayloadVerdict VerifyPayload(Payload payload, InstructionSet set = BestInstructionSet());

// The first of `count` values that is NaN or infinite; -1: none. Thread-safe.
int64_t FirstNonFinite(const float* values, size_t count,
                       InstructionSet set = BestInstructionSet());

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_APPLY_VERIFY_H_
