// Runs seeds, prints what was reached and what was violated.
//   sim --seeds N [--first S] [--twice K] [--mutant DEFENCE] [--transcript PROCESS] [--verbose]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/defences.h"
#include "tests/sim/cluster.h"

namespace starling::sim {
namespace {

struct Options {
  uint64_t seeds = 100;
  uint64_t first = 1;
  uint64_t twice = 10;  // every so many seeds one is run twice; 0: none
  std::string mutant;
  bool verbose = false;
};

int Usage() {
  std::fprintf(stderr, "usage: sim [--seeds N] [--first SEED] [--twice K] [--mutant DEFENCE] [--transcript PROCESS] [--verbose]\n");
  return 2;
}

bool Mask(const std::string& name) {
#ifdef STARLING_MUTANTS
  for (int i = 0; i < static_cast<int>(Defence::kCount); ++i) {
    if (name != DefenceName(static_cast<Defence>(i))) continue;
    MaskDefence(static_cast<Defence>(i));
    return true;
  }
#else
  (void)name;
#endif
  return false;
}

int Run(const Options& options) {
  std::map<std::string, uint64_t> counts;
  std::map<std::string, uint64_t> violated;  // promise: seeds
  uint64_t bad = 0;
  for (uint64_t seed = options.first; seed < options.first + options.seeds; ++seed) {
    const SeedResult result = RunSeed(seed);
    for (const auto& [what, times] : result.counts) counts[what] += times;
    std::set<std::string> promises;
    for (const Violation& v : result.violations) {
      promises.insert(PromiseName(v.promise));
      if (options.mutant.empty()) {
        std::printf("seed %lu: %s: %s\n", seed, PromiseName(v.promise), v.what.c_str());
      }
    }
    for (const std::string& promise : promises) ++violated[promise];
    if (!promises.empty()) ++bad;
    if (options.verbose) std::printf("seed %lu: trace %016lx, %s\n", seed, result.trace, absl::FormatDuration(result.simulated).c_str());
    if (options.twice == 0 || seed % options.twice != 0) continue;
    ++counts["seeds run twice"];
    if (RunSeed(seed).trace == result.trace) continue;
    std::printf("seed %lu: another trace the second time\n", seed);
    ++bad;
  }
  for (const auto& [what, times] : counts) std::printf("count %s: %lu\n", what.c_str(), times);
  for (const auto& [promise, seeds] : violated) std::printf("violated %s: %lu seeds\n", promise.c_str(), seeds);
  std::printf("seeds %lu, with a violation %lu\n", options.seeds, bad);
  return bad == 0 ? 0 : 1;
}

}  // namespace
}  // namespace starling::sim

int main(int argc, char** argv) {
  using namespace starling::sim;
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--verbose") {
      options.verbose = true;
      continue;
    }
    if (++i == argc) return Usage();
    uint64_t* number = flag == "--seeds" ? &options.seeds : flag == "--first" ? &options.first : flag == "--twice" ? &options.twice : nullptr;
    if (number != nullptr) {
      if (!absl::SimpleAtoi(argv[i], number)) return Usage();
    } else if (flag == "--transcript") {
      World::transcript_of() = argv[i];
    } else if (flag == "--mutant") {
      options.mutant = argv[i];
      if (!Mask(options.mutant)) {
        std::fprintf(stderr, "no such defence in this build: %s\n", argv[i]);
        return 2;
      }
    } else {
      return Usage();
    }
  }
  return Run(options);
}
