// Makes the faults of a seed as few as what it shows needs, so that people can read them.
#ifndef STARLING_TESTS_SIM_SHRINK_H_
#define STARLING_TESTS_SIM_SHRINK_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/seed.h"

namespace starling::sim {

// Some of `faults` with which `shows` is still true, in their order: delta debugging (Zeller and
// Hildebrandt 2002). `*runs`: calls of `shows`, at most so many before, the number made after it.
// `*fewest`: none of the result can be left out alone. `shows` is true for all of them, and the
// same whenever it is asked.
std::vector<FaultId> FewestFaults(std::vector<FaultId> faults,
                                  const std::function<bool(const std::vector<FaultId>&)>& shows,
                                  uint64_t* runs, bool* fewest);

struct Shrunk {
  SeedResult result;  // with the faults that are left
  size_t faults_before = 0;
  uint64_t runs = 0;
  bool fewest = false;  // else the runs were not enough to know
};

// `result`: of a seed with all its faults, for which `shows` is true.
Shrunk Shrink(const SeedResult& result, const std::function<bool(const SeedResult&)>& shows,
              uint64_t runs_most);

// The faults that are left, in order, with their times and where they happen, the violations, and
// the command that repeats the seed with them.
std::string ShrunkToString(const Shrunk& shrunk);

// Faults as `sim --only` takes them, and as that command has them: KIND#NUMBER,... nullopt: the
// text is something else.
std::string FaultsToText(const std::vector<Fault>& faults);
std::optional<std::set<FaultId>> ParseFaults(const std::string& text);

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_SHRINK_H_
