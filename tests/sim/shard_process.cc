#include "tests/sim/shard_process.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"
#include "tests/sim/sim_coordinator_client.h"
#include "tests/sim/sim_loop.h"

namespace starling::sim {
namespace {

constexpr uint64_t kMemoryBytes = uint64_t{1} << 40;
// A supervisor restarts a process that has exited.
constexpr absl::Duration kStartedAgainAfter = absl::Seconds(1);

}  // namespace

ShardProcess::ShardProcess(Cluster* cluster, const std::string& process_name, uint64_t seed,
                           std::optional<uint64_t> old_values_bytes_max)
    : cluster_(cluster), seed_(seed), old_values_bytes_max_(old_values_bytes_max) {
  name = process_name;
}

ShardProcess::~ShardProcess() { Crash(); }

void ShardProcess::Start() {
  ++life;
  alive = true;
  no_memory_until = absl::InfinitePast();
  draining_ = leaving_ = false;
  World& world = cluster_->world();
  const Identity self{PeerRole::kShard, name};
  host_ = std::make_unique<ShardHost>(
      ShardHost::Options{.self = self,
                         .coordinator = "coordinator",
                         .report_bytes_max = kSimReportBytes,
                         .inject = {.old_values_bytes_max = old_values_bytes_max_}},
      ShardHost::Environment{
          .make_loop = MakeSimLoops(&world, this),
          .available_memory = [this] { return kMemoryBytes - std::min(kMemoryBytes, allocated()); },
          .return_memory = [] {},
          .allocate = [this, &world](size_t elements) -> std::shared_ptr<float> {
            if (world.now() >= no_memory_until) return AllocateFloats(elements);
            world.Count("allocations that failed");
            return nullptr;
          },
          .make_plan = [this](const JobDescription& job, auto) { return MakePlan(job); },
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
  host_->Start(name, MakeSimCoordinatorClient(cluster_, this, seed_),
               MakeSimCoordinatorClient(cluster_, this, seed_));
}

void ShardProcess::Crash() {
  if (!alive) return;
  alive = false;
  ++life;
  cluster_->network().CloseAllOf(this);
  host_.reset();
}

void ShardProcess::Drain() {
  if (!alive || std::exchange(draining_, true)) return;
  host_->Drain([this](const DrainOrders& orders) {
    if (orders.may_leave()) MayLeave(orders.text());
  });
}

// Called within the host, which ends later.
void ShardProcess::MayLeave(const std::string& text) {
  if (std::exchange(leaving_, true)) return;
  cluster_->OnShardLeaves(*this, text);
  host_->Leave([this] {
    cluster_->world().After(absl::ZeroDuration(), this, [this] {
      cluster_->world().Count("drained shards");
      Crash();
      cluster_->world().After(kStartedAgainAfter, nullptr, [this] {
        if (!alive) Start();
      });
    });
  });
}

// With the partitions and first values that the checker expects.
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
