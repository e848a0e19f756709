#include "tests/sim/shrink.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace starling::sim {

// Leaves out one part after another, and makes the parts smaller where none can be.
std::vector<FaultId> FewestFaults(std::vector<FaultId> faults,
                                  const std::function<bool(const std::vector<FaultId>&)>& shows,
                                  uint64_t* runs, bool* fewest) {
  const uint64_t most = std::exchange(*runs, 0);
  *fewest = false;
  size_t part = faults.size();
  while (part > 0) {
    bool fewer = false;
    for (size_t begin = 0; begin < faults.size();) {
      if (*runs == most) return faults;
      std::vector<FaultId> others = faults;
      const size_t end = std::min(begin + part, faults.size());
      others.erase(others.begin() + static_cast<int64_t>(begin),
                   others.begin() + static_cast<int64_t>(end));
      ++*runs;
      if (shows(others)) {
        faults = std::move(others);
        fewer = true;
      } else {
        begin = end;
      }
    }
    if (fewer && part == 1) continue;  // what was needed before may not be needed now
    part = std::min(part / 2, faults.size());
  }
  *fewest = true;
  return faults;
}

Shrunk Shrink(const SeedResult& result, const std::function<bool(const SeedResult&)>& shows,
              uint64_t runs_most) {
  const auto run = [&](const std::vector<FaultId>& faults) {
    const std::set<FaultId> allowed(faults.begin(), faults.end());
    return RunSeed(result.seed, &allowed);
  };
  std::set<FaultId> all;  // by kind: most kinds are not needed
  for (const Fault& fault : result.faults) all.insert(fault.id);
  Shrunk shrunk{.result = result, .faults_before = all.size(), .runs = runs_most};
  const std::vector<FaultId> left = FewestFaults(
      {all.begin(), all.end()},
      [&](const std::vector<FaultId>& faults) { return shows(run(faults)); }, &shrunk.runs,
      &shrunk.fewest);
  shrunk.result = run(left);
  return shrunk;
}

std::string ShrunkToString(const Shrunk& shrunk) {
  const SeedResult& result = shrunk.result;
  std::string text = absl::StrFormat("seed %d with %d of %d faults, after %d runs%s:\n",
                                     result.seed, result.faults.size(), shrunk.faults_before,
                                     shrunk.runs, shrunk.fewest ? "" : " (maybe fewer are enough)");
  for (const Fault& fault : result.faults) {
    absl::StrAppendFormat(&text, "  %9.3f s  %-24s %s\n", absl::ToDoubleSeconds(fault.at),
                          fault.who, fault.id.kind);
  }
  for (const Violation& v : result.violations)
    absl::StrAppend(&text, "  violates ", PromiseName(v.promise), ": ", v.what, "\n");
  absl::StrAppend(&text, "again: tools/sim.sh --seeds 1 --seed ", result.seed, " --only '",
                  FaultsToText(result.faults), "'\n");
  return text;
}

std::string FaultsToText(const std::vector<Fault>& faults) {
  return absl::StrJoin(faults, ",", [](std::string* out, const Fault& fault) {
    absl::StrAppend(out, fault.id.kind, "#", fault.id.number);
  });
}

std::optional<std::set<FaultId>> ParseFaults(const std::string& text) {
  std::set<FaultId> faults;
  for (const absl::string_view one : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(one, '#');
    FaultId id;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &id.number)) return std::nullopt;
    id.kind = parts[0];
    faults.insert(id);
  }
  return faults;
}

}  // namespace starling::sim
