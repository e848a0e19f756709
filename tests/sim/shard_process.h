// A shard's process: the host that ships, on simulated loops, streams and calls.
#ifndef STARLING_TESTS_SIM_SHARD_PROCESS_H_
#define STARLING_TESTS_SIM_SHARD_PROCESS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/checkpoint/disk.h"
#include "common/trace/span_ring.h"
#include "server/shard/host/shard_host.h"
#include "tests/sim/world.h"

namespace starling::sim {

class Cluster;

class ShardProcess : public Process {
 public:
  // `old_values_bytes_max`: how much memory readers may keep it from freeing.
  ShardProcess(Cluster* cluster, const std::string& process_name, uint64_t seed,
               std::optional<uint64_t> old_values_bytes_max);
  ~ShardProcess();

  void Start();
  // As kill -9 does.
  void Crash();
  // SIGTERM: leaves when the coordinator lets it, and is started again.
  void Drain();
  bool draining() const { return draining_; }
  // Bytes of all its tensors.
  uint64_t allocated() const { return host_ == nullptr ? 0 : host_->memory().allocated(); }

  // Until then other processes take all memory, and allocations fail.
  absl::Time no_memory_until = absl::InfinitePast();

 private:
  class Observer;
  absl::StatusOr<std::shared_ptr<const ShardJobPlan>> MakePlan(
      const JobDescription& job, std::shared_ptr<CheckpointDisk> disk);
  void Bury();
  void MayLeave(const std::string& text);

  Cluster* const cluster_;
  const uint64_t seed_;
  const std::optional<uint64_t> old_values_bytes_max_;
  SpanRing spans_{16};  // never read
  bool draining_ = false;
  bool leaving_ = false;
  std::unique_ptr<Observer> observer_;
  std::unique_ptr<ShardHost> host_;
  struct Dead {
    std::unique_ptr<Observer> observer;
    std::unique_ptr<ShardHost> host;
  };
  std::vector<Dead> dead_;  // a thread of the process is on the stack
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_SHARD_PROCESS_H_
