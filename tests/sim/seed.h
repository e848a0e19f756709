// One seed of the simulator: a whole cluster, and another one on which a job goes on.
#ifndef STARLING_TESTS_SIM_SEED_H_
#define STARLING_TESTS_SIM_SEED_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/sim/world.h"

namespace starling::sim {

// The outcome of one seed, with that of the reference run if bits must be equal.
struct SeedResult {
  uint64_t seed = 0;
  uint64_t trace = 0;
  std::vector<Violation> violations;  // the first ones
  std::set<Promise> violated;
  std::map<std::string, uint64_t> counts;
  absl::Duration simulated;
  // In order; those of the cluster on which a job goes on come last, with times of its own.
  std::vector<Fault> faults;
};

// `allowed`: the only faults that happen; null: all that the seed says. The same whenever it is
// called. Thread-safe.
SeedResult RunSeed(uint64_t seed, const std::set<FaultId>* allowed = nullptr);

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_SEED_H_
