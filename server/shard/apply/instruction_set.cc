#include "server/shard/apply/instruction_set.h"

namespace starling {

std::vector<InstructionSet> UsableInstructionSets() {
  std::vector<InstructionSet> sets = {InstructionSet::kPortable};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) sets.push_back(InstructionSet::kAvx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    sets.push_back(InstructionSet::kAvx512);
  }
#endif
  return sets;
}

InstructionSet BestInstructionSet() {
  static const InstructionSet best = UsableInstructionSets().back();
  return best;
}

const char* InstructionSetName(InstructionSet set) {
  switch (set) {
    case InstructionSet::kAvx512: return "AVX-512";
    case InstructionSet::kAvx2: return "AVX2";
    case InstructionSet::kPortable: break;
  }
  return "portable";
}

}  // namespace starling
