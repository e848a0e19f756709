// Simulated time: one queue of events for all processes of a cluster, in one thread. Everything is
// a function of the seed.
#ifndef STARLING_TESTS_SIM_WORLD_H_
#define STARLING_TESTS_SIM_WORLD_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace starling::sim {

// splitmix64 (Steele, Lea and Flood 2014): short, and good enough here.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  // In [0, n).
  uint64_t Below(uint64_t n) { return Next() % n; }
  // In [least, most].
  int64_t Between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(Below(most - least + 1));
  }
  bool Chance(double p) { return static_cast<double>(Next() >> 11) * 0x1p-53 < p; }
  absl::Duration Between(absl::Duration least, absl::Duration most) {
    return least + absl::Nanoseconds(Below(absl::ToInt64Nanoseconds(most - least) + 1));
  }

 private:
  uint64_t state_;
};

inline uint64_t Mix(uint64_t a, uint64_t b) { return Random(a * 0x9E3779B97F4A7C15 + b).Next(); }

// A process slot. Events scheduled in one life of the process do not happen in the next.
struct Process {
  std::string name;
  uint32_t life = 0;
  bool alive = false;
  absl::Time paused_until = absl::InfinitePast();
  // Until then the coordinator does not hear it, and other shards hear later what it sends; and it
  // does not hear the coordinator. Others are not concerned.
  absl::Time unheard_until = absl::InfinitePast();
  absl::Time deaf_until = absl::InfinitePast();
  int calls_lost = 0;  // in a row
  uint64_t calls = 0;
  uint64_t last_call_served = 0;
  int sleeping = 0;  // threads that are within World::Sleep: what they use is not destroyed
};

// A fault that may happen: the number-th of its kind. The same one happens at the same place again
// as long as what comes before it stays the same.
struct FaultId {
  std::string kind;
  uint64_t number = 0;
  friend auto operator<=>(const FaultId&, const FaultId&) = default;
};
struct Fault {
  FaultId id;
  absl::Duration at;
  std::string who;
};
// The longest of those that last, each counted from its fault.
inline constexpr absl::Duration kUnmountedMost = absl::Seconds(1);  // a shard's checkpoint folder
inline constexpr absl::Duration kNoMemoryMost = absl::Milliseconds(2500);  // on a shard

enum class Promise {
  kG1,
  kG2,
  kG3,
  kG4,
  kG5,
  kG6,
  kG7,
  kG8,
  kWhole,
  kCut,
  kKept,
  kGoesOn,
  kGoesBack,
  kFinite,
  kDecision,
  kAnswer,
  kBytes,
  kBuffer,
  kStream,
  kReads,
  kOneJob,
  kMemory,
  kRepeat,
};
const char* PromiseName(Promise promise);

struct Violation {
  Promise promise;
  std::string what;
};

class World {
 public:
  // `allowed`: the only faults that happen; null: all. `prefix`: of their kinds.
  explicit World(uint64_t seed, const std::set<FaultId>* allowed = nullptr, std::string prefix = "")
      : random_(seed),
        fault_seed_(Mix(seed, 77)),
        allowed_(allowed),
        fault_prefix_(std::move(prefix)) {}

  absl::Time now() const { return now_; }
  // The wall clock; no promise may depend on it.
  absl::Time wall() const { return now_ + wall_ahead_; }
  void StepWall(absl::Duration by) { wall_ahead_ += by; }
  absl::Duration elapsed() const { return now_ - absl::UnixEpoch(); }
  Random& random() { return random_; }

  // Runs `run` after `delay`, unless `process` (nullptr: the world) is in another life then. If it
  // is paused then, `run` waits until it continues.
  void After(absl::Duration delay, Process* process, std::function<void()> run);

  // False: nothing is scheduled.
  bool RunOne();

  // A thread of `process` blocks for this time, and longer if the process is paused: all others go
  // on. False, at once: no thread may block here (LetSleep), or too many do.
  bool Sleep(absl::Duration time, Process* process);
  // Whether the task that runs now is on a thread that may block. Returns what was set before.
  bool LetSleep(bool may) { return std::exchange(may_sleep_, may); }

  // A fault is due at `who`. False: it is left out, and nothing happens.
  bool Happens(const std::string& kind, const std::string& who) {
    return Happens(kind, who, fault_numbers_[kind]++);
  }
  // The same, with a number that is the same whatever has happened before.
  bool Happens(const std::string& kind, const std::string& who, uint64_t number);
  // Draws whether one happens here, from the kind's own random numbers: what else happens in a run
  // does not change what is drawn.
  bool Draw(const char* kind, double p, absl::string_view who);
  // Those that happened, in order.
  const std::vector<Fault>& faults() const { return faults_; }
  // Of one of them, without the prefix.
  absl::string_view KindOf(const Fault& fault) const {
    return absl::string_view(fault.id.kind).substr(fault_prefix_.size());
  }

  // Adds to the trace what happened, and where.
  void Trace(uint64_t what, uint64_t where) {
    trace_ = Mix(trace_ ^ what, where ^ absl::ToUnixNanos(now_));
  }
  uint64_t trace() const { return trace_; }

  // The process whose events and actions are printed to stdout; empty: none.
  static std::string& transcript_of() {
    static std::string name;
    return name;
  }

  // How often something was reached, by name.
  void Count(const char* what, uint64_t times = 1) { counts_[what] += times; }
  const std::map<std::string, uint64_t>& counts() const { return counts_; }

  // Keeps the first few messages.
  void Violate(Promise promise, const std::string& what);
  const std::vector<Violation>& violations() const { return violations_; }
  const std::set<Promise>& violated() const { return violated_; }

 private:
  struct Entry {
    absl::Time at;
    uint64_t number;
    Process* process;
    uint32_t life;
    std::function<void()> run;
    bool operator>(const Entry& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };

  void WakeAt(absl::Time at, const Process* process);

  absl::Time now_ = absl::UnixEpoch();
  absl::Duration wall_ahead_;
  uint64_t numbers_ = 0;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> queue_;
  std::map<const Process*, std::vector<Entry>> held_;  // of paused processes
  bool may_sleep_ = false;
  int sleepers_ = 0;
  Random random_;
  const uint64_t fault_seed_;
  const std::set<FaultId>* const allowed_;
  const std::string fault_prefix_;
  std::map<std::string, Random, std::less<>> fault_random_;  // by kind
  std::map<std::string, uint64_t> fault_numbers_;            // the next one's, by kind
  std::vector<Fault> faults_;
  uint64_t trace_ = 0;
  std::map<std::string, uint64_t> counts_;
  std::vector<Violation> violations_;
  std::set<Promise> violated_;
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_WORLD_H_
