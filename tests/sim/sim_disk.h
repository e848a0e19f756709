// The checkpoint root of a simulated cluster: one disk that the coordinator and all shards see, as
// a shared mount, with its faults. The code that uses it is the hosts' own.
#ifndef STARLING_TESTS_SIM_SIM_DISK_H_
#define STARLING_TESTS_SIM_SIM_DISK_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/checkpoint/disk.h"
#include "common/checkpoint/testing/memory_disk.h"
#include "tests/sim/world.h"

namespace starling::sim {

// Probabilities per operation; all zero once faults have healed.
struct DiskFaults {
  double no_space = 0;  // of what writes
  double io_error = 0;
  // An Append stores something else, silently: one to a shard's file, one to a manifest.
  double file_damage = 0;
  double manifest_damage = 0;
  double slow = 0;
};

// Told of what becomes visible to others, right after it has. Not thread-safe.
class DiskObserver {
 public:
  virtual ~DiskObserver() = default;
  virtual void OnRenamed(const std::string& from, const std::string& to) = 0;  // folders
  virtual void OnRemoved(const std::string& folder) = 0;                       // a file in it
};

// Not thread-safe: one thread runs the world. What it mounts must not outlive it.
class SimDisk {
 public:
  // `observer` outlives it.
  SimDisk(World* world, std::shared_ptr<MemoryDisk> stored, DiskObserver* observer)
      : world_(world), stored_(std::move(stored)), observer_(observer) {}

  // The disk as the process sees it in its present life. `die` kills the process, whose threads go
  // on to the end of what they are doing, and reach the disk no more.
  std::shared_ptr<CheckpointDisk> Mount(Process* process, bool shard, std::function<void()> die);

  DiskFaults& faults() { return faults_; }

  // The process that does the so many-th operation from now on dies before it; -1: none does.
  // Those of shards count, or those of the coordinator.
  void KillAt(int operation, bool of_shards) {
    kill_at_ = operation;
    kills_shards_ = of_shards;
  }
  // The machine with the disk starts again: what was not synced may be lost, and files that were
  // open are not.
  void Restart(Random& random);
  // Until then this process sees a folder in which nothing is: its mount is gone.
  void Unmount(const Process* process, absl::Time until);

 private:
  class Mounted;
  class OpenFile;

  World* const world_;
  const std::shared_ptr<MemoryDisk> stored_;
  DiskObserver* const observer_;
  MemoryDisk empty_;
  DiskFaults faults_;
  int kill_at_ = -1;
  bool kills_shards_ = false;
  const Process* unmounted_ = nullptr;
  absl::Time unmounted_until_ = absl::InfinitePast();
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_SIM_DISK_H_
