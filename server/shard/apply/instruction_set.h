// Selects one of the equivalent kernel paths. All give the same bits.
#ifndef STARLING_SERVER_SHARD_APPLY_INSTRUCTION_SET_H_
#define STARLING_SERVER_SHARD_APPLY_INSTRUCTION_SET_H_

#include <vector>

namespace starling {

enum class InstructionSet { kPortable, kAvx2, kAvx512 };

// The widest that this CPU supports.
InstructionSet BestInstructionSet();
// All that this CPU supports.
std::vector<InstructionSet> UsableInstructionSets();
const char* InstructionSetName(InstructionSet set);

}  // namespace starling

#endif  // STARLING_SERVER_SHARD_APPLY_INSTRUCTION_SET_H_
