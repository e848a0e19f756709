#include "tests/sim/coordinator_node.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/coordinator/core/state.pb.h"
#include "tests/sim/sim_loop.h"

namespace starling::sim {
namespace {

constexpr absl::Duration kZombieLife = absl::Seconds(3);

// Short, so that much happens in little simulated time. Their ratios are those of the defaults.
coordinator::CoordinatorOptions SimCoordinatorOptions() {
  coordinator::CoordinatorOptions options;
  options.overview_ended = 0;  // jobs are archived at once
  options.liveness = absl::Milliseconds(2000);
  options.shard_liveness = absl::Milliseconds(1000);
  options.call_wait = absl::Milliseconds(250);
  options.start_grace = absl::Seconds(1);
  options.inspect_deadline = options.inspector_wait = absl::Seconds(3);
  options.submit_deadline = absl::Seconds(10);
  options.release_deadline = absl::Seconds(4);
  options.metrics_wait = absl::Milliseconds(500);
  options.unserved_wait = absl::Seconds(20);
  options.lease_ahead = absl::Milliseconds(300);
  options.hang_least = absl::Seconds(1);
  options.hang_rest = absl::Seconds(1);
  return options;
}

// The job of which this is stored under the key, "": its record; nullopt: something else is.
std::optional<uint64_t> JobOf(absl::string_view key, absl::string_view what) {
  uint64_t job = 0;
  if (!absl::ConsumePrefix(&key, "job/") || !absl::ConsumeSuffix(&key, what) ||
      !absl::SimpleAtoi(key, &job)) {
    return std::nullopt;
  }
  return job;
}

}  // namespace

class CoordinatorNode::Instance {
 public:
  explicit Instance(CoordinatorNode* node) : node_(node) {
    process.name = node->name;
    process.alive = true;
    process.life = 1;
  }

  // False: the process died before this action, so the action does not happen.
  bool Counts() {
    if (!process.alive) return false;
    if (node_->instance_.get() != this || node_->actions_left_ < 0) return true;
    if (node_->actions_left_-- > 0) return true;
    node_->world_->Count("fault: coordinator crash within a step");
    node_->Crash();
    return false;
  }

  Process process;
  std::unique_ptr<coordinator::CoordinatorHost> host;
  bool zombie = false;

 private:
  CoordinatorNode* const node_;
};

class CoordinatorNode::Store final : public coordinator::StateStore {
 public:
  Store(CoordinatorNode* node, std::weak_ptr<Instance> instance)
      : node_(node), instance_(std::move(instance)) {}

  absl::StatusOr<coordinator::StoreSnapshot> Load() override { return node_->store_; }

  absl::Status Apply(const coordinator::StoreBatch& batch) override {
    const std::shared_ptr<Instance> instance = instance_.lock();
    if (instance == nullptr || !instance->Counts()) return absl::AbortedError("the process died");
    if (instance != node_->instance_) return absl::OkStatus();  // a zombie's, never read again
    if (std::exchange(node_->store_fails_, false)) {
      node_->world_->Count("fault: failing store");
      return absl::DataLossError("the disk is broken");
    }
    for (const std::string& key : batch.deletes) {
      node_->store_.erase(key);
      if (const auto job = JobOf(key, "/state")) {
        node_->stored_.erase(*job);
        node_->views_.erase(*job);
        node_->running_.erase(*job);
      }
    }
    std::map<uint64_t, StoredRun> before;
    for (const auto& [key, value] : batch.puts) {
      NoteQuarantined(key, node_->store_[key], value);
      node_->store_[key] = value;
      if (const auto uid = JobOf(key, "")) {
        StoredJob stored;
        if (!stored.ParseFromString(value)) continue;
        before.try_emplace(*uid, node_->stored_[*uid]);
        node_->stored_[*uid].description = stored.description();
      }
      StoredJobState state;
      const auto job = JobOf(key, "/state");
      if (!job.has_value() || !state.ParseFromString(value)) continue;
      before.try_emplace(*job, node_->stored_[*job]);
      node_->stored_[*job].state = state;
      if (state.state() == RUNNING) node_->NoteReplaced(node_->views_[*job], state.views());
      node_->views_[*job].assign(state.views().begin(), state.views().end());
      if (state.state() == RUNNING) {
        node_->running_.insert(*job);
      } else {
        node_->running_.erase(*job);
      }
    }
    for (const auto& [job, run] : before) node_->on_stored(job, run, node_->stored_[job]);
    return absl::OkStatus();
  }

 private:
  void NoteQuarantined(const std::string& key, const std::string& was, const std::string& is) {
    StoredDaemon before, after;
    if (!absl::StartsWith(key, "worker/") || !before.ParseFromString(was)) return;
    if (after.ParseFromString(is) && before.quarantine().empty() && !after.quarantine().empty())
      node_->world_->Count("workers that were quarantined");
  }

  CoordinatorNode* const node_;
  const std::weak_ptr<Instance> instance_;
};

CoordinatorNode::CoordinatorNode(World* world, ControlTruth* truth) : world_(world), truth_(truth) {
  name = "coordinator";
}

CoordinatorNode::~CoordinatorNode() {
  for (const auto& instance : instances_) {
    instance->process.alive = false;
    instance->host.reset();
  }
}

void CoordinatorNode::Start() {
  ++life;
  alive = true;
  paused_until = absl::InfinitePast();
  actions_left_ = -1;
  store_fails_ = false;
  heartbeats_.clear();
  const auto instance = std::make_shared<Instance>(this);
  instance_ = instance;
  instances_.push_back(instance);
  coordinator::CoordinatorOptions options = SimCoordinatorOptions();
  options.new_cluster = new_cluster;
  options.checkpoint_nonce = Mix(new_cluster, life) | 1;
  const std::shared_ptr<CheckpointDisk> disk = mount(&instance->process);
  if (disk != nullptr) options.checkpoint_root = "/simulated/checkpoints";
  auto host = coordinator::CoordinatorHost::Start(
      options, {.store = std::make_unique<Store>(this, instance),
                .on_fatal =
                    [this, weak = std::weak_ptr(instance)](const absl::Status&) {
                      const auto failed = weak.lock();
                      if (failed != nullptr && failed == instance_) Crash();
                    },
                .checkpoints = disk,
                .asker = make_asker(&instance->process),
                .make_loop = MakeSimLoops(world_, &instance->process),
                .wall = [this] { return world_->wall(); }});
  if (!host.ok()) {
    world_->Violate(Promise::kG5, absl::StrCat("the coordinator cannot start on its own state: ",
                                               std::string(host.status().message())));
    return Kill(std::exchange(instance_, nullptr));
  }
  instance->host = *std::move(host);
  truth_->OnStarted(Generation(instance->host->generation()));
}

// Its host may be on the stack, and is destroyed after it has returned.
void CoordinatorNode::Kill(const std::shared_ptr<Instance>& instance) {
  instance->process.alive = false;
  if (instance_ == nullptr || instance_ == instance) alive = false;
  Bury(instance, absl::ZeroDuration());
}

void CoordinatorNode::Bury(const std::weak_ptr<Instance>& killed, absl::Duration after) {
  world_->After(after, nullptr, [this, killed] {
    const std::shared_ptr<Instance> instance = killed.lock();
    if (instance == nullptr) return;
    if (instance->process.sleeping > 0) return Bury(killed, absl::Milliseconds(1));
    instance->host.reset();
  });
}

void CoordinatorNode::Crash() {
  if (!alive) return;
  alive = false;
  ++life;
  actions_left_ = -1;
  const std::shared_ptr<Instance> instance = std::exchange(instance_, nullptr);
  const bool whole = instance->host != nullptr;
  if (std::exchange(leave_zombie_, false) && whole) {
    world_->Count("fault: zombie coordinator");
    if (zombie_ != nullptr) Kill(zombie_);
    zombie_ = instance;
    instance->zombie = true;
    world_->After(kZombieLife, nullptr, [this, weak = std::weak_ptr(instance)] {
      if (const auto killed = weak.lock()) Kill(killed);
    });
    return;
  }
  Kill(instance);
}

void CoordinatorNode::PauseUntil(absl::Time time) {
  paused_until = std::max(paused_until, time);
  if (instance_ != nullptr) instance_->process.paused_until = paused_until;
}

bool CoordinatorNode::Runs(const Process* process) const {
  return instance_ != nullptr && &instance_->process == process;
}

uint64_t CoordinatorNode::generation() const {
  return instance_ == nullptr || instance_->host == nullptr ? 0 : instance_->host->generation();
}

absl::Span<const View> CoordinatorNode::StoredViews(uint64_t job) const {
  const auto views = views_.find(job);
  return views == views_.end() ? absl::Span<const View>() : views->second;
}

bool CoordinatorNode::AllWhole(size_t jobs, const std::set<uint64_t>& living) const {
  size_t placed = 0;
  for (const auto& [job, views] : views_) {
    const bool whole = std::all_of(views.begin(), views.end(), [&](const View& view) {
      return view.backup() != 0 && !view.learning() &&
             living.contains(view.primary_incarnation()) &&
             living.contains(view.backup_incarnation());
    });
    if (!whole) return false;
    placed += views.empty() ? 0 : 1;
  }
  return placed == jobs;
}

CoordinatorNode::Only CoordinatorNode::OnlyOn(uint64_t incarnation) const {
  Only only;
  for (const auto& [job, views] : views_) {
    const bool runs = running_.contains(job);
    const auto& values = stored_.at(job).state.values();
    const bool gone = std::any_of(values.begin(), values.end(),
                                  [](const PartitionValues& v) { return !v.gone().empty(); });
    for (const View& view : views) {
      const bool whole = view.backup() != 0 && !view.learning();
      if (view.primary_incarnation() != incarnation || whole) continue;
      if (runs) {
        ++only.running;
      } else if (!gone) {
        ++only.over;
      }
    }
  }
  return only;
}

void CoordinatorNode::NoteReplaced(const std::vector<View>& before,
                                   const google::protobuf::RepeatedPtrField<View>& after) const {
  if (before.size() != static_cast<size_t>(after.size())) return;
  for (size_t i = 0; i < before.size(); ++i) {
    const uint64_t gone = before[i].primary_incarnation();
    const uint64_t leads = after[static_cast<int>(i)].primary_incarnation();
    if (leads == gone || before[i].backup_incarnation() != leads) continue;
    on_replaced(gone, Unheard(gone));
  }
}

absl::Duration CoordinatorNode::Unheard(uint64_t incarnation) const {
  const auto last = heartbeats_.find(incarnation);
  return last == heartbeats_.end() ? absl::InfiniteDuration() : world_->now() - last->second;
}

coordinator::CoordinatorHost::Done CoordinatorNode::CountedAnswer(
    const std::shared_ptr<Instance>& instance, Answer answer) {
  return [weak = std::weak_ptr(instance), zombie = instance->zombie,
          answer = std::move(answer)](auto reply) {
    const std::shared_ptr<Instance> from = weak.lock();
    if (from == nullptr || from->zombie != zombie) return;  // the connection broke with the crash
    if (from->Counts()) answer(std::move(reply));
  };
}

void CoordinatorNode::Serve(const MakeEvent& event, uint64_t generation_seen, Answer answer) {
  std::shared_ptr<Instance> instance = instance_;
  const bool knows = generation_seen != 0 && generation_seen == generation();
  if (zombie_ != nullptr && zombie_->process.alive && knows && world_->random().Chance(0.1)) {
    world_->Count("calls that reached a zombie coordinator");
    instance = zombie_;
  }
  if (instance == nullptr || instance->host == nullptr) return;
  const auto gone = std::make_shared<bool>(false);  // the caller, which hears nothing then
  const coordinator::CallId call = instance->host->Call(
      event, CountedAnswer(instance, [gone, answer = std::move(answer)](auto reply) {
        if (!*gone) answer(std::move(reply));
      }));
  if (!world_->random().Chance(0.002)) return;
  world_->Count("abandoned calls");
  world_->After(absl::Milliseconds(1), &instance->process, [instance, call, gone] {
    *gone = true;
    instance->host->Gone(call);
  });
}

void CoordinatorNode::ServeSubmit(const SubmitRequest& request, Answer answer) {
  if (instance_ == nullptr || instance_->host == nullptr) return;
  instance_->host->Call(
      [request](coordinator::CallId call) {
        return coordinator::event::Submit{call, request};
      },
      CountedAnswer(instance_, std::move(answer)));
}

// The caller may hang up, or its connection break, before it is answered.
void CoordinatorNode::ServeHeartbeat(const HeartbeatRequest& request, const std::string& caller,
                                     std::function<void(absl::StatusOr<HeartbeatReply>)> answer) {
  if (instance_ == nullptr || instance_->host == nullptr) return;
  const std::shared_ptr<Instance> instance = instance_;
  heartbeats_[request.incarnation()] = world_->now();
  const uint64_t call = instance->host->heartbeats().Take(
      request, caller,
      [weak = std::weak_ptr(instance), answer](absl::StatusOr<HeartbeatReply> reply) {
        const std::shared_ptr<Instance> from = weak.lock();
        if (from != nullptr && from->process.alive) answer(std::move(reply));
      });
  if (!world_->random().Chance(0.002)) return;
  world_->Count("abandoned heartbeats");
  world_->After(absl::Milliseconds(1), &instance->process,
                [instance, call] { instance->host->heartbeats().Gone(call); });
}

}  // namespace starling::sim
