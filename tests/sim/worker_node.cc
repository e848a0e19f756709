#include "tests/sim/worker_node.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/version/version.h"
#include "tests/sim/cluster.h"
#include "tests/sim/sim_coordinator_client.h"
#include "tests/sim/sim_loop.h"
#include "worker/core/testing/transcript.h"

namespace starling::sim {
namespace {

namespace action = session::action;
namespace event = session::event;

// A supervisor restarts a process that has exited.
constexpr absl::Duration kRestartAfter = absl::Seconds(1);

// Whether only orders can cause this action.
bool ComesOfOrders(const session::Action& a) {
  return std::holds_alternative<action::Register>(a) ||
         std::holds_alternative<action::Prepare>(a) ||
         std::holds_alternative<action::CloseJob>(a) ||
         std::holds_alternative<action::Compute>(a) || std::holds_alternative<action::Abandon>(a) ||
         std::holds_alternative<action::Disconnect>(a) || std::holds_alternative<action::Exit>(a);
}

}  // namespace

WorkerNode::WorkerNode(Cluster* cluster, const std::string& process_name, uint64_t seed)
    : cluster_(cluster),
      world_(&cluster->world()),
      seed_(seed),
      wire_(world_, &cluster->network()),
      executor_(cluster, this, &wire_) {
  name = process_name;
}

void WorkerNode::Start() {
  ++life;
  alive = true;
  exited_ = false;
  generation_ = 0;
  up_.clear();
  wire_.Restart();
  WorkerHostOptions options;
  options.session.name = name;
  options.session.retry_least = absl::Milliseconds(20);
  options.session.retry_most = absl::Milliseconds(500);
  options.session.leave_deadline = absl::Seconds(2);
  options.session.drain_deadline = absl::Seconds(4);
  options.coordinator = "coordinator";
  options.registration.set_role(WORKER);
  options.registration.set_name(name);
  options.registration.set_address(name);
  options.registration.set_process(Mix(seed_, life));
  options.registration.mutable_version()->set_version("0.1.0");
  options.registration.mutable_version()->set_protocol(ProtocolVersion());
  WorkerHostParts parts;
  parts.session = std::make_unique<SimLoop>(world_, this);
  parts.coordinator = MakeSimCoordinatorClient(cluster_, this, seed_);
  parts.streams = cluster_->streams().MakeClient(this, {PeerRole::kWorker, name});
  parts.runner = executor_.RunnerMaker();
  parts.watch = this;
  host_ = std::make_unique<WorkerHost>(std::move(options), std::move(parts), &spans_,
                                       [this](const absl::Status& status) { OnExit(status); });
  host_->Start();
}

void WorkerNode::Crash() {
  alive = false;
  ++life;
  wire_.OnGone();
  cluster_->network().CloseAllOf(this);
  session_ = nullptr;
  host_.reset();
}

void WorkerNode::OnExit(const absl::Status& status) {
  exited_ = true;
  world_->Count(status.ok() ? "drained workers"
                : absl::StrContains(status.message(), kWorkerFault)
                    ? "workers that left without their device"
                    : "workers that gave up draining");
  world_->After(absl::ZeroDuration(), nullptr, [this, mine = life] {
    if (alive && life == mine) Crash();
  });
  world_->After(kRestartAfter, nullptr, [this] {
    if (!alive) Start();
  });
}

void WorkerNode::Drain() { host_->Drain(); }

void WorkerNode::CutStreams() { cluster_->network().CutAllOf(this); }

std::string WorkerNode::ToString() const {
  if (!alive) return absl::StrCat(name, " is down");
  return absl::StrCat(name, ": ", session_ == nullptr ? "new" : session_->ToString());
}

void WorkerNode::OnEvent(const session::Session& session, const session::Event& event) {
  session_ = &session;
  world_->Trace(event.index(), Mix(seed_, life));
  if (World::transcript_of() == name) {
    std::printf("%s > %s\n", absl::FormatDuration(world_->elapsed()).c_str(),
                session::ToString(event).c_str());
  }
  old_orders_ = false;
  if (const auto* orders = std::get_if<event::Orders>(&event)) {
    const uint64_t generation = orders->orders.generation();
    old_orders_ = generation < generation_;
    if (old_orders_) world_->Count("orders of an old generation");
    generation_ = std::max(generation_, generation);
  } else if (const auto* registered = std::get_if<event::Registered>(&event)) {
    generation_ = std::max(generation_, registered->generation.value);
  } else if (const auto* up = std::get_if<event::StreamUp>(&event)) {
    up_.insert(up->shard);
  } else if (const auto* down = std::get_if<event::StreamDown>(&event)) {
    up_.erase(down->shard);
  } else if (const auto* frame = std::get_if<event::Frame>(&event)) {
    if (up_.contains(frame->shard)) return;
    world_->Violate(Promise::kStream,
                    absl::StrCat(name, " takes an answer of a stream that is over: ",
                                 FrameToString(frame->header)));
  }
}

void WorkerNode::OnAction(const session::Action& action) {
  if (World::transcript_of() == name) std::printf("    %s\n", session::ToString(action).c_str());
  if (old_orders_ && ComesOfOrders(action)) {
    world_->Violate(
        Promise::kG5,
        absl::StrCat(name, " followed orders of an older generation than ", generation_));
  }
  if (std::holds_alternative<action::Abandon>(action)) world_->Count("abandoned units");
  if (const auto* close = std::get_if<action::CloseJob>(&action)) wire_.OnClosed(close->run);
  if (const auto* disconnect = std::get_if<action::Disconnect>(&action)) {
    up_.erase(disconnect->shard);
  }
  const auto* enrolment = std::get_if<action::Register>(&action);
  if (enrolment == nullptr) return;
  if (enrolment->registration > 0) world_->Count("worker rejoins");
  wire_.OnGone();
}

}  // namespace starling::sim
