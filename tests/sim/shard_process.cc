#include "tests/sim/shard_process.h"

#include <algorithm>
#include <set>
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

// Passes on what partitions of one life of the process do.
class ShardProcess::Observer final : public PartitionObserver {
 public:
  explicit Observer(ShardWatch* watch) : watch_(watch) {}

  void OnStep(const Partition& core, const PartitionEvent& event,
              const PartitionActions& actions) override {
    cores_.insert(&core);
    watch_->OnStep(core, event, actions);
  }
  void OnCarriedOut(const Partition& core, const Record& record, Payload payload,
                    const HostedSlice& slice) override {
    watch_->OnCarriedOut(core, record, payload, slice);
  }
  void OnEffect(const Partition& core, const Record& record) override {
    watch_->OnEffect(core, record);
  }
  void OnGone(const Partition& core, absl::Span<const HostedSlice> slices) override {
    cores_.erase(&core);
    watch_->OnGone(core, slices);
  }
  void OnDied() {
    for (const Partition* const core : cores_) watch_->OnDied(*core);
  }

 private:
  ShardWatch* const watch_;
  std::set<const Partition*> cores_;
};

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
  observer_ = std::make_unique<Observer>(&cluster_->watch());
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
          .make_plan =
              [this](const JobDescription& job, std::shared_ptr<CheckpointDisk> disk) {
                return MakePlan(job, std::move(disk));
              },
          .checkpoint_disk = cluster_->MountDisk(this, /*shard=*/true),
          .spans = &spans_,
          .observer = observer_.get(),
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
  if (sleeping > 0) observer_->OnDied();
  dead_.push_back({std::move(observer_), std::move(host_)});
  Bury();
}

// One that died while it blocked is on the stack.
void ShardProcess::Bury() {
  if (sleeping == 0) return dead_.clear();
  cluster_->world().After(absl::Milliseconds(1), nullptr, [this] { Bury(); });
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
    const JobDescription& job, std::shared_ptr<CheckpointDisk> disk) {
  auto made = MakeShardJobPlan(job, std::move(disk));
  if (!made.ok()) {
    cluster_->world().Violate(Promise::kG8, absl::StrCat("a partition cannot be made: ",
                                                         std::string(made.status().message())));
    return made;
  }
  // What reads a checkpoint refers to the plan that was made.
  const std::shared_ptr<ShardJobPlan> plan(new ShardJobPlan(**made),
                                           [made = *made](ShardJobPlan* copy) { delete copy; });
  plan->layout = cluster_->Truth(job)->layout();
  if (job.has_restore()) return plan;
  plan->first_values = [](const Slice& slice, float* out) {
    const Values values = InitialValues(slice);
    std::copy(values.begin(), values.end(), out);
    return absl::OkStatus();
  };
  return plan;
}

}  // namespace starling::sim
