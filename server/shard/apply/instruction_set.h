// Selects one of the equivalent kernel paths. All give the same bits.
#ifndef STARLING_SERVER_SHARD_APPLY_INSTRUCTION_SET_H_
#define STARLING_SERVER_SHARD_APPLY_INSTRUCTION_SET_H_

#include <vector>

namespace starling {

// Functions for one instruction set, with vectors as wide as it has them.
#define STARLING_APPLY_AVX2 __attribute__((target("avx2")))
#if defined(__clang__)
#define STARLING_APPLY_AVX512 \
  __attribute__((target("avx512f,avx512vl,avx512dq"), min_vector_width(512)))
#else
#define STARLING_APPLY_AVX512 \
  __attribute__((target("avx512f,avx512vl,avx512dq,prefer-vector-width=512")))
#endif

enum class InstructionSet { kPortable, kAvx2, kAvx512 };

// The widest that this CPU supports.
InstructionSet BestInstructionSet();
// All that this CPU supports.
std::vector<InstructionSet> UsableInstructionSets();
const char* InstructionSetName(InstructionSet set);

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_APPLY_INSTRUCTION_SET_H_
