// Runs seeds, prints what was reached and what was violated; tools/sim.sh builds it. The faults of
// the first seed that violates a promise are made as few as the violation needs, and printed.
//   sim --seeds N [--seed FIRST] [--jobs J] [--verbose] [--shrink RUNS]
//   sim --seeds 1 --seed S --only KIND#N,...        with no other faults of the seed than these
//   sim --seeds 1 --seed S --transcript worker-0    what that worker's session hears and does
//   sim --mutants [--defence NAME]                  masks each defence, or that one (needs
//                                                   --config=mutants)
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/defences.h"
#include "tests/sim/seed.h"
#include "tests/sim/shrink.h"

namespace starling::sim {
namespace {

// One in so many seeds is run twice: its trace must be the same.
constexpr uint64_t kTwiceEvery = 20;
// Fewer seeds need not reach everything.
constexpr uint64_t kSeedsThatReachAll = 1000;
[[maybe_unused]] constexpr uint64_t kSeedsPerMutant = 2000;  // only where defences are masked

// A run must reach each of these, or it has not shown what it should.
constexpr const char* kMustReach[] = {"fault: lost request (frame)",
                                      "fault: lost reply (frame)",
                                      "fault: lost request (call)",
                                      "fault: lost reply (call)",
                                      "fault: duplicate (call)",
                                      "fault: long delay",
                                      "fault: reordered (call)",
                                      "fault: cut stream",
                                      "fault: cut behind a frame",
                                      "fault: unheard call",
                                      "fault: unheard reply",
                                      "fault: worker cut off from all shards",
                                      "fault: coordinator crash at the disk",
                                      "fault: crash at an operation of the disk",
                                      "fault: coordinator crash with the disk",
                                      "fault: shard crash at the disk",
                                      "fault: crash of the disk's machine",
                                      "fault: checkpoint folder that is not mounted",
                                      "fault: damaged block",
                                      "fault: damaged checkpoint",
                                      "fault: disk error of a shard",
                                      "fault: disk error of the coordinator",
                                      "fault: disk full for a shard",
                                      "fault: disk full for the coordinator",
                                      "fault: slow disk of a shard",
                                      "fault: slow disk of the coordinator",
                                      "fault: paused worker",
                                      "fault: paused shard",
                                      "fault: paused coordinator",
                                      "fault: worker crash",
                                      "fault: coordinator crash",
                                      "fault: coordinator crash within a step",
                                      "fault: zombie coordinator",
                                      "fault: coordinator that outlives its crash",
                                      "calls that reached a zombie coordinator",
                                      "fault: SIGTERM",
                                      "fault: SIGTERM of a shard",
                                      "fault: SIGTERM of all shards",
                                      "fault: SIGTERM of each shard in turn",
                                      "fault: coordinator crash while a shard drains",
                                      "fault: worker hangs",
                                      "fault: computing hangs",
                                      "fault: cut link between a worker and a shard",
                                      "fault: cut link between shards",
                                      "fault: slow links between shards",
                                      "fault: shard crash",
                                      "fault: crash of both copies",
                                      "fault: shard that comes back replaced",
                                      "fault: shard that is replaced while it goes on",
                                      "fault: crash of a shard with the only copy",
                                      "fault: late answer of a backup",
                                      "fault: shard without memory",
                                      "fault: slow worker",
                                      "fault: slow evaluations",
                                      "fault: two workers on one device",
                                      "fault: reader that holds what it reads",
                                      "fault: corrupted payload",
                                      "fault: corrupted value",
                                      "fault: push of another era",
                                      "fault: push of an old view",
                                      "fault: push of the next epoch",
                                      "fault: forged push",
                                      "fault: no memory for a job",
                                      "fault: job data that cannot be opened",
                                      "fault: job that cannot be opened",
                                      "fault: model that cannot be built",
                                      "fault: failing unit",
                                      "fault: unit that fails",
                                      "fault: gradient that is not finite",
                                      "fault: lost device",
                                      "fault: failing store",
                                      "fault: step of the wall clock",
                                      "fault: lost decision frame",
                                      "fault: duplicate decision frame",
                                      "fault: late decision frame",
                                      "fault: reordered decision frame",
                                      "ALREADY_COUNTED",
                                      "abandoned calls",
                                      "abandoned heartbeats",
                                      "allocations that failed",
                                      "abandoned units",
                                      "blocked pulls",
                                      "calls without answer",
                                      "captures",
                                      "checkpoints refused after faults healed",
                                      "checkpoints that were asked for",
                                      "checkpoints that were asked for, in vain",
                                      "checkpoints that were deleted",
                                      "checkpoints that were deleted on request",
                                      "checkpoints that were listed",
                                      "checkpoints that were made",
                                      "checkpoints with a copy for evaluation",
                                      "checkpoints: tensors compared",
                                      "checkpoints: first tensors compared",
                                      "checkpoints: policies compared",
                                      "coordinator restarts",
                                      "copies for evaluation",
                                      "copies of values of ended jobs",
                                      "copies: records compared",
                                      "copies: states compared",
                                      "copies: values compared",
                                      "copies: values compared at the end",
                                      "cuts",
                                      "decisions",
                                      "dedup hits",
                                      "drained workers",
                                      "drained shards",
                                      "duplicate reports",
                                      "duplicate subtrees",
                                      "early records",
                                      "ended jobs read after each shard was asked to stop",
                                      "epochs evaluated",
                                      "fenced records",
                                      "fenced requests",
                                      "held sums",
                                      "frames that waited for orders",
                                      "frames larger than their window",
                                      "jobs that refused a damaged checkpoint",
                                      "jobs that went on from a checkpoint",
                                      "jobs that went on, compared with a solo run",
                                      "missed captures",
                                      "jobs stopped by NaN",
                                      "jobs whose shard had no memory",
                                      "jobs stopped by overflows",
                                      "jobs submitted after another",
                                      "jobs that no worker can serve",
                                      "jobs that wallTime ended before their first step",
                                      "jobs that wallTime ended without a worker",
                                      "jobs that wallTime stopped",
                                      "jobs that were cancelled",
                                      "jobs that were deleted",
                                      "jobs that were read at their end",
                                      "reads of a job that runs",
                                      "reads that broke off",
                                      "reads that were refused",
                                      "jobs that failed with their shard",
                                      "jobs that may not go back again",
                                      "jobs that went back and succeeded",
                                      "joined retries",
                                      "merged subtrees",
                                      "operations of the disk that took time",
                                      "parts of a step from backup workers",
                                      "parts of an epoch evaluated",
                                      "partitions that stopped themselves",
                                      "partitions whose backups took over",
                                      "policies that waited for another",
                                      "policy switches",
                                      "polls of a queued job",
                                      "polls: a worker hangs",
                                      "polls: a worker is quarantined",
                                      "polls: a worker that does not reach a shard",
                                      "polls: a worker's fault",
                                      "polls: no memory on a worker",
                                      "positions of a primary that was replaced",
                                      "positions that a backup must have",
                                      "promotions",
                                      "pushes sent again",
                                      "refused requests",
                                      "records that took effect",
                                      "repeated records",
                                      "repeated reports",
                                      "repeated: bytes of slots compared",
                                      "repeated: bytes of states compared",
                                      "repeated: bytes of values compared",
                                      "repeated: earlier versions compared",
                                      "repeated: positions compared",
                                      "repeated: states compared",
                                      "repeated: states compared at the end",
                                      "repeated: updates compared",
                                      "reports that were full",
                                      "replaced subtrees",
                                      "requests of an earlier policy",
                                      "resumed backups",
                                      "roster changes",
                                      "rollbacks",
                                      "rollbacks that do not count",
                                      "rollbacks to first values",
                                      "rollbacks to where a job began",
                                      "runs compared with a solo run",
                                      "runs that went back, compared with a solo run",
                                      "sealed steps",
                                      "segments without room",
                                      "seeds run twice",
                                      "snapshots",
                                      "shards that answered at their addresses",
                                      "shared memory that changed after its check",
                                      "snapshots that came whole",
                                      "stale answers of backups",
                                      "stale decisions",
                                      "steps that waited for a late worker",
                                      "streams closed for their memory",
                                      "superseded pulls",
                                      "take-overs from a shard not heard since a start",
                                      "updates below the norm",
                                      "updates that were clipped",
                                      "updates that were skipped",
                                      "whole backups",
                                      "whole backups over slow links",
                                      "worker rejoins",
                                      "workers that left without their device",
                                      "workers that were quarantined"};

struct Options {
  uint64_t seeds = 100;
  uint64_t first = 1;
  uint64_t jobs = std::max(1u, std::thread::hardware_concurrency());
  uint64_t shrink = 400;  // how often a seed is run again with fewer faults, at most
  bool verbose = false;
  bool mutants = false;
  std::optional<std::set<FaultId>> only;  // the only faults that happen
  std::string defence;                    // the only one that is masked; empty: each in turn
};

// Runs f(seed) for each seed on all threads. f returns false to stop early.
template <typename F>
void ForEachSeed(const Options& options, const F& f) {
  std::atomic<uint64_t> next{options.first};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < options.jobs; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        const uint64_t seed = next.fetch_add(1);
        if (seed >= options.first + options.seeds) return;
        if (!f(seed)) stop = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The seed with the fewest faults with which it still violates the promise.
void PrintFewestFaults(const Options& options, const SeedResult& result, Promise promise) {
  const Shrunk shrunk = Shrink(
      result, [&](const SeedResult& again) { return again.violated.contains(promise); },
      options.shrink);
  std::printf("%s", ShrunkToString(shrunk).c_str());
}

int Run(const Options& options) {
  std::vector<SeedResult> results(options.seeds);
  std::vector<char> differs(options.seeds);
  ForEachSeed(options, [&](uint64_t seed) {
    const std::set<FaultId>* const allowed = options.only ? &*options.only : nullptr;
    SeedResult& result = results[seed - options.first] = RunSeed(seed, allowed);
    if (seed % kTwiceEvery != 0) return true;
    ++result.counts["seeds run twice"];
    differs[seed - options.first] = RunSeed(seed, allowed).trace != result.trace;
    return true;
  });
  std::map<std::string, uint64_t> counts;
  uint64_t bad = 0, faults = 0;
  bool shrunk = false;
  absl::Duration simulated;
  for (const SeedResult& result : results) {
    simulated += result.simulated;
    faults += result.faults.size();
    for (const auto& [what, times] : result.counts) counts[what] += times;
    for (const Violation& v : result.violations) {
      std::printf("seed %lu: %s: %s\n", result.seed, PromiseName(v.promise), v.what.c_str());
    }
    const bool other = differs[result.seed - options.first] != 0;
    if (other) std::printf("seed %lu: another trace the second time\n", result.seed);
    const bool first = !shrunk && !options.only && !result.violations.empty();
    if (first) PrintFewestFaults(options, result, result.violations.front().promise);
    shrunk = shrunk || first;
    if (other || !result.violations.empty()) ++bad;
    if (options.verbose) std::printf("seed %lu: trace %016lx\n", result.seed, result.trace);
  }
  for (const auto& [what, times] : counts) std::printf("%-48s %lu\n", what.c_str(), times);
  for (const char* what : kMustReach) {
    if (options.seeds < kSeedsThatReachAll || counts[what] > 0) continue;
    std::printf("never reached: %s\n", what);
    ++bad;
  }
  // Then little else goes on while a process waits for the disk.
  if (options.seeds >= kSeedsThatReachAll &&
      counts["operations of the disk that took time"] <
          counts["operations of the disk that took no time"]) {
    std::printf("most operations of the disk took no time\n");
    ++bad;
  }
  std::printf("%lu seeds, %s simulated, %lu faults a seed, %lu violations\n", options.seeds,
              absl::FormatDuration(absl::Trunc(simulated, absl::Seconds(1))).c_str(),
              faults / options.seeds, bad);
  return bad == 0 ? 0 : 1;
}

#ifdef STARLING_MUTANTS

// The promise whose checker must notice that the defence is masked; nullopt: what it defends
// against does not exist yet.
std::optional<Promise> PromiseOf(Defence defence) {
  switch (defence) {
    case Defence::kDedup:
    case Defence::kDigest:
    case Defence::kIncarnationFence:
    case Defence::kRunFence:
    case Defence::kViewFence:
    case Defence::kKeepVersion: return Promise::kG1;
    case Defence::kRequiredClock:
    case Defence::kJoinerClock:
    case Defence::kPolicyHold:
    case Defence::kPolicyDrain:
    case Defence::kPolicyFence: return Promise::kG2;
    case Defence::kReductionOrder: return Promise::kG3;
    case Defence::kCommitBeforeApply:
    case Defence::kBackupView:
    case Defence::kAckView:
    case Defence::kSnapshotSlots:
    case Defence::kWholeBeforeLead: return Promise::kG4;
    case Defence::kGeneration:
    case Defence::kCoordinatorPersist: return Promise::kG5;
    case Defence::kBatchKey:
    case Defence::kJoin:
    case Defence::kEvaluationRangeOnce: return Promise::kG6;
    case Defence::kEpochGate:
    case Defence::kCutBeforeNext: return Promise::kG7;
    case Defence::kFiniteCheck: return Promise::kFinite;
    case Defence::kDecisionHold:
    case Defence::kDecisionStep:
    case Defence::kReportOnce:
    case Defence::kReportStep:
    case Defence::kSkipTogether: return Promise::kDecision;
    case Defence::kReportRepeat:
    case Defence::kSendAgain: return Promise::kG8;
    case Defence::kBufferUntilAck: return Promise::kBuffer;
    case Defence::kOpenStream: return Promise::kStream;
    case Defence::kReaders: return Promise::kReads;
    case Defence::kMemoryFirst: return Promise::kOneJob;
    case Defence::kHostAnswer: return Promise::kAnswer;
    case Defence::kDrop: return Promise::kMemory;
    case Defence::kValueInUse: return Promise::kBytes;
    case Defence::kRecordScalars:
    case Defence::kRecordClock:
    case Defence::kStateClocks:
    case Defence::kSlotsByRecords: return Promise::kRepeat;
    case Defence::kCheckpointBoundary:
    case Defence::kCheckpointPin:
    case Defence::kCheckpointSlots:
    case Defence::kCheckpointCopy: return Promise::kCut;
    case Defence::kReadBack:
    case Defence::kFileSync:
    case Defence::kFolderSync:
    case Defence::kManifestLast:
    case Defence::kManifestCheck:
    case Defence::kRootSync:
    case Defence::kDropSync: return Promise::kWhole;
    case Defence::kKeepOlder: return Promise::kKept;
    case Defence::kRestoreDigest:
    case Defence::kRestoreSlots: return Promise::kGoesOn;
    case Defence::kRestoreScale: return Promise::kDecision;
    // One owner applies what it acknowledges, in order, and a backup applies what it has at once:
    // no primary is behind what a puller saw.
    case Defence::kMinLsn:
    case Defence::kCount: return std::nullopt;
  }
  return std::nullopt;
}

void PrintCaught(const Options& options, const SeedResult& result, Promise promise) {
  PrintFewestFaults(options, result, promise);
  const auto violates = std::find_if(result.violations.begin(), result.violations.end(),
                                     [&](const Violation& v) { return v.promise == promise; });
  if (violates == result.violations.end()) return;  // only the first ones are kept
  std::printf("with all faults: %s: %s\n", PromiseName(promise), violates->what.c_str());
}

int RunMutants(Options options) {
  int caught_defences = 0, escaped = 0, skipped = 0;
  options.seeds = kSeedsPerMutant;
  std::printf("%-24s %-24s %s\n", "masked defence", "promise", "verdict");
  for (int i = 0; i < static_cast<int>(Defence::kCount); ++i) {
    const auto defence = static_cast<Defence>(i);
    if (!options.defence.empty() && options.defence != DefenceName(defence)) continue;
    const std::optional<Promise> promise = PromiseOf(defence);
    if (!promise.has_value()) {
      std::printf("%-24s %-24s cannot be missed yet\n", DefenceName(defence), "-");
      ++skipped;
      continue;
    }
    MaskDefence(defence);
    std::atomic<uint64_t> caught_by{0};
    std::atomic<uint64_t> seeds{0};
    ForEachSeed(options, [&](uint64_t seed) {
      ++seeds;
      const SeedResult result = RunSeed(seed);
      const bool caught = result.violated.contains(*promise);
      // Other threads may have caught it in a later seed.
      for (uint64_t by = caught_by; caught && (by == 0 || seed < by);) {
        if (caught_by.compare_exchange_weak(by, seed)) break;
      }
      return !caught;
    });
    if (caught_by != 0 && options.verbose) PrintCaught(options, RunSeed(caught_by), *promise);
    MaskDefence(Defence::kCount);
    ++(caught_by == 0 ? escaped : caught_defences);
    std::printf("%-24s %-24s %s %lu\n", DefenceName(defence), PromiseName(*promise),
                caught_by == 0 ? "ESCAPED in seeds:" : "caught by seed",
                caught_by == 0 ? seeds.load() : caught_by.load());
    std::fflush(stdout);
  }
  std::printf("%d caught, %d escaped, %d cannot be missed yet\n", caught_defences, escaped,
              skipped);
  return escaped == 0 ? 0 : 1;
}

#else

int RunMutants(const Options&) {
  std::fprintf(stderr, "sim: this build cannot mask defences; run tools/sim.sh --mutants\n");
  return 2;
}

#endif

int Usage() {
  std::fprintf(
      stderr,
      "usage: sim [--seeds N] [--seed FIRST] [--jobs J] [--verbose] [--shrink RUNS] "
      "[--only KIND#N,...] [--transcript PROCESS] | --mutants [--defence NAME] [--verbose]\n");
  return 2;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--verbose") {
      options.verbose = true;
    } else if (flag == "--mutants") {
      options.mutants = true;
    } else if (i + 1 == argc) {
      return Usage();
    } else if (flag == "--defence") {
      options.defence = argv[++i];
    } else if (flag == "--only") {
      options.only = ParseFaults(argv[++i]);
      if (!options.only) return Usage();
    } else if (flag == "--transcript") {
      World::transcript_of() = argv[++i];
    } else {
      uint64_t* number = flag == "--seeds"    ? &options.seeds
                         : flag == "--seed"   ? &options.first
                         : flag == "--jobs"   ? &options.jobs
                         : flag == "--shrink" ? &options.shrink
                                              : nullptr;
      if (number == nullptr || !absl::SimpleAtoi(argv[++i], number) || *number == 0) return Usage();
    }
  }
  return options.mutants ? RunMutants(options) : Run(options);
}

}  // namespace
}  // namespace starling::sim

int main(int argc, char** argv) { return starling::sim::Main(argc, argv); }
