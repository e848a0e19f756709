#include "tests/sim/shard_process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"
#include "tests/sim/sim_coordinator_client.h"
#include "tests/sim/sim_loop.h"

namespace starling::sim {

ShardProcess::ShardProcess(Cluster* cluster, const std::string& process_name, uint64_t seed,
                           uint64_t memory_bytes)
    : cluster_(cluster), seed_(seed), memory_bytes_(memory_bytes) {
  name = process_name;
}

ShardProcess::~ShardProcess() { Crash(); }

void ShardProcess::Start() {
  ++life;
  alive = true;
  World& world = cluster_->world();
  const Identity self{PeerRole::kShard, name};
  host_ = std::make_unique<ShardHost>(
      ShardHost::Options{
          .self = self, .coordinator = "coordinator", .report_bytes_max = kSimReportBytes},
      ShardHost::Environment{
          .make_loop = MakeSimLoops(&world, this),
          .available_memory =
              [this] { return memory_bytes_ - std::min(memory_bytes_, allocated()); },
          .return_memory = [] {},
          .make_plan = [this](const JobDescription& job) { return MakePlan(job); },
          .spans = &spans_,
          .observer = &cluster_->watch(),
          .on_failed =
              [&world, this](const absl::Status& status) {
                world.Violate(Promise::kG8,
                              absl::StrCat(name, " gives up: ", std::string(status.message())));
              }},
      cluster_->streams().MakeClient(this, self));
  cluster_->streams().Listen(this, name,
                             [this](std::shared_ptr<FrameStream> stream, const PeerIdentity& peer) {
                               return host_->Accept(std::move(stream), peer);
                             });
  host_->Start(name, MakeSimCoordinatorClient(cluster_, this, seed_));
}

void ShardProcess::Crash() {
  if (!alive) return;
  alive = false;
  ++life;
  cluster_->network().CloseAllOf(this);
  host_.reset();
}

// The partitions and first values of the job are those that the checker knows.
absl::StatusOr<std::shared_ptr<const ShardJobPlan>> ShardProcess::MakePlan(
    const JobDescription& job) {
  auto made = MakeShardJobPlan(job);
  if (!made.ok()) {
    cluster_->world().Violate(Promise::kG8, absl::StrCat("a partition cannot be made: ",
                                                         std::string(made.status().message())));
    return made;
  }
  auto plan = std::make_shared<ShardJobPlan>(**made);
  plan->layout = cluster_->Truth(job)->layout();
  plan->first_values = [](const Slice& slice, float* out) {
    const Values values = InitialValues(slice);
    std::copy(values.begin(), values.end(), out);
    return absl::OkStatus();
  };
  return std::shared_ptr<const ShardJobPlan>(std::move(plan));
}

}  // namespace starling::sim
