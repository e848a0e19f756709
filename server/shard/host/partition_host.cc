#include "server/shard/host/partition_host.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/defences.h"
#include "common/trace/flow.h"
#include "server/shard/apply/measure.h"
#include "server/shard/apply/verify.h"

namespace starling {
namespace {

// `value`: a VALUE's header, which repeats the pull's fields.
bool IsTrainingPull(const FrameHeader& value) {
  return value.key.work.purpose != WorkPurpose::kEvaluate &&
         (value.flags & frame_flags::kReader) == 0;
}

// Measures time since its construction, by the owner's clock and for spans.
class Stopwatch {
 public:
  explicit Stopwatch(const EventLoop* clock) : clock_(clock) {}
  absl::Duration elapsed() const { return clock_->Now() - begin_; }
  uint64_t begin_us() const { return begin_us_; }

 private:
  const EventLoop* const clock_;
  const absl::Time begin_ = clock_->Now();
  const uint64_t begin_us_ = SpanRing::NowMicros();
};

// Null: no peer waits for an answer to the event.
const FrameReceived* FrameOf(const PartitionEvent& event) {
  if (const auto* record = std::get_if<RecordReceived>(&event)) return &record->frame;
  if (const auto* part = std::get_if<SnapshotReceived>(&event)) return &part->frame;
  return std::get_if<FrameReceived>(&event);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PartitionHost>> PartitionHost::Create(
    std::shared_ptr<const ShardJobPlan> plan, PartitionId partition, Environment environment,
    FirstState first) {
  STARLING_ASSIGN_OR_RETURN(
      PartitionConfig config,
      MakePartitionConfig(plan->description, plan->layout, partition, environment.self));
  std::unique_ptr<PartitionHost> host(
      new PartitionHost(std::move(plan), std::move(config), std::move(environment), first));
  if (first == FirstState::kFirstValues) {
    STARLING_RETURN_IF_ERROR(host->values_.Make(*host->plan_));
  }
  host->PublishIfDue(false);
  return host;
}

PartitionHost::PartitionHost(std::shared_ptr<const ShardJobPlan> plan, PartitionConfig config,
                             Environment environment, FirstState first)
    : plan_(std::move(plan)),
      environment_(std::move(environment)),
      owner_(environment_.owner),
      memory_(environment_.memory.get()),
      spans_(environment_.spans),
      micro_batches_(config.micro_batches),
      core_(std::move(config), first),
      values_(memory_, *plan_, core_.config().partition),
      action_memory_(
          memory_, [this] { return GiveUpSnapshot() || environment_.give_up_capture(); },
          [this] { return core_.leads(); }) {
  for (const SliceId id : plan_->layout.partitions[core_.config().partition.value]) {
    value_bytes_ += plan_->layout.slices[id.value].elements * sizeof(float);
  }
  memory_->AddHosted(value_bytes_);
  plan_->metrics->parameter_bytes += static_cast<int64_t>(value_bytes_);
  ++plan_->metrics->partitions;
  if (environment_.observer == nullptr) return;
  core_.ObserveEffects(
      [this](const Record& record) { environment_.observer->OnEffect(core_, record); });
}

PartitionHost::~PartitionHost() {
  ObserveGone();
  if (paused_.has_value()) owner_->Cancel(paused_->timer);
  const std::string why = "the partition is not hosted here any more";
  RefuseArrived(why);
  for (const auto& [id, header] : core_.ParkedFrames()) {
    if (const auto connection = connections_.find(id); connection != connections_.end())
      SendRefusal(*connection->second, header, Answer::kNotHosted, why);
  }
  memory_->RemoveHosted(value_bytes_);
  plan_->metrics->parameter_bytes -= static_cast<int64_t>(value_bytes_);
  --plan_->metrics->partitions;
  memory_->ReturnWaiting(waiting_bytes_);
}

std::unique_ptr<EndedPartition> PartitionHost::End(std::optional<uint64_t> keep_version) {
  ObserveGone();
  // The core of a learner may have all of its snapshot while there is no memory to install it.
  if (!core_.has_copy() || !values_.whole()) return nullptr;
  const PartitionStatus status = core_.Status();
  EndedPartition::Position position{
      core_.config().run,        core_.config().partition,
      ViewNumber(status.view()), RosterNumber(status.roster()),
      Lsn(status.lsn()),         values_.two_versions() ? keep_version : std::nullopt};
  return std::make_unique<EndedPartition>(position, values_.Take(position.version),
                                          environment_.memory);
}

void PartitionHost::OnFrame(std::shared_ptr<ShardConnection> connection, const FrameHeader& header,
                            ReceivedPayload payload, absl::Time arrived) {
  if (!fault_.empty()) return SendRefusal(*connection, header, Answer::kNotHosted, fault_);
  const ConnectionId id = connection->id();
  connections_.try_emplace(id, std::move(connection));
  if (header.type == FrameType::kReplicate) return OnReplicated(id, header, payload);
  if (header.type == FrameType::kPush) {
    const absl::Duration queued = owner_->Now() - arrived;
    ++times_.pushes;
    times_.received_bytes += payload.size();
    times_.queue += queued;
    plan_->metrics->received_bytes += payload.size();
    plan_->metrics->queue_us += static_cast<uint64_t>(absl::ToInt64Microseconds(queued));
  }
  BufferId buffer;
  bool may_wait = true;
  if (payload.size() > 0) {
    may_wait = memory_->ReserveWaiting(payload.size());
    if (may_wait) waiting_bytes_ += payload.size();
    buffer = BufferId(++last_buffer_);
    const size_t elements = payload.size() / sizeof(float);
    buffers_.emplace(buffer, Buffer{std::move(payload), nullptr, elements, header, arrived});
    new_buffers_.push_back(buffer);
  }
  Handle(FrameReceived{id, header, buffer, may_wait});
}

void PartitionHost::OnConnectionDown(ConnectionId connection) {
  if (connections_.erase(connection) > 0) Handle(ConnectionDown{connection});
}

void PartitionHost::OnOrders(OrdersReceived orders) {
  at_once_ = true;
  Handle(std::move(orders));
}

void PartitionHost::OnDecision(const FrameHeader& answer, std::string text) {
  Handle(DecisionReceived{answer, std::move(text)});
}

void PartitionHost::OnTick() {
  if (paused_.has_value()) return;
  Handle(ShardTick{});
  changed_ = changed_ || core_.HoldsTrainingPulls();
  PublishIfDue(true);
}

void PartitionHost::Handle(PartitionEvent event) {
  if (!fault_.empty()) return PublishIfDue(false);
  if (!std::holds_alternative<ShardTick>(event)) changed_ = true;
  arrived_.push_back(std::move(event));
  if (!paused_.has_value()) HandleWaiting();
}

void PartitionHost::HandleWaiting() {
  const absl::Time now = owner_->Now();
  while (fault_.empty() && !paused_.has_value()) {
    std::deque<PartitionEvent>& from = events_.empty() ? arrived_ : events_;
    if (from.empty()) break;
    const PartitionEvent next = std::move(from.front());
    from.pop_front();
    PartitionActions actions;
    core_.Step(next, now, actions);
    if (environment_.observer != nullptr) environment_.observer->OnStep(core_, next, actions);
    Carry(std::move(actions), 0);
  }
  if (paused_.has_value()) return;
  MoveNewBuffers();
  const uint64_t waiting = core_.parked_bytes();
  memory_->ReturnWaiting(waiting_bytes_ - waiting);
  waiting_bytes_ = waiting;
  // The coordinator waits for cuts, for partitions that have drained for a policy, and for whole
  // backups.
  const PartitionCounters& counters = core_.counters();
  if (std::exchange(cuts_reported_, counters.cuts) != counters.cuts) at_once_ = true;
  if (std::exchange(drains_reported_, counters.drains) != counters.drains) at_once_ = true;
  if (std::exchange(wholes_reported_, counters.wholes) != counters.wholes) at_once_ = true;
  PublishIfDue(false);
}

void PartitionHost::ObserveGone() const {
  if (environment_.observer == nullptr) return;
  environment_.observer->OnGone(core_,
                                values_.whole() ? values_.Hosted() : std::vector<HostedSlice>());
}

void PartitionHost::Carry(PartitionActions actions, size_t next) {
  for (; next < actions.size(); ++next) {
    std::visit([this](const auto& a) { Do(a); }, actions[next]);
    if (action_memory_.missing() > 0) return Pause(std::move(actions), next);
    action_memory_.Done();
    if (!std::holds_alternative<SendFrame>(actions[next])) changed_ = true;
  }
}

// The action has changed nothing.
void PartitionHost::Pause(PartitionActions actions, size_t next) {
  constexpr absl::Duration kLookAgainAfter = absl::Milliseconds(1);
  if (!action_memory_.MayRetry(owner_->Now(), /*patient=*/!core_.leads())) return OutOfMemory();
  paused_ = Paused{std::move(actions), next};
  paused_->timer = owner_->PostAfter(kLookAgainAfter, [this] { Resume(); });
}

void PartitionHost::Resume() {
  Paused paused = *std::move(paused_);
  paused_.reset();
  Carry(std::move(paused.actions), paused.next);
  if (!paused_.has_value()) HandleWaiting();
}

void PartitionHost::PublishIfDue(bool tick) {
  if (!at_once_ && !(tick && changed_)) return;
  PartitionStatus status = core_.Status();
  AddTimes(status);
  if (!fault_.empty() && status.fault().empty()) {  // the core's own would come back on any copy
    status.set_fault(fault_);
    status.set_no_memory(true);
  }
  status.set_bsp_bytes_more(plan_->BspBytesMore(core_.config().partition));
  environment_.report(status, at_once_);
  at_once_ = false;
  changed_ = false;
}

void PartitionHost::AddTimes(PartitionStatus& status) const {
  PartitionTimes& times = *status.mutable_times();
  times.set_pushes(times_.pushes);
  times.set_received_bytes(times_.received_bytes);
  times.set_sent_bytes(times_.sent_bytes);
  times.set_queue(absl::ToDoubleSeconds(times_.queue));
  times.set_verify(absl::ToDoubleSeconds(times_.verify));
  times.set_apply(absl::ToDoubleSeconds(times_.apply));
  times.set_applies(times_.applies);
}

// False: there is no memory, and the buffer stays where it is. `for_action`: the current action
// cannot do without.
bool PartitionHost::MoveToOwnMemory(Buffer& buffer, bool for_action) {
  if (buffer.own != nullptr) return true;
  const size_t elements = (buffer.received.size() + sizeof(float) - 1) / sizeof(float);
  buffer.own = for_action ? action_memory_.Allocate(elements) : memory_->Allocate(elements);
  if (buffer.own == nullptr) return false;
  buffer.received.CopyTo(buffer.own.get());
  buffer.received = ReceivedPayload();
  return true;
}

// Moves buffers that the core keeps beyond the event: sums that wait for siblings, frames that wait
// for orders. A buffer without memory holds back the sender's credit and is tried again after the
// next event.
void PartitionHost::MoveNewBuffers() {
  std::erase_if(new_buffers_, [this](BufferId id) {
    const auto it = buffers_.find(id);
    return it == buffers_.end() || MoveToOwnMemory(it->second, /*for_action=*/false);
  });
}

// The core learns which updates were carried out, so that its position is that of the values. All
// its actions are dropped, so it must not be stepped again.
void PartitionHost::OutOfMemory() {
  for (const PartitionEvent& event : std::exchange(events_, {})) {
    if (!std::holds_alternative<Applied>(event)) continue;
    PartitionActions dropped;
    core_.Step(event, owner_->Now(), dropped);
    if (environment_.observer != nullptr) environment_.observer->OnStep(core_, event, {});
  }
  fault_ = absl::StrCat("the shard has no memory for ", action_memory_.missing(),
                        " more elements (", memory_->allocated() >> 20,
                        " MiB are in use): add shards or memory, or look for stalled readers");
  spdlog::error("job {} partition {} stopped: {}", plan_->description.spec().name(),
                core_.config().partition.value, fault_);
  RefuseArrived(fault_);
  at_once_ = true;
}

// Refuses frames that arrived while the partition was paused.
void PartitionHost::RefuseArrived(const std::string& why) {
  for (const PartitionEvent& event : arrived_) {
    const FrameReceived* const frame = FrameOf(event);
    if (frame == nullptr) continue;
    const auto connection = connections_.find(frame->connection);
    if (connection == connections_.end()) continue;
    SendRefusal(*connection->second, frame->header, Answer::kNotHosted, why);
  }
  arrived_.clear();
}

template <typename Fn>
void PartitionHost::WithPayload(const Buffer& buffer, Fn&& fn) {
  if (buffer.own == nullptr) return fn(buffer.received.pieces());
  const PayloadPiece piece(reinterpret_cast<const uint8_t*>(buffer.own.get()),
                           buffer.elements * sizeof(float));
  fn(Payload(&piece, 1));
}

void PartitionHost::Do(const Verify& action) {
  Buffer& buffer = buffers_.at(action.payload);
  const Stopwatch watch(owner_);
  PayloadCheck check;
  if (buffer.own == nullptr && buffer.received.shared()) {
    // What is applied is what was checked: the copy.
    const auto see = [&](PayloadPiece piece) { check.Add(piece); };
    buffer.own = memory_->Allocate((buffer.received.size() + sizeof(float) - 1) / sizeof(float));
    if (buffer.own != nullptr) {
      CopyOut(buffer.received, buffer.own.get(), see);
      buffer.received = ReceivedPayload();
    } else {
      buffer.received = memory_->copies().Take(std::move(buffer.received), see);
    }
  } else {
    WithPayload(buffer, [&](Payload payload) {
      for (const PayloadPiece piece : payload) check.Add(piece);
    });
  }
  const PayloadVerdict verdict = check.verdict();
  events_.push_back(Verified{action.payload, verdict.digest, verdict.first_non_finite});
  times_.verify += watch.elapsed();
  plan_->metrics->push.ObserveMicros(
      static_cast<uint64_t>(absl::ToInt64Microseconds(owner_->Now() - buffer.arrived)));
  spans_->Record(absl::StrCat("push slice ", action.slice.value), SpanCategory::kPush,
                 watch.begin_us(), SpanRing::NowMicros(),
                 {buffer.header.clock, action.slice.value,
                  FlowOf(plan_->run, action.slice, buffer.header.key.work, micro_batches_)});
}

void PartitionHost::Do(const MergeSums& action) {
  Buffer& into = buffers_.at(action.into);
  if (!MoveToOwnMemory(into, /*for_action=*/true)) return;
  const Stopwatch watch(owner_);
  WithPayload(buffers_.at(action.from), [&](Payload payload) {
    into.first_non_finite = AddPayload(payload, into.own.get());
  });
  times_.apply += watch.elapsed();
}

void PartitionHost::Do(const Measure& action) {
  const Stopwatch watch(owner_);
  WithPayload(buffers_.at(action.payload), [&](Payload payload) {
    const PayloadMeasure measure = MeasurePayload(payload);
    events_.push_back(Measured{action.payload, measure.norm2, measure.first_non_finite});
  });
  times_.verify += watch.elapsed();
}

void PartitionHost::Do(const ReportNorm& action) { environment_.send_report(action.header); }

void PartitionHost::Do(const ApplyNow& action) {
  const Buffer& gradient = buffers_.at(action.payload);
  if (gradient.first_non_finite >= 0) {
    events_.push_back(Applied{action.record.lsn, gradient.first_non_finite});
    return;
  }
  const Stopwatch watch(owner_);
  std::shared_ptr<float> result = values_.MemoryFor(action, action_memory_);
  if (result == nullptr) return;
  if (environment_.apply_wait > absl::ZeroDuration()) absl::SleepFor(environment_.apply_wait);
  int64_t not_finite = -1;
  WithPayload(gradient, [&](Payload payload) {
    not_finite = values_.Apply(action, payload, std::move(result));
    if (environment_.observer == nullptr) return;
    environment_.observer->OnCarriedOut(core_, action.record, payload,
                                        values_.Hosted(action.record.slice));
  });
  events_.push_back(Applied{action.record.lsn, -1,
                            action.digest ? values_.Digest(action.record.slice) : 0, not_finite});
  const absl::Duration took = watch.elapsed();
  times_.apply += took;
  ++times_.applies;
  plan_->metrics->apply.ObserveMicros(static_cast<uint64_t>(absl::ToInt64Microseconds(took)));
  const bool leads = core_.leads();  // no push came to a backup
  const uint64_t flow =
      leads ? FlowOf(plan_->run, action.record.slice, action.record.work, micro_batches_) : 0;
  spans_->Record(absl::StrCat(leads ? "apply" : "repeat", " slice ", action.record.slice.value),
                 SpanCategory::kApply, watch.begin_us(), SpanRing::NowMicros(),
                 {action.record.clock, action.record.slice.value, flow});
}

void PartitionHost::Do(const SwitchPolicy& action) {
  if (!values_.Switch(action, action_memory_)) return;
  spdlog::info("job {} partition {} follows policy {} from step {}",
               plan_->description.spec().name(), core_.config().partition.value,
               action.number.value, action.version);
}

void PartitionHost::Do(const CopyForCut&) { values_.CopyForCut(); }

void PartitionHost::Do(const DropCopy&) { values_.DropCopy(); }

void PartitionHost::Do(const CaptureCheckpoint& action) {
  const CutState& state = action.state;
  // A copy of the epoch that has just ended has the values themselves.
  const bool copy = state.copy.has_value() && !DefenceMasked(Defence::kCheckpointCopy) &&
                    (*state.copy + uint64_t{1}) * core_.config().FullSteps() != state.step;
  std::vector<CapturedBlock> blocks = values_.Blocks(plan_->description.spec().model(), copy);
  if (DefenceMasked(Defence::kCheckpointSlots)) {
    const auto zeros = std::make_shared<const std::vector<float>>(limits::kSliceElementsMax);
    for (CapturedBlock& block : blocks) {
      if (block.name.part != BlockPart::kSlot0 && block.name.part != BlockPart::kSlot1) continue;
      block.values = absl::MakeConstSpan(*zeros).first(block.values.size());
      block.pin = zeros;
    }
  }
  environment_.captured(action.number, state, std::move(blocks));
}

void PartitionHost::Do(const MissCheckpoint& action) {
  environment_.missed(action.number, action.why);
}

void PartitionHost::Do(const SendFrame& action) {
  const auto connection = connections_.find(action.connection);
  if (connection == connections_.end()) return;
  FrameHeader header = action.header;
  OutgoingPayload payload;
  if (!action.text.empty()) payload = TextPayload(action.text, &header);
  connection->second->Send(header, std::move(payload), -1);
}

void PartitionHost::Do(const SendValue& action) {
  const auto connection = connections_.find(action.connection);
  if (connection == connections_.end()) return;
  const uint64_t begin = SpanRing::NowMicros();
  const SliceId id = action.header.key.slice;
  SliceValues::Value& value = values_.ValueToSend(action);
  FrameHeader header = action.header;
  OutgoingPayload payload = ValuePayload(value.data, values_.elements(id), &value.digest, &header);
  times_.sent_bytes += header.payload_bytes;
  plan_->metrics->sent_bytes += header.payload_bytes;
  if (IsTrainingPull(header)) plan_->metrics->pull.ObserveMicros(header.held_us);
  // In forward order: slices that are needed first are sent first.
  connection->second->Send(header, std::move(payload), id.value);
  spans_->Record(absl::StrCat("value slice ", id.value), SpanCategory::kPull, begin,
                 SpanRing::NowMicros(), {header.clock, id.value, 0});
}

void PartitionHost::Do(const Release& action) { buffers_.erase(action.buffer); }

void PartitionHost::Do(const ReportFault& action) {
  spdlog::error("job {} partition {} stopped: {}", plan_->description.spec().name(),
                core_.config().partition.value, action.message);
  at_once_ = true;
}

}  // namespace starling
