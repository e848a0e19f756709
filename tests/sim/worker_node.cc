#include "tests/sim/worker_node.h"

#include <cstdio>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/data_plan/job_steps.h"
#include "common/version/version.h"
#include "server/shard/apply/verify.h"
#include "tests/sim/cluster.h"
#include "worker/core/transcript.h"

namespace starling::sim {
namespace {

using session::Params;
namespace action = session::action;
namespace event = session::event;

uint64_t DigestOf(const Values& values) {
  const PayloadPiece piece(reinterpret_cast<const uint8_t*>(values.data()),
                           values.size() * sizeof(float));
  return VerifyPayload({&piece, 1}, InstructionSet::kPortable).digest;
}

// What nothing but orders can bring about.
bool ComesOfOrders(const session::Action& a) {
  return std::holds_alternative<action::Register>(a) ||
         std::holds_alternative<action::Prepare>(a) ||
         std::holds_alternative<action::CloseJob>(a) ||
         std::holds_alternative<action::Compute>(a) || std::holds_alternative<action::Abandon>(a) ||
         std::holds_alternative<action::Disconnect>(a) || std::holds_alternative<action::Exit>(a);
}

}  // namespace

WorkerNode::WorkerNode(Cluster* cluster, const std::string& process_name, uint64_t seed)
    : cluster_(cluster), world_(&cluster->world()), seed_(seed) {
  name = process_name;
}

void WorkerNode::Start() {
  ++life;
  alive = true;
  exited_ = false;
  session::SessionOptions options;
  options.name = name;
  options.retry_least = absl::Milliseconds(20);
  options.retry_most = absl::Milliseconds(500);
  options.leave_deadline = absl::Seconds(2);
  session_ = std::make_unique<session::Session>(options);
  generation_ = 0;
  incarnation_ = Incarnation();
  job_.reset();
  buffers_.clear();
  truths_.clear();
  pushes_.clear();
  pulls_.clear();
  entering_ = false;
  policy_ = PolicyNumber();
  Tick();
}

void WorkerNode::Crash() {
  alive = false;
  ++life;
  if (job_.has_value()) job_->truth->OnGone(incarnation_);
  for (auto& [shard, stream] : streams_) cluster_->network().Close(stream, 0);
  streams_.clear();
  connecting_.clear();
}

void WorkerNode::Drain() { Step(event::Drain{}); }

void WorkerNode::CutStreams() {
  for (auto& [shard, stream] : streams_) cluster_->network().Cut(stream);
}

std::string WorkerNode::ToString() const {
  if (!alive) return absl::StrCat(name, " is down");
  return absl::StrCat(name, ": ", session_->ToString());
}

void WorkerNode::Tick() {
  Step(event::Tick{});
  world_->After(absl::Milliseconds(50), this, [this] { Tick(); });
}

void WorkerNode::Step(session::Event event) {
  if (!alive) return;
  world_->Trace(event.index(), Mix(seed_, life));
  std::vector<session::Action> actions;
  session_->Step(event, world_->now(),
                 [&](session::Action&& a) { actions.push_back(std::move(a)); });
  if (World::transcript_of() == name) {
    std::printf("%s > %s\n", absl::FormatDuration(world_->elapsed()).c_str(),
                session::ToString(event).c_str());
    for (const session::Action& a : actions) std::printf("    %s\n", session::ToString(a).c_str());
  }
  if (const auto* orders = std::get_if<event::Orders>(&event)) {
    const uint64_t generation = orders->orders.generation();
    if (generation < generation_) {
      world_->Count("orders of an old generation");
      for (const session::Action& a : actions) {
        if (ComesOfOrders(a)) {
          world_->Violate(Promise::kG5, absl::StrCat(name, " followed orders of generation ",
                                                     generation, " after ", generation_));
        }
      }
    }
    generation_ = std::max(generation_, generation);
  }
  for (session::Action& a : actions) {
    if (!alive) return;
    std::visit([&](auto& x) { Do(x); }, a);
  }
}

void WorkerNode::Do(action::Register& a) {
  if (a.registration > 0) world_->Count("worker rejoins");
  if (job_.has_value()) job_->truth->OnGone(incarnation_);
  RegisterRequest request;
  request.set_role(WORKER);
  request.set_name(name);
  request.set_address(name);
  request.set_nonce(Mix(Mix(seed_, life), a.registration));
  request.mutable_version()->set_version("0.1.0");
  request.mutable_version()->set_protocol(ProtocolVersion());
  cluster_->Register(this, request, [this](absl::StatusOr<RegisterReply> reply) {
    if (!reply.ok() || !reply->refused().empty())
      return Step(event::RegisterFailed{absl::UnavailableError("no answer")});
    id_ = WorkerId(reply->id());
    incarnation_ = Incarnation(reply->incarnation());
    generation_ = std::max(generation_, reply->generation());
    Step(event::Registered{id_, incarnation_, Generation(reply->generation()), reply->cluster()});
  });
}

void WorkerNode::Do(action::Report& a) {
  const Incarnation incarnation(a.report.incarnation());
  cluster_->Call<WorkerOrders>(
      this, a.report.generation(),
      [report = std::move(a.report)](coordinator::CallId call) {
        return coordinator::event::WorkerReport{call, report};
      },
      [this, incarnation](std::optional<WorkerOrders> orders) {
        if (!orders.has_value())
          return Step(event::ReportFailed{incarnation, absl::UnavailableError("no answer")});
        Step(event::Orders{incarnation, *std::move(orders)});
      });
}

void WorkerNode::Do(action::Connect& a) {
  const uint64_t number = ++connects_;
  connecting_[a.shard] = number;
  world_->After(
      cluster_->network().Delay(), this, [this, number, shard = a.shard, address = a.address] {
        const auto it = connecting_.find(shard);
        if (it == connecting_.end() || it->second != number) return;
        connecting_.erase(it);
        auto place = std::make_shared<std::weak_ptr<Network::Stream>>();
        Network::End mine{
            this, life,
            [this, shard, place](const Message& m) {
              const auto stream = place->lock();
              if (stream != nullptr) OnMessage(shard, stream->id, m);
            },
            [this, shard, place](const absl::Status&) {
              const auto stream = place->lock();
              const auto open = streams_.find(shard);
              if (stream == nullptr || open == streams_.end() || open->second != stream) return;
              streams_.erase(open);
              Step(event::StreamDown{shard, absl::UnavailableError("cut")});
            }};
        const Network::StreamPtr stream =
            cluster_->streams().ConnectBare(address, {PeerRole::kWorker, name}, std::move(mine));
        if (stream == nullptr)
          return Step(event::StreamDown{shard, absl::UnavailableError("refused")});
        *place = stream;
        streams_[shard] = stream;
        Step(event::StreamUp{shard});
      });
}

void WorkerNode::Do(action::Disconnect& a) {
  connecting_.erase(a.shard);
  const auto it = streams_.find(a.shard);
  if (it == streams_.end()) return;
  const Network::StreamPtr stream = it->second;
  streams_.erase(it);
  cluster_->network().Close(stream, 0);
}

// What the checker knows of the clocks comes from what the worker says to the shards.
void WorkerNode::Track(const FrameHeader& sent) {
  const bool close = sent.type == FrameType::kClose;
  if (sent.key.work.purpose != WorkPurpose::kEvaluate && sent.policy != policy_) {
    policy_ = sent.policy;
    entering_ = false;
    job_->truth->OnParked(incarnation_);  // of the policy before
  }
  if (close && (sent.flags & frame_flags::kEnter)) entering_ = true;
  if (close && (sent.flags & frame_flags::kPark)) job_->truth->OnParked(incarnation_);
  if (entering_ && sent.type == FrameType::kPull &&
      sent.key.work.purpose != WorkPurpose::kEvaluate) {
    entering_ = false;
    job_->truth->OnEntered(id_, incarnation_, sent.clock, sent.policy);
  }
}

void WorkerNode::Do(action::Send& a) {
  const auto stream = streams_.find(a.shard);
  if (stream == streams_.end()) {
    return world_->Violate(Promise::kG8, absl::StrCat(name, " sends without a stream"));
  }
  Track(a.header);
  if (a.header.type == FrameType::kPull) pulls_[a.header.request_id] = a.header.min_lsn;
  Message message;
  message.header = a.header;
  if (a.buffer.value != 0) {
    const auto buffer = buffers_.find(a.buffer);
    if (buffer == buffers_.end()) {
      return world_->Violate(Promise::kG8,
                             absl::StrCat(name, " sends a buffer that it has released"));
    }
    message.payload = buffer->second;
    message.header.digest = DigestOf(*message.payload);
    if (!pushes_.try_emplace(a.header.request_id, a.header).second)
      world_->Count("pushes sent again");
    Random& random = world_->random();
    if (random.Chance(cluster_->network().faults().corrupt)) {
      auto spoiled = std::make_shared<Values>(*message.payload);
      (*spoiled)[random.Below(spoiled->size())] += 1;
      message.payload = spoiled;
      world_->Count("fault: corrupted payload");
    }
    if (random.Chance(cluster_->network().faults().forge)) Forge(stream->second, a);
  }
  cluster_->network().Send(stream->second, 1, std::move(message));
}

// Something from another time: the same key in another era, or through another view; or an item of
// the next epoch, whose turn has not come.
void WorkerNode::Forge(const Network::StreamPtr& stream, const action::Send& a) {
  const Workload& workload = job_->truth->workload();
  Message message;
  FrameHeader& h = message.header = a.header;
  h.request_id = std::numeric_limits<uint64_t>::max();
  ValuesPtr payload = std::make_shared<Values>(buffers_.at(a.buffer)->size(), 1000.0F);
  switch (world_->random().Below(3)) {
    case 0:
      ++h.key.run.era;
      world_->Count("fault: push of another era");
      break;
    case 1:
      --h.view.value;
      world_->Count("fault: push of an old view");
      break;
    default: {
      WorkRange& work = h.key.work;
      ++work.epoch;
      const uint64_t steps = StepsInEpoch(workload.spec, workload.train_samples, work.epoch);
      const bool counts = workload.gradient == GradientKind::kCounting && workload.switches == 0 &&
                          workload.spec.policy().kind() != Policy::BSP;
      if (!counts || work.first / workload.spec.batch().micro_batches() >= steps) return;
      payload = std::make_shared<Values>(
          Contribution(workload, job_->truth->layout(), {}, h.key.slice, work));
      h.samples = static_cast<uint32_t>(SamplesIn(workload, work));
      world_->Count("fault: push of the next epoch");
    }
  }
  h.digest = DigestOf(*payload);
  message.payload = payload;
  cluster_->network().Send(stream, 1, std::move(message));
}

void WorkerNode::OnMessage(ShardId shard, uint64_t stream, const Message& message) {
  const auto open = streams_.find(shard);
  if (open == streams_.end() || open->second->id != stream) return;
  const FrameHeader& h = message.header;
  BufferId buffer;
  if (message.payload != nullptr) {
    buffer = BufferId(++last_buffer_);
    buffers_[buffer] = message.payload;
    truths_[buffer] = message.truth;
    truths_[buffer].pull_policy = h.policy;
  }
  const auto push = pushes_.find(h.request_id);
  if (h.type == FrameType::kAck && push != pushes_.end() && job_.has_value() &&
      push->second.key.run == job_->run) {
    job_->truth->OnPushAcked(h, push->second.key.slice, push->second.key.work);
  }
  const auto pull = pulls_.find(h.request_id);
  if (h.type == FrameType::kValue && pull != pulls_.end() && job_.has_value() &&
      job_->truth->PolicyOf(message.truth.policy).kind != PolicyKind::kBsp &&
      h.base_lsn < pull->second) {
    world_->Violate(Promise::kG2, absl::StrCat("a pull that had seen position ", pull->second.value,
                                               " got ", h.base_lsn.value));
  }
  if (h.type == FrameType::kError)
    world_->Count(absl::StrCat("answers: error ", static_cast<int>(h.answer)).c_str());
  Step(event::Frame{shard, h, buffer, message.text});
}

void WorkerNode::Do(action::Prepare& a) {
  JobTruth* truth = cluster_->Truth(a.job);
  const RunId run{JobUid(a.job.run().job_uid()), a.job.run().era()};
  Job& job = job_.emplace();
  job.run = run;
  job.truth = truth;
  for (auto& copy : job.copies) copy.resize(truth->layout().slices.size());
  event::JobPrepared prepared;
  prepared.run = run;
  for (const Slice& slice : truth->layout().slices)
    prepared.slices.push_back({slice.partition, slice.elements, true});
  const bool taken = neighbour_ != nullptr && neighbour_->HasMemory();
  world_->After(world_->random().Between(absl::Milliseconds(1), absl::Milliseconds(20)), this,
                [this, prepared, taken]() mutable {
                  const bool open = job_.has_value() && job_->run == prepared.run;
                  if (open && (taken || (neighbour_ != nullptr && neighbour_->HasMemory()))) {
                    world_->Count("fault: no memory for a job");
                    job_->has_memory = false;
                    prepared.status = absl::ResourceExhaustedError(kNoMemory);
                  }
                  Step(prepared);
                });
}

void WorkerNode::Do(action::CloseJob&) { job_.reset(); }

void WorkerNode::Do(action::Inspect& a) {
  const Workload& workload = cluster_->WorkloadOf(a.request.spec().name());
  event::Inspected inspected;
  inspected.inspection.set_request(a.request.request());
  inspected.inspection.set_train_samples(workload.train_samples);
  inspected.inspection.set_test_samples(workload.test_samples);
  inspected.inspection.add_sample_shape(3);
  inspected.inspection.set_classes(2);
  world_->After(world_->random().Between(absl::Milliseconds(1), absl::Milliseconds(20)), this,
                [this, inspected] { Step(inspected); });
}

void WorkerNode::Do(action::Prefetch&) {}

void WorkerNode::Do(action::Compute& a) {
  if (job_->unit.has_value())
    world_->Violate(Promise::kG8, absl::StrCat(name, " computes two units at once"));
  job_->unit = a;
  job_->running = false;
  if (a.purpose == WorkPurpose::kTrain) {
    job_->truth->OnUnit(incarnation_, a.clock, a.ranges.front());
  }
  MaybeRun();
}

void WorkerNode::Do(action::Abandon& a) {
  if (job_->unit.has_value() && job_->unit->unit == a.unit) job_->unit.reset();
  world_->Count("abandoned units");
}

void WorkerNode::Do(action::InstallValue& a) {
  Held& held = job_->copies[static_cast<int>(a.params)][a.slice.value];
  const ValueTruth& truth = truths_.at(a.buffer);
  if (truth.run != job_->run) world_->Violate(Promise::kG2, "a value of another run was installed");
  if (a.params == Params::kLive) {
    const bool wanted =
        job_->unit.has_value() && job_->unit->purpose == WorkPurpose::kTrain && job_->running;
    if (wanted && a.clock <= job_->unit->clock) {
      world_->Violate(Promise::kG2, absl::StrCat(name, " overwrites values that are being read"));
    }
    job_->truth->OnInstalled(incarnation_, a.slice, a.clock, truth, *buffers_.at(a.buffer));
  }
  held.values = buffers_.at(a.buffer);
  held.version = a.clock;
  held.loss_scale_log2 = a.loss_scale_log2;
  buffers_.erase(a.buffer);
  truths_.erase(a.buffer);
  MaybeRun();
}

void WorkerNode::Do(action::ForgetValues& a) {
  for (const Params params : {Params::kLive, Params::kSnapshot}) {
    if (params == Params::kSnapshot && !a.snapshot_too) continue;
    for (Held& held : job_->copies[static_cast<int>(params)]) held.version = -1;
  }
}

void WorkerNode::Do(action::ReleaseBuffer& a) {
  buffers_.erase(a.buffer);
  truths_.erase(a.buffer);
}

void WorkerNode::Do(action::Exit& a) {
  exited_ = true;
  world_->Count(a.status.ok() ? "drained workers" : "workers that gave up draining");
  Crash();
}

void WorkerNode::MaybeRun() {
  if (!job_->unit.has_value() || job_->running) return;
  std::vector<ValuesPtr> values;
  for (const Held& held : job_->copies[static_cast<int>(job_->unit->params)]) {
    if (held.version != job_->unit->clock) return;
    values.push_back(held.values);
  }
  job_->running = true;
  if (job_->unit->purpose == WorkPurpose::kEvaluate) return RunEvaluation();
  job_->truth->OnAllValues(incarnation_, job_->unit->clock);
  RunTraining(values);
}

// Forward in the first half of the time, then gradients from the last slice to the first.
void WorkerNode::RunTraining(const std::vector<ValuesPtr>& values) {
  const action::Compute unit = *job_->unit;
  const auto slices = static_cast<uint32_t>(values.size());
  const Workload& trained = job_->truth->workload();
  const bool scales = trained.spec.precision() == PRECISION_FP16;
  const std::vector<Held>& live = job_->copies[static_cast<int>(Params::kLive)];
  const uint8_t log2 = scales ? live[kLossScaleSlice.value].loss_scale_log2 : 0;
  bool any = false;
  SliceId last;
  for (const WorkRange& range : unit.ranges)
    any = any || (scales && Overflows(trained, range, log2, slices, &last));
  std::vector<absl::Duration> times;
  absl::Duration all;
  for (const WorkRange& range : unit.ranges) {
    times.push_back(range.count * micro_batch_time_ * (0.8 + 0.1 * world_->random().Below(5)));
    all += times.back();
  }
  absl::Duration at = absl::ZeroDuration();
  for (uint32_t r = 0; r < unit.ranges.size(); ++r) {
    const WorkRange range = unit.ranges[r];
    for (uint32_t i = 0; i < slices; ++i) {
      const SliceId slice(slices - 1 - i);
      const absl::Duration ready =
          unit.whole ? all : at + times[r] * (0.5 + 0.5 * (i + 1) / slices);
      bool skipped = unit.whole && any;
      if (scales && !unit.whole && Overflows(trained, range, log2, slices, &last))
        skipped = slice <= last;
      world_->After(ready, this, [this, unit, r, range, slice, values, log2, skipped] {
        if (!job_.has_value() || !job_->unit.has_value() || job_->unit->unit != unit.unit) return;
        const Workload& workload = job_->truth->workload();
        auto sum = std::make_shared<Values>(
            Contribution(workload, job_->truth->layout(), values, slice, range));
        const bool poisoned = workload.poisoned && slice.value == 0 &&
                              range.epoch == workload.poison.epoch &&
                              range.first <= workload.poison.first &&
                              workload.poison.first < range.first + range.count;
        if (skipped) sum->assign(sum->size(), 0);
        if (poisoned) sum->back() = std::numeric_limits<float>::quiet_NaN();
        const BufferId buffer(++last_buffer_);
        buffers_[buffer] = sum;
        Step(event::SliceGradient{unit.unit, r, slice, buffer,
                                  static_cast<uint32_t>(SamplesIn(workload, range)), log2,
                                  skipped});
      });
    }
    at += times[r];
  }
  world_->After(at, this, [this, unit] {
    if (!job_.has_value() || !job_->unit.has_value() || job_->unit->unit != unit.unit) return;
    event::UnitComputed computed;
    computed.unit = unit.unit;
    for (const WorkRange& range : unit.ranges) {
      const uint64_t samples = SamplesIn(job_->truth->workload(), range);
      computed.metrics.push_back({static_cast<double>(samples), samples, 0});
    }
    job_->unit.reset();
    Step(computed);
  });
}

void WorkerNode::RunEvaluation() {
  const action::Compute unit = *job_->unit;
  world_->After(unit.ranges.front().count * micro_batch_time_ * 0.5, this, [this, unit] {
    if (!job_.has_value() || !job_->unit.has_value() || job_->unit->unit != unit.unit) return;
    event::UnitComputed computed;
    computed.unit = unit.unit;
    const Workload& workload = job_->truth->workload();
    for (const WorkRange& range : unit.ranges) {
      const uint64_t samples = TestSamplesIn(workload, range);
      computed.metrics.push_back(
          {static_cast<double>(samples), samples, CorrectIn(workload, range)});
    }
    job_->unit.reset();
    Step(computed);
  });
}

}  // namespace starling::sim
