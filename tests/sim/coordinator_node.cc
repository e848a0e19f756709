#include "tests/sim/coordinator_node.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace starling::sim {
namespace {

constexpr absl::Duration kZombieLife = absl::Seconds(3);

}  // namespace

// Short, so that much happens in little simulated time. The relations are those of the defaults.
CoordinatorOptions SimCoordinatorOptions() {
  CoordinatorOptions options;
  options.overview_ended = 0;  // all are archived at once
  options.liveness = absl::Milliseconds(1500);
  options.start_grace = absl::Seconds(1);
  options.inspect_deadline = options.inspector_wait = absl::Seconds(3);
  options.release_deadline = absl::Seconds(4);
  options.metrics_wait = absl::Milliseconds(500);
  options.lease_ahead = absl::Milliseconds(300);
  return options;
}

CoordinatorNode::CoordinatorNode(World* world, ControlTruth* truth) : world_(world), truth_(truth) {
  name = "coordinator";
}

// The process died before this action: it, and all that follow, do not happen.
bool CoordinatorNode::Instance::Counts() {
  if (dead) return false;
  if (zombie_ || node_->instance_.get() != this) return true;
  if (node_->actions_left_ < 0) return true;
  if (node_->actions_left_-- > 0) return true;
  dead = true;
  return false;
}

void CoordinatorNode::Instance::Persist(const StoreBatch& batch) {
  if (!Counts() || node_->instance_.get() != this) return;
  for (const std::string& key : batch.deletes) node_->store_.erase(key);
  for (const auto& [key, value] : batch.puts) node_->store_[key] = value;
}

void CoordinatorNode::Instance::Reply(CallId call, CoordinatorReply reply) {
  if (!Counts()) return;
  const auto it = calls.find(call);
  if (it == calls.end()) return;
  Answer answer = std::move(it->second);
  calls.erase(it);
  answer(std::move(reply));
}

void CoordinatorNode::Start() {
  ++life;
  alive = true;
  actions_left_ = -1;
  instance_ = std::make_shared<Instance>(this, false);
  auto core = Coordinator::Create(SimCoordinatorOptions(), store_);
  if (!core.ok()) {
    world_->Violate(Promise::kG5, absl::StrCat("the coordinator cannot start on its own state: ",
                                               std::string(core.status().message())));
    alive = false;
    return;
  }
  instance_->core = *std::move(core);
  core_ = instance_->core.get();
  core_->Start(world_->now(), world_->wall(), *instance_);
  truth_->OnStarted(Generation(core_->generation()));
  Tick(instance_, absl::InfiniteFuture());
}

void CoordinatorNode::Tick(std::shared_ptr<Instance> instance, absl::Time until) {
  // A zombie's ticks are the world's: the process slot lives on in another life.
  world_->After(kCoordinatorTickPeriod, instance == zombie_ ? nullptr : this,
                [this, instance, until] {
                  if (instance->dead || world_->now() > until) return;
                  Step(instance, TickEvent{});
                  Tick(instance, until);
                });
}

void CoordinatorNode::Step(const std::shared_ptr<Instance>& instance,
                           const CoordinatorEvent& event) {
  if (instance->dead) return;
  world_->Trace(event.index(), 1);
  instance->core->Step(event, world_->now(), world_->wall(), *instance);
  if (instance->dead && instance == instance_ && alive) {
    world_->Count("fault: coordinator crash within a step");
    Crash();
  }
}

void CoordinatorNode::Crash() {
  if (!alive) return;
  alive = false;
  ++life;
  actions_left_ = -1;
  core_ = nullptr;
  if (std::exchange(leave_zombie_, false) && !instance_->dead) {
    world_->Count("fault: zombie coordinator");
    zombie_ = std::exchange(instance_, nullptr);
    zombie_->calls.clear();
    Tick(zombie_, world_->now() + kZombieLife);
    world_->After(kZombieLife, nullptr, [z = zombie_] { z->dead = true; });
    return;
  }
  instance_->dead = true;
}

void CoordinatorNode::Serve(const MakeEvent& event, uint64_t generation_seen, Answer answer) {
  std::shared_ptr<Instance> instance = instance_;
  const bool knows = generation_seen != 0 && generation_seen == generation();
  if (zombie_ != nullptr && !zombie_->dead && knows && world_->random().Chance(0.1)) {
    world_->Count("calls that reached a zombie coordinator");
    instance = zombie_;
  }
  if (instance == nullptr || instance->dead) return;
  const CallId call(++last_call_);
  instance->calls[call] = std::move(answer);
  Step(instance, event(call));
}

}  // namespace starling::sim
