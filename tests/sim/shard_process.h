// A shard's process: the host that ships, on simulated loops, streams and calls.
#ifndef STARLING_TESTS_SIM_SHARD_PROCESS_H_
#define STARLING_TESTS_SIM_SHARD_PROCESS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "common/trace/span_ring.h"
#include "server/shard/host/shard_host.h"
#include "tests/sim/world.h"

namespace starling::sim {

class Cluster;

class ShardProcess : public Process {
 public:
  // `memory_bytes`: what is available to its tensors.
  ShardProcess(Cluster* cluster, const std::string& process_name, uint64_t seed,
               uint64_t memory_bytes);
  ~ShardProcess();

  void Start();
  // Without a goodbye.
  void Crash();
  // Bytes of all its tensors.
  uint64_t allocated() const { return host_ == nullptr ? 0 : host_->memory().allocated(); }

 private:
  absl::StatusOr<std::shared_ptr<const ShardJobPlan>> MakePlan(const JobDescription& job);

  Cluster* const cluster_;
  const uint64_t seed_;
  const uint64_t memory_bytes_;
  SpanRing spans_{16};  // never read
  std::unique_ptr<ShardHost> host_;
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_SHARD_PROCESS_H_
